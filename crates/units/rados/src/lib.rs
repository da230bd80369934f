//! Floor 4: namespaces of a Ceph cluster's pools as storage units.
//!
//! Each segment is an object; `docs/internals/formats.md` draws it. What a call costs, in
//! operations of the cluster:
//!
//! | call | operations |
//! |---|---|
//! | `read`, `read_async` | one, of the run and no more: slot, tag and all |
//! | `put` | one, with all its slots; the marker besides, if it was not looked at for 5 s |
//! | `sync` | none |
//! | `free` | the marker, what is free already, and one write |
//! | `delete` | the marker, and one |
//! | `replace` | the marker, what is there already, and one, with all of it |
//! | `list`, `list_serials` | the marker, and a list of the whole pool's objects |
//!
//! Rules that hold whatever happens:
//!
//! * A put, a free, a replacement and a claim are each one change of one object, which the
//!   cluster makes whole or not at all: there is no state in between to recover from.
//! * A put goes where the segment ends, or nowhere: the cluster compares, not this
//!   program.
//! * A namespace whose marker names another owner's database is not changed. It
//!   may be read. One without this unit's marker is not written to.
//! * Every question is answered in time. What was not answered may be done all the
//!   same, then or later.
//!
//! All `unsafe` is in the module `librados`, which loads Ceph's library when a unit first asks
//! for it: this program runs where there is none.
//!
//! Must not know: keys, volumes, what is in a slot, who asks.

#![deny(unsafe_code)]

mod account;
mod claim;
mod format;
#[expect(unsafe_code, reason = "it calls a library in C; see its head")]
mod librados;
mod meaning;
#[cfg(test)]
mod memory;
mod place;
mod pool;
mod read;
mod replace;
mod site;
#[cfg(test)]
mod tests;
mod unit_of_pool;
mod write;

pub use place::{Place, PlaceError, is_rados_url};
pub use unit_of_pool::RadosUnit;

/// Data in one segment at most, in bytes, unless said otherwise: as on a folder.
pub const SEGMENT_DATA_BYTES: u64 = 8 << 20;
