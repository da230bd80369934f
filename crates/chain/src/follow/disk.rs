//! [`Disk`]: the known state of a disk, which turns requests into accesses to files.

use std::collections::BTreeMap;
use std::ops::Range;

use chain_policy::Operation;

use super::reader::Area;
use extfs::{self, ScanError, Superblock};

/// The length of the beginning of a partition that every program that makes a file system writes,
/// in bytes.
const BEGINNING_BYTES: u64 = 64 << 10;

/// The range of a superblock in its file system, in bytes.
const SUPERBLOCK: Range<u64> = 1024..2048;

/// The maximal number of places of a part of a file that are reported.
const PLACES_MAX: usize = 16;

/// An access to the disk.
#[derive(Debug, PartialEq, Eq)]
pub enum Access {
    /// An event of a file in the area with this index.
    File(usize, extfs::Event),
    /// An access to blocks of no known file system, in bytes of the disk, with the number of the
    /// partition.
    Blocks(Option<u32>, Operation, Range<u64>),
}

/// A block whose content is needed to follow a file system, and unknown.
pub struct WantedBlock {
    /// The index of the area.
    pub area: usize,
    pub block: u64,
    /// The range of the block on the disk, in bytes.
    pub range: Range<u64>,
}

/// The known state of a disk.
pub struct Disk {
    areas: Vec<Area>,
    /// The limit on the memory of all file systems together, in bytes.
    bytes_max: u64,
    /// The inodes whose blocks, names or kind changed with the last write or read, with the index
    /// of their area.
    changed: Vec<(usize, u32)>,
    has_moved: bool,
    /// The ranges that became metadata with the last growth, in bytes of the disk.
    laid_out: Vec<Range<u64>>,
}

/// The part of `range` that is in `place`.
fn common(range: &Range<u64>, place: &Range<u64>) -> Option<Range<u64>> {
    let (start, end) = (range.start.max(place.start), range.end.min(place.end));
    (start < end).then_some(start..end)
}

fn place(area: &Area) -> Range<u64> {
    area.place.offset..area.place.offset + area.place.length
}

/// Stops following a file system that exceeds its memory. Its accesses are then reported by block.
/// Returns whether it stopped.
fn give_up_if_large(area: &mut Area) -> bool {
    match &area.found {
        Ok(live) if !live.is_within_bounds() => {
            let bytes_max = live.view().bytes_max();
            area.found = Err(ScanError::Large(bytes_max));
            true
        }
        _ => false,
    }
}

impl Disk {
    pub fn new(areas: Vec<Area>, bytes_max: u64) -> Self {
        Self {
            areas,
            bytes_max,
            changed: Vec::new(),
            has_moved: false,
            laid_out: Vec::new(),
        }
    }

    /// An area, whose limit on memory is set to what the others leave.
    fn area(&mut self, at: usize) -> Option<&mut Area> {
        let others = self.areas.iter().enumerate().filter(|(one, _)| *one != at);
        let others: u64 = others.map(|(_, area)| area.bytes()).sum();
        let left = self.bytes_max.saturating_sub(others);
        let area = self.areas.get_mut(at)?;
        if let Ok(live) = &mut area.found {
            live.set_bytes_max(left);
        }
        Some(area)
    }

    /// The inodes whose blocks, names or kind changed since [`Disk::forget_changed`], each with the
    /// index of its area.
    pub fn changed(&self) -> &[(usize, u32)] {
        &self.changed
    }

    /// Clears the changes.
    pub fn forget_changed(&mut self) {
        self.changed.clear();
        self.has_moved = false;
        self.laid_out.clear();
    }

    /// The ranges that became metadata since [`Disk::forget_changed`] because a file system has
    /// grown, and that were written before, in bytes.
    pub fn laid_out(&self) -> &[Range<u64>] {
        &self.laid_out
    }

    /// Whether the path of a directory that is not empty has changed.
    pub fn has_moved(&self) -> bool {
        self.has_moved
    }

    pub fn areas(&self) -> &[Area] {
        &self.areas
    }

    /// Appends the accesses of a read of `range`.
    pub fn was_read(&self, range: &Range<u64>, seen: &mut Vec<Access>) {
        let mut events = Vec::new();
        self.each(range, |at, part| {
            let area = at.map(|at| (at, &self.areas[at]));
            match area.and_then(|(at, area)| Some((at, area, area.found.as_ref().ok()?))) {
                Some((at, area, live)) => {
                    let offset = part.start - area.place.offset;
                    live.was_read(offset, part.end - part.start, &mut events);
                    seen.extend(events.drain(..).map(|event| Access::File(at, event)));
                }
                None => {
                    let number = area.and_then(|(_, area)| area.number);
                    seen.push(Access::Blocks(number, Operation::Read, part));
                }
            }
        });
    }

