//! Reads ext2, ext3 and ext4 file systems from their blocks, at rest and while they are
//! written, and partition tables. It tells which file each block belongs to, and what a write
//! changes (docs/internals/monitor.md; StorM's semantic reconstruction).
//!
//! ```text
//!  superblock ─▶ groups ─▶ inode tables ─▶ inodes ─▶ runs of blocks ─▶ directories
//!                                                        │
//!                                                        ▼
//!                                             owners: block ─▶ inode, position in it
//! ```
//!
//! * [`View`]: a file system at rest. [`Live`]: one that is followed while it is written, which
//!   turns writes into [`Event`]s.
//! * [`partition`]: partition tables.
//!
//! A file system that was not unmounted has committed blocks in its journal that are not at their
//! final position yet. Everything is read through the journal.
//!
//! The disk may be damaged or hostile. Every number is checked where it is read, every walk and all
//! memory are bounded, and what is invalid is left out and counted ([`View::damaged`]).
//!
//! Must not know: where blocks come from, or who wants to know about files.

mod change;
mod compare;
mod content;
mod directory;
mod event;
mod fields;
mod fresh;
mod groups;
mod growth;
mod inode;
mod journal;
mod live;
mod map;
mod names;
mod owners;
pub mod partition;
mod scan;
mod superblock;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod view;

pub use event::{Event, Path};
pub use groups::Groups;
pub use inode::{FileKind, Inode};
pub use live::Live;
pub use map::Run;
pub use owners::Owner;
pub use superblock::{FormatError, Superblock};
pub use view::{ScanError, View};

/// The bytes of a file system or disk.
pub trait Source {
    /// Fills `out` with the bytes at `offset` from the beginning of the file system.
    ///
    /// # Errors
    /// The error of the disk.
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), base::IoError>;
}

#[cfg(test)]
mod growth_tests;
#[cfg(test)]
mod hostile_tests;
#[cfg(test)]
mod inline_tests;
#[cfg(test)]
mod large_tests;
#[cfg(test)]
mod live_tests;
#[cfg(test)]
mod tests;
