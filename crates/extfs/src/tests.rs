//! Compares what is read from file systems with what debugfs reports.
#![expect(
    clippy::disallowed_methods,
    reason = "e2fsprogs makes files, and reads them"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use tempfile::TempDir;
use world::simulated::SimulatedRandom;

use super::testing::{Image, KINDS, debugfs, journaled, make, program, run};
use super::{FileKind, FormatError, Owner, ScanError, View};

/// The inode of each block, as debugfs reports it.
fn owners_by_debugfs(image: &Path, blocks: u64) -> BTreeMap<u64, u32> {
    let mut owners = BTreeMap::new();
    let all: Vec<u64> = (0..blocks).collect();
    for part in all.chunks(15_000) {
        let numbers: Vec<String> = part.iter().map(u64::to_string).collect();
        let said = debugfs(image, &format!("icheck {}", numbers.join(" ")));
        for line in said.lines().skip(1) {
            let mut words = line.split_whitespace();
            let block = words.next().and_then(|word| word.parse().ok());
            let inode = words.next().and_then(|word| word.parse().ok());
            if let (Some(block), Some(inode)) = (block, inode) {
                owners.insert(block, inode);
            }
        }
    }
    owners
}

#[test]
fn every_block_has_the_owner_that_debugfs_reports() {
    let folder = TempDir::new().expect("a folder");
    for (name, options) in KINDS {
        let (path, image) = make(name, options, &folder);
        let view = image.view().expect(name);
        assert_eq!(view.damaged(), 0, "{name}");
        let blocks = view.superblock().blocks;
        let expected = owners_by_debugfs(&path, blocks);
        assert!(expected.len() > 1000, "{name}: {}", expected.len());
        for block in 0..blocks {
            let found = match view.owner(block) {
                Owner::Content { inode, .. } | Owner::Map { inode } => Some(inode),
                _ => None,
            };
            let by_debugfs = expected.get(&block).copied();
            assert_eq!(found, by_debugfs, "{name}: block {block}");
        }
        fs::remove_file(path).expect("removed");
    }
}

#[test]
fn every_file_has_the_names_and_the_content_that_debugfs_reports() {
    let folder = TempDir::new().expect("a folder");
    for (name, options) in KINDS {
        let (path, image) = make(name, options, &folder);
        let view = image.view().expect(name);
        let mut inodes: Vec<u32> = view.inodes().filter(|inode| *inode > 11).collect();
        inodes.sort_unstable();
        assert!(inodes.len() > 400, "{name}: {}", inodes.len());
        let numbers: Vec<String> = inodes.iter().map(u32::to_string).collect();
        let said = debugfs(&path, &format!("ncheck {}", numbers.join(" ")));
        let mut names: BTreeMap<u32, BTreeSet<Vec<u8>>> = BTreeMap::new();
        for line in said.lines().skip(1) {
            let (inode, path) = line.split_once('\t').expect("an inode and a path");
            let path = path.replace("//", "/").into_bytes();
            let inode = inode.parse().expect("a number");
            names.entry(inode).or_default().insert(path);
        }
        for inode in &inodes {
            let found = view.path(*inode).unwrap_or_default();
            let known = names.get(inode);
            let is_known = known.is_some_and(|known| known.contains(&found));
            let shown = String::from_utf8_lossy(&found);
            assert!(is_known, "{name}: inode {inode}: {shown:?} {known:?}");
        }
        check_content(name, &view, &image, &path, &inodes, folder.path());
        fs::remove_file(path).expect("removed");
    }
}

/// The file system was not unmounted, so its journal is replayed, as e2fsck does.
#[test]
fn the_journal_is_replayed() {
    let folder = TempDir::new().expect("a folder");
    for (name, options) in [KINDS[1], KINDS[2], KINDS[8]] {
        let (path, before) = make(name, options, &folder);
        let change = |request: &str| {
            run(program("debugfs").args(["-w", "-R", request]).arg(&path));
        };
        change("mkdir etc/new");
        change("ln etc/passwd etc/new/alias");
        change("rm bin/large");
        let after = Image(fs::read(&path).expect("read"));
        let replayed = journaled(&path, &before, &after, folder.path());
        let journal_is_used = replayed.view().expect(name).superblock().needs_recovery;
        assert!(journal_is_used, "{name}: debugfs has written its journal");
        let (found, expected) = (replayed.view().expect(name), after.view().expect(name));
        for block in 0..expected.superblock().blocks {
            assert_eq!(found.owner(block), expected.owner(block), "{name}: {block}");
        }
        let names = |view: &View| -> BTreeMap<u32, Option<Vec<u8>>> {
            view.inodes()
                .map(|inode| (inode, view.path(inode)))
                .collect()
        };
        assert_eq!(names(&found), names(&expected), "{name}");
        fs::remove_file(path).expect("removed");
    }
}