    /// Handles a write of `data` at `offset`. Returns whether it may have created another file
    /// system, so that the disk has to be read again.
    pub fn was_written(&mut self, offset: u64, data: &[u8], seen: &mut Vec<Access>) -> bool {
        let range = offset..offset + data.len() as u64;
        let mut parts = Vec::new();
        self.each(&range, |at, part| parts.push((at, part)));
        let mut is_new = false;
        let mut events = Vec::new();
        let (mut changed, mut has_moved) = (Vec::new(), false);
        let mut laid_out = Vec::new();
        for (at, part) in parts {
            let content = &data[(part.start - offset) as usize..(part.end - offset) as usize];
            let Some(at) = at else {
                // Partition tables are between areas.
                is_new = true;
                seen.push(Access::Blocks(None, Operation::Write, part));
                continue;
            };
            let Some(area) = self.area(at) else {
                continue;
            };
            let begin = part.start - area.place.offset;
            match &mut area.found {
                Ok(live) => {
                    let known = live.view().superblock();
                    is_new |= is_another(known, begin, content);
                    live.was_written(begin, content, &mut events);
                    is_new |= live.take_outdated();
                    let block_bytes = u64::from(live.view().superblock().block_bytes);
                    laid_out.extend(live.laid_out().iter().map(|blocks| {
                        let offset = area.place.offset;
                        offset + blocks.start * block_bytes..offset + blocks.end * block_bytes
                    }));
                    changed.extend(live.changed().iter().map(|inode| (at, *inode)));
                    has_moved |= live.has_moved();
                    is_new |= give_up_if_large(area);
                    seen.extend(events.drain(..).map(|event| Access::File(at, event)));
                }
                Err(_) => {
                    is_new |= begin < BEGINNING_BYTES;
                    seen.push(Access::Blocks(area.number, Operation::Write, part));
                }
            }
        }
        self.changed.append(&mut changed);
        self.laid_out.append(&mut laid_out);
        self.has_moved |= has_moved;
        is_new
    }

    /// Handles a trim of `range`, which counts as a write of content. Returns whether it affected
    /// metadata or a partition table, so that the disk has to be read again.
    pub fn was_trimmed(&self, range: &Range<u64>, seen: &mut Vec<Access>) -> bool {
        let mut is_new = false;
        let mut events = Vec::new();
        self.each(range, |at, part| {
            let area = at.map(|at| (at, &self.areas[at]));
            let begin = area.map_or(0, |(_, area)| part.start - area.place.offset);
            match area.map(|(at, area)| (at, area, &area.found)) {
                Some((at, _, Ok(live))) => {
                    is_new |= live.was_trimmed(begin, part.end - part.start, &mut events);
                    seen.extend(events.drain(..).map(|event| Access::File(at, event)));
                }
                Some((_, area, Err(_))) => {
                    is_new |= begin < BEGINNING_BYTES;
                    seen.push(Access::Blocks(area.number, Operation::Write, part));
                }
                None => {
                    // Partition tables are between areas.
                    is_new = true;
                    seen.push(Access::Blocks(None, Operation::Write, part));
                }
            }
        });
        is_new
    }

    /// Takes the blocks whose content is needed and unknown.
    pub fn take_wanted(&mut self) -> Vec<WantedBlock> {
        let mut wanted = Vec::new();
        for (at, area) in self.areas.iter_mut().enumerate() {
            let Ok(live) = &mut area.found else { continue };
            let block_bytes = u64::from(live.view().superblock().block_bytes);
            for block in live.take_wanted() {
                let start = area.place.offset + block * block_bytes;
                wanted.push(WantedBlock {
                    area: at,
                    block,
                    range: start..start + block_bytes,
                });
            }
        }
        wanted
    }

    /// Handles the content of wanted blocks of an area. Returns whether the disk has to be read
    /// again.
    pub fn were_found(
        &mut self,
        at: usize,
        blocks: BTreeMap<u64, Vec<u8>>,
        seen: &mut Vec<Access>,
    ) -> bool {
        let Some(area) = self.area(at) else {
            return false;
        };
        let (mut changed, mut has_moved) = (Vec::new(), false);
        if let Ok(live) = &mut area.found {
            let mut events = Vec::new();
            live.were_found(blocks, &mut events);
            changed.extend(live.changed().iter().map(|inode| (at, *inode)));
            has_moved = live.has_moved();
            seen.extend(events.drain(..).map(|event| Access::File(at, event)));
        }
        let is_large = give_up_if_large(area);
        self.changed.append(&mut changed);
        self.has_moved |= has_moved;
        is_large
    }

