//! Blocks of the file system's own that change together, and what comes of it.
//!
//! ```text
//!  0. layout   of a transaction that makes the file system larger (`growth`)
//!  1. inodes   as the tables say; what files had is taken from them
//!  2. maps     what they have now is given to them: blocks may go from one to another
//!  3. names    of directories whose blocks changed, are new, or are gone
//!  4. tell     names that are gone, and come, by inode
//! ```

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use base::IoError;

use super::Source;
use super::directory::Entry;
use super::event::{Event, Path};
use super::inode::{FileKind, Inode, Map};
use super::live::Live;
use super::map::Run;
use super::names::{FIRST_FILE, names_key};
use super::owners::Owner;
use super::view::directory_blocks;

/// Blocks that change together, and what comes of it.
pub(super) struct Change<'a> {
    pub(super) live: &'a mut Live,
    pub(super) blocks: &'a BTreeMap<u64, Vec<u8>>,
    /// Files whose inodes change: how each was.
    before: BTreeMap<u32, Option<Inode>>,
    /// Files whose maps are to be read anew.
    pub(super) remapped: BTreeSet<u32>,
    /// Those of them from which what they had was taken.
    released: BTreeSet<u32>,
    /// Behind which place in them those had nothing.
    places_before: BTreeMap<u32, u64>,
    /// Files that are longer by now, whose last block was written before that was known: how
    /// long they were.
    appended: BTreeMap<u32, u64>,
    /// Directories whose names change, by the block that has them.
    directories: BTreeMap<u64, u32>,
    /// What those had: directory, block and name.
    old: BTreeSet<(u32, u64, Entry)>,
    new: BTreeSet<(u32, u64, Entry)>,
    /// The paths that directories had whose names or inodes may change.
    paths: HashMap<u32, Option<Path>>,
    /// Blocks of maps that were taken from files.
    nodes: HashMap<u64, Box<[u8]>>,
    /// What changed of files that have the names they had.
    told: Vec<Event>,
    /// Part of a map is not known: where files have holes is not, either.
    is_partly_known: bool,
}

/// The names in a block of a directory.
enum NamesNow {
    /// Nobody has written to it.
    AsBefore,
    /// It is none any more.
    None,
    These(Vec<Entry>),
}

/// Names that a file lost, and got.
#[derive(Default)]
struct Renaming {
    lost: VecDeque<Path>,
    /// With the directories they are in.
    got: Vec<(u32, Box<[u8]>)>,
}

/// Where what an inode has besides itself is, and whether there may be names in it.
fn places_of(inode: Option<&Inode>) -> Option<(bool, &Map, Option<u64>)> {
    inode.map(|inode| {
        let is_directory = inode.kind == FileKind::Directory;
        (is_directory, &inode.map, inode.attributes)
    })
}

/// What changes, and else what lies where it did.
struct Known<'a> {
    blocks: &'a BTreeMap<u64, Vec<u8>>,
    nodes: &'a HashMap<u64, Box<[u8]>>,
    block_bytes: u64,
    /// What was asked for and is not known.
    missing: RefCell<Vec<u64>>,
}

impl Source for Known<'_> {
    /// Of blocks of maps. One that is not known holds nothing that makes sense.
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), IoError> {
        let block = offset / self.block_bytes;
        let changed = self.blocks.get(&block).map(Vec::as_slice);
        match changed.or(self.nodes.get(&block).map(|node| &**node)) {
            Some(content) => out.copy_from_slice(content),
            None => {
                self.missing.borrow_mut().push(block);
                out.fill(0);
            }
        }
        Ok(())
    }
}

