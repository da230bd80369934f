//! File systems that resize2fs enlarges while they are followed.
#![expect(
    clippy::disallowed_methods,
    reason = "e2fsprogs makes files, and reads them"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use world::simulated::SimulatedRandom;

use super::live_tests::assert_alike;
use super::testing::{BYTES_MAX, Image, program, run};
use super::{Event, Live, Owner, Superblock};

const DISK_BYTES: u64 = 96 << 20;

/// The file systems that grow: the name, the options of mke2fs, the number of blocks before, the
/// length of a block in bytes, and the number of blocks after.
const KINDS: [(&str, &[&str], u64, usize, u64); 7] = [
    ("ext4", &["-t", "ext4", "-b", "4096"], 5000, 4096, 24_000),
    (
        "many-groups",
        &["-t", "ext4", "-b", "1024", "-g", "1024"],
        30_000,
        1024,
        98_304,
    ),
    // The descriptors use the blocks that the resize inode reserves.
    (
        "reserved",
        &["-t", "ext4", "-b", "1024", "-g", "512", "-O", "^flex_bg"],
        12_000,
        1024,
        90_001,
    ),
    (
        "meta-bg",
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-g",
            "512",
            "-O",
            "meta_bg,^resize_inode",
        ],
        12_000,
        1024,
        90_001,
    ),
    (
        "ext3",
        &["-t", "ext3", "-b", "1024", "-J", "size=4"],
        9000,
        1024,
        90_000,
    ),
    (
        "no-checksums",
        &[
            "-t",
            "ext4",
            "-b",
            "2048",
            "-O",
            "^metadata_csum,^uninit_bg",
        ],
        20_000,
        2048,
        49_152,
    ),
    // No additional group.
    (
        "the-last-group",
        &["-t", "ext4", "-b", "4096"],
        5000,
        4096,
        6000,
    ),
];

/// A file system on a larger disk; and the same after it has grown and has a file in the new part.
fn made(kind: usize, folder: &TempDir) -> (PathBuf, Image, Image) {
    let (name, options, blocks, block_bytes, blocks_then) = KINDS[kind];
    let path = folder.path().join(name);
    let files = folder.path().join("files");
    fs::create_dir_all(files.join("etc")).expect("made");
    fs::write(files.join("etc/passwd"), [7; 5000]).expect("written");
    run(program("mke2fs")
        .args(["-q", "-F", "-d"])
        .arg(&files)
        .args(options)
        .arg(&path)
        .arg(blocks.to_string()));
    let whole = || {
        let mut bytes = fs::read(&path).expect("read");
        bytes.resize(DISK_BYTES as usize, 0);
        fs::write(&path, &bytes).expect("written");
        Image(bytes)
    };
    let before = whole();
    run(program("e2fsck").args(["-fp"]).arg(&path));
    run(program("resize2fs").arg(&path).arg(blocks_then.to_string()));
    // More descriptors than were reserved.
    let large = folder.path().join("large");
    let content: Vec<u8> = (0..blocks * block_bytes as u64 / 8)
        .flat_map(|number| (number / 8).to_le_bytes())
        .collect();
    let is_larger = blocks_then > blocks * 2;
    fs::write(
        &large,
        &content[..if is_larger { content.len() } else { 5000 }],
    )
    .expect("written");
    let script = folder.path().join("script");
    let requests = format!("mkdir new\nwrite {} new/large\n", large.display());
    fs::write(&script, requests).expect("written");
    run(program("debugfs")
        .args(["-w", "-f"])
        .arg(&script)
        .arg(&path));
    let after = whole();
    let first = before.view().expect(name);
    let last = after.view().expect(name);
    assert_eq!(
        (first.superblock().blocks, last.superblock().blocks),
        (blocks, blocks_then)
    );
    assert_eq!((first.damaged(), last.damaged()), (0, 0), "{name}");
    (path, before, after)
}

fn live(image: &Image) -> Live {
    Live::read(image, image.0.len() as u64, BYTES_MAX).expect("a file system")
}

/// Reads the wanted blocks from a disk.
fn find(live: &mut Live, disk: &Image, events: &mut Vec<Event>) -> usize {
    let block_bytes = live.view().superblock().block_bytes as usize;
    let mut count = 0;
    loop {
        let wanted = live.take_wanted();
        if wanted.is_empty() {
            return count;
        }
        count += wanted.len();
        let content = |block: u64| disk.0[block as usize * block_bytes..][..block_bytes].to_vec();
        let found = wanted.into_iter().map(|block| (block, content(block)));
        live.were_found(found.collect(), events);
    }
}

