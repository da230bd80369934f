//! [`Changes`]: changes on their way below, in the order in which they were acknowledged.
//!
//! ```text
//!  forgotten │ held: written, not flushed │ pending, waiting, or written behind one that is not
//! ```
//!
//! A change is kept until a flush below has covered it: if the flush fails, it is unknown what the
//! disk has, and all of it is written again.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use base::{BlockDevice, ByteRange, Durability, Request, Started, Token, ZeroMode};

use super::record::{ChangeKind, LogPosition, Recorded};

/// The maximal number of changes that are pending below.
const PENDING_MAX: usize = 128;

/// The memory that a change takes beside its data, in bytes, here and in the overlay.
pub const CHANGE_BYTES: u64 = 200;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WriteState {
    Waiting,
    Pending,
    Written,
}

/// A change that the journal has.
#[derive(Debug)]
pub struct Change {
    pub kind: ChangeKind,
    pub range: ByteRange,
    /// The content of a write.
    pub data: Option<Arc<[u8]>>,
    /// The position at which its record ends.
    pub end: u64,
    pub sequence: u64,
    pub durability: Durability,
    state: WriteState,
}

impl Change {
    /// A change whose record has the sequence `sequence` and ends at `end`.
    pub fn new(
        kind: ChangeKind,
        range: ByteRange,
        data: Option<Arc<[u8]>>,
        durability: Durability,
        record: Recorded,
    ) -> Self {
        Self {
            kind,
            range,
            data,
            end: record.end,
            sequence: record.sequence,
            durability,
            state: WriteState::Waiting,
        }
    }

    fn data_bytes(&self) -> u64 {
        self.data.as_ref().map_or(0, |data| data.len() as u64)
    }

    fn overlaps(&self, other: &Self) -> bool {
        let (one, other) = (self.range, other.range);
        one.offset < other.end() && other.offset < one.end()
    }

    /// Starts to write the change below.
    pub fn start(&self, below: &mut dyn BlockDevice, token: Token) -> Started {
        let ByteRange { offset, length } = self.range;
        match (self.kind, &self.data) {
            (ChangeKind::Write, Some(data)) => {
                below.start(Request::write(token, offset, data, self.durability))
            }
            (ChangeKind::Zeroes { may_punch }, _) => {
                let mode = ZeroMode {
                    durability: self.durability,
                    may_punch,
                    fast_only: false,
                };
                below.start(Request::write_zeroes(token, offset, length, mode))
            }
            (ChangeKind::Write, None) => unreachable!("a write has data"),
        }
    }
}

/// The changes that are not durable below.
#[derive(Debug, Default)]
pub struct Changes {
    changes: VecDeque<Change>,
    /// The number of changes at the front that are written, without gap.
    held: usize,
    /// The data of these, in bytes.
    held_bytes: u64,
    /// Where the first change's record begins, at the latest.
    forgotten: LogPosition,
    /// The sequence of the first change that waits.
    next: u64,
    /// The sequences of pending changes, at most [`PENDING_MAX`].
    pending: BTreeSet<u64>,
    /// All records before this position are written.
    written: LogPosition,
    /// The memory that all changes take, in bytes.
    pub memory_bytes: u64,
}

impl Changes {
    /// No changes. The first one will be at `position`.
    pub fn new(position: LogPosition) -> Self {
        Self {
            forgotten: position,
            written: position,
            next: position.sequence,
            ..Self::default()
        }
    }

    pub fn push(&mut self, change: Change) {
        self.memory_bytes += change.data_bytes() + CHANGE_BYTES;
        self.changes.push_back(change);
    }

    /// All records before this position are written below.
    pub fn written(&self) -> LogPosition {
        self.written
    }

    /// Whether all changes are written below.
    pub fn are_written(&self) -> bool {
        self.held == self.changes.len()
    }

    /// The data of changes that are written and wait for a flush, in bytes.
    pub fn held_bytes(&self) -> u64 {
        self.held_bytes
    }

    pub fn iter(&self) -> impl Iterator<Item = &Change> {
        self.changes.iter()
    }

    /// The number of changes that are pending below.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    fn get_mut(&mut self, sequence: u64) -> Option<&mut Change> {
        let first = self.changes.front()?.sequence;
        self.changes
            .get_mut(usize::try_from(sequence.checked_sub(first)?).ok()?)
    }

    /// Starts changes whose records end at `written` or before, until `start` returns false for
    /// one. A change that overlaps a pending one waits for it, and so do all behind it.
    pub fn start(&mut self, written: u64, mut start: impl FnMut(&Change) -> bool) {
        let Some(first) = self.changes.front().map(|change| change.sequence) else {
            return;
        };
        while self.pending.len() < PENDING_MAX {
            let at = (self.next.max(first) - first) as usize;
            let Some(change) = self.changes.get(at) else {
                return;
            };
            let sequence = change.sequence;
            if change.state == WriteState::Waiting {
                // No change before this one waits, or `next` would be that one.
                let mut before = self.pending.range(..sequence);
                let overlaps =
                    |other: &u64| self.changes[(other - first) as usize].overlaps(change);
                let waits = change.end > written || before.any(overlaps);
                if waits || !start(change) {
                    return;
                }
                self.changes[at].state = WriteState::Pending;
                self.pending.insert(sequence);
            }
            self.next = sequence + 1;
        }
    }

    /// A change is written below. Returns its range.
    pub fn finish(&mut self, sequence: u64) -> Option<ByteRange> {
        let change = self.get_mut(sequence)?;
        change.state = WriteState::Written;
        let range = change.range;
        self.pending.remove(&sequence);
        while let Some(change) = self.changes.get(self.held)
            && change.state == WriteState::Written
        {
            self.written = LogPosition {
                offset: change.end,
                sequence: change.sequence + 1,
            };
            self.held += 1;
            self.held_bytes += change.data_bytes();
        }
        Some(range)
    }

    /// A flush below has covered all changes before `sequence`.
    pub fn forget(&mut self, sequence: u64) {
        while let Some(change) = self.changes.front()
            && change.sequence < sequence
        {
            debug_assert!(self.held > 0, "a flush covers written changes only");
            let data = change.data_bytes();
            self.forgotten = LogPosition {
                offset: change.end,
                sequence: change.sequence + 1,
            };
            self.held -= 1;
            self.held_bytes -= data;
            self.memory_bytes -= data + CHANGE_BYTES;
            self.changes.pop_front();
        }
    }

    /// Lets all changes be written again. None may be pending.
    pub fn redo(&mut self) {
        debug_assert!(
            self.pending.is_empty(),
            "a pending change would be overtaken"
        );
        for change in &mut self.changes {
            change.state = WriteState::Waiting;
        }
        (self.held, self.held_bytes) = (0, 0);
        self.written = self.forgotten;
        self.next = self.forgotten.sequence;
    }

    /// A pending change failed: it waits again.
    pub fn retry(&mut self, sequence: u64) {
        if let Some(change) = self.get_mut(sequence) {
            change.state = WriteState::Waiting;
            self.pending.remove(&sequence);
            self.next = self.next.min(sequence);
        }
    }
}
