//! [`View`]: a file system as it lies on the disk.

use std::collections::{HashMap, HashSet, VecDeque};

use base::IoError;

use super::Source;
use super::directory::{Entry, entries_of};
use super::groups::{Groups, descriptors_at};
use super::inode::{FileKind, Inode, Map};
use super::journal::Replayed;
use super::map::{Nodes, Run, walk};
use super::owners::{INODES_MAX, Owner, Owners};
use super::superblock::{self, FormatError, Superblock};

/// The inode of the uppermost directory.
const ROOT: u32 = 2;

/// The first inode that is anybody's file; those below are the file system's own, but for
/// the root.
const FIRST_FILE: u32 = 11;

/// A path has no more names: a directory that is its own ancestor has no path.
const PATH_NAMES_MAX: usize = 1024;

/// Tables are read so many bytes at a time.
const READ_BYTES: u64 = 1 << 20;

/// What is counted for a file beside its names, in bytes.
const FILE_BYTES: u64 = 160;

/// Why a file system could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScanError {
    /// There is none that is understood.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The disk does not answer.
    #[error("the file system cannot be read")]
    Io(#[from] IoError),
    /// It would take more memory than it may.
    #[error("it has more files than fit {0} bytes of memory")]
    Large(u64),
}

/// A file.
#[derive(Debug)]
struct File {
    inode: Inode,
    runs: Box<[Run]>,
    /// The block of a directory that has one of its names; 0 for none.
    named_in: u64,
}

/// A block of a directory.
#[derive(Debug)]
struct Names {
    directory: u32,
    entries: Box<[Entry]>,
}

/// See the module's head.
pub struct View {
    superblock: Superblock,
    owners: Owners,
    files: HashMap<u32, File>,
    /// Of directories, by block. What lies in an inode has the key 2^63 + inode.
    names: HashMap<u64, Names>,
    /// So many blocks are somebody's: no more can be than there are.
    claimed: u64,
    damaged: u64,
    names_bytes: u64,
    bytes_max: u64,
}

/// Blocks of maps are given to one file, once.
struct Claims<'a> {
    owners: &'a mut Owners,
    inode: u32,
}

impl Nodes for Claims<'_> {
    fn claim(&mut self, block: u64) -> bool {
        let is_free = self.owners.of(block) == Owner::Nobody;
        if is_free {
            let inode = self.inode;
            self.owners.set(block..block + 1, Owner::Map { inode });
        }
        is_free
    }
}

/// Of one file that is read before all others: each block once.
struct Visited(HashSet<u64>);

impl Nodes for Visited {
    fn claim(&mut self, block: u64) -> bool {
        self.0.insert(block)
    }
}

/// Where the blocks of a file are.
fn runs_of(
    inode: u32,
    superblock: &Superblock,
    source: &dyn Source,
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
    let nonsense = FormatError::Nonsense("where its inodes are");
    let offset = offset.filter(|offset| *offset < superblock.blocks * block_bytes);
    let mut bytes = vec![0; superblock.inode_bytes as usize];
    source.read(offset.ok_or(nonsense)?, &mut bytes)?;
    let Some(inode) = Inode::parse(&bytes) else {
        return Ok(Vec::new());
    };
    let mut visited = Visited(HashSet::new());
    Ok(walk(&inode.map, superblock, source, &mut visited)?.runs)
}

impl View {
    /// Reads all that is needed of a file system on a disk of `disk_bytes`, and takes
    /// `bytes_max` of memory at most, about.
    ///
    /// # Errors
    /// [`ScanError`].
    pub fn read(source: &dyn Source, disk_bytes: u64, bytes_max: u64) -> Result<Self, ScanError> {
        let mut bytes = [0; superblock::BYTES];
        if disk_bytes < superblock::OFFSET + superblock::BYTES as u64 {
            return Err(FormatError::Magic.into());
        }
        source.read(superblock::OFFSET, &mut bytes)?;
        let superblock = Superblock::parse(&bytes)?;
        let is_there = superblock.blocks <= disk_bytes / u64::from(superblock.block_bytes);
        if !is_there || superblock.inodes >= INODES_MAX {
            return Err(FormatError::Nonsense("its size").into());
        }
        let mut replayed = Replayed::new(source, superblock.block_bytes);
        if let Some(journal) = superblock.journal_inode {
            let runs = runs_of(journal, &superblock, source)?;
            let blocks_max = (bytes_max / u64::from(superblock.block_bytes)) as usize;
            if !replayed.replay(&runs, blocks_max)? {
                return Err(ScanError::Large(bytes_max));
            }
        }
        let source = &replayed;
        let groups = Groups::read(&superblock, source)?;
        let mut view = Self {
            superblock,
            owners: Owners::default(),
            files: HashMap::new(),
            names: HashMap::new(),
            claimed: 0,
            damaged: 0,
            names_bytes: 0,
            bytes_max,
        };
        view.claim_layout(&groups);
        view.read_inodes(&groups, source)?;
        view.read_maps(source)?;
        view.read_directories(source)?;
        Ok(view)
    }

