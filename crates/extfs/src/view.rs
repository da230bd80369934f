//! [`View`]: a file system at rest.

use std::collections::{HashMap, HashSet, VecDeque};
use std::mem::take;
use std::ops::Range;

use base::IoError;

use super::Source;
use super::directory::{Entry, entries_of};
use super::groups::{Group, Groups};
use super::inode::{FileKind, Inode, MAP_BYTES, Map};
use super::journal::{Following, Replayed};
use super::map::{Nodes, Run, walk};
use super::names::{Names, ROOT, names_key};
use super::owners::{Owner, Owners};
use super::superblock::{self, FormatError, Superblock};

/// The maximal number of blocks of a directory that are read, which hold millions of names.
const DIRECTORY_BLOCKS_MAX: usize = 1 << 16;

/// The number of bytes of an inode table that are read at once.
const READ_BYTES: u64 = 1 << 20;

/// The memory that a group needs while it is read, in bytes.
const GROUP_BYTES: u64 = 128;

/// The memory that is counted for a file in addition to its names and runs, in bytes: the file
/// itself, its entry in a hash table that has just been doubled, and the overhead of the allocator.
const FILE_BYTES: u64 = (size_of::<File>() + 3 * size_of::<(u32, Box<File>)>() + 32) as u64;

/// Why a file system could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScanError {
    /// There is no supported file system.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The disk cannot be read.
    #[error("cannot read the file system")]
    Io(#[from] IoError),
    /// The file system would need more memory than the limit.
    #[error("the file system has more files than fit into {0} bytes of memory")]
    Large(u64),
}

/// A file that is in use.
#[derive(Debug)]
pub(super) struct File {
    pub inode: Inode,
    pub runs: Box<[Run]>,
    /// The blocks of the file's map.
    pub nodes: Box<[u64]>,
    /// The directory block that holds one of the file's names; 0 if there is none.
    pub named_in: u64,
}

/// A file system at rest: its files, their names, and the owner of each block.
pub struct View {
    pub(super) superblock: Superblock,
    pub(super) groups: Groups,
    pub(super) owners: Owners,
    pub(super) files: HashMap<u32, Box<File>>,
    /// The names in directories, by block. Names in an inode have the key of [`names_key`].
    pub(super) names: HashMap<u64, Names>,
    /// Further directory blocks that hold names of a file, in addition to [`File::named_in`].
    pub(super) also_named_in: HashMap<u32, Vec<u64>>,
    /// The map blocks of files.
    pub(super) nodes: HashMap<u64, Box<[u8]>>,
    /// The number of further files that share a block of attributes with its first file.
    pub(super) sharers: HashMap<u64, u32>,
    pub(super) damaged: u64,
    /// The memory of names, runs and maps, in bytes.
    pub(super) names_bytes: u64,
    pub(super) bytes_max: u64,
}

/// Claims map blocks for a file. A block that has an owner is not claimed again.
struct Claims<'a> {
    owners: &'a mut Owners,
    inode: u32,
    /// The memory of everything else, in bytes.
    bytes: u64,
    bytes_max: u64,
}

impl File {
    /// A file without blocks and names.
    pub fn new(inode: Inode) -> Self {
        Self {
            inode,
            runs: Box::default(),
            nodes: Box::default(),
            named_in: 0,
        }
    }
}

impl Nodes for Claims<'_> {
    fn claim(&mut self, block: u64) -> bool {
        let is_free = self.owners.of(block) == Owner::Unowned;
        if is_free {
            let inode = self.inode;
            self.owners.set(block..block + 1, Owner::Map { inode });
        }
        is_free
    }

    fn are_kept(&self) -> bool {
        true
    }

    fn has_room(&self, bytes: u64) -> Result<(), ScanError> {
        let bytes = self.bytes + self.owners.bytes() + bytes;
        within(bytes, self.bytes_max)
    }
}

/// The visited map blocks of a file that is read before the others.
struct Visited {
    blocks: HashSet<u64>,
    bytes_max: u64,
}

impl Nodes for Visited {
    fn claim(&mut self, block: u64) -> bool {
        self.blocks.insert(block)
    }

    fn are_kept(&self) -> bool {
        false
    }

    fn has_room(&self, bytes: u64) -> Result<(), ScanError> {
        within(bytes, self.bytes_max)
    }
}

fn within(bytes: u64, bytes_max: u64) -> Result<(), ScanError> {
    match bytes <= bytes_max {
        true => Ok(()),
        false => Err(ScanError::Large(bytes_max)),
    }
}

