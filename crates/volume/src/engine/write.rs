//! Admitting writes: sealing them into the journal.

use base::{
    BlockIndex, ByteRange, Durability, IoError, Op, Sequence, Started, Token, WriteBuffer,
    with_causes,
};

use super::layers::Source;
use super::request::{Change, FetchedEdges, PendingRequest};
use super::volume::Volume;
use crate::journal::JournalError;

/// The old content of a block that a change covers in part.
struct Edge {
    block: u64,
    plain: Vec<u8>,
}

impl Volume {
    /// Starts a change of a range within the volume.
    pub(super) fn start_change(&mut self, token: Token, op: &Op<'_>) -> Started {
        let (range, data, durability) = (op.range(), op.data(), op.durability());
        if self.closing {
            return Started::Failed(IoError::Stopped("the volume is being detached".to_owned()));
        }
        if range.length == 0 {
            return self.acknowledge(token, durability);
        }
        if self.is_held() {
            return self.hold(token, op);
        }
        if let Err(refusal) = self.make_room(range, data.is_some()) {
            return refusal;
        }
        let edges = self.reader.edges_of(range);
        if edges.is_empty() {
            return match self.admit(range, data, &[]) {
                Ok(()) => self.acknowledge(token, durability),
                Err(error) => Started::Failed(error),
            };
        }
        let Some(edges) = self.read_edges_now(&edges) else {
            let op = op.to_owned();
            self.reader
                .park(PendingRequest::Change(Change { token, op }));
            return Started::Pending;
        };
        match self.admit(range, data, &edges) {
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

    /// Checks that the journal has room for the change; the error is the answer.
    fn make_room(&mut self, range: ByteRange, has_data: bool) -> Result<(), Started> {
        let blocks = match has_data {
            true => {
                let blocks = self.reader.blocks_of(range.offset, range.length);
                blocks.end - blocks.start
            }
            // A record entry, and at most two blocks covered in part.
            false => 2,
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
        // The wait would never end if nothing can be destaged.
        match self.destage.refusal() {
            Some(error) => Err(Started::Failed(error.clone())),
            None => Err(Started::Busy),
        }
    }

    fn read_edges_now(&mut self, edges: &[u64]) -> Option<Vec<Edge>> {
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
                Ok(true) => found.push(Edge {
                    block: *block,
                    plain,
                }),
                Ok(false) | Err(_) => return None,
            }
        }
        Some(found)
    }

    /// Seals a change into the journal's batch and lays it over the map: `data`, or zeroes.
    fn admit(
        &mut self,
        range: ByteRange,
        data: Option<WriteBuffer<'_>>,
        edges: &[Edge],
    ) -> Result<(), IoError> {
        let (offset, length) = (range.offset, range.length as usize);
        let blocks = self.reader.blocks_of(offset, range.length);
        let block_bytes = self.env.block_size.bytes();
        let mut merged = Vec::new();
        let mut whole_zeroes = 0;
        let count = blocks.end - blocks.start;
        let covered_in_part = edges.len() as u64;
        // Taken together, so that no job's sequences come between: each gap would
        // begin a record, and `make_room` has counted on one.
        let mut sequences = self.take_sequences(match data {
            Some(_) => count,
            None => covered_in_part + u64::from(count > covered_in_part),
        })?;
        let mut sequence = || sequences.next().expect("one for each entry");
        if self.reader.layers.active.is_empty() {
            self.destage.dirty_since = self.now();
        }
        for block in blocks.clone() {
            let (range, within) = self.reader.part_of(offset, length, block);
            let partial = range.len() < block_bytes;
            match data {
                None if !partial => {
                    whole_zeroes += 1;
                    continue;
                }
                Some(data) if !partial => {
                    self.append(block, sequence(), data.part(range))?;
                    continue;
                }
                _ => {}
            }
            let old = edges.iter().find(|edge| edge.block == block);
            merged.clear();
            merged.extend_from_slice(&old.expect("every edge was read").plain);
            let target = &mut merged[within..within + range.len()];
            match data {
                Some(data) => data.part(range).copy_to(target),
                None => target.fill(0),
            }
            self.append(block, sequence(), merged.as_slice().into())?;
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
    fn append(
        &mut self,
        block: u64,
        sequence: Sequence,
        plain: WriteBuffer<'_>,
    ) -> Result<(), IoError> {
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

    /// Admits changes whose edges have been read, as far as there is room.
    /// Returns those that may be acknowledged once the batch is written.
    pub(super) fn admit_deferred(&mut self) -> Vec<Token> {
        let mut admitted = Vec::new();
        for _ in 0..self.deferred.len() {
            let Some((change, fetched)) = self.deferred.pop_front() else {
                break;
            };
            let (range, data) = (change.op.range(), change.op.data());
            match self.make_room(range, data.is_some()) {
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
            let done = match self.admit(range, data, &edges) {
                Ok(()) => self.acknowledge(change.token, change.op.durability()),
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

    /// The edges that were read, unless one was written meanwhile.
    fn edges_still_true(&mut self, fetched: &FetchedEdges) -> Option<Vec<Edge>> {
        fetched
            .iter()
            .map(|(block, source, plain)| {
                let now: Option<Source> = self.reader.resolve_now(block.0);
                (now == Some(*source)).then(|| Edge {
                    block: block.0,
                    plain: plain.clone(),
                })
            })
            .collect()
    }
}
