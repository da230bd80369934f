//! [`Change`]: metadata blocks that change together, and the events that follow.
//!
//! ```text
//!  0. layout   apply a transaction that enlarges the file system (`growth`)
//!  1. inodes   read the changed inode tables; release the blocks of changed files
//!  2. maps     assign blocks by the new maps: a block may move from one file to another
//!  3. names    read the directory blocks that changed, are new, or are released
//!  4. report   compare old and new names, by inode (`compare`)
//! ```

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use base::IoError;

use super::Source;
use super::directory::Entry;
use super::event::{Event, Path};
use super::inode::{FileKind, Inode, Map};
use super::live::Live;
use super::map::Run;
use super::names::names_key;
use super::owners::Owner;
use super::view::directory_blocks;

/// Metadata blocks that change together.
pub(super) struct Change<'a> {
    pub(super) live: &'a mut Live,
    pub(super) blocks: &'a BTreeMap<u64, Vec<u8>>,
    /// The old inodes of files whose inodes change.
    pub(super) before: BTreeMap<u32, Option<Inode>>,
    /// The files whose maps have to be read again.
    pub(super) remapped: BTreeSet<u32>,
    /// The files whose blocks were released.
    released: BTreeSet<u32>,
    /// The end of the last run of each released file, in blocks.
    pub(super) places_before: BTreeMap<u32, u64>,
    /// The old lengths of files that grew and whose last block was written before that was known,
    /// in bytes.
    appended: BTreeMap<u32, u64>,
    /// The directories whose names change, by the block that holds the names.
    directories: BTreeMap<u64, u32>,
    pub(super) old: BTreeSet<NameAt>,
    pub(super) new: BTreeSet<NameAt>,
    /// The old paths of directories whose names or inodes may change.
    pub(super) paths: HashMap<u32, Option<Path>>,
    /// The map blocks of released files.
    nodes: HashMap<u64, Box<[u8]>>,
    /// The events of files that keep their names.
    pub(super) other_events: Vec<Event>,
    /// Whether part of a map is unknown. Then it is also unknown where files have holes.
    pub(super) is_partly_known: bool,
}

/// A name in a directory, with the block that holds it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct NameAt {
    pub directory: u32,
    /// The block, or the key of names in an inode.
    pub key: u64,
    pub entry: Entry,
}

/// The new names in a block that is or was one of a directory.
enum NamesNow {
    /// The block was not written.
    AsBefore,
    /// The block does not belong to a directory any more.
    None,
    These(Vec<Entry>),
}

/// The position of an inode's blocks, and whether it is a directory.
fn places_of(inode: Option<&Inode>) -> Option<(bool, &Map, Option<u64>)> {
    inode.map(|inode| {
        let is_directory = inode.kind == FileKind::Directory;
        (is_directory, &inode.map, inode.attributes)
    })
}

/// A source of the blocks that change and of the known map blocks.
struct KnownBlocks<'a> {
    blocks: &'a BTreeMap<u64, Vec<u8>>,
    nodes: &'a HashMap<u64, Box<[u8]>>,
    block_bytes: u64,
    /// The requested blocks that are not known.
    missing: RefCell<Vec<u64>>,
}

impl Source for KnownBlocks<'_> {
    /// Reads a map block. An unknown block reads as zeroes, which are no valid map.
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
            other_events: Vec::new(),
            is_partly_known: false,
        }
    }

    /// Applies the change and appends its events.
    pub fn apply(mut self, events: &mut Vec<Event>) {
        self.apply_inodes();
        self.apply_maps();
        self.apply_names();
        self.report(events);
    }

    /// Applies the changed blocks of inode tables.
    fn apply_inodes(&mut self) {
        for (block, content) in self.blocks {
            match self.live.view.owner(*block) {
                Owner::InodeTable(table) => self.apply_table(table, content),
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

    fn apply_table(&mut self, table: u32, content: &[u8]) {
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
            // Its blocks are released by the old map.
            if self.remapped.contains(&inode) {
                self.release(inode);
            }
            match now {
                Some(now) => self.live.view.set_inode(inode, now),
                None => self.forget(inode),
            }
        }
    }

    /// Removes a file that is not in use any more. Its name is remembered for a new file with the
    /// same number: without a journal, the directory need not be written in between.
    fn forget(&mut self, inode: u32) {
        let file = self.live.view.files.get(&inode);
        if let Some(key) = file.map(|file| file.named_in).filter(|key| *key != 0) {
            self.live.unborn.insert(inode, key);
        }
        self.live.view.forget(inode);
    }

    /// Releases the blocks of a file. The names of a directory are compared later.
    pub(super) fn release(&mut self, inode: u32) {
        // Blocks that the file gets after its release stay assigned.
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

    /// Assigns blocks by the new maps. All files are released before any gets blocks, since a
    /// block may move from one to another.
    fn apply_maps(&mut self) {
        for inode in self.remapped.clone() {
            self.release(inode);
        }
        let known = KnownBlocks {
            blocks: self.blocks,
            nodes: &std::mem::take(&mut self.nodes),
            block_bytes: self.live.block_bytes,
            missing: RefCell::default(),
        };
        for inode in self.remapped.clone() {
            // Reading from memory does not fail, but the limit on memory may be exceeded.
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

    /// Reports the write to the rest of the block in which a file ended. It happened before the
    /// file's new length was known, so only the part up to the old end was reported.
    fn end_written_before(&mut self, inode: u32) {
        let Some(offset) = self.appended.remove(&inode) else {
            return;
        };
        let size = self.live.view.inode(inode).map_or(0, |now| now.size);
        let block_end = offset.next_multiple_of(self.live.block_bytes);
        let length = size.min(block_end).saturating_sub(offset);
        if length > 0 && self.live.is_file(inode) {
            self.other_events.push(Event::Written {
                inode,
                offset,
                length,
            });
        }
    }

    /// Reports writes to blocks that were not known to belong to the file.
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
                self.live
                    .add(&mut self.other_events, inode, offset, written);
            }
        }
    }

    /// Notes the blocks that hold a directory's names now.
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

    /// Reads the names in changed directory blocks.
    fn apply_names(&mut self) {
        // Names may be in inodes.
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
            // The block may have belonged to another directory.
            let before = before.iter().flat_map(|names| {
                let entries = names.entries.iter().cloned();
                entries.map(|entry| NameAt {
                    directory: names.directory,
                    key,
                    entry,
                })
            });
            self.old.extend(before);
            let now = now.into_iter();
            self.new.extend(now.map(|entry| NameAt {
                directory,
                key,
                entry,
            }));
        }
    }

    /// The new names in a block that is or was one of a directory.
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
}
