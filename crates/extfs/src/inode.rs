//! [`Inode`]: the kind and attributes of a file, and the root of its block map.

use super::fields::{le16, le32};
use super::superblock::Superblock;

/// The length of the map in an inode, or of what is stored in its place, in bytes.
pub(super) const MAP_BYTES: usize = 60;

/// The length of the original inode, in bytes. A longer one continues with the length of its later
/// fields, these fields, and attributes.
const FIXED_BYTES: usize = 128;

/// The magic number before the attributes in an inode.
const ATTRIBUTES_MAGIC: u32 = 0xEA02_0000;
/// The length of an attribute's entry without its name, in bytes.
const ATTRIBUTE_BYTES: usize = 16;
/// The name index of attributes that begin with `system.`.
const ATTRIBUTE_SYSTEM: u8 = 7;

const FLAG_EXTENTS: u32 = 0x8_0000;
const FLAG_INLINE_DATA: u32 = 0x1000_0000;

/// The kind of a file.
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
    /// The kind of file.
    pub kind: FileKind,
    /// The permission bits, with set-uid, set-gid and sticky: 12 bits.
    pub permissions: u16,
    /// The user.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The length, in bytes.
    pub size: u64,
    /// The number of names.
    pub links: u16,
    /// A number that differs each time the inode number is used for a new file.
    pub generation: u32,
    /// The block of extended attributes, if there is one. Several files may share it.
    pub attributes: Option<u64>,
    /// The map of the file's blocks, or what is stored in its place.
    pub(super) map: Map,
}

/// The position of a file's content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Map {
    /// The root of a tree of extents.
    Extents([u8; MAP_BYTES]),
    /// Block numbers, direct and through indirect blocks.
    Indirect([u8; MAP_BYTES]),
    /// The beginning of content that is in the inode.
    Inline([u8; MAP_BYTES]),
    /// Names of a directory that are in the inode, in the map's place and in an attribute.
    InlineNames {
        content: Box<[u8]>,
        /// Whether the attribute has a valid position.
        is_whole: bool,
    },
    /// The file has no blocks: it is a device, or a symbolic link whose target is in the map's
    /// place.
    None,
}

impl Inode {
    /// Parses an inode of at least 128 bytes; `None` if it is not in use.
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
            // The inode of bad blocks and others without a name have no kind.
            0 => FileKind::File,
            _ => return None,
        };
        let flags = le32(bytes, 32);
        let attributes = u64::from(le32(bytes, 104)) | u64::from(le16(bytes, 118)) << 32;
        // In other files the field once had another meaning.
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

    /// The memory in addition to the inode itself, in bytes.
    pub(super) fn bytes_beside(&self) -> u64 {
        match &self.map {
            Map::InlineNames { content, .. } => content.len() as u64 + 16,
            _ => 0,
        }
    }
}

/// The names of a directory that are in its inode. Those that do not fit into the map's place are
/// the value of an attribute.
fn inline_names(place: &[u8], bytes: &[u8]) -> Map {
    let more = inline_attribute(bytes);
    Map::InlineNames {
        content: [place, more.unwrap_or_default()].concat().into(),
        is_whole: more.is_some(),
    }
}

/// The value of the attribute `system.data` in an inode. It is empty if there is no such attribute,
/// and `None` if its position is invalid.
fn inline_attribute(bytes: &[u8]) -> Option<&[u8]> {
    let Some(rest) = bytes.get(FIXED_BYTES..).filter(|rest| rest.len() >= 4) else {
        return Some(&[]);
    };
    // Attributes begin after the later fields.
    let begin = usize::from(le16(rest, 0));
    let attributes = match rest.get(begin..) {
        Some(there) if there.len() >= 4 && le32(there, 0) == ATTRIBUTES_MAGIC => &there[4..],
        _ => return Some(&[]),
    };
    let mut left = attributes;
    // A word of zeroes follows the last attribute.
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
