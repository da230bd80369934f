//! The engine. A [`Volume`] is a disk whose sealed blocks are
//! scattered over untrusted units.
//!
//! Its interface is small: [`Volume::open`], [`base::BlockDevice`],
//! [`Volume::snapshot`], [`Volume::grow`], [`Volume::begin_close`],
//! [`Volume::status`]; [`clean::Cleaner`] frees what no version needs.
//! [`ReadOnlyVolume`] is a version that any number of hosts may read;
//! [`LeaseTerm`] says until when one host may write. It depends on two traits
//! and a world: [`catalog::Catalog`] (a database that orders versions),
//! [`unit::Unit`] (storage for ciphertext), [`world::World`] (files, time,
//! randomness, threads).
//!
//! * [`journal`]: the write-back log on the host's SSD
//! * [`seal`]: keys, nonces, tags
//! * [`scatter`]: placing blocks on units, reading whichever copy opens
//! * [`map`]: block → where its sealed block is
//! * [`version`]: committed states
//! * [`engine`]: the owner of an attached volume
//! * [`clean`]: freeing exactly what no version needs
//! * [`repair`]: restoring what members of a copyset are missing
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

pub use engine::{
    OpenError, OpenParams, READS_WAIT_MAX, ReadOnlyParams, ReadOnlyVolume, Volume, VolumeConfig,
    VolumeStatus,
};
pub use lease_term::LeaseTerm;
pub use scatter::Store;
