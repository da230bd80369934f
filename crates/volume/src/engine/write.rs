//! Admitting writes: sealing them into the journal.

use base::{BlockIndex, Durability, IoError, Sequence, Started, Token, with_causes};

use super::fetch::FetchedEdges;
use super::layers::Source;
use super::reader::PendingRequest;
use super::volume::Volume;
use crate::journal::JournalError;

/// A change as a request brings it.
#[derive(Clone, Copy)]
pub enum Incoming<'a> {
    Data(&'a [u8]),
    Zeroes(u64),
}

impl Incoming<'_> {
    pub fn length(&self) -> u64 {
        match self {
            Self::Data(data) => data.len() as u64,
            Self::Zeroes(length) => *length,
        }
    }

    pub fn to_content(self) -> Content {
        match self {
            Self::Data(data) => Content::Data(data.to_vec()),
            Self::Zeroes(length) => Content::Zeroes(length),
        }
    }
}

/// A change that could not be admitted at once because it covers parts of
/// blocks whose other parts had to be read first.
pub struct Change {
    pub token: Token,
    pub offset: u64,
    pub content: Content,
    pub durability: Durability,
}

/// What a change leaves behind.
pub enum Content {
    Data(Vec<u8>),
    Zeroes(u64),
}

impl Content {
    /// How many bytes it covers.
    pub fn length(&self) -> u64 {
        match self {
            Self::Data(data) => data.len() as u64,
            Self::Zeroes(length) => *length,
        }
    }
}

/// The old content of blocks that a change covers in part.
type Edges = Vec<(u64, Vec<u8>)>;

impl Volume {
    pub(super) fn start_change(
        &mut self,
        token: Token,
        offset: u64,
        incoming: Incoming<'_>,
        durability: Durability,
    ) -> Started {
        let length = incoming.length();
        if let Err(error) = self.check_range(offset, length) {
            return Started::Failed(error);
        }
        if self.closing {
            return Started::Failed(IoError::Stopped("the volume is being detached".to_owned()));
        }
        if length == 0 {
            return self.acknowledge(token, durability);
        }
        if self.is_held() {
            return self.hold(token, offset, incoming, durability);
        }
        if let Err(refusal) = self.make_room(offset, &incoming) {
            return refusal;
        }
        let edges = self.reader.edges_of(offset, length);
        if edges.is_empty() {
            return match self.admit(offset, incoming, &Vec::new()) {
                Ok(()) => self.acknowledge(token, durability),
                Err(error) => Started::Failed(error),
            };
        }
        let Some(edges) = self.read_edges_now(&edges) else {
            let change = Change {
                token,
                offset,
                content: incoming.to_content(),
                durability,
            };
            self.reader.park(PendingRequest::Change(change));
            return Started::Pending;
        };
        match self.admit(offset, incoming, &edges) {
            Ok(()) => self.acknowledge(token, durability),
            Err(error) => Started::Failed(error),
        }
    }

    fn acknowledge(&mut self, token: Token, durability: Durability) -> Started {
        match durability {
            Durability::Volatile => Started::Done,
            Durability::Durable => {
                self.wait_for_sync(token);
                Started::Pending
            }
        }
    }

    /// Whether the journal can take the change; if not, what to answer.
    fn make_room(&mut self, offset: u64, incoming: &Incoming<'_>) -> Result<(), Started> {
        let blocks = match incoming {
            Incoming::Data(data) => {
                let range = self.reader.blocks_of(offset, data.len() as u64);
                range.end - range.start
            }
            // A record entry, and at most two blocks covered in part.
            Incoming::Zeroes(_) => 2,
        };
        if self.journal.has_room(blocks) {
            return Ok(());
        }
        let block_bytes = self.env.block_size.bytes() as u64;
        if blocks * block_bytes > self.journal.ring_bytes() / 4 {
            return Err(Started::Failed(IoError::NoSpace(format!(
                "one write of {blocks} blocks is too large for a journal of {} bytes",
                self.journal.ring_bytes()
            ))));
        }
        // PendingRequest would be forever if nothing can be destaged.
        match self.destage.refusal() {
            Some(error) => Err(Started::Failed(error.clone())),
            None => Err(Started::Busy),
        }
    }

    fn read_edges_now(&mut self, edges: &[u64]) -> Option<Edges> {
        let block_bytes = self.env.block_size.bytes();
        let mut found = Vec::with_capacity(edges.len());
        for block in edges {
            let start = self.env.block_size.start_of(BlockIndex(*block));
            let mut plain = vec![0; block_bytes];
            // The volume may end inside its last block.
            let within = (self.reader.size_bytes - start).min(block_bytes as u64) as usize;
            match self
                .reader
                .start_read_unparked(Some(&self.journal), start, &mut plain[..within])
            {
                Ok(true) => found.push((*block, plain)),
                Ok(false) | Err(_) => return None,
            }
        }
        Some(found)
    }

