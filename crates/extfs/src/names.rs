//! The names of files, the directory blocks that hold them, and paths.

use std::collections::{BTreeSet, HashMap, VecDeque};

use super::directory::Entry;
use super::inode::FileKind;
use super::view::{View, directory_blocks};

/// The inode of the root directory.
pub(super) const ROOT: u32 = 2;

/// The first inode of a user's file. Lower ones, except the root, belong to the file system.
pub(super) const FIRST_FILE: u32 = 11;

/// The maximal number of names in a path. A directory that is its own ancestor has no path.
const PATH_NAMES_MAX: usize = 1024;

/// The maximal number of names that are tried to find one that leads to the root. A guest may
/// create a million that do not.
const SEARCHED_MAX: usize = 4096;

/// The names in one block of a directory.
#[derive(Debug)]
pub(super) struct Names {
    pub directory: u32,
    pub entries: Box<[Entry]>,
}

/// The key of the names that are in a directory's inode. No block has this number.
pub(super) fn names_key(directory: u32) -> u64 {
    1 << 63 | u64::from(directory)
}

impl View {
    /// One of the paths of a file, beginning with `/`; `None` if the file has no name that leads
    /// to the root.
    #[must_use]
    pub fn path(&self, inode: u32) -> Option<Vec<u8>> {
        self.first_path(inode).or_else(|| self.other_path(inode))
    }

    /// The path made of the first name of the file and of each directory.
    fn first_path(&self, inode: u32) -> Option<Vec<u8>> {
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

    /// The shortest path of all names. A directory that has lost its own name keeps the names in
    /// it, since it may get another one, but these do not lead to the root.
    fn other_path(&self, inode: u32) -> Option<Vec<u8>> {
        // For each directory, its entry that leads to the file: the inode and the name.
        let mut below: HashMap<u32, (u32, &[u8])> = HashMap::new();
        let mut waiting = VecDeque::from([inode]);
        let mut left = SEARCHED_MAX;
        while let Some(at) = waiting.pop_front() {
            for names in self.names_of(at) {
                left = left.checked_sub(1)?;
                let directory = names.directory;
                let mut entries = names.entries.iter();
                let Some(entry) = entries.find(|entry| entry.inode == at) else {
                    continue;
                };
                if directory == inode || below.contains_key(&directory) {
                    continue;
                }
                below.insert(directory, (at, &entry.name));
                waiting.push_back(directory);
            }
            if below.contains_key(&ROOT) {
                break;
            }
        }
        let (mut path, mut at) = (Vec::new(), ROOT);
        while at != inode {
            let (next, name) = below.get(&at)?;
            path.push(b'/');
            path.extend(*name);
            at = *next;
        }
        Some(path)
    }

    /// The directory blocks that hold names of a file.
    fn names_of(&self, inode: u32) -> impl Iterator<Item = &Names> {
        let first = self.files.get(&inode).map(|file| file.named_in);
        let others = self.also_named_in.get(&inode).into_iter().flatten();
        let keys = first.into_iter().chain(others.copied());
        keys.filter_map(|key| self.names.get(&key))
    }

    /// All paths of a file, one for each name whose directory has a path. They are computed one
    /// at a time, since 65,000 names in deep directories take gigabytes together.
    pub fn paths(&self, inode: u32) -> impl Iterator<Item = Vec<u8>> {
        let first = self.files.get(&inode).map(|file| file.named_in);
        let others = self.also_named_in.get(&inode).into_iter().flatten();
        let others = others.copied().filter(move |_| first.is_some());
        let keys: BTreeSet<u64> = others.chain(first).collect();
        let blocks = keys.into_iter().filter_map(|key| self.names.get(&key));
        blocks.flat_map(move |names| {
            let directory = self.path(names.directory);
            let is_it = move |entry: &&Entry| entry.inode == inode;
            let entries = names.entries.iter().filter(is_it);
            entries.filter_map(move |entry| {
                let mut path = directory.clone()?;
                if path != b"/" {
                    path.push(b'/');
                }
                path.extend(&entry.name);
                Some(path)
            })
        })
    }

    /// Whether an inode is a directory that is not empty.
    pub(super) fn has_names_below(&self, inode: u32) -> bool {
        let Some(file) = self.files.get(&inode) else {
            return false;
        };
        let has_names = |key: u64| {
            let names = self.names.get(&key);
            names.is_some_and(|names| names.directory == inode && !names.entries.is_empty())
        };
        file.inode.kind == FileKind::Directory
            && (has_names(names_key(inode)) || directory_blocks(&file.runs).any(has_names))
    }

    /// Notes a name of a file in a directory block. Returns whether it is the first known name.
    pub(super) fn is_first_name(&mut self, inode: u32, key: u64) -> bool {
        let Some(file) = self.files.get_mut(&inode).filter(|_| inode >= FIRST_FILE) else {
            self.damaged += 1;
            return false;
        };
        let is_first = file.named_in == 0;
        match is_first {
            true => file.named_in = key,
            false => {
                self.names_bytes += size_of::<u64>() as u64;
                self.also_named_in.entry(inode).or_default().push(key);
            }
        }
        is_first
    }

    /// Notes that a name of a file was removed from a directory block. Returns whether the file
    /// has no other known name.
    pub(super) fn is_last_name(&mut self, inode: u32, key: u64) -> bool {
        let Some(file) = self.files.get_mut(&inode) else {
            return true;
        };
        let mut others = self.also_named_in.remove(&inode).unwrap_or_default();
        let before = others.len();
        if file.named_in == key {
            file.named_in = others.pop().unwrap_or(0);
        } else if let Some(at) = others.iter().position(|other| *other == key) {
            others.swap_remove(at);
        }
        let is_last = file.named_in == 0;
        self.names_bytes -= ((before - others.len()) * size_of::<u64>()) as u64;
        if !others.is_empty() {
            self.also_named_in.insert(inode, others);
        }
        is_last
    }

    /// Sets the names in a directory block. Returns the old ones.
    pub(super) fn set_names(
        &mut self,
        key: u64,
        directory: u32,
        entries: Vec<Entry>,
    ) -> Option<Names> {
        let before = self.clear_names(key);
        self.names_bytes += bytes_of(&entries);
        let entries = entries.into();
        self.names.insert(key, Names { directory, entries });
        before
    }

    /// Removes a block from its directory. Returns the names in it.
    pub(super) fn clear_names(&mut self, key: u64) -> Option<Names> {
        let before = self.names.remove(&key)?;
        self.names_bytes -= bytes_of(&before.entries);
        Some(before)
    }
}

/// The approximate memory of the names in a block with the allocator's overhead, in bytes.
fn bytes_of(entries: &[Entry]) -> u64 {
    let one = |entry: &Entry| entry.name.len().next_multiple_of(16) + 16 + size_of::<Entry>();
    entries.iter().map(one).sum::<usize>() as u64 + 128
}
