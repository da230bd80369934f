//! Floor 3: storage units, where sealed blocks lie.
//!
//! A unit is anything that keeps slots of segments: a folder on any mounted
//! file system, what a daemon keeps, a bucket of an object store (the crate
//! `object`), a pool of a Ceph cluster (the crate `rados`). Units are not trusted:
//! they see ciphertext and tags, never a key, a volume's name or a block's index.
//! This crate cannot name a key type.
//!
//! * [`Unit`]: the trait. [`FolderUnit`]: a folder as a unit.
//! * [`TrackedUnit`]: a unit that knows how it is doing, for writers to pass it
//!   over and for status to show.
//! * [`FaultyUnit`]: a unit with faults, for tests.
//! * [`pass_on!`]: how such units, with another one within, are written.
//! * [`wire`]: what is said to a unit daemon.
//! * [`conformance`]: what every unit must do.
//!
//! A segment's life on a unit, in numbered verbs:
//!
//! ```text
//!  1. put     slots 0..n, then n..m, … appended, each slot written once
//!  2. sync    everything put so far is durable
//!  3. read    any slots, any number of times
//!  4. free    slots that no version names; their room is given back
//!  5. delete  when every slot is free, or when the segment is an orphan
//!
//!     replace at any time after 2: another segment takes its place as a whole
//! ```

#[doc(hidden)]
pub mod conformance;
mod error;
mod faulty;
pub mod folder;
pub mod format;
mod health;
mod pass_on;
pub mod remote;
mod unit;

pub mod wire;

pub use error::UnitError;
pub use faulty::{FaultyUnit, InjectedFaults};
pub use folder::{FolderUnit, ReplacementPart};
pub use health::{
    Calls, Durations, Health, HealthReport, Moment, TrackedUnit, Traffic, UnitState, Verb,
};
pub use remote::RemoteUnit;
pub use unit::{
    Fact, NOTE_BYTES, ReadDone, ReadSlots, Replacement, SegmentSlots, SegmentStat, SlotRun, Tag,
    Unit, UnitStat, assert_fit,
};
