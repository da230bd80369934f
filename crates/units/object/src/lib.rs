//! Floor 4: object stores as storage units: S3 and what speaks its protocol,
//! Google Cloud Storage, Azure Blob Storage.
//!
//! Each segment is an object; `docs/internals/formats.md` draws it. What a call costs, in
//! requests:
//!
//! | call | requests |
//! |---|---|
//! | `read`, segment known | one, of the run and no more |
//! | `read`, segment not known | two at once, and then that one |
//! | `read_async` | as `read` |
//! | `put` | one; the marker besides, if it was not looked at for 5 s |
//! | `sync` | none |
//! | `free` | three at once, and one; two, if nothing is left |
//! | `delete` | three |
//! | `list`, `list_serials` | the marker, and one for each thousand names |
//!
//! Rules that hold whatever happens:
//!
//! * Objects of segments are made if there is none of that name, and from then
//!   on replaced only by ones that have the same slots but for freed ones.
//! * What was freed is written down before a segment is rewritten without it,
//!   and stays written down until the segment is gone: what a host frees is not
//!   lost by what another one does at the same time, if the store can replace
//!   an object on condition that it is the one that was read.
//! * A prefix whose marker names another owner's database is not changed. It
//!   may be read. A prefix without this unit's marker is not written to.
//! * Every request ends in time; what was not answered may be done all the same,
//!   then or later.
//!
//! Must not know: keys, volumes, what is in a slot, who asks.

#[cfg(not(any(feature = "aws", feature = "azure", feature = "gcp")))]
compile_error!(
    "the features `aws`, `azure` and `gcp` are the stores there are: choose one at least"
);

mod account;
mod bitmap;
mod bucket;
mod claim;
mod format;
mod heads;
mod marker;
mod object;
mod place;
mod profile;
mod read;
mod release;
mod write;

pub use marker::{Conditional, Marker};
pub use object::ObjectUnit;
pub use place::{ANSWER_WITHIN, Place, PlaceError, is_object_url};
pub use profile::ProfileError;

/// Data in one segment at most, in bytes, unless said otherwise: as on a folder.
pub const SEGMENT_DATA_BYTES: u64 = 8 << 20;

/// What is known of segments takes so much memory at most, in bytes: of some
/// 40,000 full ones, which are 300 GiB.
pub const HEADS_BYTES_MAX: usize = 32 << 20;
