//! The comparison of old and new names and inodes of a [`Change`], and the events that it reports.
//!
//! A file keeps its identity while its inode number and generation stay: it is renamed if it lost a
//! name and got another one. A reused inode number is another file.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::change::{Change, NameAt};
use super::directory::Entry;
use super::event::{Event, Path};
use super::inode::{FileKind, Inode, Map};
use super::map::Run;
use super::names::FIRST_FILE;

/// The names that a file lost and got.
#[derive(Default)]
struct Renaming {
    lost: VecDeque<Path>,
    got: Vec<NewName>,
}

/// A new name in a directory.
struct NewName {
    directory: u32,
    name: Box<[u8]>,
}

/// The result of comparing old and new names.
#[derive(Default)]
struct Comparison {
    /// The inode numbers that were reused for other files.
    reused: BTreeSet<u32>,
    /// The names that files lost and got, by inode.
    changed: BTreeMap<u32, Renaming>,
    /// The inodes that lost their last name.
    unnamed: BTreeSet<u32>,
    /// The inodes that got their first name.
    first_named: BTreeSet<u32>,
}

/// Names by directory, without the blocks that hold them.
type Names = BTreeSet<(u32, Entry)>;

impl Change<'_> {
    /// Compares old and new names and inodes, and appends the events.
    pub(super) fn report(mut self, events: &mut Vec<Event>) {
        let mut comparison = self.compare_names();
        self.name_new_files(&mut comparison);
        for (inode, renaming) in std::mem::take(&mut comparison.changed) {
            self.report_names(inode, renaming, &comparison, events);
        }
        self.report_inodes();
        events.append(&mut self.other_events);
    }

    fn compare_names(&mut self) -> Comparison {
        // A name may be unchanged and belong to a new file with the number of a removed one.
        let reused: BTreeSet<u32> = self.reused().collect();
        let differing = |one: &BTreeSet<NameAt>, other: &BTreeSet<NameAt>| {
            let differs =
                |name: &&NameAt| reused.contains(&name.entry.inode) || !other.contains(name);
            one.iter().filter(differs).cloned().collect::<Vec<_>>()
        };
        let lost = differing(&self.old, &self.new);
        let got = differing(&self.new, &self.old);
        // A name that moved to another block of the same directory is no change.
        let names = |all: &[NameAt]| -> Names {
            let names = all.iter().map(|one| (one.directory, one.entry.clone()));
            names.collect()
        };
        let (lost_names, got_names) = (names(&lost), names(&got));
        self.note_changed(&lost_names, &got_names);
        let mut comparison = Comparison {
            reused,
            ..Comparison::default()
        };
        for name in &lost {
            self.add_lost(name, &got_names, &mut comparison);
        }
        for name in &got {
            self.add_got(name, &lost_names, &mut comparison);
        }
        comparison
    }

    fn add_lost(&mut self, lost: &NameAt, got_names: &Names, comparison: &mut Comparison) {
        let NameAt {
            directory,
            key,
            entry,
        } = lost;
        let inode = entry.inode;
        if self.live.unborn.get(&inode) == Some(key) {
            self.live.unborn.remove(&inode);
        }
        if self.live.view.is_last_name(inode, *key) {
            comparison.unnamed.insert(inode);
        }
        if comparison.reused.contains(&inode) || !got_names.contains(&(*directory, entry.clone())) {
            let directory = self.paths.get(directory).cloned();
            let path = joined(directory.flatten(), &entry.name);
            let renaming = comparison.changed.entry(inode).or_default();
            renaming.lost.push_back(path);
        }
    }

    fn add_got(&mut self, got: &NameAt, lost_names: &Names, comparison: &mut Comparison) {
        let NameAt {
            directory,
            key,
            entry,
        } = got;
        let inode = entry.inode;
        if self.live.view.inode(inode).is_none() {
            self.live.unborn.insert(inode, *key);
            return;
        }
        if self.live.view.is_first_name(inode, *key) {
            comparison.first_named.insert(inode);
        }
        if comparison.reused.contains(&inode) || !lost_names.contains(&(*directory, entry.clone()))
        {
            let name = NewName {
                directory: *directory,
                name: entry.name.clone(),
            };
            comparison.changed.entry(inode).or_default().got.push(name);
        }
    }

    /// Adds the names of files whose name was written before their inode.
    fn name_new_files(&mut self, comparison: &mut Comparison) {
        for inode in self.before.keys() {
            if self.live.view.inode(*inode).is_none() {
                continue;
            }
            let Some(key) = self.live.unborn.remove(inode) else {
                continue;
            };
            let names = self.live.view.names.get(&key);
            let named = names.and_then(|names| {
                let mut entries = names.entries.iter();
                let entry = entries.find(|entry| entry.inode == *inode)?;
                Some(NewName {
                    directory: names.directory,
                    name: entry.name.clone(),
                })
            });
            if let Some(named) = named {
                self.live.view.is_first_name(*inode, key);
                comparison.first_named.insert(*inode);
                comparison
                    .changed
                    .entry(*inode)
                    .or_default()
                    .got
                    .push(named);
            }
        }
    }

    /// Reports the names that a file lost and got.
    fn report_names(
        &self,
        inode: u32,
        renaming: Renaming,
        comparison: &Comparison,
        events: &mut Vec<Event>,
    ) {
        let Renaming { mut lost, got } = renaming;
        let got = got.into_iter().map(|one| {
            let directory = self.live.view.path(one.directory);
            joined(directory, &one.name)
        });
        let mut got: VecDeque<Path> = got.collect();
        let before = self.before.get(&inode).and_then(Option::as_ref);
        let now = self.live.view.inode(inode);
        let is_reused = comparison.reused.contains(&inode);
        let is_unnamed = comparison.unnamed.contains(&inode);
        let is_first_named = comparison.first_named.contains(&inode);
        let kind_before = before.or(now).map(|inode| inode.kind);
        if !is_reused {
            while !lost.is_empty() && !got.is_empty() {
                if let (Some(from), Some(to)) = (lost.pop_front(), got.pop_front()) {
                    events.push(Event::Renamed { inode, from, to });
                }
            }
        }
        let is_removed = is_reused || is_unnamed && !is_first_named;
        let last = lost.len();
        for (number, path) in (1..).zip(lost) {
            events.push(match is_removed && number == last {
                true => Event::Removed {
                    inode,
                    kind: kind_before,
                    path,
                },
                false => Event::Unlinked { inode, path },
            });
        }
        let was_named = !is_reused && !is_first_named || is_unnamed;
        for (number, path) in (0..).zip(got) {
            let kind = now.map_or(FileKind::File, |now| now.kind);
            events.push(match number == 0 && (!was_named || is_reused) {
                true => Event::Created { inode, kind, path },
                false => Event::Linked { inode, path },
            });
        }
    }

    /// Notes the inodes whose blocks, names or kind have changed.
    fn note_changed(&mut self, lost: &Names, got: &Names) {
        for (_, entry) in lost.symmetric_difference(got) {
            let inode = entry.inode;
            let is_new = matches!(self.before.get(&inode), Some(None));
            self.live.has_moved |= !is_new && self.live.view.has_names_below(inode);
            self.live.changed.insert(inode);
        }
        let live = &mut self.live;
        live.changed.extend(self.before.keys().copied());
        live.changed.extend(self.remapped.iter().copied());
    }

    /// The inode numbers that were reused for other files.
    fn reused(&self) -> impl Iterator<Item = u32> {
        let reused = self.before.iter().filter(|(inode, before)| {
            let now = self.live.view.inode(**inode).map(|now| now.generation);
            let before = before.as_ref().map(|before| before.generation);
            before.is_some() && now.is_some() && before != now
        });
        reused.map(|(inode, _)| *inode)
    }

    /// Whether a file grew without a write to the new part: it ends in a hole, or in new blocks
    /// that are only reserved. Without a journal, the size may be known before the map.
    fn ends_unwritten(&self, inode: u32, now: &Inode) -> bool {
        let is_known = self.live.is_live() && !self.is_partly_known;
        let has_blocks = matches!(now.map, Map::Extents(_) | Map::Indirect(_));
        if !is_known || !has_blocks {
            return false;
        }
        let last = (now.size - 1) / self.live.block_bytes;
        let is_last = |run: &&Run| {
            let begin = u64::from(run.place);
            (begin..begin + u64::from(run.length)).contains(&last)
        };
        let Some(run) = self.live.view.runs(inode).iter().rev().find(is_last) else {
            return true;
        };
        // Old blocks may have been written. New ones may have been written as well, and still
        // count as reserved until the next commit.
        let block = run.block + (last - u64::from(run.place));
        let places = self.places_before.get(&inode);
        let is_new = places.is_some_and(|places| last >= *places);
        run.is_unwritten && is_new && !self.live.fresh.has(block)
    }

    /// Reports changes of files other than those of names.
    fn report_inodes(&mut self) {
        for (inode, before) in &self.before {
            let now = self.live.view.inode(*inode);
            let (Some(before), Some(now)) = (before, now) else {
                continue;
            };
            if *inode < FIRST_FILE || before.generation != now.generation {
                continue;
            }
            let inode = *inode;
            let is_cut = now.size < before.size;
            let is_longer = now.size > before.size && self.ends_unwritten(inode, now);
            if now.kind == FileKind::File && (is_cut || is_longer) {
                let (from, to) = (before.size, now.size);
                self.other_events.push(Event::Truncated { inode, from, to });
            }
            if now.permissions != before.permissions {
                let (from, to) = (before.permissions, now.permissions);
                self.other_events
                    .push(Event::Permissions { inode, from, to });
            }
            if (now.uid, now.gid) != (before.uid, before.gid) {
                let (from, to) = ((before.uid, before.gid), (now.uid, now.gid));
                self.other_events.push(Event::Ownership { inode, from, to });
            }
        }
    }
}

/// The path of a name in a directory; only the name if the directory has no path.
fn joined(directory: Option<Path>, name: &[u8]) -> Path {
    let mut path = directory.unwrap_or_else(|| b"?".to_vec());
    if path != b"/" {
        path.push(b'/');
    }
    path.extend(name);
    path
}