impl<'a> Change<'a> {
    pub fn new(live: &'a mut Live, blocks: &'a BTreeMap<u64, Vec<u8>>) -> Self {
        let view = &live.view;
        let mut paths = HashMap::new();
        for block in blocks.keys() {
            let inodes = match view.owner(*block) {
                Owner::Content { inode, .. } => inode..inode + 1,
                Owner::InodeTable(table) => view.inodes_in(table),
                _ => continue,
            };
            for inode in inodes {
                let kind = view.inode(inode).map(|inode| inode.kind);
                if kind == Some(FileKind::Directory) {
                    paths.entry(inode).or_insert_with(|| view.path(inode));
                }
            }
        }
        Self {
            live,
            blocks,
            before: BTreeMap::new(),
            remapped: BTreeSet::new(),
            released: BTreeSet::new(),
            places_before: BTreeMap::new(),
            appended: BTreeMap::new(),
            directories: BTreeMap::new(),
            old: BTreeSet::new(),
            new: BTreeSet::new(),
            paths,
            nodes: HashMap::new(),
            told: Vec::new(),
            is_partly_known: false,
        }
    }

    /// All of it, and what is to be told of that.
    pub fn take(mut self, events: &mut Vec<Event>) {
        self.take_inodes();
        self.take_maps();
        self.take_names();
        self.tell(events);
    }

    /// Inodes, as the blocks of their tables say.
    fn take_inodes(&mut self) {
        for (block, content) in self.blocks {
            match self.live.view.owner(*block) {
                Owner::InodeTable(table) => self.take_table(table, content),
                Owner::Map { inode } => {
                    self.remapped.insert(inode);
                }
                Owner::Content { inode, .. } => {
                    self.directories.insert(*block, inode);
                }
                _ => {}
            }
        }
    }

    fn take_table(&mut self, table: u32, content: &[u8]) {
        let inode_bytes = self.live.view.superblock.inode_bytes as usize;
        let inodes = self.live.view.inodes_in(table);
        for (inode, bytes) in inodes.zip(content.chunks_exact(inode_bytes)) {
            let now = Inode::parse(bytes, &self.live.view.superblock);
            let was_end_written = self.live.ends.remove(&inode);
            let before = self.live.view.inode(inode);
            if now.as_ref() == before {
                continue;
            }
            if let (Some(now), Some(before), true) = (&now, before, was_end_written)
                && now.size > before.size
                && now.generation == before.generation
            {
                self.appended.insert(inode, before.size);
            }
            let is_moved = places_of(now.as_ref()) != places_of(before);
            let before = before.cloned();
            if now.is_none() || is_moved {
                self.remapped.insert(inode);
            }
            self.before.insert(inode, before);
            // Its map is taken from it as it is known.
            if self.remapped.contains(&inode) {
                self.release(inode);
            }
            match now {
                Some(now) => self.live.view.set_inode(inode, now),
                None => self.forget(inode),
            }
        }
    }

    /// A file is not in use any more. The name that it has may be there when its number is
    /// given away again: without a journal it need not be written in between.
    fn forget(&mut self, inode: u32) {
        let file = self.live.view.files.get(&inode);
        if let Some(key) = file.map(|file| file.named_in).filter(|key| *key != 0) {
            self.live.unborn.insert(inode, key);
        }
        self.live.view.forget(inode);
    }

    /// What a file had is nobody's; of a directory, its names are to be compared.
    pub(super) fn release(&mut self, inode: u32) {
        // What it is given from then on stays with it.
        if !self.released.insert(inode) {
            return;
        }
        let view = &mut self.live.view;
        let Some(file) = view.files.get(&inode) else {
            return;
        };
        if file.inode.kind == FileKind::Directory {
            for block in directory_blocks(&file.runs) {
                self.directories.insert(block, inode);
            }
            self.directories.insert(names_key(inode), inode);
        }
        let end = |run: &Run| u64::from(run.place) + u64::from(run.length);
        let places = file.runs.last().map_or(0, end);
        self.places_before.insert(inode, places);
        self.nodes.extend(view.release_map(inode));
    }