    /// Seals a change into the journal's batch and lays it over the map.
    fn admit(&mut self, offset: u64, incoming: Incoming<'_>, edges: &Edges) -> Result<(), IoError> {
        let length = incoming.length() as usize;
        let blocks = self.reader.blocks_of(offset, length as u64);
        let block_bytes = self.env.block_size.bytes();
        let mut merged = Vec::new();
        let mut whole_zeroes = 0;
        let count = blocks.end - blocks.start;
        let covered_in_part = edges.len() as u64;
        // Together, so that no job's sequences come between: each gap would
        // begin a record, and `make_room` has counted on one.
        let mut sequences = self.take_sequences(match incoming {
            Incoming::Data(_) => count,
            Incoming::Zeroes(_) => covered_in_part + u64::from(count > covered_in_part),
        })?;
        let mut sequence = || sequences.next().expect("one for each entry");
        if self.reader.layers.active.is_empty() {
            self.destage.dirty_since = self.now();
        }
        for block in blocks.clone() {
            let (range, within) = self.reader.part_of(offset, length, block);
            let partial = range.len() < block_bytes;
            match incoming {
                Incoming::Zeroes(_) if !partial => {
                    whole_zeroes += 1;
                    continue;
                }
                Incoming::Data(data) if !partial => {
                    self.append(block, sequence(), &data[range])?;
                    continue;
                }
                _ => {}
            }
            let old = edges.iter().find(|(edge, _)| *edge == block);
            merged.clear();
            merged.extend_from_slice(&old.expect("every edge was read").1);
            let target = &mut merged[within..within + range.len()];
            match incoming {
                Incoming::Data(data) => target.copy_from_slice(&data[range]),
                Incoming::Zeroes(_) => target.fill(0),
            }
            self.append(block, sequence(), &merged)?;
        }
        if whole_zeroes > 0 {
            let first = self
                .env
                .block_size
                .block_at(offset + block_bytes as u64 - 1)
                .0;
            self.append_zeroes(first, whole_zeroes, sequence())?;
        }
        Ok(())
    }

    #[inline]
    fn append(&mut self, block: u64, sequence: Sequence, plain: &[u8]) -> Result<(), IoError> {
        self.last_sequence = sequence;
        let sealer = self.env.keyring.own();
        match self
            .journal
            .append(sealer, BlockIndex(block), sequence, plain)
        {
            Ok(placed) => {
                self.reader.layers.active.insert(block, placed);
                self.counters.blocks_written += 1;
                Ok(())
            }
            Err(error) => Err(self.journal_failed(&error)),
        }
    }

    fn append_zeroes(&mut self, first: u64, count: u64, sequence: Sequence) -> Result<(), IoError> {
        self.last_sequence = sequence;
        match self.journal.append_zero(BlockIndex(first), count, sequence) {
            Ok(()) => {
                self.reader.layers.active.zero(first..first + count);
                Ok(())
            }
            Err(error) => Err(self.journal_failed(&error)),
        }
    }

    fn take_sequences(
        &mut self,
        count: u64,
    ) -> Result<impl Iterator<Item = Sequence> + use<>, IoError> {
        self.env.sequences.take_run(count).map_err(|error| {
            let error = IoError::Stopped(error.to_string());
            self.stop(error.clone());
            error
        })
    }

    fn journal_failed(&mut self, error: &JournalError) -> IoError {
        let error = IoError::Stopped(with_causes(error));
        self.stop(error.clone());
        error
    }

    /// Admits changes whose edges have been fetched, as far as there is room.
    /// Returns those that may be acknowledged once the batch is written.
    pub(super) fn admit_deferred(&mut self) -> Vec<Token> {
        let mut admitted = Vec::new();
        for _ in 0..self.deferred.len() {
            let Some((change, fetched)) = self.deferred.pop_front() else {
                break;
            };
            let incoming = match &change.content {
                Content::Data(data) => Incoming::Data(data),
                Content::Zeroes(length) => Incoming::Zeroes(*length),
            };
            match self.make_room(change.offset, &incoming) {
                Ok(()) => {}
                Err(Started::Failed(error)) => {
                    self.reader.ready.push(base::Completion {
                        token: change.token,
                        result: Err(error),
                    });
                    continue;
                }
                Err(_) => {
                    self.deferred.push_back((change, fetched));
                    continue;
                }
            }
            let Some(edges) = self.edges_still_true(&fetched) else {
                self.reader.park(PendingRequest::Change(change));
                continue;
            };
            let done = match self.admit(change.offset, incoming, &edges) {
                Ok(()) => self.acknowledge(change.token, change.durability),
                Err(error) => Started::Failed(error),
            };
            match done {
                Started::Done => admitted.push(change.token),
                Started::Failed(error) => self.reader.ready.push(base::Completion {
                    token: change.token,
                    result: Err(error),
                }),
                Started::Pending | Started::Busy => {}
            }
        }
        admitted
    }

    /// The fetched edges, unless one was written meanwhile.
    fn edges_still_true(&mut self, fetched: &FetchedEdges) -> Option<Edges> {
        fetched
            .iter()
            .map(|(block, source, plain)| {
                let now: Option<Source> = self.reader.resolve_now(block.0);
                (now == Some(*source)).then(|| (block.0, plain.clone()))
            })
            .collect()
    }
}
