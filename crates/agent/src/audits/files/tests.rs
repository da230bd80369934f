//! Tests of file systems that are audited.

#![expect(clippy::disallowed_methods, reason = "e2fsprogs makes file systems")]

use std::cell::Cell;

use super::*;

fn held(total: u64, readable: u64, sealed: u64) -> AuditBytes {
    AuditBytes {
        total,
        readable,
        sealed,
        altered: 0,
    }
}

/// The findings, if at most `left` files may be listed.
fn listed(files: FileSystems, left: &mut u32) -> Option<AuditResult> {
    let left = Cell::from_mut(left);
    let check = || {
        left.get()
            .checked_sub(1)
            .map(|less| left.set(less))
            .ok_or(())
    };
    let found = files.into_found(AuditResult::default(), BlockSize::DEFAULT, true, check);
    found.ok()
}

struct Zeroes;

impl Source for Zeroes {
    fn read(&self, _: u64, out: &mut [u8]) -> Result<(), IoError> {
        out.fill(0);
        Ok(())
    }
}

#[test]
fn a_disk_without_a_file_system_is_reported_as_such() {
    let mut files = FileSystems::read(&Zeroes, 1 << 20).expect("read");
    files.add(0..4096, Exposure::Content);
    let found = listed(files, &mut 9).expect("found");
    let [system] = &*found.listing.file_systems else {
        panic!("{found:?}");
    };
    assert_eq!(
        (system.offset, system.length, system.files),
        (0, 1 << 20, 0)
    );
    let problem = system.problem.as_deref().expect("a problem");
    assert!(problem.contains("ext"), "{problem}");
    assert_eq!(found.files, AuditFiles::default());
}

/// A disk whose first sector is damaged, or has a partition table (first sector and number of
/// sectors of each); each partition begins with the same file system.
struct Table {
    partitions: Option<Vec<(u32, u32)>>,
    image: Vec<u8>,
}

impl Source for Table {
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), IoError> {
        out.fill(0);
        let Some(partitions) = &self.partitions else {
            let error = || Err(IoError::Damaged("in every copy".to_owned()));
            return if offset < 512 { error() } else { Ok(()) };
        };
        if offset == 0 && out.len() == 512 {
            for (entry, (first, sectors)) in out[446..].chunks_exact_mut(16).zip(partitions) {
                entry[4] = 0x83;
                entry[8..12].copy_from_slice(&first.to_le_bytes());
                entry[12..].copy_from_slice(&sectors.to_le_bytes());
            }
            out[510..].copy_from_slice(&[0x55, 0xAA]);
            return Ok(());
        }
        let is_in = |first: &u32| (u64::from(*first) * 512..).contains(&offset);
        let firsts = partitions.iter().map(|(first, _)| *first).filter(is_in);
        if let Some(first) = firsts.max() {
            let at = (offset - u64::from(first) * 512) as usize;
            let there = self.image.get(at..).unwrap_or_default();
            let length = out.len().min(there.len());
            out[..length].copy_from_slice(&there[..length]);
        }
        Ok(())
    }
}

/// An ext4 file system of 4 MiB that has one file.
fn image() -> Vec<u8> {
    let folder = tempfile::tempdir().expect("a folder");
    let (tree, image) = (folder.path().join("tree"), folder.path().join("image"));
    std::fs::create_dir(&tree).expect("made");
    std::fs::write(tree.join("file"), [7; 100]).expect("written");
    let made = std::process::Command::new("/usr/sbin/mkfs.ext4")
        .args(["-q", "-b", "4096", "-d"])
        .args([&tree, &image])
        .arg("4M")
        .output();
    assert!(made.expect("run").status.success());
    std::fs::read(image).expect("read")
}

const SECTORS: u32 = (4 << 20) / 512;

fn found(table: &Table, bytes_max: u64) -> Vec<AuditFileSystem> {
    let files = FileSystems::read_within(table, 64 << 20, bytes_max);
    let files = files.expect("it answers");
    files.0.iter().map(FileSystem::shown).collect()
}

#[test]
fn a_damaged_table_of_partitions_is_ignored_and_counted() {
    let table = Table {
        partitions: None,
        image: Vec::new(),
    };
    let [system] = &*found(&table, 1 << 20) else {
        panic!("not one");
    };
    assert_eq!((system.offset, system.length), (0, 64 << 20));
    assert_eq!(system.damaged, 1);
    assert!(system.problem.is_some());
}