    /// The maps of files: all are taken before any is given, since blocks may go from one
    /// to another.
    fn take_maps(&mut self) {
        for inode in self.remapped.clone() {
            self.release(inode);
        }
        let known = Known {
            blocks: self.blocks,
            nodes: &std::mem::take(&mut self.nodes),
            block_bytes: self.live.block_bytes,
            missing: RefCell::default(),
        };
        for inode in self.remapped.clone() {
            // What is in memory can be read, but it may be too much.
            if self.live.view.read_map(inode, &known).is_err() {
                self.live.is_lost = true;
                break;
            }
            let runs: Vec<Run> = self.live.view.runs(inode).to_vec();
            match self.live.is_file(inode) {
                true => {
                    self.end_written_before(inode);
                    self.written_before(inode, &runs);
                }
                false => self.names_in(inode, &runs),
            }
        }
        let missing = known.missing.take();
        while let Some((inode, _)) = self.appended.first_key_value() {
            self.end_written_before(*inode);
        }
        self.is_partly_known = !missing.is_empty();
        self.live.wanted.extend(missing);
    }

    /// The rest of the block in which a file ended, which was written when it was not known yet
    /// that the file goes on there: what was told of it ended with the file.
    fn end_written_before(&mut self, inode: u32) {
        let Some(offset) = self.appended.remove(&inode) else {
            return;
        };
        let size = self.live.view.inode(inode).map_or(0, |now| now.size);
        let block_end = offset.next_multiple_of(self.live.block_bytes);
        let length = size.min(block_end).saturating_sub(offset);
        if length > 0 && self.live.is_file(inode) {
            self.told.push(Event::Written {
                inode,
                offset,
                length,
            });
        }
    }

    /// What was written of a file before it was known whose it is.
    fn written_before(&mut self, inode: u32, runs: &[Run]) {
        for run in runs.iter().filter(|run| !run.is_unwritten) {
            for block in self.live.fresh.take(run).into_iter().flatten() {
                let place = u64::from(run.place) + (block - run.block);
                let offset = place * self.live.block_bytes;
                let written = |inode, offset, length| Event::Written {
                    inode,
                    offset,
                    length,
                };
                self.live.add(&mut self.told, inode, offset, written);
            }
        }
    }

    /// Where the names of a directory lie now.
    fn names_in(&mut self, inode: u32, runs: &[Run]) {
        let is_directory = self.live.view.inode(inode).map(|inode| inode.kind);
        if is_directory != Some(FileKind::Directory) {
            return;
        }
        for block in directory_blocks(runs) {
            self.directories.insert(block, inode);
            let view = &self.live.view;
            if !self.blocks.contains_key(&block) && !view.names.contains_key(&block) {
                self.live.wanted.insert(block);
            }
        }
    }

    /// Names, as blocks of directories say.
    fn take_names(&mut self) {
        // Their inodes have them, where they lie there.
        for inode in self.before.keys().copied() {
            let file = self.live.view.inode(inode);
            if file.is_some_and(|file| matches!(file.map, Map::InlineNames { .. })) {
                self.directories.insert(names_key(inode), inode);
            }
        }
        for (key, directory) in self.directories.clone() {
            let (before, now) = match self.names_now(key, directory) {
                NamesNow::AsBefore => continue,
                NamesNow::None => (self.live.view.clear_names(key), Vec::new()),
                NamesNow::These(entries) => {
                    let now = entries.clone();
                    (self.live.view.set_names(key, directory, entries), now)
                }
            };
            // The block may have been another directory's.
            let before = before.iter().flat_map(|names| {
                let entries = names.entries.iter().cloned();
                entries.map(|entry| (names.directory, key, entry))
            });
            self.old.extend(before);
            let now = now.into_iter();
            self.new.extend(now.map(|entry| (directory, key, entry)));
        }
    }

