//! Storage units, where sealed blocks lie.
//!
//! A unit stores the slots of segments. Each kind of unit is a crate of its own: a folder
//! on a mounted file system (`unit-folder`), a bucket of an object store (`unit-object`),
//! a pool of a Ceph cluster (`unit-rados`), and a unit behind a unit daemon
//! (`unit-remote`). Units are not trusted: they see ciphertext and tags, never a key, a
//! volume's name or a block's index. This crate cannot name a key type.
//!
//! * [`Unit`]: the trait. [`UnitError`]: why a unit could not do what was requested.
//! * [`UnitLayer`]: a unit that wraps another one.
//! * [`TrackedUnit`]: a unit that tracks its own health, so that writers pass over a
//!   failing one and status shows it.
//! * [`Marker`], [`Owner`]: what a unit says about itself, and which database may change it.
//! * [`mod@format`]: what the formats of segments have in common.
//!
//! What every unit must do is a conformance suite in the crate `testkit`.
//!
//! The life of a segment on a unit:
//!
//! ```text
//!  1. put     slots 0..n, then n..m, … appended, each slot written once
//!  2. sync    everything put so far is durable
//!  3. read    any slots, any number of times
//!  4. free    slots that no version names; the unit reclaims their room
//!  5. delete  when every slot is free, or when the segment is a leftover
//!
//!     replace at any time after 2: another content takes the place of the whole segment
//! ```

mod error;
pub mod format;
pub mod fuzz;
mod health;
mod layer;
mod marker;
mod owner;
mod unit;

pub use error::UnitError;
pub use health::{
    Calls, Durations, Health, HealthReport, Moment, OpClass, TrackedUnit, Traffic, UnitState,
};
pub use layer::{UnitLayer, UnitOp};
pub use marker::{MARKER_BYTES_MAX, MARKER_FILE, Marker, MarkerError};
pub use owner::Owner;
pub use unit::{
    Fact, NOTE_BYTES, Put, Read, ReadDone, ReadSlots, Replacement, ReplacementPart, SegmentSlots,
    SegmentStat, SlotRun, Tag, Unit, UnitStat,
};
