//! [`FileSystems`]: attributes what the compromised units have to the files of the volume's ext file
//! systems, byte by byte.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use api::types::{
    AUDIT_FILES_MAX, AuditBytes, AuditFile, AuditFileSystem, AuditFiles, AuditLength, AuditListing,
    AuditResult,
};
use base::{BlockSize, IoError};
use extfs::partition::{Partition, partitions};
use extfs::{ScanError, Source, View};
use volume::scatter::Exposure;

/// The memory for all file systems of an audit together, in bytes: enough for some millions of files.
/// A host runs one audit at a time.
const VIEWS_BYTES_MAX: u64 = 1 << 30;

/// The memory for the findings about one file, in bytes, also where a table has just been doubled.
const NOTED_BYTES: u64 = 3 * size_of::<(u32, AuditBytes)>() as u64;

/// The largest list of files as JSON, in bytes: names may be long. The whole report may have twice as
/// much, with lengths and with what sealing adds.
const LISTED_BYTES_MAX: usize = 8 << 20;

/// The largest number of lengths that are reported as they are; of more, the mean of those with the
/// same number of blocks is.
const LENGTHS_MAX: usize = 1 << 16;

/// A partition of the disk.
struct Part<'a> {
    disk: &'a dyn Source,
    partition: Partition,
}

impl Source for Part<'_> {
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), IoError> {
        let offset = self.partition.on_disk(offset, out.len() as u64)?;
        self.disk.read(offset, out)
    }
}

/// Why nothing is known about the files of a partition.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum UnreadError {
    #[error(transparent)]
    Scan(ScanError),
    /// Some of its bytes would count twice.
    #[error("it was not looked at: it overlaps with the partition that begins at byte {0}")]
    Overlaps(u64),
    /// It has too many files, or partitions before it have.
    #[error(
        "there is no memory for it: what has files may take {0} bytes, all partitions together"
    )]
    Room(u64),
}

/// A file system, and the findings about its files so far, by inode.
struct FileSystem {
    partition: Partition,
    found: Result<View, UnreadError>,
    /// How many blocks outside of it, that say where it is, were damaged.
    damaged_around: u64,
    files: HashMap<u32, AuditBytes>,
}

/// The file systems of a disk.
pub struct FileSystems(Vec<FileSystem>);

impl FileSystems {
    /// Reads the file systems on a disk of `disk_bytes`. A disk without partitions, or with a damaged
    /// table of partitions, may be one file system. Of overlapping partitions, the first in the table
    /// counts.
    ///
    /// # Errors
    /// If the disk cannot be read for now. A missing or damaged file system is a finding.
    pub fn read(disk: &dyn Source, disk_bytes: u64) -> Result<Self, IoError> {
        Self::read_within(disk, disk_bytes, VIEWS_BYTES_MAX)
    }

    fn read_within(disk: &dyn Source, disk_bytes: u64, bytes_max: u64) -> Result<Self, IoError> {
        let mut damaged_around = 0;
        let mut all_partitions = match partitions(disk, disk_bytes) {
            Ok(found) => found,
            Err(error @ (IoError::Unavailable(_) | IoError::Stopped(_))) => return Err(error),
            Err(_) => {
                damaged_around = 1;
                Vec::new()
            }
        };
        if all_partitions.is_empty() {
            all_partitions.push(Partition {
                offset: 0,
                length: disk_bytes,
            });
        }
        let mut left = bytes_max;
        let mut all = Vec::<FileSystem>::new();
        for partition in all_partitions {
            let mut others = all.iter().filter(|other| !other.is_left_out());
            let found = match others.find(|other| overlap(&other.partition, &partition)) {
                Some(other) => Err(UnreadError::Overlaps(other.partition.offset)),
                None => {
                    let read = View::read(&Part { disk, partition }, partition.length, left);
                    if let Err(ScanError::Io(
                        error @ (IoError::Unavailable(_) | IoError::Stopped(_)),
                    )) = read
                    {
                        return Err(error);
                    }
                    read.and_then(|view| {
                        let noted = view.inodes().count() as u64 * NOTED_BYTES;
                        let taken = view.bytes() + noted;
                        left = left.checked_sub(taken).ok_or(ScanError::Large(left))?;
                        Ok(view)
                    })
                    .map_err(|error| match error {
                        ScanError::Large(_) => UnreadError::Room(bytes_max),
                        error => UnreadError::Scan(error),
                    })
                }
            };
            all.push(FileSystem {
                partition,
                found,
                damaged_around,
                files: HashMap::new(),
            });
        }
        Ok(Self(all))
    }

    /// Adds what the compromised units have of these bytes of the disk.
    pub fn add(&mut self, disk: Range<u64>, held: Exposure) {
        for FileSystem {
            partition,
            found,
            files,
            ..
        } in &mut self.0
        {
            let Ok(view) = found else { continue };
            let begin = disk.start.max(partition.offset);
            let end = disk.end.min(partition.offset + partition.length);
            if begin < end {
                view.content_in(
                    begin - partition.offset..end - partition.offset,
                    |inode, bytes| {
                        add(files.entry(inode).or_default(), bytes, held);
                    },
                );
            }
        }
    }

