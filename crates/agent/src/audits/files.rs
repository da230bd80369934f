//! [`FileSystems`]: attributes each byte that the compromised units hold to a file of the volume's
//! ext file systems.

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

/// Memory for all file systems of an audit together, in bytes: enough for some millions of files. A
/// host runs one audit at a time.
const VIEWS_BYTES_MAX: u64 = 1 << 30;

/// Memory for the findings about one file, in bytes, while the table of findings is doubled.
const NOTED_BYTES: u64 = 3 * size_of::<(u32, AuditBytes)>() as u64;

/// The largest list of files as JSON, in bytes: names may be long. The whole report may be twice as
/// large, with lengths and the overhead of sealing.
const LISTED_BYTES_MAX: usize = 8 << 20;

/// The largest number of exact lengths in a report. If there are more, files with the same number
/// of blocks are reported with their mean length.
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

/// Why the files of a partition are unknown.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum UnreadError {
    #[error(transparent)]
    Scan(ScanError),
    /// Some of its bytes would count twice.
    #[error("it was skipped: it overlaps the partition that begins at byte {0}")]
    Overlaps(u64),
    /// The file systems would use more than this much memory, in bytes.
    #[error("not enough memory: the file tables of all partitions may use {0} bytes together")]
    Room(u64),
}

/// A file system, and the findings about its files so far, by inode.
struct FileSystem {
    partition: Partition,
    found: Result<View, UnreadError>,
    /// Number of damaged blocks outside of it that should say where it is.
    damaged_around: u64,
    files: HashMap<u32, AuditBytes>,
}

/// The file systems of a disk.
pub struct FileSystems(Vec<FileSystem>);

impl FileSystems {
    /// Reads the file systems on a disk of `disk_bytes`. A disk without partitions, or with a
    /// damaged partition table, may be one file system. Of overlapping partitions, the first in the
    /// table counts.
    ///
    /// # Errors
    /// If the disk is unavailable. A missing or damaged file system is a finding.
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

    /// Adds what the compromised units hold of the byte range `disk`.
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

    /// Adds the findings about files to `found`. `check` is called before each file is listed,
    /// because finding a path may take long if many names lead nowhere.
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

/// Whether a file fits into the remaining `room` as JSON; if it does, the room shrinks.
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

/// The number of files of each length; if there are too many lengths, one mean length for each
/// number of blocks.
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
mod tests;
