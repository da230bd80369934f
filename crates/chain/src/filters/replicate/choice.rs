//! [`Choice`]: what a partial replica is to have, and what of it is there.
//!
//! Wanted is all but the content of files whose paths do not match, and blocks that are
//! nobody's. What is not known counts as wanted: a disk that was not read, a file that was
//! not judged, one without a path, an area without an ext file system.

use std::collections::HashSet;
use std::ops::Range;

use base::checksum;
use chain_policy::Glob;

use super::granules::Granules;
use crate::follow::Disk;
use extfs::{Live, Owner};

/// See the module's head.
pub(super) struct Choice {
    globs: Vec<Glob>,
    /// Files whose content is wanted: by area and inode.
    files: HashSet<(usize, u32)>,
    /// All files were judged.
    is_judged: bool,
    /// Which blocks are there as the volume has them.
    pub has: Granules,
}

impl Choice {
    pub fn new(globs: Vec<Glob>) -> Self {
        Self {
            globs,
            files: HashSet::new(),
            is_judged: false,
            has: Granules::new(0),
        }
    }

    /// By which it is known whether the same was chosen before; never 0.
    pub fn number(&self) -> u32 {
        let globs: Vec<&str> = self.globs.iter().map(Glob::as_str).collect();
        checksum::crc32c(globs.join("\n").as_bytes()).max(1)
    }

    /// Other file systems may be there: nothing is known of their files.
    pub fn forget(&mut self) {
        self.files.clear();
        self.is_judged = false;
    }

    /// Every file was judged.
    pub fn all_are_judged(&mut self) {
        self.is_judged = true;
    }

    /// How many files it has been judged to have.
    pub fn files(&self) -> usize {
        self.files.len()
    }

    /// Whether what an inode has is wanted, by its names as they are now.
    pub fn judge(&mut self, live: &Live, area: usize, inode: u32) -> bool {
        if !live.is_file(inode) {
            self.files.remove(&(area, inode));
            return live.view().inode(inode).is_some();
        }
        let mut paths = live.view().paths(inode).peekable();
        let is_match = |path: Vec<u8>| self.globs.iter().any(|glob| glob.is_match(&path));
        let is_chosen = paths.peek().is_none() || paths.any(is_match);
        match is_chosen {
            true => self.files.insert((area, inode)),
            false => self.files.remove(&(area, inode)),
        };
        is_chosen
    }

    /// The regions, of so many bytes, in which some of `range` is not there.
    pub fn lacking_regions(&self, range: &Range<u64>, region_bytes: u64) -> Vec<usize> {
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

    /// What is wanted of all granules that `range` touches, in whole granules.
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
                    // Whatever starts a machine lies before the file system.
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

    /// The first piece of `range` that is wanted and not there, of `length_max` at most.
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

    /// `range` is written: which parts of that it is to get. It has those from then on, and
    /// the others not any more.
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

    /// All paths were made before the first one was looked at.
    #[test]
    fn a_file_with_many_long_paths_is_judged_by_one_after_the_other() {
        let all = serde_json::from_str("\"/**\"").expect("a pattern");
        let mut choice = Choice::new(vec![all]);
        assert!(choice.judge(&deep(), 0, FILE));
        assert_eq!(choice.files(), 1);
    }
}
