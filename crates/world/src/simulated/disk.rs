//! [`SimulatedDisk`]: a disk in memory that keeps live and durable bytes apart.

mod file;

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use super::content::{Change, Survival};
use super::fault::{Faults, Operation};
use super::tree::{NodeId, Tree};
use super::{Fault, SimulatedRandom};
use crate::{DirectoryEntry, Disk, File, OpenMode, Space, SubfolderDisk};
use file::SimulatedFile;

/// The capacity of a disk for which none was set, in bytes.
const CAPACITY_BYTES: u64 = 1 << 50;

/// One process's view of a simulated disk. Views made by [`SimulatedDisk::spawn`] see the same
/// files. [`SimulatedDisk::kill`] ends one process, and [`SimulatedDisk::crash`] all of them.
///
/// Bytes that were written and not synced are live: every process reads them. A crash
/// keeps a random part of them, within what [`Disk`] promises.
///
/// ```text
///             write, punch …        sync_data
///   process ──────────────► live ─────────────► durable
///      ▲   create, rename …       sync_directory   │
///      └─────────────────────◄─────────────────────┘
///                           crash
/// ```
///
/// Cost: there is one mutex for the whole disk, and a write copies its bytes once or twice.
pub struct SimulatedDisk {
    shared: Arc<Mutex<State>>,
    process: u64,
}

#[derive(Clone)]
struct State {
    tree: Tree,
    faults: Faults,
    capacities: Vec<(PathBuf, u64)>,
    open_files: u64,
    open_files_max: Option<u64>,
    /// The generator of the disk's own choices. It is not the caller's, so that a test that draws
    /// one more number does not get a different disk.
    random: Arc<SimulatedRandom>,
    read_now_misses_one_in: u64,
    operations: u64,
    crash_at: Option<u64>,
    is_off: bool,
    crashes: u64,
    next_process: u64,
    /// Processes with lower numbers died in a crash.
    alive_from: u64,
    killed: BTreeSet<u64>,
}

/// The error of an operation after the process has died or the machine has lost power.
fn dead() -> io::Error {
    io::Error::other("the simulated process has died")
}

impl State {
    fn check_alive(&self, process: u64) -> io::Result<()> {
        if self.is_off || process < self.alive_from || self.killed.contains(&process) {
            return Err(dead());
        }
        Ok(())
    }

    fn check(
        &mut self,
        process: u64,
        path: &Path,
        operation: Operation,
        is_open: bool,
    ) -> io::Result<()> {
        self.check_alive(process)?;
        self.faults.check(path, operation, is_open)
    }

    /// Counts an operation that changes something. The caller carries the operation out;
    /// `Ok(false)` means that the power fails after it.
    fn count(&mut self) -> io::Result<bool> {
        let number = self.operations;
        self.operations += 1;
        if self.crash_at != Some(number) {
            return Ok(true);
        }
        if self.random.below(2) == 0 {
            self.is_off = true;
            return Err(dead());
        }
        Ok(false)
    }

    /// Checks, counts and carries out an operation that changes something.
    fn act<T>(
        &mut self,
        process: u64,
        path: &Path,
        operation: Operation,
        is_open: bool,
        action: impl FnOnce(&mut Self) -> io::Result<T>,
    ) -> io::Result<T> {
        self.check(process, path, operation, is_open)?;
        let survives = self.count()?;
        let done = action(self);
        if survives {
            done
        } else {
            self.is_off = true;
            Err(dead())
        }
    }

    /// Checks that one more file can be opened.
    fn check_open_files(&self) -> io::Result<()> {
        if self
            .open_files_max
            .is_some_and(|max| self.open_files >= max)
        {
            return Err(io::Error::from_raw_os_error(libc::EMFILE));
        }
        Ok(())
    }

    /// The capacity that limits `path` and the part of it that is used, in bytes.
    fn capacity(&self, path: &Path) -> Option<(u64, u64)> {
        let bound = |(prefix, _): &&(PathBuf, u64)| path.starts_with(prefix);
        let (prefix, capacity) = self.capacities.iter().rev().find(bound)?;
        let files = self.tree.files_under(prefix);
        let used = |(_, id): &(PathBuf, NodeId)| self.tree.file(*id).live.allocated_bytes();
        let nameless = self.tree.nameless_bytes();
        Some((*capacity, nameless + files.iter().map(used).sum::<u64>()))
    }

