//! Object stores as storage units: S3 and what speaks its protocol,
//! Google Cloud Storage, Azure Blob Storage.
//!
//! Each segment is an object; `docs/internals/formats.md` draws it. The cost of a call, in
//! requests:
//!
//! | call | requests |
//! |---|---|
//! | `read`, head cached | one, of the run only |
//! | `read`, head not cached | two at once, and then that one |
//! | `read_async` | as `read` |
//! | `put` | one; and one for the marker, if that was not checked for 5 s |
//! | `sync` | none |
//! | `free` | three at once, and one; two, if nothing is left |
//! | `delete` | three |
//! | `list`, `list_serials` | the marker, and one for each thousand names |
//!
//! Invariants:
//!
//! * The object of a segment is created only if there is none of that name, and later replaced
//!   only by one with the same slots except freed ones.
//! * Freed slots are recorded before a segment is rewritten without them, and stay recorded
//!   until the segment is deleted: concurrent hosts lose no free, if the store supports
//!   conditional updates.
//! * A prefix whose marker names another owner's database may be read and is not changed. A
//!   prefix without this unit's marker is never written to.
//! * Every request has a timeout; one that timed out may still be carried out.
//!
//! Must not know: keys, volumes, what is in a slot.

#[cfg(not(any(feature = "aws", feature = "azure", feature = "gcp")))]
compile_error!("enable at least one of the features `aws`, `azure` and `gcp`");

mod account;
mod bitmap;
mod bucket;
mod claim;
mod format;
mod heads;
mod location;
mod marker;
mod object;
mod profile;
mod read;
mod reclaim;
mod write;

pub use location::{ANSWER_TIMEOUT, Location, LocationError, is_object_url};
pub use marker::{Conditional, ObjectMarker};
pub use object::ObjectUnit;
pub use profile::ProfileError;

/// Default maximum of data in one segment, in bytes: as on a folder.
pub const SEGMENT_DATA_BYTES: u64 = 8 << 20;

/// Maximum memory of cached heads, in bytes: enough for some 40,000 full segments, or 300 GiB.
pub const HEADS_BYTES_MAX: usize = 32 << 20;
