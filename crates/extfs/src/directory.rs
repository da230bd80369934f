//! The entries of directories.
//!
//! The inner nodes of a hashed directory need no special treatment: a reader of entries finds none
//! in them.

use super::fields::{le16, le32};

/// The length of an entry without its name, in bytes: inode, length, length of the name, kind.
const HEAD_BYTES: usize = 8;

/// A name in a directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Entry {
    pub inode: u32,
    pub name: Box<[u8]>,
}

/// The entries of a directory block without `.` and `..`, and whether the whole block is valid.
pub(super) fn entries_of(block: &[u8], inodes: u32) -> (Vec<Entry>, bool) {
    let mut entries = Vec::new();
    let (mut at, mut is_sound) = (0, true);
    while at + HEAD_BYTES <= block.len() {
        let head = &block[at..at + HEAD_BYTES];
        let inode = le32(head, 0);
        let length = match le16(head, 4) {
            // The only entry of a block of 64 KiB.
            0 | u16::MAX if block.len() == 1 << 16 => block.len() - at,
            length => usize::from(length),
        };
        // The upper half of the 16-bit length was redefined as the kind.
        let name_length = usize::from(head[6]);
        let fits = length >= HEAD_BYTES + name_length
            && length.is_multiple_of(4)
            && at + length <= block.len();
        if !fits {
            return (entries, false);
        }
        let name = &block[at + HEAD_BYTES..at + HEAD_BYTES + name_length];
        at += length;
        if inode == 0 || name == b"." || name == b".." {
            continue;
        }
        // Encrypted names may have any bytes.
        if inode > inodes || name.is_empty() {
            is_sound = false;
            continue;
        }
        entries.push(Entry {
            inode,
            name: name.into(),
        });
    }
    (entries, is_sound && at == block.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(block: &mut Vec<u8>, inode: u32, name: &[u8], length: u16) {
        let begin = block.len();
        block.extend(inode.to_le_bytes());
        block.extend(length.to_le_bytes());
        block.extend([name.len() as u8, 1]);
        block.extend(name);
        block.resize(begin + usize::from(length), 0);
    }

    fn block() -> Vec<u8> {
        let mut block = Vec::new();
        entry(&mut block, 2, b".", 12);
        entry(&mut block, 2, b"..", 12);
        entry(&mut block, 12, b"passwd", 16);
        entry(&mut block, 0, b"gone", 12);
        entry(&mut block, 13, b"x", 1024 - 52 - 12);
        // The checksum is stored as an entry without inode and name.
        entry(&mut block, 0, b"", 12);
        block
    }

    fn names(block: &[u8]) -> (Vec<(u32, String)>, bool) {
        let (entries, is_sound) = entries_of(block, 100);
        let name = |entry: Entry| {
            (
                entry.inode,
                String::from_utf8_lossy(&entry.name).into_owned(),
            )
        };
        (entries.into_iter().map(name).collect(), is_sound)
    }

    #[test]
    fn entries_are_read_with_their_inodes() {
        let (found, is_sound) = names(&block());
        assert_eq!(found, [(12, "passwd".to_owned()), (13, "x".to_owned())]);
        assert!(is_sound);
        // An inner node of a hashed directory.
        let mut node = Vec::new();
        entry(&mut node, 0, b"", 1024);
        node[8..].fill(0xAB);
        assert_eq!(names(&node), (Vec::new(), true));
    }

    #[test]
    fn a_flipped_byte_may_lose_entries_and_never_panics() {
        for at in 0..52 {
            for flip in [1, 0x80, 0xFF] {
                let mut bad = block();
                bad[at] ^= flip;
                let (found, _) = names(&bad);
                assert!(found.len() <= 3, "{found:?}");
            }
        }
        for length in 0..60 {
            names(&block()[..length]);
        }
    }
}
