//! [`SimulatedFile`]: an open file of a simulated disk.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use super::State;
use crate::File;
use crate::simulated::Fault;
use crate::simulated::content::{Change, FileContent};
use crate::simulated::fault::Operation;
use crate::simulated::tree::NodeId;

/// An open file.
pub(super) struct SimulatedFile {
    pub(super) shared: Arc<Mutex<State>>,
    pub(super) process: u64,
    pub(super) crashes: u64,
    pub(super) node: NodeId,
    pub(super) path: PathBuf,
    pub(super) is_writable: bool,
}

impl SimulatedFile {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.lock()
    }

    /// Waits as long as the file hangs.
    fn pass(&self) {
        let gate = self.lock().faults.gate();
        gate.pass(|| self.lock().faults.has(&self.path, Fault::Hangs));
    }

    /// Applies `read` to the file's content, if the file may be read now.
    fn read<T>(&self, read: impl FnOnce(&State, &FileContent) -> io::Result<T>) -> io::Result<T> {
        self.pass();
        let mut state = self.lock();
        state.check(self.process, &self.path, Operation::Read, true)?;
        read(&state, state.tree.file(self.node))
    }

    fn change(&self, operation: Operation, change: Change) -> io::Result<()> {
        if !self.is_writable {
            return Err(io::Error::from_raw_os_error(libc::EBADF));
        }
        self.pass();
        self.lock()
            .act(self.process, &self.path, operation, true, |state| {
                state.change(&self.path, self.node, change)
            })
    }
}

impl Drop for SimulatedFile {
    fn drop(&mut self) {
        let mut state = self.lock();
        if state.crashes == self.crashes {
            state.tree.drop_handle(self.node);
            state.open_files -= 1;
        }
    }
}

impl fmt::Debug for SimulatedFile {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "SimulatedFile {}", self.path.display())
    }
}

impl File for SimulatedFile {
    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<()> {
        self.read(|state, content| {
            let bytes = offset..offset + into.len() as u64;
            state.faults.check_sectors(&self.path, bytes)?;
            content.live.read(into, offset)
        })
    }

    fn read_now(&self, into: &mut [u8], offset: u64) -> io::Result<bool> {
        if self.lock().faults.has(&self.path, Fault::Hangs) {
            return Ok(false);
        }
        self.read(|state, content| {
            let would_wait = state.random.one_in(state.read_now_misses_one_in);
            if would_wait || offset + into.len() as u64 > content.live.length() {
                return Ok(false);
            }
            let bytes = offset..offset + into.len() as u64;
            state.faults.check_sectors(&self.path, bytes)?;
            content.live.read(into, offset).map(|()| true)
        })
    }

    fn write_at(&self, from: &[u8], offset: u64) -> io::Result<()> {
        let bytes = from.into();
        self.change(Operation::Grow, Change::Write { offset, bytes })
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.lock();
        let sync = |state: &mut State| {
            state.tree.file_mut(self.node).sync();
            Ok(())
        };
        match state.act(self.process, &self.path, Operation::Sync, true, sync) {
            Err(error) if error.raw_os_error() == Some(libc::EIO) => {
                let random = Arc::clone(&state.random);
                state.tree.file_mut(self.node).fail_sync(&random);
                Err(error)
            }
            other => other,
        }
    }

    fn forget_cached(&self) {
        let mut state = self.lock();
        if state.check_alive(self.process).is_ok() {
            state.tree.file_mut(self.node).forget_clean();
        }
    }

    fn length(&self) -> io::Result<u64> {
        self.read(|_, content| Ok(content.live.length()))
    }

    fn set_length(&self, length: u64) -> io::Result<()> {
        self.change(Operation::Grow, Change::SetLength(length))
    }

    fn allocate(&self, length: u64) -> io::Result<()> {
        self.change(Operation::Grow, Change::Allocate(length))
    }

    fn punch(&self, offset: u64, length: u64) -> io::Result<()> {
        let has_holes = !self.lock().faults.has(&self.path, Fault::NoHoles);
        self.change(
            Operation::Shrink,
            match has_holes {
                true => Change::Punch { offset, length },
                false => Change::Write {
                    offset,
                    bytes: vec![0; length as usize].into(),
                },
            },
        )
    }

    fn allocated(&self) -> io::Result<u64> {
        self.read(|_, content| Ok(content.live.allocated_bytes()))
    }
}
