//! [`Selection`]: what a partial replica should have, and what of that it has.
//!
//! Everything is wanted, except the content of files whose paths do not match, and blocks without
//! an owner. What is unknown counts as wanted: a disk that was not read, a file that was not judged
//! or has no path, an area without an ext file system.

use std::collections::HashSet;
use std::ops::Range;

use base::checksum;
use chain_policy::Glob;

use super::granules::Granules;
use crate::follow::Disk;
use extfs::{Live, Owner};

/// The files of the disk, as far as they are known. Selections choose among these.
#[derive(Clone, Copy)]
pub(super) struct KnownFiles<'a> {
    /// Whether all files were read and judged. The rebuild of a partial replica waits for that.
    pub is_certain: bool,
    /// The file systems; `None` before the disk was read, and without partial replicas.
    pub disk: Option<&'a Disk>,
}

impl KnownFiles<'_> {
    /// What is known without a tracker. All members are complete ones then, so no selection asks.
    pub const UNTRACKED: Self = Self {
        is_certain: true,
        disk: None,
    };
}

/// The files that a partial replica should have, and the blocks that it has.
pub(super) struct Selection {
    globs: Vec<Glob>,
    /// The files whose content is wanted, by area and inode.
    files: HashSet<(usize, u32)>,
    /// Whether all files were judged.
    is_judged: bool,
    /// The blocks that the replica has as the volume has them.
    pub has: Granules,
}

impl Selection {
    pub fn new(globs: Vec<Glob>) -> Self {
        Self {
            globs,
            files: HashSet::new(),
            is_judged: false,
            has: Granules::new(0),
        }
    }

    /// A number that identifies the paths; never 0.
    pub fn number(&self) -> u32 {
        let globs: Vec<&str> = self.globs.iter().map(Glob::as_str).collect();
        checksum::crc32c(globs.join("\n").as_bytes()).max(1)
    }

    /// Forgets the files, because the disk may have other file systems.
    pub fn forget(&mut self) {
        self.files.clear();
        self.is_judged = false;
    }

    /// Every file was judged.
    pub fn set_judged(&mut self) {
        self.is_judged = true;
    }

    /// The number of files whose content is wanted.
    pub fn files(&self) -> usize {
        self.files.len()
    }

    /// Judges an inode by its current paths. Returns whether its content is wanted.
    pub fn judge(&mut self, live: &Live, area: usize, inode: u32) -> bool {
        if !live.is_file(inode) {
            self.files.remove(&(area, inode));
            return live.view().inode(inode).is_some();
        }
        let mut paths = live.view().paths(inode).peekable();
        let is_match = |path: Vec<u8>| self.globs.iter().any(|glob| glob.is_match(&path));
        let is_selected = paths.peek().is_none() || paths.any(is_match);
        match is_selected {
            true => self.files.insert((area, inode)),
            false => self.files.remove(&(area, inode)),
        };
        is_selected
    }

    /// The regions, of `region_bytes` bytes, in which the replica does not have all of `range`.
    pub fn missing_regions(&self, range: &Range<u64>, region_bytes: u64) -> Vec<usize> {
        let mut missing = Vec::new();
        let mut rest = self.has.around(range);
        // Region by region.
        while let Some(first) = self.has.first_missing(&rest) {
            let region = first / region_bytes;
            missing.push(region as usize);
            rest.start = ((region + 1) * region_bytes).min(rest.end);
        }
        missing
    }

    /// The wanted parts of `range`, in whole granules.
    pub fn wanted(&self, disk: Option<&Disk>, range: &Range<u64>) -> Vec<Range<u64>> {
        let range = self.has.around(range);
        let Some(disk) = disk else {
            return vec![range];
        };
        let mut wanted: Vec<Range<u64>> = Vec::new();
        let mut add = |part: Range<u64>| {
            let part = self.has.around(&part);
            match wanted.last_mut() {
                Some(last) if last.end >= part.start => last.end = last.end.max(part.end),
                _ => wanted.push(part),
            }
        };
        disk.each(&range, |at, part| {
            let area = at.map(|at| (at, &disk.areas()[at]));
            let Some((at, area, live)) =
                area.and_then(|(at, area)| Some((at, area, area.found.as_ref().ok()?)))
            else {
                return add(part);
            };
            let block_bytes = u64::from(live.view().superblock().block_bytes);
            let begin = area.place.offset;
            let blocks =
                (part.start - begin) / block_bytes..(part.end - begin).div_ceil(block_bytes);
            live.view().owners(blocks, |run, owner| {
                let is_wanted = match owner {
                    // A boot loader may be before the file system.
                    Owner::Unowned => run.start == 0,
                    Owner::Content { inode, .. } => {
                        !self.is_judged || self.files.contains(&(at, inode)) || !live.is_file(inode)
                    }
                    _ => true,
                };
                let length = match owner {
                    Owner::Unowned => 1,
                    _ => run.end - run.start,
                };
                if is_wanted {
                    let start = begin + run.start * block_bytes;
                    let end = start + length * block_bytes;
                    let (start, end) = (start.max(part.start), end.min(part.end));
                    add(start..end);
                }
            });
        });
        wanted
    }

    /// The first part of `range` that is wanted and that the replica does not have, of at most
    /// `length_max` bytes.
    pub fn missing(
        &self,
        disk: Option<&Disk>,
        range: &Range<u64>,
        length_max: u64,
    ) -> Option<Range<u64>> {
        self.wanted(disk, range).into_iter().find_map(|run| {
            let begin = self.has.first_missing(&run)?;
            let end = run.end.min(begin + length_max);
            Some(begin..self.has.end_of_missing(begin, end))
        })
    }

    /// Returns the parts of a write of `range` that the replica gets. It has these from now on, and
    /// has the others no longer.
    pub fn pieces(&mut self, disk: Option<&Disk>, range: &Range<u64>) -> Vec<Range<u64>> {
        let wanted = self.wanted(disk, range);
        let mut at = self.has.around(range).start;
        for run in &wanted {
            self.has.clear(&(at..run.start.max(at)));
            let written = run.start.max(range.start)..run.end.min(range.end);
            self.has.set(&written);
            at = run.end;
        }
        let end = self.has.around(range).end;
        self.has.clear(&(at..end.max(at)));
        let pieces = wanted.into_iter();
        let pieces = pieces.map(|run| run.start.max(range.start)..run.end.min(range.end));
        pieces.filter(|piece| !piece.is_empty()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use extfs::testing::{FILE, deep};

    /// All paths were built before the first one was compared.
    #[test]
    fn the_paths_of_a_file_are_judged_one_after_the_other() {
        let all = serde_json::from_str("\"/**\"").expect("a pattern");
        let mut selection = Selection::new(vec![all]);
        assert!(selection.judge(&deep(), 0, FILE));
        assert_eq!(selection.files(), 1);
    }
}