#[test]
fn of_overlapping_partitions_the_first_counts() {
    let table = Table {
        partitions: Some(vec![
            (2048, SECTORS),
            (2048, SECTORS),
            (2048 + SECTORS - 1, SECTORS),
            (2048 + SECTORS, SECTORS),
        ]),
        image: image(),
    };
    let found = found(&table, 1 << 30);
    let problem = |system: &AuditFileSystem| system.problem.clone();
    let problems: Vec<_> = found.iter().map(problem).collect();
    let overlaps = Some(UnreadError::Overlaps(2048 * 512).to_string());
    assert_eq!(problems, [None, overlaps.clone(), overlaps, None]);
}

#[test]
fn all_partitions_together_use_no_more_memory_than_one_may() {
    let partitions = [1, 2, 3].map(|at| (at * SECTORS, SECTORS)).to_vec();
    let table = Table {
        partitions: Some(partitions),
        image: image(),
    };
    let read = |bytes_max| {
        let found = found(&table, bytes_max);
        found.iter().filter(|one| one.problem.is_none()).count()
    };
    assert_eq!(read(1 << 30), 3);
    let (mut too_few, mut one) = (0, 1 << 30);
    while one - too_few > 1 {
        let middle = u64::midpoint(one, too_few);
        match read(middle) {
            0 => too_few = middle,
            _ => one = middle,
        }
    }
    assert_eq!((read(one), read(3 * one)), (1, 3), "{one}");
    let room = Some(UnreadError::Room(one).to_string());
    assert_eq!(found(&table, one)[1].problem, room);
}

/// Regression: a canceled audit listed all files.
#[test]
fn a_canceled_audit_lists_no_more_files() {
    let partitions = [1, 2, 3].map(|at| (at * SECTORS, SECTORS)).to_vec();
    let table = Table {
        partitions: Some(partitions),
        image: image(),
    };
    let read = || {
        let files = FileSystems::read(&table, 64 << 20);
        let mut files = files.expect("it answers");
        files.add(0..64 << 20, Exposure::Content);
        files
    };
    let mut left = 3;
    let found = listed(read(), &mut left).expect("found");
    let paths = found.listing.listed.iter().map(|file| file.path.as_deref());
    assert!(paths.eq([Some("/file"); 3]), "{found:?}");
    assert_eq!(left, 0);
    assert_eq!(listed(read(), &mut 2), None);
}

#[test]
fn files_are_listed_while_there_is_room() {
    let file = |bytes: usize| AuditFile {
        // Each is six bytes of JSON.
        path: Some("\u{1}".repeat(bytes)),
        ..AuditFile::default()
    };
    let mut room = 1000;
    assert!(fits(&file(100), &mut room) && room < 400, "{room}");
    assert!(!fits(&file(100), &mut room));
    assert!(
        !fits(&file(0), &mut room),
        "nothing is listed after what was left out"
    );
}

#[test]
fn a_file_leaks_as_a_whole_if_every_byte_of_it_does() {
    let mut files = AuditFiles::default();
    for content in [
        held(10, 10, 0),
        held(10, 9, 1),
        held(10, 0, 10),
        held(7, 0, 0),
    ] {
        count(&mut files, &content);
    }
    assert_eq!(
        (files.readable, files.partly_readable, files.unreadable),
        (1, 1, 2)
    );
    assert_eq!(files.readable_bytes, 10);
    assert_eq!(files.content, held(37, 19, 11));
}

#[test]
fn too_many_lengths_are_reported_as_means_for_each_number_of_blocks() {
    let few = BTreeMap::from([(1, 2), (5000, 1)]);
    assert_eq!(shortened(few.clone(), BlockSize::DEFAULT), few);
    let many: BTreeMap<u64, u64> = (1..=100_000).map(|length| (length, 1)).collect();
    let short = shortened(many, BlockSize::DEFAULT);
    assert_eq!(short.len(), 25);
    assert_eq!(short.values().sum::<u64>(), 100_000);
    let blocks = short.keys().map(|length| length.div_ceil(4096));
    assert!(blocks.eq(1..=25));
}
