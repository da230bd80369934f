//! [`Event`]: a change of a file, reconstructed from blocks.

use super::inode::FileKind;

/// The path of a file from the root of the file system. It may contain any bytes.
pub type Path = Vec<u8>;

/// A change of a file, or an access to its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The file was created.
    Created {
        /// The inode number.
        inode: u32,
        /// The kind of file.
        kind: FileKind,
        /// The path.
        path: Path,
    },
    /// The file lost its last name.
    Removed {
        /// The inode number.
        inode: u32,
        /// The kind of file, if it is known.
        kind: Option<FileKind>,
        /// The lost path.
        path: Path,
    },
    /// The file was renamed.
    Renamed {
        /// The inode number.
        inode: u32,
        /// The old path.
        from: Path,
        /// The new path.
        to: Path,
    },
    /// The file got an additional name.
    Linked {
        /// The inode number.
        inode: u32,
        /// The new path.
        path: Path,
    },
    /// The file lost one of several names.
    Unlinked {
        /// The inode number.
        inode: u32,
        /// The lost path.
        path: Path,
    },
    /// Content was written.
    Written {
        /// The inode number.
        inode: u32,
        /// The first byte in the file.
        offset: u64,
        /// The length, in bytes.
        length: u64,
    },
    /// Content was read from the disk.
    Read {
        /// The inode number.
        inode: u32,
        /// The first byte in the file.
        offset: u64,
        /// The length, in bytes.
        length: u64,
    },
    /// The length changed: the file is shorter, or longer without a write to the new part.
    Truncated {
        /// The inode number.
        inode: u32,
        /// The old length, in bytes.
        from: u64,
        /// The new length, in bytes.
        to: u64,
    },
    /// The permission bits changed.
    Permissions {
        /// The inode number.
        inode: u32,
        /// The old permissions.
        from: u16,
        /// The new permissions.
        to: u16,
    },
    /// The user or the group changed.
    Ownership {
        /// The inode number.
        inode: u32,
        /// The old user and group.
        from: (u32, u32),
        /// The new user and group.
        to: (u32, u32),
    },
}