/// Checks that the memory that all groups need while they are read is within the limit.
pub(super) fn has_room_for_groups(
    superblock: &Superblock,
    bytes_max: u64,
) -> Result<(), ScanError> {
    within(superblock.groups().saturating_mul(GROUP_BYTES), bytes_max)
}

/// The runs of a file's blocks, read with at most `bytes_max` bytes of memory.
fn runs_of(
    inode: u32,
    superblock: &Superblock,
    source: &dyn Source,
    bytes_max: u64,
) -> Result<Vec<Run>, ScanError> {
    let groups = Groups::read(superblock, source)?;
    let (group, at) = (
        (inode - 1) / superblock.inodes_per_group,
        (inode - 1) % superblock.inodes_per_group,
    );
    let table = groups.iter().find(|(number, _)| *number == group);
    let block_bytes = u64::from(superblock.block_bytes);
    let table = table.and_then(|(_, group)| group.inode_table.checked_mul(block_bytes));
    let offset = table.and_then(|at_table| {
        at_table.checked_add(u64::from(at) * u64::from(superblock.inode_bytes))
    });
    let invalid = FormatError::Invalid("the position of its inodes");
    let offset = offset.filter(|offset| *offset < superblock.blocks * block_bytes);
    let mut bytes = vec![0; superblock.inode_bytes as usize];
    source.read(offset.ok_or(invalid)?, &mut bytes)?;
    let Some(inode) = Inode::parse(&bytes, superblock) else {
        return Ok(Vec::new());
    };
    let mut visited = Visited {
        blocks: HashSet::new(),
        bytes_max,
    };
    Ok(walk(&inode.map, superblock, source, &mut visited)?.runs)
}

impl View {
    /// Reads the metadata of a file system on a disk of `disk_bytes`, with at most about
    /// `bytes_max` bytes of memory.
    ///
    /// # Errors
    /// [`ScanError`].
    pub fn read(source: &dyn Source, disk_bytes: u64, bytes_max: u64) -> Result<Self, ScanError> {
        Self::read_to_follow(source, disk_bytes, bytes_max).map(|(view, _)| view)
    }

    /// As [`View::read`], and returns the state of the journal, if there is one.
    pub(super) fn read_to_follow(
        source: &dyn Source,
        disk_bytes: u64,
        bytes_max: u64,
    ) -> Result<(Self, Option<Following>), ScanError> {
        let mut bytes = [0; superblock::BYTES];
        if disk_bytes < superblock::OFFSET + superblock::BYTES as u64 {
            return Err(FormatError::Magic.into());
        }
        let read_superblock = |source: &dyn Source, bytes: &mut [u8; superblock::BYTES]| {
            source.read(superblock::OFFSET, bytes)?;
            let superblock = Superblock::parse(bytes)?;
            if !superblock.fits(disk_bytes) {
                return Err(FormatError::Invalid("its size").into());
            }
            // The memory of the groups is checked before any group is read.
            has_room_for_groups(&superblock, bytes_max)?;
            Ok::<_, ScanError>(superblock)
        };
        let mut superblock = read_superblock(source, &mut bytes)?;
        let mut replayed = Replayed::new(source, superblock.block_bytes);
        let mut following = None;
        // The journal is replayed only if the superblock says that this is needed.
        if let Some(journal) = superblock.journal_inode {
            let runs = runs_of(journal, &superblock, source, bytes_max)?;
            let blocks_max = (bytes_max / u64::from(superblock.block_bytes)) as usize;
            following = replayed.replay(&runs, blocks_max, superblock.needs_recovery)?;
            // The journal may hold a newer superblock of a file system that has grown. The flag
            // for recovery is that of the superblock on the disk.
            let needs_recovery = superblock.needs_recovery;
            superblock = read_superblock(&replayed, &mut bytes)?;
            superblock.needs_recovery = needs_recovery;
        }
        let source = &replayed;
        let groups = Groups::read(&superblock, source)?;
        let mut view = Self {
            superblock,
            // The groups count as memory once they are stored here.
            groups: Groups::default(),
            owners: Owners::default(),
            files: HashMap::new(),
            names: HashMap::new(),
            also_named_in: HashMap::new(),
            nodes: HashMap::new(),
            sharers: HashMap::new(),
            damaged: 0,
            names_bytes: 0,
            bytes_max,
        };
        let tables = view.claim_layout(&groups)?;
        view.read_inodes(&groups, &tables, source)?;
        view.groups = groups;
        view.read_maps(source)?;
        view.read_directories(source)?;
        Ok((view, following))
    }

