//! Inodes: what a file is, and where its map of blocks begins.

use super::fields::{le16, le32};
use super::superblock::Superblock;

/// Bytes of the map, or of what is in its place.
pub(super) const MAP_BYTES: usize = 60;

/// Of an inode as it was at first. What is longer begins with how long its later fields are;
/// then come attributes.
const FIXED_BYTES: usize = 128;

/// The word before the attributes in an inode.
const ATTRIBUTES_MAGIC: u32 = 0xEA02_0000;
/// An attribute's entry, before its name.
const ATTRIBUTE_BYTES: usize = 16;
/// Its name begins with `system.`.
const ATTRIBUTE_SYSTEM: u8 = 7;

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
    /// Names, in the inode: what is in the map's place, and what follows that.
    InlineNames {
        content: Box<[u8]>,
        /// What follows is where it is said to be.
        is_whole: bool,
    },
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
            FileKind::Directory if flags & FLAG_INLINE_DATA != 0 => inline_names(&place, bytes),
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

    /// What it takes of memory beside itself, in bytes.
    pub(super) fn bytes_beside(&self) -> u64 {
        match &self.map {
            Map::InlineNames { content, .. } => content.len() as u64 + 16,
            _ => 0,
        }
    }
}

/// The names of a directory that lie in its inode. What has no room in the map's place is
/// the value of an attribute there.
fn inline_names(place: &[u8], bytes: &[u8]) -> Map {
    let more = inline_attribute(bytes);
    Map::InlineNames {
        content: [place, more.unwrap_or_default()].concat().into(),
        is_whole: more.is_some(),
    }
}

/// The attribute `system.data` in an inode; it is empty if there is none, and nothing if it is
/// not where it is said to be.
fn inline_attribute(bytes: &[u8]) -> Option<&[u8]> {
    let Some(rest) = bytes.get(FIXED_BYTES..).filter(|rest| rest.len() >= 4) else {
        return Some(&[]);
    };
    // After the fields that were added later.
    let begin = usize::from(le16(rest, 0));
    let attributes = match rest.get(begin..) {
        Some(there) if there.len() >= 4 && le32(there, 0) == ATTRIBUTES_MAGIC => &there[4..],
        _ => return Some(&[]),
    };
    let mut left = attributes;
    // The last one is followed by a word of zeroes.
    while left.len() >= ATTRIBUTE_BYTES && le32(left, 0) != 0 {
        let name_bytes = usize::from(left[0]);
        let name = left.get(ATTRIBUTE_BYTES..ATTRIBUTE_BYTES + name_bytes)?;
        if left[1] == ATTRIBUTE_SYSTEM && name == b"data" {
            let (value, elsewhere) = (usize::from(le16(left, 2)), le32(left, 4));
            let end = value.checked_add(usize::try_from(le32(left, 8)).ok()?)?;
            return attributes.get(value..end).filter(|_| elsewhere == 0);
        }
        left = left.get((ATTRIBUTE_BYTES + name_bytes).next_multiple_of(4)..)?;
    }
    Some(&[])
}