    /// The names that lie in a block that was a directory's, or is.
    fn names_now(&mut self, key: u64, directory: u32) -> NamesNow {
        let view = &mut self.live.view;
        let file = view.inode(directory);
        let Some(file) = file.filter(|file| file.kind == FileKind::Directory) else {
            return NamesNow::None;
        };
        let (entries, is_sound) = if key == names_key(directory) {
            match view.inline_names(file) {
                Some(names) => names,
                None => return NamesNow::None,
            }
        } else {
            match view.owner(key) {
                Owner::Content { inode, .. } if inode == directory => {}
                _ => return NamesNow::None,
            }
            match self.blocks.get(&key) {
                Some(content) => view.parse(content),
                None => return NamesNow::AsBefore,
            }
        };
        view.damaged += u64::from(!is_sound);
        NamesNow::These(entries)
    }

    /// What comes of it.
    fn tell(mut self, events: &mut Vec<Event>) {
        // A name may be as before, and be another file's that got the number of the one that
        // is gone.
        let others: BTreeSet<u32> = self.others().collect();
        let of = |one: &BTreeSet<(u32, u64, Entry)>, other: &BTreeSet<(u32, u64, Entry)>| {
            let is_news =
                |name: &&(u32, u64, Entry)| others.contains(&name.2.inode) || !other.contains(name);
            one.iter().filter(is_news).cloned().collect::<Vec<_>>()
        };
        let (gone, come) = (of(&self.old, &self.new), of(&self.new, &self.old));
        // By inode: the names that it lost, and those that it got.
        let mut changed: BTreeMap<u32, Renaming> = BTreeMap::new();
        let mut has_none: BTreeSet<u32> = BTreeSet::new();
        let mut is_first: BTreeSet<u32> = BTreeSet::new();
        // A name that moved to another block of the same directory is no news.
        let names = |all: &[(u32, u64, Entry)]| -> BTreeSet<(u32, Entry)> {
            let names = all
                .iter()
                .map(|(directory, _, entry)| (*directory, entry.clone()));
            names.collect()
        };
        let (gone_names, come_names) = (names(&gone), names(&come));
        self.note_changed(&gone_names, &come_names);
        let path_before = |directory: u32, name: &[u8]| {
            let path = self.paths.get(&directory).cloned();
            joined(path.flatten(), name)
        };
        for entry in &gone {
            let (directory, key, own) = entry;
            let Entry { inode, name } = own;
            if self.live.unborn.get(inode) == Some(key) {
                self.live.unborn.remove(inode);
            }
            if self.live.view.is_last_name(*inode, *key) {
                has_none.insert(*inode);
            }
            if others.contains(inode) || !come_names.contains(&(*directory, own.clone())) {
                let path = path_before(*directory, name);
                changed.entry(*inode).or_default().lost.push_back(path);
            }
        }
        for entry in &come {
            let (directory, key, own) = entry;
            let Entry { inode, name } = own;
            if self.live.view.inode(*inode).is_none() {
                self.live.unborn.insert(*inode, *key);
                continue;
            }
            if self.live.view.is_first_name(*inode, *key) {
                is_first.insert(*inode);
            }
            if others.contains(inode) || !gone_names.contains(&(*directory, own.clone())) {
                let name = (*directory, name.clone());
                changed.entry(*inode).or_default().got.push(name);
            }
        }
        // Those that had a name before they were in use.
        for inode in self.before.keys() {
            if self.live.view.inode(*inode).is_none() {
                continue;
            }
            if let Some(key) = self.live.unborn.remove(inode) {
                let names = self.live.view.names.get(&key);
                let named = names.and_then(|names| {
                    let mut entries = names.entries.iter();
                    let entry = entries.find(|entry| entry.inode == *inode)?;
                    Some((names.directory, entry.name.clone()))
                });
                if let Some(named) = named {
                    self.live.view.is_first_name(*inode, key);
                    is_first.insert(*inode);
                    changed.entry(*inode).or_default().got.push(named);
                }
            }
        }
        for (inode, Renaming { mut lost, got }) in changed {
            let got = got.into_iter().map(|(directory, name)| {
                let path = self.live.view.path(directory);
                joined(path, &name)
            });
            let mut got: VecDeque<Path> = got.collect();
            let before = self.before.get(&inode).and_then(Option::as_ref);
            let now = self.live.view.inode(inode);
            let is_another = others.contains(&inode);
            let kind_before = before.or(now).map(|inode| inode.kind);
            if !is_another {
                while !lost.is_empty() && !got.is_empty() {
                    if let (Some(from), Some(to)) = (lost.pop_front(), got.pop_front()) {
                        events.push(Event::Renamed { inode, from, to });
                    }
                }
            }
            let is_gone = is_another || has_none.contains(&inode) && !is_first.contains(&inode);
            let last = lost.len();
            for (number, path) in (1..).zip(lost) {
                events.push(match is_gone && number == last {
                    true => Event::Removed {
                        inode,
                        kind: kind_before,
                        path,
                    },
                    false => Event::Unlinked { inode, path },
                });
            }
            let was_named = !is_another && !is_first.contains(&inode) || has_none.contains(&inode);
            for (number, path) in (0..).zip(got) {
                let kind = now.map_or(FileKind::File, |now| now.kind);
                events.push(match number == 0 && (!was_named || is_another) {
                    true => Event::Created { inode, kind, path },
                    false => Event::Linked { inode, path },
                });
            }
        }
        self.tell_of_inodes();
        events.append(&mut self.told);
    }