    fn change(&mut self, path: &Path, node: NodeId, change: Change) -> io::Result<()> {
        let needed = self.tree.file(node).live.space_for(&change);
        if needed > 0
            && let Some((capacity, used)) = self.capacity(path)
            && used + needed > capacity
        {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        self.tree.file_mut(node).change(change);
        Ok(())
    }
}

impl SimulatedDisk {
    /// An empty disk, as its first process sees it.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let state = State {
            tree: Tree::new(),
            faults: Faults::default(),
            capacities: Vec::new(),
            open_files: 0,
            open_files_max: None,
            random: Arc::new(SimulatedRandom::new(seed)),
            read_now_misses_one_in: 0,
            operations: 0,
            crash_at: None,
            is_off: false,
            crashes: 0,
            next_process: 1,
            alive_from: 0,
            killed: BTreeSet::new(),
        };
        Self {
            shared: Arc::new(Mutex::new(state)),
            process: 0,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.lock()
    }

    /// The same disk as a new process sees it.
    #[must_use]
    pub fn spawn(&self) -> Self {
        let mut state = self.lock();
        let process = state.next_process;
        state.next_process += 1;
        Self {
            shared: Arc::clone(&self.shared),
            process,
        }
    }

    /// Ends this process, whose operations fail from now on. The machine keeps running, so
    /// everything that the process wrote stays live.
    pub fn kill(&self) {
        self.lock().killed.insert(self.process);
    }

    /// Lets the power fail: every process dies, and a random part of what was not synced
    /// survives. [`SimulatedDisk::spawn`] boots.
    pub fn crash(&self, random: &SimulatedRandom) {
        self.lock().crash(random);
    }

    /// Another disk, with the content that this one would have after a crash now. This disk is
    /// unaffected.
    #[must_use]
    pub fn crashed_copy(&self, random: &SimulatedRandom) -> Self {
        let copy = self.copy();
        copy.crash(random);
        copy.spawn()
    }

    /// Another disk with the same live and durable bytes, without open files.
    #[must_use]
    pub fn copy(&self) -> Self {
        let mut state = self.lock().clone();
        state.tree = state.tree.without_handles();
        state.open_files = 0;
        state.random = Arc::new(state.random.split());
        state.crashes += 1;
        let process = state.next_process;
        state.next_process += 1;
        Self {
            shared: Arc::new(Mutex::new(state)),
            process,
        }
    }

    /// The number of operations so far that change something. Reads are not counted: a crash
    /// after a read equals a crash before the next write.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.lock().operations
    }

    /// Lets the power fail in operation `number`, as counted by [`SimulatedDisk::operations`].
    /// That operation takes effect or not; it and everything after it fails. A following
    /// [`SimulatedDisk::crash`] shows what survived.
    pub fn arm_crash(&self, number: u64) {
        self.lock().crash_at = Some(number);
    }

    /// Whether an armed crash has happened.
    #[must_use]
    pub fn is_off(&self) -> bool {
        self.lock().is_off
    }

    /// Adds `fault` to everything under `prefix`.
    pub fn inject(&self, prefix: &Path, fault: Fault) {
        self.lock().faults.add(prefix, fault);
    }

    /// Removes the faults that were added to exactly `prefix`.
    pub fn heal(&self, prefix: &Path) {
        let gate = {
            let mut state = self.lock();
            state.faults.remove(prefix);
            state.faults.gate()
        };
        gate.open();
    }

    /// Waits until another thread hangs in an operation ([`Fault::Hangs`]).
    pub fn wait_until_one_hangs(&self) {
        let gate = self.lock().faults.gate();
        gate.wait_until_one_hangs();
    }

    /// The time that operations have waited for slow parts since the last call. The driver may
    /// advance its clock by it.
    pub fn take_waited(&self) -> Duration {
        self.lock().faults.take_waited()
    }

    /// Limits the space of everything under `prefix`. Of overlapping limits the last one counts.
    pub fn set_capacity(&self, prefix: &Path, bytes: u64) {
        let mut state = self.lock();
        state.capacities.retain(|(at, _)| at != prefix);
        state.capacities.push((prefix.to_owned(), bytes));
    }

    /// Limits the number of open files of all processes together.
    pub fn set_open_files_max(&self, files_max: u64) {
        self.lock().open_files_max = Some(files_max);
    }

    /// Lets one call of [`File::read_now`] in `one_in` return that it would have to wait; none if
    /// `one_in` is zero.
    pub fn set_read_now_misses(&self, one_in: u64) {
        self.lock().read_now_misses_one_in = one_in;
    }

    /// Flips one stored bit of a file, as a decaying medium does.
    ///
    /// # Errors
    /// `NotFound` if there is no such file.
    pub fn flip_bit(&self, path: &Path, offset: u64, bit: u8) -> io::Result<()> {
        let mut state = self.lock();
        let node = state.tree.find_file(path)?;
        let content = state.tree.file_mut(node);
        content.live.flip_bit(offset, bit);
        content.durable.flip_bit(offset, bit);
        Ok(())
    }

    /// Every file under `prefix` with its length in bytes, ordered by path.
    #[must_use]
    pub fn files_under(&self, prefix: &Path) -> Vec<(PathBuf, u64)> {
        let state = self.lock();
        let length = |id| state.tree.file(id).live.length();
        let files = state.tree.files_under(prefix).into_iter();
        files.map(|(path, id)| (path, length(id))).collect()
    }

    fn act<T>(
        &self,
        path: &Path,
        operation: Operation,
        action: impl FnOnce(&mut State) -> io::Result<T>,
    ) -> io::Result<T> {
        self.lock()
            .act(self.process, path, operation, false, action)
    }
}

