//! Inodes: what a file is, and where its map of blocks begins.

use super::fields::{le16, le32};
use super::superblock::Superblock;

/// Bytes of the map, or of what is in its place.
pub(super) const MAP_BYTES: usize = 60;

const FLAG_EXTENTS: u32 = 0x8_0000;
const FLAG_INLINE_DATA: u32 = 0x1000_0000;

/// What kind of file something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A device, a FIFO or a socket.
    Special,
}

/// An inode that is in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inode {
    /// What it is.
    pub kind: FileKind,
    /// Permission bits, with set-uid, set-gid and sticky: 12 bits.
    pub permissions: u16,
    /// Whose it is.
    pub uid: u32,
    /// And of which group.
    pub gid: u32,
    /// In bytes.
    pub size: u64,
    /// How many names it has.
    pub links: u16,
    /// Another one each time the number is given to another file.
    pub generation: u32,
    /// The block of its extended attributes, if it has one; others may have the same.
    pub attributes: Option<u64>,
    /// The map of its blocks, or what is in its place.
    pub(super) map: Map,
}

/// Where a file's content is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Map {
    /// A tree of extents, of which this is the root.
    Extents([u8; MAP_BYTES]),
    /// Numbers of blocks, direct and through blocks of numbers.
    Indirect([u8; MAP_BYTES]),
    /// In the inode; what of it is in the map's place.
    Inline([u8; MAP_BYTES]),
    /// It has none: a device, or a symbolic link whose target is in the map's place.
    None,
}

impl Inode {
    /// Reads one from its table, at least 128 bytes; none if it is not in use.
    pub(super) fn parse(bytes: &[u8], superblock: &Superblock) -> Option<Self> {
        let (mode, links) = (le16(bytes, 0), le16(bytes, 26));
        if links == 0 {
            return None;
        }
        let kind = match mode >> 12 {
            0x8 => FileKind::File,
            0x4 => FileKind::Directory,
            0xA => FileKind::Symlink,
            0x1 | 0x2 | 0x6 | 0xC => FileKind::Special,
            // The inode of bad blocks, and others that have no name, have no kind.
            0 => FileKind::File,
            _ => return None,
        };
        let flags = le32(bytes, 32);
        let attributes = u64::from(le32(bytes, 104)) | u64::from(le16(bytes, 118)) << 32;
        // Of others something else was there once.
        let is_long = kind == FileKind::File || superblock.has_large_directories;
        let size_high = if is_long { le32(bytes, 108) } else { 0 };
        let size = u64::from(le32(bytes, 4)) | u64::from(size_high) << 32;
        let place: [u8; MAP_BYTES] = bytes[40..100].try_into().expect("60 bytes");
        let is_short_link = kind == FileKind::Symlink && size < MAP_BYTES as u64;
        let map = match kind {
            _ if flags & FLAG_INLINE_DATA != 0 => Map::Inline(place),
            FileKind::Special => Map::None,
            _ if flags & FLAG_EXTENTS != 0 => Map::Extents(place),
            _ if is_short_link => Map::None,
            _ => Map::Indirect(place),
        };
        Some(Self {
            kind,
            permissions: mode & 0xFFF,
            uid: u32::from(le16(bytes, 2)) | u32::from(le16(bytes, 120)) << 16,
            gid: u32::from(le16(bytes, 24)) | u32::from(le16(bytes, 122)) << 16,
            size,
            links,
            generation: le32(bytes, 100),
            attributes: (attributes != 0).then_some(attributes),
            map,
        })
    }
}