    /// Takes note of whose blocks, names or kind are others now.
    fn note_changed(&mut self, gone: &BTreeSet<(u32, Entry)>, come: &BTreeSet<(u32, Entry)>) {
        for (_, entry) in gone.symmetric_difference(come) {
            let inode = entry.inode;
            let is_new = matches!(self.before.get(&inode), Some(None));
            self.live.has_moved |= !is_new && self.live.view.has_names_below(inode);
            self.live.changed.insert(inode);
        }
        let live = &mut self.live;
        live.changed.extend(self.before.keys().copied());
        live.changed.extend(self.remapped.iter().copied());
    }

    /// Numbers that were one file's, and are another's.
    fn others(&self) -> impl Iterator<Item = u32> {
        let others = self.before.iter().filter(|(inode, before)| {
            let now = self.live.view.inode(**inode).map(|now| now.generation);
            let before = before.as_ref().map(|before| before.generation);
            before.is_some() && now.is_some() && before != now
        });
        others.map(|(inode, _)| *inode)
    }

    /// Whether a file that is longer by now was not written there: it ends in a hole, or in
    /// blocks that it has got and that are reserved only. Of one without a journal its size may
    /// be known before its map is.
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
        // What it had before may have been written there; what it has got may have been, too,
        // and count as reserved until the next commit.
        let block = run.block + (last - u64::from(run.place));
        let places = self.places_before.get(&inode);
        let is_new = places.is_some_and(|places| last >= *places);
        run.is_unwritten && is_new && !self.live.fresh.has(block)
    }

    /// What changed of files beside their names.
    fn tell_of_inodes(&mut self) {
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
                self.told.push(Event::Truncated { inode, from, to });
            }
            if now.permissions != before.permissions {
                let (from, to) = (before.permissions, now.permissions);
                self.told.push(Event::Permissions { inode, from, to });
            }
            if (now.uid, now.gid) != (before.uid, before.gid) {
                let (from, to) = ((before.uid, before.gid), (now.uid, now.gid));
                self.told.push(Event::Ownership { inode, from, to });
            }
        }
    }
}

/// A name in a directory; what is known of it, if the directory has no path.
fn joined(directory: Option<Path>, name: &[u8]) -> Path {
    let mut path = directory.unwrap_or_else(|| b"?".to_vec());
    if path != b"/" {
        path.push(b'/');
    }
    path.extend(name);
    path
}
