//! What happens to files, as it is seen from blocks.

use super::inode::FileKind;

/// From the root of the file system on, with any bytes in it.
pub type Path = Vec<u8>;

/// What happened to a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// It is there, and was not.
    Created {
        /// Its number.
        inode: u32,
        /// What it is.
        kind: FileKind,
        /// Where.
        path: Path,
    },
    /// It has no name any more.
    Removed {
        /// Its number.
        inode: u32,
        /// What it was, if that is known.
        kind: Option<FileKind>,
        /// Where it was.
        path: Path,
    },
    /// It has another name.
    Renamed {
        /// Its number.
        inode: u32,
        /// Where it was.
        from: Path,
        /// Where it is.
        to: Path,
    },
    /// It has one more name.
    Linked {
        /// Its number.
        inode: u32,
        /// The name.
        path: Path,
    },
    /// It has one name less, and others.
    Unlinked {
        /// Its number.
        inode: u32,
        /// The name.
        path: Path,
    },
    /// So much of it was written, in bytes.
    Written {
        /// Its number.
        inode: u32,
        /// From where on.
        offset: u64,
        /// How much.
        length: u64,
    },
    /// So much of it was read from the disk, in bytes.
    Read {
        /// Its number.
        inode: u32,
        /// From where on.
        offset: u64,
        /// How much.
        length: u64,
    },
    /// It is shorter; or longer, and was not written there.
    Truncated {
        /// Its number.
        inode: u32,
        /// How long it was, in bytes.
        from: u64,
        /// And is.
        to: u64,
    },
    /// Its permission bits are others.
    Permissions {
        /// Its number.
        inode: u32,
        /// Before.
        from: u16,
        /// And now.
        to: u16,
    },
    /// It is somebody else's: user and group.
    Ownership {
        /// Its number.
        inode: u32,
        /// Whose it was.
        from: (u32, u32),
        /// And whose it is.
        to: (u32, u32),
    },
}