/// Compares the content of some files with what debugfs reads.
fn check_content(
    name: &str,
    view: &View,
    image: &Image,
    path: &Path,
    inodes: &[u32],
    folder: &Path,
) {
    let mut compared = 0;
    for inode in inodes.iter().copied() {
        let file = view.inode(inode).expect("in use");
        let is_large = file.size > 100_000;
        if file.kind != FileKind::File || !(is_large || inode.is_multiple_of(50)) {
            continue;
        }
        let out = folder.join("content");
        debugfs(path, &format!("dump <{inode}> {}", out.display()));
        let expected = fs::read(&out).expect("dumped");
        let block_bytes = view.superblock().block_bytes as usize;
        let mut found = vec![0; expected.len().next_multiple_of(block_bytes)];
        for run in view.runs(inode).iter().filter(|run| !run.is_unwritten) {
            for at in 0..run.length as usize {
                let place = (run.place as usize + at) * block_bytes;
                let block = (run.block as usize + at) * block_bytes;
                let Some(there) = found.get_mut(place..place + block_bytes) else {
                    continue;
                };
                there.copy_from_slice(&image.0[block..block + block_bytes]);
            }
        }
        found.truncate(expected.len());
        assert_eq!(file.size, expected.len() as u64, "{name}: inode {inode}");
        let has_blocks = !view.runs(inode).is_empty();
        assert!(found == expected || !has_blocks, "{name}: inode {inode}");
        compared += u64::from(has_blocks);
    }
    assert!(compared > 3, "{name}: {compared}");
}

#[test]
fn an_unsupported_or_truncated_file_system_is_refused() {
    let empty = Image(vec![0; 1 << 20]);
    let none = |image: &Image| match image.view() {
        Err(ScanError::Format(error)) => error,
        other => panic!("{:?}", other.map(|view| view.damaged())),
    };
    assert_eq!(none(&empty), FormatError::Magic);
    assert_eq!(none(&Image(Vec::new())), FormatError::Magic);
    let folder = TempDir::new().expect("a folder");
    let (_, mut image) = make("ext4", KINDS[2].1, &folder);
    // A disk that is shorter than its file system.
    let whole = image.0.len();
    image.0.truncate(whole - 4096);
    assert_eq!(none(&image), FormatError::Invalid("its size"));
    image.0.resize(whole, 0);
    // A feature of the future.
    image.0[1024 + 99] = 0x40;
    assert_eq!(none(&image), FormatError::Features(0x4000_0000));
    // More files than fit into the memory.
    image.0[1024 + 99] = 0;
    let few = View::read(&image, image.0.len() as u64, 10_000);
    assert!(matches!(few, Err(ScanError::Large(10_000))));
}

/// Reading a damaged file system ends and never panics.
#[test]
fn the_valid_part_of_a_damaged_file_system_is_read() {
    let folder = TempDir::new().expect("a folder");
    for (number, (name, options)) in KINDS.iter().enumerate() {
        let (path, image) = make(name, options, &folder);
        fs::remove_file(path).expect("removed");
        let view = image.view().expect(name);
        let block_bytes = u64::from(view.superblock().block_bytes);
        let is_metadata = |block: &u64| match view.owner(*block) {
            Owner::Unowned => false,
            Owner::Content { inode, .. } => view
                .inode(inode)
                .is_some_and(|inode| inode.kind == FileKind::Directory),
            _ => true,
        };
        let metadata: Vec<u64> = (0..view.superblock().blocks).filter(is_metadata).collect();
        let random = SimulatedRandom::new(number as u64);
        let mut damaged = 0;
        let mut bad = Image(image.0.clone());
        for _ in 0..20 {
            let mut changed = Vec::new();
            for _ in 0..1 + random.below(200) {
                let begin = (metadata[random.index(metadata.len())] * block_bytes) as usize;
                let end = begin + block_bytes as usize;
                changed.push(begin..end);
                let at = begin + random.below(block_bytes) as usize;
                match random.below(3) {
                    0 => bad.0[at] ^= 1 << random.below(8),
                    1 => bad.0[at] = 0xFF,
                    // A copy of another metadata block.
                    _ => {
                        let from = metadata[random.index(metadata.len())] * block_bytes;
                        let from = from as usize..(from + block_bytes) as usize;
                        bad.0.copy_within(from, begin);
                    }
                }
            }
            if let Ok(view) = bad.view() {
                damaged += view.damaged();
                view.inodes().for_each(|inode| drop(view.path(inode)));
            }
            for there in changed {
                bad.0[there.clone()].copy_from_slice(&image.0[there]);
            }
        }
        assert!(damaged > 0, "{name}: nothing was noticed");
    }
}
