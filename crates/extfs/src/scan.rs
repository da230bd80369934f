//! Reads a file system into a [`View`]: superblock, journal, groups, inodes, maps, names.
//!
//! Everything is read through the journal. Memory is checked before it is used.

use std::collections::{HashMap, HashSet, VecDeque};

use super::Source;
use super::directory::Entry;
use super::groups::{Group, Groups};
use super::inode::{FileKind, Inode};
use super::journal::{Following, Replayed};
use super::map::{Nodes, Run, walk};
use super::names::{ROOT, names_key};
use super::owners::{Owner, Owners};
use super::superblock::{self, FormatError, Superblock};
use super::view::{ScanError, View, directory_blocks};

/// The number of bytes of an inode table that are read at once.
const READ_BYTES: u64 = 1 << 20;

/// The memory that a group needs while it is read, in bytes.
const GROUP_BYTES: u64 = 128;

/// Claims map blocks for a file. A block that has an owner is not claimed again.
struct Claims<'a> {
    owners: &'a mut Owners,
    inode: u32,
    /// The memory of everything else, in bytes.
    bytes: u64,
    bytes_max: u64,
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

pub(super) fn within(bytes: u64, bytes_max: u64) -> Result<(), ScanError> {
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
        // The owners of blocks that are far from each other need more memory than the runs.
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
}