    /// The owner of a block.
    #[must_use]
    pub fn owner(&self, block: u64) -> Owner {
        self.owners.of(block)
    }

    /// Calls `each` with runs of `blocks` that have the same owner.
    pub fn owners(&self, blocks: Range<u64>, each: impl FnMut(Range<u64>, Owner)) {
        self.owners.each(blocks, each);
    }

    /// All blocks of a file: content, map and attributes.
    pub fn blocks_of(&self, inode: u32) -> impl Iterator<Item = Range<u64>> {
        let file = self.files.get(&inode).into_iter();
        let blocks = self.superblock.blocks;
        file.flat_map(move |file| {
            let runs = file.runs.iter();
            let runs = runs.map(|run| run.block..run.block + u64::from(run.length));
            // The attribute block of an inode was not checked before.
            let attributes = file.inode.attributes.filter(|block| *block < blocks);
            let single = file.nodes.iter().copied().chain(attributes);
            runs.chain(single.map(|block| block..block + 1))
        })
    }

    /// The superblock.
    #[must_use]
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// The inode with a number, if it is in use.
    #[must_use]
    pub fn inode(&self, inode: u32) -> Option<&Inode> {
        self.files.get(&inode).map(|file| &file.inode)
    }

    /// The runs of a file's blocks.
    #[must_use]
    pub fn runs(&self, inode: u32) -> &[Run] {
        self.files.get(&inode).map_or(&[], |file| &file.runs)
    }

    /// The numbers of all inodes that are in use.
    pub fn inodes(&self) -> impl Iterator<Item = u32> {
        self.files.keys().copied()
    }

    /// The number of invalid structures on the disk, which were left out.
    #[must_use]
    pub fn damaged(&self) -> u64 {
        self.damaged
    }