/// The image with content at its final position and everything else only in the journal.
fn ordered(before: &Image, after: &Image, block_bytes: usize) -> Image {
    let view = after.view().expect("a file system");
    let mut disk = Image(before.0.clone());
    for (block, content) in before.written(after, block_bytes) {
        let is_content = match view.owner(block) {
            Owner::Content { inode, .. } => {
                inode > 11 && view.inode(inode).is_some_and(|one| one.size > 4096)
            }
            _ => false,
        };
        if is_content {
            disk.0[block as usize * block_bytes..][..block_bytes].copy_from_slice(content);
        }
    }
    disk
}

/// The image `disk` with the blocks that differ in `made` committed to its journal. debugfs writes
/// only blocks within the file system into a journal, so this uses the one that has grown.
fn grown_in_journal(
    path: &Path,
    (disk, made, after): (&Image, &Image, &Image),
    folder: &Path,
) -> Image {
    let block_bytes = after
        .view()
        .expect("a file system")
        .superblock()
        .block_bytes as usize;
    let (mut numbers, mut contents) = (Vec::new(), Vec::new());
    for (number, content) in disk.written(made, block_bytes) {
        numbers.push(number.to_string());
        contents.extend(content);
    }
    let (content, script) = (folder.join("blocks"), folder.join("requests"));
    fs::write(&content, contents).expect("written");
    let numbers = numbers.join(",");
    let write = format!("journal_write -b {numbers} {}", content.display());
    fs::write(&script, format!("journal_open\n{write}\njournal_close\n")).expect("written");
    fs::write(path, &after.0).expect("written");
    run(program("debugfs").args(["-w", "-f"]).arg(&script).arg(path));
    let written = Image(fs::read(path).expect("read"));
    let mut replayed = Image(disk.0.clone());
    for block in ring(disk) {
        let place = block as usize * block_bytes..(block as usize + 1) * block_bytes;
        replayed.0[place.clone()].copy_from_slice(&written.0[place]);
    }
    // The journal is in use.
    replayed.0[1024 + 96] |= 4;
    assert!(written.0[1024 + 96] & 4 != 0, "debugfs has written it");
    replayed
}

/// The blocks of the journal.
fn ring(disk: &Image) -> Vec<u64> {
    let view = disk.view().expect("a file system");
    let journal = view.superblock().journal_inode.expect("it has one");
    let runs = view.runs(journal).iter();
    runs.flat_map(|run| run.block..run.block + u64::from(run.length))
        .collect()
}

/// The writes that turn `disk` into `replayed`: the blocks of the journal that a commit writes.
/// Some hold zeroes, as the disk did before.
fn committed<'a>(disk: &'a Image, replayed: &'a Image, block_bytes: usize) -> Vec<(u64, &'a [u8])> {
    let changed = disk.written(replayed, block_bytes);
    let ring = ring(disk);
    let written = changed.iter().map(|(block, _)| *block);
    let last = written.filter(|block| ring.contains(block)).max();
    let between = ring.into_iter().filter(|block| Some(*block) <= last);
    let content = |block: u64| &replayed.0[block as usize * block_bytes..][..block_bytes];
    let all: BTreeMap<u64, &[u8]> = between.map(|block| (block, content(block))).collect();
    all.into_iter()
        .chain(changed)
        .collect::<BTreeMap<_, _>>()
        .into_iter()
        .collect()
}

#[test]
fn growth_is_followed_when_it_is_committed() {
    let folder = TempDir::new().expect("a folder");
    for (number, (name, _, _, block_bytes, blocks_then)) in KINDS.into_iter().enumerate() {
        let (path, before, after) = made(number, &folder);
        let disk = ordered(&before, &after, block_bytes);
        let replayed = grown_in_journal(&path, (&disk, &after, &after), folder.path());
        fs::remove_file(path).expect("removed");
        assert_alike(
            name,
            &replayed.view().expect(name),
            &after.view().expect(name),
        );
        for seed in 0..3 {
            let mut live = live(&before);
            let mut events = Vec::new();
            // Content has no owner before the commit.
            for (block, content) in before.written(&disk, block_bytes) {
                live.was_written(block * block_bytes as u64, content, &mut events);
            }
            let mut written = committed(&disk, &replayed, block_bytes);
            SimulatedRandom::new(seed).shuffle(&mut written);
            for (block, content) in written {
                live.was_written(block * block_bytes as u64, content, &mut events);
            }
            assert!(!live.take_outdated(), "{name}");
            assert_eq!(live.view().superblock().blocks, blocks_then, "{name}");
            find(&mut live, &disk, &mut events);
            assert_alike(name, live.view(), &after.view().expect(name));
            assert_eq!(live.view().damaged(), 0, "{name}");
            let large = events.iter().find_map(|event| match event {
                Event::Created { inode, path, .. } if path == b"/new/large" => Some(*inode),
                _ => None,
            });
            let large = large.expect("it is told");
            let size = live.view().inode(large).expect("in use").size;
            let mut written: BTreeMap<u64, u64> = BTreeMap::new();
            for event in &events {
                match event {
                    Event::Written {
                        inode,
                        offset,
                        length,
                    } if *inode == large => {
                        written.insert(*offset, *length);
                    }
                    _ => {}
                }
            }
            assert_eq!(written.values().sum::<u64>(), size, "{name}: {written:?}");
            // The later writes to the final positions are not reported.
            events.clear();
            for (block, content) in replayed.written(&after, block_bytes) {
                live.was_written(block * block_bytes as u64, content, &mut events);
            }
            assert!(!live.take_outdated(), "{name}");
            assert_eq!(events, [], "{name}");
        }
    }
}

