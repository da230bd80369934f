//! Writing to the file: blocks, by one job at a time, and later the directory.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::areas::Area;
use super::entry::{Entry, Id};
use super::head::{DIRECTORY_AT, SLOT_BYTES};
use super::{Cache, State};

/// The maximal number of blocks that wait to be written or are being written: 4 MiB.
pub const WRITES_MAX: usize = 1024;

/// The delay before a changed page of the directory is written.
pub const WRITE_BEHIND: Duration = Duration::from_secs(1);

/// Pages of the directory written at once; the lock is held while they are encoded.
const PAGES_AT_ONCE: usize = 64;

/// The blocks that wait to be written.
#[derive(Default)]
pub struct Queue {
    /// The slot and content of each block.
    blocks: Vec<(u32, Vec<u8>)>,
    /// Blocks that wait or are being written.
    count: usize,
    /// Whether a job is writing them.
    has_writer: bool,
}

impl Cache {
    /// Offers a block. It is stored unless too many blocks are being written.
    pub fn offer(self: &Arc<Self>, area: Area, id: Id, tag: [u8; 16], sealed: &[u8]) {
        if sealed.len() != SLOT_BYTES {
            return;
        }
        let entry = Entry::of(id, tag, area.kind(), sealed);
        let mut state = self.lock();
        let is_suspended = self.is_suspended(&mut state);
        // The offer may move an existing block to another area.
        if !is_suspended && (self.find_in(&mut state, area, id).is_some() || state.slots.has(id)) {
            return;
        }
        if is_suspended || state.queue.count >= WRITES_MAX {
            state.statistics.refused += 1;
            return;
        }
        let slot = state.slots.insert(area, entry);
        self.note_change(&mut state);
        let Some(slot) = slot else {
            state.statistics.refused += 1;
            return;
        };
        state.queue.count += 1;
        state.queue.blocks.push((slot, sealed.to_vec()));
        if !std::mem::replace(&mut state.queue.has_writer, true) {
            drop(state);
            let cache = Arc::clone(self);
            self.pool.run(Box::new(move || cache.write()));
        }
    }

    /// Writes the queue until it is empty.
    fn write(&self) {
        loop {
            let mut batch = {
                let mut state = self.lock();
                if state.queue.blocks.is_empty() {
                    state.queue.has_writer = false;
                    break;
                }
                std::mem::take(&mut state.queue.blocks)
            };
            batch.sort_unstable_by_key(|(slot, _)| *slot);
            for run in batch.chunk_by(|one, next| one.0 + 1 == next.0) {
                let bytes = run.iter().map(|(_, bytes)| &bytes[..]).collect::<Vec<_>>();
                let written = self.put(&bytes.concat(), self.head.slot_at(run[0].0));
                let mut state = self.lock();
                state.queue.count -= run.len();
                for (slot, _) in run {
                    state.slots.end_write(*slot, written.is_ok());
                }
                self.note_change(&mut state);
                if let Err(error) = written {
                    self.record_failure(&mut state, &error);
                }
            }
        }
        self.write_behind();
    }

    /// Writes to the file, as an outstanding operation.
    fn put(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        let number = self.lock().outstanding.begin(self.clock.monotonic());
        let written = self.file.write_at(bytes, at);
        self.lock().outstanding.end(number);
        written
    }

    /// The number of blocks that would be accepted now.
    #[must_use]
    pub fn takes(&self) -> usize {
        WRITES_MAX - self.lock().queue.count
    }

    /// Writes the directory if it has been out of date for one second (`WRITE_BEHIND`). The
    /// owner of the cache calls this at regular intervals. Blocks on the disk.
    pub fn write_behind(&self) {
        let now = self.clock.monotonic();
        let is_due = |since: Duration| now >= since + WRITE_BEHIND;
        if self.lock().dirty_since.is_some_and(is_due) {
            self.flush();
        }
    }

    /// Writes all changed pages of the directory. Returns whether that succeeded. Waits.
    pub fn flush(&self) -> bool {
        let flushing = self.flushing.lock();
        let _flushing = flushing;
        loop {
            let (first, bytes) = {
                let mut state = self.lock();
                if self.is_suspended(&mut state) {
                    return false;
                }
                match state.slots.take_dirty(PAGES_AT_ONCE) {
                    Some(pages) => pages,
                    None => {
                        state.dirty_since = None;
                        return true;
                    }
                }
            };
            let at = DIRECTORY_AT + (first * SLOT_BYTES) as u64;
            if let Err(error) = self.put(&bytes, at) {
                let mut state = self.lock();
                self.mark_unwritten(&mut state, first, bytes.len() / SLOT_BYTES);
                self.record_failure(&mut state, &error);
                return false;
            }
        }
    }

    /// Marks pages of the directory as not written.
    fn mark_unwritten(&self, state: &mut State, first: usize, count: usize) {
        state.slots.mark_unwritten(first, count);
        self.note_change(state);
    }

    /// As [`Cache::flush`], and syncs the file.
    pub fn settle(&self) -> bool {
        self.flush()
            && match self.file.sync_data() {
                Ok(()) => true,
                Err(error) => {
                    self.record_failure(&mut self.lock(), &error);
                    false
                }
            }
    }
}
