//! Namespaces of a Ceph cluster's pools as storage units.
//!
//! Each segment is an object; `docs/internals/formats.md` draws it. The cost of a call, in
//! operations of the cluster:
//!
//! | call | operations |
//! |---|---|
//! | `read`, `read_async` | one, of the run only, tags included |
//! | `put` | one, with all its slots; and one for the marker, if that was not checked for 5 s |
//! | `sync` | none |
//! | `free` | the marker, the attributes, and one write |
//! | `delete` | the marker, and one |
//! | `replace` | the marker, the attributes, and one write of the whole segment |
//! | `list`, `list_serials` | the marker, and a list of the whole pool's objects |
//!
//! Invariants:
//!
//! * A put, a free, a replacement and a claim are each one atomic change of one object, so there
//!   is no intermediate state to recover from.
//! * A put succeeds only at the end of the segment: the cluster compares, not this program.
//! * A namespace whose marker names another owner's database may be read and is not changed.
//!   One without this unit's marker is never written to.
//! * Every request has a timeout; one that timed out may still be carried out.
//!
//! All `unsafe` is in the module `librados`, which loads Ceph's library when a unit first needs
//! it, so that this program also runs without it.
//!
//! Must not know: keys, volumes, what is in a slot.

#![deny(unsafe_code)]

mod access;
mod account;
mod claim;
mod errors;
mod format;
#[expect(unsafe_code, reason = "it calls a library in C; see its head")]
mod librados;
mod location;
#[cfg(test)]
mod memory;
mod pool;
mod rados_unit;
mod read;
mod replace;
#[cfg(test)]
mod tests;
mod write;

pub use location::{Location, LocationError, is_rados_url};
pub use rados_unit::RadosUnit;

/// Default maximum of data in one segment, in bytes: as on a folder.
pub const SEGMENT_DATA_BYTES: u64 = 8 << 20;