    /// The path of a file, if one is known.
    pub fn path(&self, at: usize, inode: u32) -> Option<Vec<u8>> {
        let live = self.areas[at].found.as_ref().ok()?;
        live.view().path(inode)
    }

    /// The places of a part of a file: the offset on the disk and the length of each, in bytes.
    pub fn places(&self, at: usize, inode: u32, offset: u64, length: u64) -> Vec<(u64, u64)> {
        let area = &self.areas[at];
        let Ok(live) = &area.found else {
            return Vec::new();
        };
        let block_bytes = u64::from(live.view().superblock().block_bytes);
        let wanted = offset..offset.saturating_add(length);
        let runs = live.view().runs(inode);
        let end_of =
            |run: &extfs::Run| (u64::from(run.place) + u64::from(run.length)) * block_bytes;
        let first = runs.partition_point(|run| end_of(run) <= wanted.start);
        let mut places = Vec::new();
        for run in runs[first..].iter().take(PLACES_MAX) {
            let begin = u64::from(run.place) * block_bytes;
            match common(&wanted, &(begin..end_of(run))) {
                Some(part) => {
                    let on_disk = area.place.offset + run.block * block_bytes;
                    places.push((on_disk + part.start - begin, part.end - part.start));
                }
                None => break,
            }
        }
        places
    }

    /// Calls `part` with each part of `range` and the index of its area.
    pub fn each(&self, range: &Range<u64>, mut part: impl FnMut(Option<usize>, Range<u64>)) {
        // Sorted by their beginnings, since partitions may be in any order and may overlap.
        let mut within = BTreeMap::new();
        for (at, area) in self.areas.iter().enumerate() {
            if let Some(common) = common(range, &place(area)) {
                within.insert(common.start, (at, common.end));
            }
        }
        let mut begin = range.start;
        for (start, (at, end)) in within {
            if start > begin {
                part(None, begin..start);
            }
            let start = start.max(begin);
            if start < end {
                part(Some(at), start..end);
                begin = end;
            }
        }
        if begin < range.end {
            part(None, begin..range.end);
        }
    }
}

/// Whether a write at `begin` creates another file system.
fn is_another(known: &Superblock, begin: u64, content: &[u8]) -> bool {
    let written = begin..begin + content.len() as u64;
    if common(&written, &SUPERBLOCK).is_none() {
        return false;
    }
    let at = SUPERBLOCK.start.checked_sub(begin).map(|at| at as usize);
    let bytes = at.and_then(|at| content.get(at..)?.first_chunk());
    // A superblock that is written only in part may be another one.
    let Some(Ok(new)) = bytes.map(Superblock::parse) else {
        return true;
    };
    !new.is_laid_out_as(known)
}

#[cfg(test)]
mod tests {
    use super::*;
    use extfs::FormatError;
    use extfs::partition::Partition;

    fn area(number: u32, offset: u64, length: u64) -> Area {
        Area {
            number: Some(number),
            place: Partition { offset, length },
            found: Err(ScanError::Format(FormatError::Magic)),
        }
    }

    #[test]
    fn accesses_outside_of_file_systems_are_reported_by_block_and_once() {
        let areas = vec![
            area(1, 1 << 20, 1 << 20),
            area(2, 3 << 20, 1 << 20),
            // A hostile partition that overlaps the one before.
            area(3, (3 << 20) + 4096, 1 << 20),
        ];
        let mut disk = Disk::new(areas, 0);
        let mut seen = Vec::new();
        let is_new = disk.was_written((2 << 20) - 512, &vec![0; (2 << 20) + 8192], &mut seen);
        assert!(is_new, "a table may lie between");
        let mut end = (2 << 20) - 512;
        for seen in &seen {
            let Access::Blocks(_, Operation::Write, range) = seen else {
                panic!("{seen:?}");
            };
            assert_eq!(range.start, end);
            end = range.end;
        }
        assert_eq!(end, (4 << 20) + 7680);
        let numbers = seen.iter().map(|seen| match seen {
            Access::Blocks(number, ..) => *number,
            Access::File(..) => None,
        });
        assert_eq!(
            numbers.collect::<Vec<_>>(),
            [Some(1), None, Some(2), Some(3), None]
        );

        let mut seen = Vec::new();
        assert!(
            disk.was_written(1 << 20, &[0; 4096], &mut seen),
            "its beginning"
        );
        assert!(!disk.was_written((1 << 20) + (128 << 10), &[0; 4096], &mut seen));
    }
}
