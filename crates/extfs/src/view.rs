//! [`View`]: a file system at rest.

use std::collections::HashMap;
use std::mem::take;
use std::ops::Range;

use base::IoError;

use super::directory::{Entry, entries_of};
use super::groups::Groups;
use super::inode::{Inode, MAP_BYTES, Map};
use super::map::Run;
use super::names::Names;
use super::owners::{Owner, Owners};
use super::scan::within;
use super::superblock::{FormatError, Superblock};

/// The maximal number of blocks of a directory that are read, which hold millions of names.
const DIRECTORY_BLOCKS_MAX: usize = 1 << 16;

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
    /// The names in directories, by block. Names in an inode have the key of
    /// [`super::names::names_key`].
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

impl View {
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

    /// The names of a directory that are in its inode, and whether all of them are valid; `None`
    /// if the names are not there.
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