    /// Whose a block is.
    #[must_use]
    pub fn owner(&self, block: u64) -> Owner {
        self.owners.of(block)
    }

    /// How the file system is laid out.
    #[must_use]
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// A file, if it is in use.
    #[must_use]
    pub fn inode(&self, inode: u32) -> Option<&Inode> {
        self.files.get(&inode).map(|file| &file.inode)
    }

    /// Where its blocks are.
    #[must_use]
    pub fn runs(&self, inode: u32) -> &[Run] {
        self.files.get(&inode).map_or(&[], |file| &file.runs)
    }

    /// All inodes that are in use.
    pub fn inodes(&self) -> impl Iterator<Item = u32> {
        self.files.keys().copied()
    }

    /// How many things on the disk made no sense, and were left out.
    #[must_use]
    pub fn damaged(&self) -> u64 {
        self.damaged
    }

    /// About how much memory it takes, in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.owners.bytes() + self.files.len() as u64 * FILE_BYTES + self.names_bytes
    }

    /// One of the paths of a file, from `/` on; none if it has no name, or none that leads
    /// to the root.
    #[must_use]
    pub fn path(&self, inode: u32) -> Option<Vec<u8>> {
        let mut names: Vec<&[u8]> = Vec::new();
        let mut at = inode;
        while at != ROOT {
            if names.len() == PATH_NAMES_MAX {
                return None;
            }
            let names_of = self.names.get(&self.files.get(&at)?.named_in)?;
            let mut entries = names_of.entries.iter();
            names.push(&entries.find(|entry| entry.inode == at)?.name);
            at = names_of.directory;
        }
        let mut path = Vec::new();
        for name in names.iter().rev() {
            path.push(b'/');
            path.extend(*name);
        }
        match path.is_empty() {
            true => Some(b"/".to_vec()),
            false => Some(path),
        }
    }

    fn may_grow(&self) -> Result<(), ScanError> {
        match self.bytes() <= self.bytes_max {
            true => Ok(()),
            false => Err(ScanError::Large(self.bytes_max)),
        }
    }

    /// What the file system has for itself.
    fn claim_layout(&mut self, groups: &Groups) {
        let superblock = &self.superblock;
        let in_block = u64::from(superblock.block_bytes / superblock.descriptor_bytes);
        let own = superblock.groups().div_ceil(in_block);
        let together = match superblock.first_meta_group {
            Some(first) => own.min(first.into()),
            None => own,
        };
        let mut layout = Vec::new();
        for group in 0..superblock.groups() {
            let first = superblock.first_block + group * u64::from(superblock.blocks_per_group);
            if superblock.has_copy(group) {
                layout.push(first..first + 1 + together);
            }
        }
        // Each descriptor block that lies apart is there three times: in the first, the
        // second and the last group that it is of.
        for number in together..own {
            let at = descriptors_at(superblock, number, in_block);
            layout.push(at..at + 1);
            for group in [number * in_block + 1, (number + 1) * in_block - 1] {
                let first = superblock.first_block + group * u64::from(superblock.blocks_per_group);
                let at = first + u64::from(superblock.has_copy(group));
                if group < superblock.groups() {
                    layout.push(at..at + 1);
                }
            }
        }
        let blocks = superblock.blocks;
        let table_blocks = u64::from(superblock.table_blocks());
        for range in layout {
            let end = range.end.min(blocks);
            self.owners.set(range.start.min(end)..end, Owner::Layout);
        }
        for (number, group) in groups.iter() {
            let table = number.wrapping_mul(table_blocks as u32);
            for (at, length, owner) in [
                (group.block_bitmap, 1, Owner::BlockBitmap(number)),
                (group.inode_bitmap, 1, Owner::InodeBitmap(number)),
                (group.inode_table, table_blocks, Owner::InodeTable(table)),
            ] {
                match at.checked_add(length) {
                    Some(end) if at > 0 && end <= blocks => self.owners.set(at..end, owner),
                    _ => self.damaged += 1,
                }
            }
        }
    }

    /// All inodes that are in use.
    fn read_inodes(&mut self, groups: &Groups, source: &dyn Source) -> Result<(), ScanError> {
        let superblock = self.superblock.clone();
        let block_bytes = u64::from(superblock.block_bytes);
        let inode_bytes = superblock.inode_bytes as usize;
        let table_bytes = u64::from(superblock.table_blocks()) * block_bytes;
        let mut part = Vec::new();
        for (number, group) in groups.iter() {
            let is_there = group.inode_table.saturating_mul(block_bytes) + table_bytes
                <= superblock.blocks * block_bytes;
            if group.is_untouched || !is_there {
                continue;
            }
            let mut inode = number * superblock.inodes_per_group;
            let mut at = 0;
            while at < table_bytes {
                part.resize(READ_BYTES.min(table_bytes - at) as usize, 0);
                source.read(group.inode_table * block_bytes + at, &mut part)?;
                for bytes in part.chunks_exact(inode_bytes) {
                    inode += 1;
                    if let Some(parsed) = Inode::parse(bytes).filter(|_| inode <= superblock.inodes)
                    {
                        self.may_grow()?;
                        let file = File {
                            inode: parsed,
                            runs: Box::default(),
                            named_in: 0,
                        };
                        self.files.insert(inode, file);
                    }
                }
                at += part.len() as u64;
            }
        }
        Ok(())
    }

    /// The blocks of all files.
    fn read_maps(&mut self, source: &dyn Source) -> Result<(), ScanError> {
        let mut inodes: Vec<u32> = self.files.keys().copied().collect();
        inodes.sort_unstable();
        for inode in inodes {
            let file = &self.files[&inode];
            let (map, attributes) = (file.inode.map.clone(), file.inode.attributes);
            let mut claims = Claims {
                owners: &mut self.owners,
                inode,
            };
            let walked = walk(&map, &self.superblock, source, &mut claims)?;
            self.damaged += walked.damaged;
            if let Some(block) = attributes {
                // Several may have the same.
                if block < self.superblock.blocks && self.owners.of(block) == Owner::Nobody {
                    self.owners.set(block..block + 1, Owner::Map { inode });
                }
            }
            let mut runs = walked.runs;
            runs.retain(|run| self.claim(inode, run));
            self.names_bytes += (runs.len() * size_of::<Run>()) as u64;
            self.may_grow()?;
            if let Some(file) = self.files.get_mut(&inode) {
                file.runs = runs.into();
            }
        }
        Ok(())
    }

    /// Gives blocks to a file; false if that cannot be.
    fn claim(&mut self, inode: u32, run: &Run) -> bool {
        let end = run.block + u64::from(run.length);
        self.claimed += u64::from(run.length);
        let is_whole = self.claimed <= self.superblock.blocks;
        if !is_whole || !self.owners.are_free(run.block..end) {
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

    /// The names of all files, from the root on, so that what is not under it has none.
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
            let mut parts = Vec::new();
            match &file.inode.map {
                Map::Inline(place) => {
                    // The parent comes first, then entries as in a block.
                    let (entries, is_sound) = self.parse(&place[4..]);
                    parts.push((1 << 63 | u64::from(directory), entries, is_sound));
                }
                _ => {
                    for run in file.runs.iter().filter(|run| !run.is_unwritten) {
                        for at in run.block..run.block + u64::from(run.length) {
                            source.read(at * block.len() as u64, &mut block)?;
                            let (entries, is_sound) = self.parse(&block);
                            parts.push((at, entries, is_sound));
                        }
                    }
                }
            }
            for (key, entries, is_sound) in parts {
                self.damaged += u64::from(!is_sound);
                for entry in &entries {
                    let Some(named) = self.files.get_mut(&entry.inode) else {
                        self.damaged += 1;
                        continue;
                    };
                    if named.named_in == 0 && entry.inode >= FIRST_FILE {
                        named.named_in = key;
                        waiting.push_back(entry.inode);
                    }
                }
                let of_entry = |entry: &Entry| entry.name.len() + size_of::<Entry>();
                self.names_bytes += entries.iter().map(of_entry).sum::<usize>() as u64 + 64;
                let entries = entries.into();
                self.names.insert(key, Names { directory, entries });
                self.may_grow()?;
            }
        }
        Ok(())
    }

    fn parse(&self, block: &[u8]) -> (Vec<Entry>, bool) {
        entries_of(
            block,
            self.superblock.has_file_types,
            self.superblock.inodes,
        )
    }
}
