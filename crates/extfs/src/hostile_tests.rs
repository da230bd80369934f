//! Hostile file systems: maps with more nodes than fit into memory, and names of missing files.

use std::collections::BTreeMap;

use super::testing::{BLOCK, DISK_BYTES, FILE, JOURNAL, Made, ROOT_NAMES, TABLE, deep, put};
use super::{Live, ScanError, View};

#[test]
fn a_map_of_a_million_nodes_is_refused_before_it_is_read() {
    let bytes_max = 4 << 20;
    // The nodes of a journal are not kept in memory; those of a file are, so fewer are read.
    for (inode, reads_max) in [
        (JOURNAL, bytes_max / 24 + 100),
        (FILE, bytes_max / BLOCK + 300),
    ] {
        let made = Made::new(Some(inode));
        let read = View::read(&made, DISK_BYTES, bytes_max);
        let large = matches!(read, Err(ScanError::Large(most)) if most == bytes_max);
        assert!(large, "inode {inode}");
        let reads = made.reads.get();
        assert!(reads <= reads_max, "inode {inode}: {reads} reads");
    }
    // Without such a map it is read.
    let made = Made::new(None);
    let view = View::read(&made, DISK_BYTES, bytes_max).expect("a file system");
    assert_eq!(view.inodes().count(), 1);
}

/// The map's blocks are found one after another, and each leads to more.
#[test]
fn a_map_that_grows_beyond_the_limit_is_not_followed() {
    let bytes_max = 4 << 20;
    let made = Made::new(None);
    let mut live = Live::read(&made, DISK_BYTES, bytes_max).expect("a file system");
    let grown = Made::new(Some(FILE));
    let mut events = Vec::new();
    live.was_written(TABLE * BLOCK, &grown.table(), &mut events);
    let mut told = 0;
    while live.is_within_bounds() {
        let wanted = live.take_wanted();
        assert!(!wanted.is_empty(), "there are a million");
        told += wanted.len();
        let found = wanted.into_iter().map(|block| (block, grown.block(block)));
        live.were_found(found.collect(), &mut events);
        let bytes = live.view().bytes();
        assert!(bytes <= bytes_max + 65_536, "{bytes}");
    }
    assert!(told <= 1025, "{told} blocks were told");
}

/// A directory block with `count` names of inodes from `first` on.
fn names(first: u32, count: u32) -> Vec<u8> {
    let mut block = vec![0; BLOCK as usize];
    let mut at = 0;
    for number in first..first + count {
        let length = match number == first + count - 1 {
            true => BLOCK as usize - at,
            false => 16,
        };
        put(&mut block, at, number);
        block[at + 4..at + 6].copy_from_slice(&(length as u16).to_le_bytes());
        block[at + 6..at + 8].copy_from_slice(&[6, 0]);
        block[at + 8..at + 14].copy_from_slice(format!("{number:06}").as_bytes());
        at += length;
    }
    block
}

#[test]
fn remembered_names_of_missing_files_are_bounded() {
    let made = Made::new(None);
    let mut live = Live::read(&made, DISK_BYTES, 4 << 20).expect("a file system");
    let mut events = Vec::new();
    let mut noted = BTreeMap::new();
    for round in 0..15 {
        let block = names(20 + round * 200, 200);
        live.was_written(ROOT_NAMES * BLOCK, &block, &mut events);
        noted.insert(round, live.unborn.len());
    }
    assert!(noted.values().all(|count| *count == 200), "{noted:?}");
    live.was_written(ROOT_NAMES * BLOCK, &names(2, 1), &mut events);
    assert_eq!(live.unborn.len(), 0);
}

/// A caller that wanted one path once needed memory for all of them.
#[test]
fn paths_are_computed_one_at_a_time() {
    let live = deep();
    let mut paths = live.view().paths(FILE);
    let first = paths.next().expect("it has one");
    assert_eq!(first.len(), 1000 * 256 + 2);
    assert_eq!(live.view().path(FILE), Some(first));
    assert_eq!(paths.take(300).count(), 300);
}