    /// The approximate memory of the view, in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let files = self.files.len() as u64 * FILE_BYTES;
        self.owners.bytes() + self.groups.bytes() + files + self.names_bytes
    }

    /// The limit on the memory, in bytes.
    #[must_use]
    pub fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    pub(super) fn may_grow(&self) -> Result<(), ScanError> {
        within(self.bytes(), self.bytes_max)
    }

    /// Claims the blocks of the file system's own structures. Returns the groups whose inode
    /// tables overlap nothing else.
    fn claim_layout(&mut self, groups: &Groups) -> Result<HashSet<u32>, ScanError> {
        let blocks = self.superblock.blocks;
        for range in self.superblock.layout() {
            let end = range.end.min(blocks);
            self.owners.set(range.start.min(end)..end, Owner::Layout);
            within(self.owners.bytes(), self.bytes_max)?;
        }
        let mut tables = HashSet::new();
        for (number, group) in groups.iter() {
            if self.claim_group(number, group) {
                tables.insert(number);
            }
            self.may_grow()?;
        }
        Ok(tables)
    }

    /// Claims the bitmaps and the inode table of a group. Returns whether the table overlaps
    /// nothing else.
    pub(super) fn claim_group(&mut self, number: u32, group: &Group) -> bool {
        let blocks = self.superblock.blocks;
        let table_blocks = self.superblock.table_blocks();
        let table = number * table_blocks;
        for (at, length, owner) in [
            (group.block_bitmap, 1, Owner::BlockBitmap(number)),
            (group.inode_bitmap, 1, Owner::InodeBitmap(number)),
            (group.inode_table, table_blocks, Owner::InodeTable(table)),
        ] {
            let end = at
                .checked_add(length.into())
                .filter(|end| at > 0 && *end <= blocks);
            match end.filter(|end| self.owners.are_free(at..*end)) {
                Some(end) => self.owners.set(at..end, owner),
                None => self.damaged += 1,
            }
        }
        self.owners.of(group.inode_table) == Owner::InodeTable(table)
    }

    /// Reads all inodes that are in use.
    fn read_inodes(
        &mut self,
        groups: &Groups,
        tables: &HashSet<u32>,
        source: &dyn Source,
    ) -> Result<(), ScanError> {
        let superblock = self.superblock.clone();
        let inode_bytes = u64::from(superblock.inode_bytes);
        let mut part = Vec::new();
        for (number, group) in groups.iter().filter(|(number, _)| tables.contains(number)) {
            let used = superblock.inodes_per_group - group.unused_inodes;
            let (begin, end) = (
                group.inode_table * u64::from(superblock.block_bytes),
                u64::from(used) * inode_bytes,
            );
            let first = number * superblock.inodes_per_group + 1;
            let mut at = 0;
            while at < end {
                part.resize(READ_BYTES.min(end - at) as usize, 0);
                source.read(begin + at, &mut part)?;
                let inodes = first + (at / inode_bytes) as u32..;
                let inodes = inodes.zip(part.chunks_exact(inode_bytes as usize));
                for (inode, bytes) in inodes {
                    if let Some(parsed) = Inode::parse(bytes, &superblock) {
                        self.may_grow()?;
                        self.set_inode(inode, parsed);
                    }
                }
                at += part.len() as u64;
            }
        }
        Ok(())
    }

    /// Reads the maps of all files.
    fn read_maps(&mut self, source: &dyn Source) -> Result<(), ScanError> {
        let mut inodes: Vec<u32> = self.files.keys().copied().collect();
        inodes.sort_unstable();
        for inode in inodes {
            self.read_map(inode, source)?;
        }
        Ok(())
    }

    /// Reads the map of a file, which has no blocks so far.
    ///
    /// # Errors
    /// [`ScanError`]; the view must not be used after it.
    pub(super) fn read_map(&mut self, inode: u32, source: &dyn Source) -> Result<(), ScanError> {
        let Some(file) = self.files.get(&inode) else {
            return Ok(());
        };
        let (map, attributes) = (file.inode.map.clone(), file.inode.attributes);
        let bytes = self.bytes() - self.owners.bytes();
        let mut claims = Claims {
            owners: &mut self.owners,
            inode,
            bytes,
            bytes_max: self.bytes_max,
        };
        let walked = walk(&map, &self.superblock, source, &mut claims)?;
        self.damaged += walked.damaged;
        let nodes = walked.nodes.iter().map(|(block, _)| *block).collect();
        for (block, content) in walked.nodes {
            self.names_bytes += content.len() as u64;
            self.nodes.insert(block, content);
        }
        if let Some(block) = attributes.filter(|block| *block < self.superblock.blocks) {
            match self.owners.of(block) {
                Owner::Unowned => self.owners.set(block..block + 1, Owner::Map { inode }),
                Owner::Map { .. } => *self.sharers.entry(block).or_default() += 1,
                _ => {}
            }
        }
        let mut runs = walked.runs;
        let bytes = (runs.len() * size_of::<Run>()) as u64;
        let mut is_large = false;
        // The owners of blocks that lie far from each other need more memory than the runs.
        runs.retain(|run| {
            is_large |= self.bytes() + bytes > self.bytes_max;
            !is_large && self.claim(inode, run)
        });
        if is_large {
            return Err(ScanError::Large(self.bytes_max));
        }
        self.names_bytes += (runs.len() * size_of::<Run>()) as u64;
        self.may_grow()?;
        if let Some(file) = self.files.get_mut(&inode) {
            file.runs = runs.into();
            file.nodes = nodes;
        }
        Ok(())
    }

    /// Releases the blocks of a file. Returns the nodes of its map with their content.
    pub(super) fn release_map(&mut self, inode: u32) -> Vec<(u64, Box<[u8]>)> {
        let mut released = Vec::new();
        let Some(file) = self.files.get_mut(&inode) else {
            return released;
        };
        let (runs, nodes) = (take(&mut file.runs), take(&mut file.nodes));
        let attributes = file.inode.attributes;
        self.names_bytes -= (runs.len() * size_of::<Run>()) as u64;
        for run in &runs {
            let end = run.block + u64::from(run.length);
            self.owners.set(run.block..end, Owner::Unowned);
        }
        let own = Owner::Map { inode };
        for block in nodes.iter().copied().chain(attributes) {
            let others = self.sharers.get(&block).copied().unwrap_or(0);
            match self.owners.of(block) {
                // The block keeps its owner while other files share it.
                Owner::Map { .. } if others > 0 && Some(block) == attributes => {
                    match others {
                        1 => drop(self.sharers.remove(&block)),
                        _ => drop(self.sharers.insert(block, others - 1)),
                    }
                    continue;
                }
                // The last file that shares the block need not be its owner.
                Owner::Map { .. } if Some(block) == attributes => {
                    self.owners.set(block..block + 1, Owner::Unowned);
                }
                owner if owner == own => self.owners.set(block..block + 1, Owner::Unowned),
                _ => {}
            }
            if let Some(content) = self.nodes.remove(&block) {
                self.names_bytes -= content.len() as u64;
                released.push((block, content));
            }
        }
        released
    }

    /// The inode numbers in a block of a table.
    pub(super) fn inodes_in(&self, table: u32) -> Range<u32> {
        let in_block = u64::from(self.superblock.inodes_per_block());
        let end = u64::from(self.superblock.inodes) + 1;
        let first = (u64::from(table) * in_block + 1).min(end);
        // All numbers fit into 32 bits, since they are at most `inodes`.
        first as u32..(first + in_block).min(end) as u32
    }

    /// Sets the inode of a file that is in use.
    pub(super) fn set_inode(&mut self, inode: u32, now: Inode) {
        self.names_bytes += now.bytes_beside();
        match self.files.get_mut(&inode) {
            Some(file) => {
                self.names_bytes -= file.inode.bytes_beside();
                file.inode = now;
            }
            None => {
                self.files.insert(inode, Box::new(File::new(now)));
            }
        }
    }

    /// Removes a file that is not in use any more and has no blocks.
    pub(super) fn forget(&mut self, inode: u32) {
        let file = self.files.remove(&inode);
        self.names_bytes -= file.map_or(0, |file| file.inode.bytes_beside());
        let others = self.also_named_in.remove(&inode).unwrap_or_default();
        self.names_bytes -= size_of_val(&*others) as u64;
    }

    /// Assigns blocks to a file. Returns false if they cannot belong to it.
    fn claim(&mut self, inode: u32, run: &Run) -> bool {
        let end = run.block + u64::from(run.length);
        if !self.owners.are_free(run.block..end) {
            self.damaged += 1;
            return false;
        }
        let first = Owner::Content {
            inode,
            place: run.place,
        };
        self.owners.set(run.block..end, first);
        true
    }

    /// Reads the names of all files from the root on. Files that are not below the root have none.
    fn read_directories(&mut self, source: &dyn Source) -> Result<(), ScanError> {
        let mut waiting = VecDeque::from([ROOT]);
        let mut block = vec![0; self.superblock.block_bytes as usize];
        while let Some(directory) = waiting.pop_front() {
            let Some(file) = self.files.get(&directory) else {
                continue;
            };
            if file.inode.kind != FileKind::Directory {
                continue;
            }
            if let Some(names) = self.inline_names(&file.inode) {
                self.read_names(names_key(directory), directory, names, &mut waiting)?;
                continue;
            }
            for at in directory_blocks(&file.runs).collect::<Vec<u64>>() {
                source.read(at * block.len() as u64, &mut block)?;
                let names = self.parse(&block);
                self.read_names(at, directory, names, &mut waiting)?;
            }
        }
        Ok(())
    }

    /// Adds the names in a directory block. Files that get their first name are appended to
    /// `waiting`.
    fn read_names(
        &mut self,
        key: u64,
        directory: u32,
        (entries, is_sound): (Vec<Entry>, bool),
        waiting: &mut VecDeque<u32>,
    ) -> Result<(), ScanError> {
        self.damaged += u64::from(!is_sound);
        for entry in &entries {
            if self.is_first_name(entry.inode, key) {
                waiting.push_back(entry.inode);
            }
        }
        self.set_names(key, directory, entries);
        self.may_grow()
    }

    /// The names of a directory that lie in its inode, and whether all of them are valid; `None`
    /// if the names do not lie there.
    pub(super) fn inline_names(&self, inode: &Inode) -> Option<(Vec<Entry>, bool)> {
        let Map::InlineNames { content, is_whole } = &inode.map else {
            return None;
        };
        let (place, more) = content.split_at(MAP_BYTES.min(content.len()));
        // The number of the parent comes first. Entries as in a block follow in both parts.
        let (mut entries, is_sound) = self.parse(place.get(4..).unwrap_or_default());
        let (mut others, are_sound) = self.parse(more);
        entries.append(&mut others);
        Some((entries, is_sound && are_sound && *is_whole))
    }

    pub(super) fn parse(&self, block: &[u8]) -> (Vec<Entry>, bool) {
        entries_of(block, self.superblock.inodes)
    }
}

/// The blocks that hold the names of a directory.
pub(super) fn directory_blocks(runs: &[Run]) -> impl Iterator<Item = u64> {
    let written = runs.iter().filter(|run| !run.is_unwritten);
    let blocks = written.flat_map(|run| run.block..run.block + u64::from(run.length));
    blocks.take(DIRECTORY_BLOCKS_MAX)
}