/// A grown superblock without its descriptors, moved descriptors of existing groups, and a growth
/// without a journal.
#[test]
fn growth_that_cannot_be_followed_requires_a_new_read() {
    let folder = TempDir::new().expect("a folder");
    let (name, _, _, block_bytes, _) = KINDS[2];
    let (path, before, after) = made(2, &folder);
    let view = before.view().expect(name);
    // Only the superblock, and what a transaction needs.
    let disk = ordered(&before, &after, block_bytes);
    let mut partly = Image(disk.0.clone());
    let changed = disk.written(&after, block_bytes);
    let descriptors = 2..30;
    for (block, content) in &changed {
        if !descriptors.contains(block) {
            partly.0[*block as usize * block_bytes..][..block_bytes].copy_from_slice(content);
        }
    }
    // The inode table of a group moves.
    let mut moved = Image(disk.0.clone());
    moved.0[2 * block_bytes + 8] ^= 1;
    for number in 0..4 {
        let at = (view.superblock().blocks as usize - 1 - number) * block_bytes;
        moved.0[at] ^= 1;
    }
    for (what, made) in [("partly", &partly), ("moved", &moved)] {
        let replayed = grown_in_journal(&path, (&disk, made, &after), folder.path());
        let mut live = live(&disk);
        let mut events = Vec::new();
        for (block, content) in committed(&disk, &replayed, block_bytes) {
            live.was_written(block * block_bytes as u64, content, &mut events);
        }
        assert!(live.take_outdated(), "{what}");
        assert!(!live.take_outdated(), "{what}: it is said once");
    }
    // The file system is not mounted, so each block takes effect at once.
    let mut live = live(&before);
    live.was_written(
        2 * block_bytes as u64,
        &moved.0[2 * block_bytes..][..block_bytes],
        &mut Vec::new(),
    );
    assert!(live.take_outdated());
}

/// When there is no more space for descriptors next to the others, a kernel places them in their
/// own groups from some group on. These groups have no copies of the others. An inode table at the
/// position of such a copy was once taken for one.
#[test]
fn copies_of_descriptors_are_where_dumpe2fs_reports_them() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("image");
    let options = "meta_bg,^resize_inode,^flex_bg,^metadata_csum,^uninit_bg";
    for (features, first) in [(options, 2_u32), (options, 0), ("^resize_inode", 0)] {
        run(program("mke2fs")
            .args([
                "-q", "-F", "-t", "ext4", "-b", "1024", "-g", "512", "-O", features,
            ])
            .arg(&path)
            .arg("60000"));
        let mut image = Image(fs::read(&path).expect("read"));
        image.0[1024 + 260..1024 + 264].copy_from_slice(&first.to_le_bytes());
        fs::write(&path, &image.0).expect("written");
        let said = run(program("dumpe2fs").arg(&path));
        let mut expected = BTreeSet::new();
        for line in said.lines() {
            for part in line.split(", ") {
                let is_copy = ["superblock at", "Group descriptor"].map(|what| part.contains(what));
                if !is_copy.contains(&true) || !part.contains(" at ") {
                    continue;
                }
                let (_, place) = part.split_once(" at ").expect("a place");
                let mut ends = place.split('-').map(|end| end.trim().parse::<u64>());
                let begin = ends.next().expect("a block").expect("a number");
                let end = ends.next().map_or(begin, |end| end.expect("a number"));
                expected.extend(begin..=end);
            }
        }
        let bytes = image.0[1024..].first_chunk().expect("there");
        let superblock = Superblock::parse(bytes).expect("a superblock");
        assert_eq!(superblock.first_meta_group.unwrap_or(0), first);
        let found: BTreeSet<u64> = superblock.layout().into_iter().flatten().collect();
        assert!(expected.len() > 30, "{features}: {said}");
        assert_eq!(found, expected, "{features} {first}");
    }
}
