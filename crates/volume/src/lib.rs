//! Floor 4: the engine. A [`Volume`] is a disk whose sealed blocks lie
//! scattered over units that nobody has to trust.
//!
//! Its face is small: [`Volume::open`], the verbs of [`base::BlockDevice`],
//! [`Volume::snapshot`], [`Volume::grow`], [`Volume::begin_close`],
//! [`Volume::status`]; and for what no version needs any more,
//! [`clean::Cleaner`]. [`ReadOnlyVolume`] is a version that any number of hosts
//! read, and [`LeaseTerm`] until when one host may write. What it asks of others are two traits and a world:
//! [`catalog::Catalog`] (a database that orders versions), [`unit::Unit`]
//! (places for ciphertext), [`world::World`] (files, time, chance, threads).
//!
//! * [`journal`]: the write-back log on the host's SSD
//! * [`seal`]: keys, nonces, tags
//! * [`scatter`]: dealing over units, reading from whichever copy opens
//! * [`map`]: block → where its sealed block lies
//! * [`version`]: committed states
//! * [`engine`]: the owner that ties them together
//! * [`clean`]: freeing, exactly
//! * [`audit`]: what some units alone have of a version
//!
//! It knows no network protocol, no user and no volume's name.

pub mod audit;
pub mod clean;
pub mod engine;
#[doc(hidden)]
pub mod fixture;
pub mod journal;
mod lease_term;
pub mod map;
pub mod repair;
pub mod scatter;
pub mod seal;
pub mod version;

pub use ::catalog;
pub use engine::{
    OpenError, OpenParams, READS_WAIT_MAX, ReadOnlyParams, ReadOnlyVolume, Volume, VolumeConfig,
    VolumeStatus,
};
pub use lease_term::LeaseTerm;
pub use scatter::Store;