impl State {
    fn crash(&mut self, random: &SimulatedRandom) {
        let survival = Survival::choose(random);
        self.tree.crash(survival, random);
        self.open_files = 0;
        self.is_off = false;
        self.crash_at = None;
        self.crashes += 1;
        self.alive_from = self.next_process;
        self.killed.clear();
    }
}

impl fmt::Debug for SimulatedDisk {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "SimulatedDisk of process {}", self.process)
    }
}

impl Disk for SimulatedDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let mut state = self.lock();
        state.check_open_files()?;
        let process = self.process;
        let node = match mode {
            OpenMode::CreateNew => state.act(process, path, Operation::Grow, false, |state| {
                match state.tree.find_file(path) {
                    Ok(node) if state.faults.has(path, Fault::NotExclusive) => Ok(node),
                    _ => state.tree.create_file(path),
                }
            })?,
            OpenMode::Read | OpenMode::Write => {
                state.check(process, path, Operation::Read, false)?;
                let node = state.tree.find_file(path)?;
                if mode == OpenMode::Write {
                    // This fails on a read-only file system and needs no space.
                    state.faults.check(path, Operation::Shrink, false)?;
                }
                node
            }
        };
        state.tree.add_handle(node);
        state.open_files += 1;
        Ok(Arc::new(SimulatedFile {
            shared: Arc::clone(&self.shared),
            process,
            crashes: state.crashes,
            node,
            path: path.to_owned(),
            is_writable: mode != OpenMode::Read,
        }))
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<DirectoryEntry>> {
        let mut state = self.lock();
        state.check_open_files()?;
        state.check(self.process, folder, Operation::Read, false)?;
        let names = state.tree.list(folder)?.into_iter();
        Ok(names
            .map(|(name, is_directory)| DirectoryEntry { name, is_directory })
            .collect())
    }

    fn create_directory(&self, folder: &Path) -> io::Result<()> {
        self.act(folder, Operation::Grow, |state| {
            state.tree.create_folder(folder)
        })
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.act(from, Operation::Shrink, |state| {
            state.faults.check(to, Operation::Shrink, false)?;
            state.faults.check_removal(from)?;
            if state.faults.has(to, Fault::NoReplacing) && state.tree.find_file(to).is_ok() {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            state.tree.rename(from, to)
        })
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.act(path, Operation::Shrink, |state| {
            state.tree.find_file(path)?;
            state.faults.check_removal(path)?;
            state.tree.remove_file(path)
        })
    }

    fn sync_directory(&self, folder: &Path) -> io::Result<()> {
        self.lock().check_open_files()?;
        self.act(folder, Operation::Sync, |state| {
            state.tree.sync_folder(folder)
        })
    }

    fn within(&self, folder: &Path) -> Arc<dyn Disk> {
        let same_process = Self {
            shared: Arc::clone(&self.shared),
            process: self.process,
        };
        Arc::new(SubfolderDisk::new(Arc::new(same_process), folder))
    }

    fn open_files_max(&self) -> Option<u64> {
        self.lock().open_files_max
    }

    fn space(&self, folder: &Path) -> io::Result<Space> {
        let mut state = self.lock();
        state.check(self.process, folder, Operation::Read, false)?;
        state.tree.list(folder)?;
        let (total_bytes, used) = state.capacity(folder).unwrap_or((CAPACITY_BYTES, 0));
        Ok(Space {
            total_bytes,
            free_bytes: total_bytes.saturating_sub(used),
        })
    }
}
