//! What the blocks of an ext2, ext3 or ext4 file system are: files, directories, and what
//! the file system needs to find them (docs/chains.md, "Reconstruction"; StorM's semantic
//! reconstruction).
//!
//! ```text
//!  superblock ─▶ groups ─▶ inode tables ─▶ inodes ─▶ runs of blocks ─▶ directories
//!                                                        │
//!                                                        ▼
//!                                             owners: block ─▶ inode, place in it
//! ```
//!
//! A disk that was not unmounted has in its journal what does not lie where it belongs
//! yet; all is read through that.
//!
//! Whatever lies on the disk may be damaged, or made to harm: every number is checked where
//! it is read, every walk is bounded, and what makes no sense is left out and counted
//! ([`View::damaged`]), never believed.

mod change;
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

/// Where a disk is read from.
pub trait Source {
    /// Fills `out` with what lies at `offset`, in bytes from the beginning of the file
    /// system.
    ///
    /// # Errors
    /// As the disk says.
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