    /// The findings about files, added to `found`. Before each listed file, `check` says whether to
    /// continue: to find a path may take long, where many names lead nowhere.
    ///
    /// # Errors
    /// The error of `check`.
    pub fn into_found<E>(
        self,
        found: AuditResult,
        block: BlockSize,
        is_listed: bool,
        check: impl Fn() -> Result<(), E>,
    ) -> Result<AuditResult, E> {
        let mut files = AuditFiles::default();
        let mut lengths = BTreeMap::<u64, u64>::new();
        let mut listed = Vec::new();
        for (number, system) in (0..).zip(&self.0) {
            for (inode, content) in &system.files {
                count(&mut files, content);
                *lengths.entry(content.total).or_default() += 1;
                if content.readable + content.sealed + content.altered > 0 {
                    listed.push((number, *inode, *content));
                }
            }
        }
        listed.sort_unstable_by_key(|(system, inode, content)| {
            let AuditBytes {
                readable, total, ..
            } = *content;
            (readable < total, Reverse(readable), *system, *inode)
        });
        if !is_listed {
            listed.clear();
        }
        let count = listed.len();
        let each = listed.into_iter().take(AUDIT_FILES_MAX);
        let mut room = LISTED_BYTES_MAX;
        let mut listed = Vec::new();
        for one in each {
            check()?;
            let file = self.listed(one);
            if !fits(&file, &mut room) {
                break;
            }
            listed.push(file);
        }
        let lengths = shortened(lengths, block).into_iter();
        let lengths = lengths.map(|(bytes, files)| AuditLength { bytes, files });
        Ok(AuditResult {
            files,
            listing: AuditListing {
                file_systems: self.0.iter().map(FileSystem::shown).collect(),
                unlisted: (count - listed.len()) as u64,
                listed,
                lengths: lengths.collect(),
            },
            ..found
        })
    }

    fn listed(&self, (number, inode, content): (u32, u32, AuditBytes)) -> AuditFile {
        let system = &self.0[number as usize];
        let view = system.found.as_ref().ok();
        let path = view.and_then(|view| view.path(inode));
        AuditFile {
            path: path.map(|path| String::from_utf8_lossy(&path).into_owned()),
            inode,
            file_system: number,
            content,
        }
    }
}

/// Whether a file fits into the room as JSON; then the room shrinks.
fn fits(file: &AuditFile, room: &mut usize) -> bool {
    let json = serde_json::to_string(file).map_or(usize::MAX, |json| json.len() + 1);
    let fits = json <= *room;
    *room = room.saturating_sub(json);
    fits
}

impl FileSystem {
    fn is_left_out(&self) -> bool {
        matches!(self.found, Err(UnreadError::Overlaps(_)))
    }

    fn shown(&self) -> AuditFileSystem {
        let (problem, damaged) = match &self.found {
            Ok(view) => (None, view.damaged()),
            Err(error) => (Some(base::with_causes(error)), 0),
        };
        let damaged = damaged + self.damaged_around;
        AuditFileSystem {
            offset: self.partition.offset,
            length: self.partition.length,
            problem,
            damaged,
            files: self.files.len() as u64,
        }
    }
}

fn overlap(one: &Partition, other: &Partition) -> bool {
    one.offset < other.offset + other.length && other.offset < one.offset + one.length
}

fn add(content: &mut AuditBytes, bytes: u64, held: Exposure) {
    content.total += bytes;
    match held {
        Exposure::Nothing => {}
        Exposure::Other => content.altered += bytes,
        Exposure::Sealed => content.sealed += bytes,
        Exposure::Content => content.readable += bytes,
    }
}

fn count(files: &mut AuditFiles, content: &AuditBytes) {
    if content.readable == content.total {
        files.readable += 1;
        files.readable_bytes += content.total;
    } else if content.readable > 0 {
        files.partly_readable += 1;
    } else {
        files.unreadable += 1;
    }
    files.content.total += content.total;
    files.content.readable += content.readable;
    files.content.sealed += content.sealed;
    files.content.altered += content.altered;
}

/// Lengths, and how many files have each; if there are too many, one mean for each number of
/// blocks.
fn shortened(lengths: BTreeMap<u64, u64>, block: BlockSize) -> BTreeMap<u64, u64> {
    if lengths.len() <= LENGTHS_MAX {
        return lengths;
    }
    let mut by_blocks = BTreeMap::<u64, (u64, u64)>::new();
    for (length, count) in lengths {
        let class = by_blocks.entry(length.div_ceil(block.bytes() as u64));
        let (bytes, files) = class.or_default();
        *bytes += length * count;
        *files += count;
    }
    let mean = |(bytes, files): (u64, u64)| (bytes.div_ceil(files), files);
    by_blocks.into_values().map(mean).collect()
}

#[cfg(test)]
mod tests {
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

    /// The findings, if `left` files may be listed.
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
        let problem = system.problem.as_deref().expect("there is none");
        assert!(problem.contains("ext"), "{problem}");
        assert_eq!(found.files, AuditFiles::default());
    }

    /// A disk whose first sector is damaged, or has a table of these partitions, in sectors; each
    /// begins with the same file system.
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

    /// A canceled audit continued its list to the end.
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
}
