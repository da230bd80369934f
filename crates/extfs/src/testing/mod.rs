//! File systems for the tests of this crate and of crates that use it (feature `testing`). They
//! need e2fsprogs.

mod hostile;
mod images;

#[cfg(test)]
pub(crate) use hostile::{BLOCK, DISK_BYTES, JOURNAL, Made, ROOT_NAMES, TABLE, put};
pub use hostile::{FILE, deep};
#[cfg(test)]
pub(crate) use images::changed_by;
pub use images::{BYTES_MAX, Image, KINDS, changed, debugfs, journaled, make, program, run};
