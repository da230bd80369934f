//! Whose blocks are what the captured units have: files of the volume's ext file systems, byte
//! by byte.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use api::types::{
    AUDIT_FILES_MAX, AuditFile, AuditFileSystem, AuditFiles, AuditFound, AuditHeld, AuditLength,
};
use base::{BlockSize, IoError};
use chain::extfs::{ScanError, Source, View};
use chain::partition::{Partition, partitions};
use volume::scatter::Held;

/// What one file system may take of memory, in bytes: some millions of files.
const VIEW_BYTES_MAX: u64 = 1 << 30;

/// What is listed of files is no longer than this as JSON, in bytes: names may be long, and what
/// is told as a whole may have twice as much.
const LISTED_BYTES_MAX: usize = 8 << 20;

/// So many different lengths are told as they are; of more, those that have as many blocks
/// are told as their mean.
const LENGTHS_MAX: usize = 1 << 16;

/// A part of the disk.
struct Part<'a> {
    disk: &'a dyn Source,
    place: Partition,
}

impl Source for Part<'_> {
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), IoError> {
        let offset = self.place.on_disk(offset, out.len() as u64)?;
        self.disk.read(offset, out)
    }
}

/// A file system, and what was found of its files so far, by inode.
struct FileSystem {
    place: Partition,
    found: Result<View, ScanError>,
    files: HashMap<u32, AuditHeld>,
}

/// What is told of files, besides counts.
#[derive(Debug, Clone, Copy)]
pub struct Telling {
    /// Those of which something is there are listed.
    pub is_listed: bool,
    /// Blocks are sealed, so names and lengths of files are nothing that controllers know.
    pub is_sealed: bool,
}

/// All of a disk.
pub struct FileSystems(Vec<FileSystem>);

impl FileSystems {
    /// Reads what is on a disk of `disk_bytes`: what it has no partitions for may be one file
    /// system.
    ///
    /// # Errors
    /// If the disk cannot be read for now. A file system that is none, or damaged, is found to be so.
    pub fn read(disk: &dyn Source, disk_bytes: u64) -> Result<Self, IoError> {
        let mut places = partitions(disk, disk_bytes)?;
        if places.is_empty() {
            places.push(Partition {
                offset: 0,
                length: disk_bytes,
            });
        }
        let mut all = Vec::new();
        for place in places {
            let found = View::read(&Part { disk, place }, place.length, VIEW_BYTES_MAX);
            if let Err(ScanError::Io(error @ IoError::Unavailable(_))) = found {
                return Err(error);
            }
            all.push(FileSystem {
                place,
                found,
                files: HashMap::new(),
            });
        }
        Ok(Self(all))
    }

    /// Takes note of what the captured units have of these bytes of the disk.
    pub fn add(&mut self, disk: Range<u64>, held: Held) {
        for FileSystem {
            place,
            found,
            files,
        } in &mut self.0
        {
            let Ok(view) = found else { continue };
            let begin = disk.start.max(place.offset);
            let end = disk.end.min(place.offset + place.length);
            if begin < end {
                view.content_in(begin - place.offset..end - place.offset, |inode, bytes| {
                    add(files.entry(inode).or_default(), bytes, held);
                });
            }
        }
    }

