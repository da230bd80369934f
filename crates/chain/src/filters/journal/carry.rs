//! Changes on their way below, in the order in which they were acknowledged, and those that
//! no flush has covered there.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use base::{BlockDevice, Durability, Request, Started, Token, ZeroMode};

use super::record::Kind;

/// So many are under way below at once.
const WINDOW: usize = 128;

/// What a change takes of memory beside its data, in bytes: here, and where reads look.
pub const CHANGE_BYTES: u64 = 200;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Waiting,
    UnderWay,
    Done,
}

/// A change that the journal has.
#[derive(Debug)]
pub struct Change {
    pub kind: Kind,
    pub offset: u64,
    pub length: u64,
    /// Of a write.
    pub data: Option<Arc<[u8]>>,
    /// Where its record ends.
    pub end: u64,
    pub sequence: u64,
    pub durability: Durability,
    place: Place,
}

impl Change {
    pub fn new(
        (kind, offset, length): (Kind, u64, u64),
        data: Option<Arc<[u8]>>,
        (end, sequence): (u64, u64),
        durability: Durability,
    ) -> Self {
        Self {
            kind,
            offset,
            length,
            data,
            end,
            sequence,
            durability,
            place: Place::Waiting,
        }
    }

    fn data_bytes(&self) -> u64 {
        self.data.as_ref().map_or(0, |data| data.len() as u64)
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.offset < other.offset + other.length && other.offset < self.offset + self.length
    }

    /// Asks for it below.
    pub fn start(&self, below: &mut dyn BlockDevice, token: Token) -> Started {
        match (self.kind, &self.data) {
            (Kind::Write, Some(data)) => {
                let request = Request::write(token, self.offset, data, self.durability);
                below.start(request)
            }
            (Kind::Zeroes { may_punch }, _) => {
                let mode = ZeroMode {
                    durability: self.durability,
                    may_punch,
                    fast_only: false,
                };
                below.start(Request::write_zeroes(token, self.offset, self.length, mode))
            }
            (Kind::Write, None) => unreachable!("a write has data"),
        }
    }
}

/// See the module's head.
///
/// ```text
///  forgotten │ done, and held: no flush below has covered them │ under way, waiting, or done │
///                                                          done ┘  behind one that is not
/// ```
#[derive(Debug, Default)]
pub struct Carry {
    changes: VecDeque<Change>,
    /// So many of the first ones are done, and what data they have, in bytes.
    held: usize,
    held_bytes: u64,
    /// Where the first one's record begins at the latest, and its sequence.
    forgotten: (u64, u64),
    /// The first that waits, unless one is tried again.
    next: u64,
    /// At most [`WINDOW`].
    under_way: BTreeSet<u64>,
    /// Where all records end that are carried out; and the sequence behind them.
    done: (u64, u64),
    /// What they take of memory, in bytes.
    pub bytes: u64,
}

impl Carry {
    /// Nothing yet: what is behind `end` comes, with `sequence`.
    pub fn new(end: u64, sequence: u64) -> Self {
        Self {
            forgotten: (end, sequence),
            done: (end, sequence),
            next: sequence,
            ..Self::default()
        }
    }

    pub fn push(&mut self, change: Change) {
        self.bytes += change.data_bytes() + CHANGE_BYTES;
        self.changes.push_back(change);
    }

    /// Where all records end that are carried out, and the sequence behind them.
    pub fn done(&self) -> (u64, u64) {
        self.done
    }

    /// Whether all are carried out.
    pub fn is_done(&self) -> bool {
        self.held == self.changes.len()
    }

    /// What those have of data that are carried out and kept, in bytes.
    pub fn held_bytes(&self) -> u64 {
        self.held_bytes
    }

    /// All that are kept, in their order.
    pub fn changes(&self) -> impl Iterator<Item = &Change> {
        self.changes.iter()
    }

    pub fn under_way(&self) -> usize {
        self.under_way.len()
    }

    fn at(&mut self, sequence: u64) -> Option<&mut Change> {
        let first = self.changes.front()?.sequence;
        self.changes
            .get_mut(usize::try_from(sequence.checked_sub(first)?).ok()?)
    }

    /// Has those begun that may be, of what ends at `written` or before, until `begin` says
    /// that one was not.
    pub fn start(&mut self, written: u64, mut begin: impl FnMut(&Change) -> bool) {
        let Some(first) = self.changes.front().map(|change| change.sequence) else {
            return;
        };
        while self.under_way.len() < WINDOW {
            let at = (self.next.max(first) - first) as usize;
            let Some(change) = self.changes.get(at) else {
                return;
            };
            let sequence = change.sequence;
            if change.place == Place::Waiting {
                // Of those before it none waits: it would be the next one.
                let mut before = self.under_way.range(..sequence);
                let overlaps =
                    |other: &u64| self.changes[(other - first) as usize].overlaps(change);
                let waits = change.end > written || before.any(overlaps);
                if waits || !begin(change) {
                    return;
                }
                self.changes[at].place = Place::UnderWay;
                self.under_way.insert(sequence);
            }
            self.next = sequence + 1;
        }
    }

    /// A change is below; what it was.
    pub fn finish(&mut self, sequence: u64) -> Option<(u64, u64)> {
        let change = self.at(sequence)?;
        change.place = Place::Done;
        let range = (change.offset, change.length);
        self.under_way.remove(&sequence);
        while let Some(change) = self.changes.get(self.held)
            && change.place == Place::Done
        {
            self.done = (change.end, change.sequence + 1);
            self.held += 1;
            self.held_bytes += change.data_bytes();
        }
        Some(range)
    }

    /// A flush below has covered what comes before `sequence`.
    pub fn forget(&mut self, sequence: u64) {
        while let Some(change) = self.changes.front()
            && change.sequence < sequence
        {
            debug_assert!(self.held > 0, "it was carried out");
            let data = change.data_bytes();
            self.forgotten = (change.end, change.sequence + 1);
            self.held -= 1;
            self.held_bytes -= data;
            self.bytes -= data + CHANGE_BYTES;
            self.changes.pop_front();
        }
    }

    /// All that are kept are to be carried out once more. None is under way.
    pub fn redo(&mut self) {
        debug_assert!(self.under_way.is_empty(), "one would be overtaken");
        for change in &mut self.changes {
            change.place = Place::Waiting;
        }
        (self.held, self.held_bytes) = (0, 0);
        self.done = self.forgotten;
        self.next = self.forgotten.1;
    }

    /// A change could not be carried out: it is tried again.
    pub fn put_back(&mut self, sequence: u64) {
        if let Some(change) = self.at(sequence) {
            change.place = Place::Waiting;
            self.under_way.remove(&sequence);
            self.next = self.next.min(sequence);
        }
    }
}