    /// What was found of files, added to `found`.
    pub fn into_found(self, found: AuditFound, block: BlockSize, telling: Telling) -> AuditFound {
        let mut files = AuditFiles::default();
        let mut lengths = BTreeMap::<u64, u64>::new();
        let mut listed = Vec::new();
        for (number, system) in (0..).zip(&self.0) {
            for (inode, content) in &system.files {
                count(&mut files, content);
                *lengths.entry(content.all).or_default() += 1;
                if content.readable + content.sealed + content.other > 0 {
                    listed.push((number, *inode, *content));
                }
            }
        }
        listed.sort_unstable_by_key(|(system, inode, content)| {
            let AuditHeld { readable, all, .. } = *content;
            (readable < all, Reverse(readable), *system, *inode)
        });
        if !telling.is_listed {
            listed.clear();
        }
        let count = listed.len();
        let each = listed.into_iter().take(AUDIT_FILES_MAX);
        let mut room = LISTED_BYTES_MAX;
        let listed: Vec<AuditFile> = each
            .map(|one| self.listed(one, telling.is_sealed))
            .take_while(|file| fits(file, &mut room))
            .collect();
        if telling.is_sealed {
            lengths.clear();
        }
        AuditFound {
            unlisted: (count - listed.len()) as u64,
            listed,
            files,
            lengths: shortened(lengths, block)
                .into_iter()
                .map(|(bytes, files)| AuditLength { bytes, files })
                .collect(),
            file_systems: self.0.iter().map(FileSystem::shown).collect(),
            ..found
        }
    }

    fn listed(
        &self,
        (number, inode, content): (u32, u32, AuditHeld),
        is_sealed: bool,
    ) -> AuditFile {
        let system = &self.0[number as usize];
        let view = system.found.as_ref().ok().filter(|_| !is_sealed);
        let path = view.and_then(|view| view.paths(inode).into_iter().next());
        AuditFile {
            path: path.map(|path| String::from_utf8_lossy(&path).into_owned()),
            inode,
            file_system: number,
            content,
        }
    }
}

/// Whether there is room for it as JSON; then there is as much less.
fn fits(file: &AuditFile, room: &mut usize) -> bool {
    let json = serde_json::to_string(file).map_or(usize::MAX, |json| json.len() + 1);
    let fits = json <= *room;
    *room = room.saturating_sub(json);
    fits
}

impl FileSystem {
    fn shown(&self) -> AuditFileSystem {
        let (problem, damaged) = match &self.found {
            Ok(view) => (None, view.damaged()),
            Err(error) => (Some(base::with_causes(error)), 0),
        };
        AuditFileSystem {
            offset: self.place.offset,
            length: self.place.length,
            problem,
            damaged,
            files: self.files.len() as u64,
        }
    }
}

fn add(content: &mut AuditHeld, bytes: u64, held: Held) {
    content.all += bytes;
    match held {
        Held::Nothing => {}
        Held::Other => content.other += bytes,
        Held::Sealed => content.sealed += bytes,
        Held::Content => content.readable += bytes,
    }
}

fn count(files: &mut AuditFiles, content: &AuditHeld) {
    if content.readable == content.all {
        files.whole += 1;
        files.whole_bytes += content.all;
    } else if content.readable > 0 {
        files.part += 1;
    } else {
        files.none += 1;
    }
    files.content.all += content.all;
    files.content.readable += content.readable;
    files.content.sealed += content.sealed;
    files.content.other += content.other;
}

/// Lengths, and how many files have each; if there are too many, one for all that have as many
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
    use super::*;

    fn held(all: u64, readable: u64, sealed: u64) -> AuditHeld {
        AuditHeld {
            all,
            readable,
            sealed,
            other: 0,
        }
    }

    struct Zeroes;

    impl Source for Zeroes {
        fn read(&self, _: u64, out: &mut [u8]) -> Result<(), IoError> {
            out.fill(0);
            Ok(())
        }
    }

    #[test]
    fn a_disk_without_a_file_system_is_told_so() {
        let mut files = FileSystems::read(&Zeroes, 1 << 20).expect("read");
        files.add(0..4096, Held::Content);
        let telling = Telling {
            is_listed: true,
            is_sealed: false,
        };
        let found = files.into_found(AuditFound::default(), BlockSize::DEFAULT, telling);
        let [system] = &*found.file_systems else {
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

    #[test]
    fn there_is_room_for_so_much_and_no_more() {
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
        assert_eq!((files.whole, files.part, files.none), (1, 1, 2));
        assert_eq!(files.whole_bytes, 10);
        assert_eq!(files.content, held(37, 19, 11));
    }

    #[test]
    fn too_many_lengths_are_told_as_means_of_as_many_blocks() {
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
