//! Streams: large writes go to their slots first.
//!
//! A block in the journal is written twice: there, and in its segment. For a
//! small write that is the price of an early answer; a stream of large ones
//! would pay it with half of its throughput. So once large writes have come
//! without a flush for a while, they are sealed straight into slots, and the
//! journal says only which block lies where:
//!
//! ```text
//!   owner                          jobs on the pool
//!   1. take: copy the request
//!   2. all that was taken ───────► 3. seal, deal, put every copy
//!   4. apply: journal where, ◄────
//!      lay over `active`,
//!      acknowledge
//!   5. all that was applied ─────► 6. sync the segments on every copy
//!   7. settled  ◄─────────────────
//! ```
//!
//! Invariants:
//!
//! 1. A write takes effect, for reads and for the journal's order, at 4; until
//!    then nobody was told that it is done, and reads see what was there.
//! 2. A log position counts as durable only if all streamed blocks before it
//!    are settled: flushes wait for 7, and records never claim more.
//! 3. A cut is made only when everything applied is settled: nothing is applied
//!    from the moment it is asked for. What a version names is durable.
//! 4. Where 6 fails, the blocks are written to the journal as any others, from
//!    the copy that is kept until 7. No other write comes before that.
//! 5. A slot that is overwritten before a version names it stays until the
//!    version that does without it is committed: recovery must find it. That
//!    commit also notes it as free.
//! 6. What recovery finds in slots may be in the page cache only, or not on
//!    every unit: the first destage places it anew, and until that is committed
//!    no flush ends and no orphan is swept.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use base::{
    BlockIndex, Durability, IoError, Location, SegmentId, Sequence, SnapshotId, Started, Token,
};
use unit::UnitError;
use world::parallel;

use super::event::Event;
use super::layers::{Streamed, Written};
use super::volume::{Env, Volume, with_cause};
use super::write::Incoming;
use crate::catalog::Leftovers;
use crate::map::Entry;
use crate::scatter::{Dealer, Ledger, Member, PlaceError, PutShare, Source, put, sync_segment};
use crate::seal::Address;

/// Segments synced at once.
const PARALLEL: usize = 16;
/// Buffers kept for the next requests.
const SPARE_MAX: usize = 64;
/// How long a request waits for those that a client with a deep queue sends
/// next.
const GATHER_TIME: Duration = Duration::from_micros(500);

/// Where streaming stands.
pub struct StreamState {
    /// Deals slots; a running put has it.
    dealer: Option<Dealer>,
    /// Bytes of large writes since the last flush.
    since_flush: u64,
    /// Taken, and not yet on their way to units.
    taken: Vec<Write>,
    taken_bytes: u64,
    /// When the first of them came.
    taken_since: Duration,
    /// Taken and not acknowledged.
    outstanding: usize,
    /// How many that were lately: the depth of the client's queue.
    depth: usize,
    /// Put, in order, and not yet applied.
    put: VecDeque<Put>,
    /// Applied, and not yet settled.
    unsettled: VecDeque<Unsettled>,
    unsettled_bytes: u64,
    /// Log positions of what a running settlement covers: the first of them.
    settling: Option<u64>,
    /// Segments whose settlement failed. A put under way may still add to them:
    /// that is lost, too, so that what is used of them ends before the gap.
    given_up: HashSet<SegmentId>,
    /// Blocks of a failed settlement, for the journal.
    lost: VecDeque<Lost>,
    /// Acknowledged with the next batch.
    pub applied: Vec<Token>,
    /// A cut is to be made, with these snapshots, once all is settled.
    cut: Option<Vec<SnapshotId>>,
    /// What has been streamed since the last cut.
    streamed: Streamed,
    streamed_bytes: u64,
    recovered: Option<Recovered>,
    spare: Vec<Vec<u8>>,
}

/// What recovery found in slots.
struct Recovered {
    /// The log position from which on.
    from: u64,
    /// To be swept after the first commit.
    leftovers: Leftovers,
}

/// A request on its way to units.
#[derive(Clone)]
struct Write {
    token: Token,
    first: BlockIndex,
    /// Block `first + i` is sealed with this sequence plus `i`.
    sequence: Sequence,
    data: Vec<u8>,
}

/// Requests that are put together.
struct Batch {
    writes: Vec<Write>,
    /// The number of each write's first block in the batch.
    starts: Vec<usize>,
    blocks: usize,
    block_bytes: usize,
}

/// What is to be applied next.
enum Put {
    Done {
        batch: Arc<Batch>,
        locations: Vec<Location>,
        shares: Vec<PutShare>,
    },
    /// No unit took it: it goes through the journal.
    Failed(Write),
}

/// How a put ended.
pub struct PutEnd {
    dealer: Option<Dealer>,
    batch: Arc<Batch>,
    result: Result<(Vec<Location>, Vec<PutShare>), PlaceError>,
}

/// A share that has been applied.
struct Unsettled {
    put: PutShare,
    batch: Arc<Batch>,
    /// Where the journal names its blocks: from this log position on.
    position: u64,
}

/// How a settlement ended.
pub struct SettleEnd {
    shares: Vec<Unsettled>,
    failed: HashMap<SegmentId, UnitError>,
}

/// A block whose slot was lost.
struct Lost {
    block: BlockIndex,
    location: Location,
    position: u64,
    data: Vec<u8>,
}

impl StreamState {
    pub fn new(dealer: Dealer) -> Self {
        Self {
            dealer: Some(dealer),
            since_flush: 0,
            taken: Vec::new(),
            taken_bytes: 0,
            taken_since: Duration::ZERO,
            outstanding: 0,
            depth: 0,
            put: VecDeque::new(),
            unsettled: VecDeque::new(),
            unsettled_bytes: 0,
            settling: None,
            given_up: HashSet::new(),
            lost: VecDeque::new(),
            applied: Vec::new(),
            cut: None,
            streamed: Streamed::default(),
            streamed_bytes: 0,
            recovered: None,
            spare: Vec::new(),
        }
    }

    /// Recovery found blocks in slots, named from log position `from` on.
    /// `leftovers` are kept until it is over.
    pub fn recover(&mut self, from: u64, leftovers: Leftovers) {
        self.recovered = Some(Recovered { from, leftovers });
    }

    /// Whether what recovery found is still to be placed anew.
    pub fn is_recovering(&self) -> bool {
        self.recovered.is_some()
    }

    /// The first commit has placed it: what may be swept now.
    pub fn recovery_ended(&mut self) -> Option<Leftovers> {
        self.recovered.take().map(|recovered| recovered.leftovers)
    }

    /// Nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.dealer.is_some() && self.taken.is_empty() && self.put.is_empty() && self.is_settled()
    }

    /// Everything applied is durable.
    fn is_settled(&self) -> bool {
        self.unsettled.is_empty() && self.settling.is_none() && self.lost.is_empty()
    }

    /// No change may be admitted now (invariants 3 and 4).
    pub fn holds_changes(&self) -> bool {
        !self.lost.is_empty() || self.cut.as_ref().is_some_and(|pins| !pins.is_empty())
    }

    /// Up to which log position everything streamed is durable; `None` if it
    /// all is.
    pub fn settled_up_to(&self) -> Option<u64> {
        let unsettled = self.unsettled.front().map(|share| share.position);
        let lost = self.lost.front().map(|lost| lost.position);
        let recovered = self.recovered.as_ref().map(|recovered| recovered.from);
        [unsettled, self.settling, lost, recovered]
            .into_iter()
            .flatten()
            .min()
    }

    /// Whether so much has been streamed that a version is due.
    pub fn is_cut_due(&self, cut_bytes: u64) -> bool {
        self.recovered.is_some() || self.streamed_bytes >= cut_bytes
    }

    /// A flush came: what follows may be the next short burst.
    pub fn flushed(&mut self) {
        self.since_flush = 0;
    }

    /// `old` was overwritten before any version named it.
    #[inline]
    pub fn overwritten(&mut self, old: Written) {
        // What was recovered belongs to an earlier lease: it is swept.
        if let Written::Slot(entry) = old {
            self.streamed.overwritten.add(entry.location);
        }
    }

    /// What the cut that is made now takes along.
    pub fn take_streamed(&mut self, ledger: &Ledger) -> Streamed {
        debug_assert!(self.is_settled());
        self.streamed_bytes = 0;
        let mut streamed = std::mem::take(&mut self.streamed);
        // What a unit lost lies beyond what is used of its segment, and is
        // swept when the lease has ended.
        let used = |segment| match streamed.segments.get(&segment) {
            Some(slots) => *slots,
            None => ledger.committed_slots(segment),
        };
        for segment in &self.given_up {
            streamed.overwritten.truncate(*segment, used(*segment));
        }
        streamed
    }

    /// Whether `poll` has something to do although nothing happened.
    pub fn wants_poll(&self) -> bool {
        !self.applied.is_empty() || (self.cut.is_none() && !self.put.is_empty())
    }

    /// Gives up; returns who waits.
    pub fn stop(&mut self) -> Vec<Token> {
        let mut waiting = std::mem::take(&mut self.applied);
        for put in self.put.drain(..) {
            match put {
                Put::Done { batch, .. } => {
                    waiting.extend(batch.writes.iter().map(|write| write.token));
                }
                Put::Failed(write) => waiting.push(write.token),
            }
        }
        waiting.extend(self.taken.drain(..).map(|write| write.token));
        self.unsettled.clear();
        self.lost.clear();
        self.cut = None;
        waiting
    }

    fn leave_given_up(&mut self) {
        if let Some(dealer) = &mut self.dealer {
            for segment in &self.given_up {
                dealer.leave(*segment);
            }
        }
    }

    fn keep_buffers(&mut self, batch: Arc<Batch>) {
        let Some(batch) = Arc::into_inner(batch) else {
            return;
        };
        for Write { mut data, .. } in batch.writes {
            if self.spare.len() < SPARE_MAX {
                data.clear();
                self.spare.push(data);
            }
        }
    }
}

impl Volume {
    /// Whether a write goes to units first. Counts it.
    pub(super) fn is_streamed(&mut self, offset: u64, data: &[u8], durability: Durability) -> bool {
        let config = &self.env.config.stream;
        let block_bytes = self.env.block_size.bytes();
        let is_large = data.len() >= config.write_bytes_min
            && data.len().is_multiple_of(block_bytes)
            && offset.is_multiple_of(block_bytes as u64);
        if !is_large {
            return false;
        }
        let is_stream = self.stream.since_flush >= config.after_bytes;
        self.stream.since_flush += data.len() as u64;
        is_stream && durability == Durability::Volatile
    }

    /// Takes a write that goes to units first.
    pub(super) fn start_stream(&mut self, token: Token, offset: u64, data: &[u8]) -> Started {
        // As much as may wait to be settled.
        if self.stream.taken_bytes >= self.env.config.stream.settle_bytes {
            return Started::Busy;
        }
        let blocks = (data.len() / self.env.block_size.bytes()) as u64;
        let sequence = match self.take_sequences(blocks) {
            Ok(mut run) => run.next().expect("at least one block"),
            Err(error) => return Started::Failed(error),
        };
        let mut copy = self.stream.spare.pop().unwrap_or_default();
        copy.extend_from_slice(data);
        self.stream.taken_bytes += data.len() as u64;
        if self.stream.taken.is_empty() {
            self.stream.taken_since = self.now();
        }
        self.stream.outstanding += 1;
        self.stream.depth = self.stream.depth.max(self.stream.outstanding);
        self.stream.taken.push(Write {
            token,
            first: self.env.block_size.block_at(offset),
            sequence,
            data: copy,
        });
        Started::Pending
    }

    /// When the owner must be called to start a put.
    pub(super) fn put_timer(&self) -> Option<Duration> {
        let stream = &self.stream;
        let is_waiting = !stream.taken.is_empty() && stream.dealer.is_some();
        (is_waiting && self.has_room_to_put())
            .then(|| (stream.taken_since + GATHER_TIME).saturating_sub(self.now()))
    }

    fn has_room_to_put(&self) -> bool {
        self.stream.unsettled_bytes < 2 * self.env.config.stream.settle_bytes
    }

    /// Puts all that was taken, if no put is under way and what waits to be
    /// settled leaves room. The larger a put, the larger its shares: half of
    /// what the client has in flight is waited for, while the other half is
    /// being put.
    pub(super) fn start_put_if_due(&mut self) {
        let stream = &self.stream;
        let is_enough = 2 * stream.taken.len() >= stream.depth
            || self.now() >= stream.taken_since + GATHER_TIME;
        if stream.taken.is_empty() || !is_enough || !self.has_room_to_put() {
            return;
        }
        let stream = &mut self.stream;
        let Some(dealer) = stream.dealer.take() else {
            return;
        };
        // Forgotten slowly if the client's queue gets shorter.
        stream.depth = stream.outstanding.max(stream.depth.saturating_sub(1));
        stream.taken_bytes = 0;
        let writes = std::mem::take(&mut stream.taken);
        let batch = Arc::new(Batch::new(writes, self.env.block_size.bytes()));
        let env = Arc::clone(&self.env);
        let reporter = self.fetcher.reporter.clone();
        self.env.world.pool.run(Box::new(move || {
            reporter.report(Event::Put(Box::new(run_put(&env, dealer, batch))));
        }));
    }

    pub(super) fn on_put(&mut self, mut end: PutEnd) {
        self.stream.dealer = end.dealer.take();
        self.stream.leave_given_up();
        if let Some(error) = &self.stopped {
            for write in &end.batch.writes {
                self.ready.push(base::Completion {
                    token: write.token,
                    result: Err(error.clone()),
                });
            }
            return;
        }
        let batch = end.batch;
        match end.result {
            Ok((locations, shares)) => self.stream.put.push_back(Put::Done {
                batch,
                locations,
                shares,
            }),
            Err(error) => {
                tracing::warn!(volume = %self.env.volume, error = with_cause(&error), "a stream goes through the journal");
                let failed = batch.writes.iter().cloned().map(Put::Failed);
                self.stream.put.extend(failed);
                self.stream.keep_buffers(batch);
            }
        }
    }

    /// Applies what has been put, in order, as far as that is allowed and the
    /// journal has room.
    pub(super) fn apply_puts(&mut self) {
        while self.stopped.is_none() && self.stream.cut.is_none() && self.stream.lost.is_empty() {
            let Some(put) = self.stream.put.pop_front() else {
                break;
            };
            match put {
                Put::Done {
                    batch,
                    locations,
                    shares,
                } => {
                    if !self.journal.has_room_for_entries(batch.blocks as u64) {
                        self.stream.put.push_front(Put::Done {
                            batch,
                            locations,
                            shares,
                        });
                        break;
                    }
                    if let Err(error) = self.apply(&batch, locations, shares) {
                        let tokens = batch.writes.iter().map(|write| write.token);
                        self.stream.applied.extend(tokens);
                        self.stop(error);
                    }
                }
                Put::Failed(write) => {
                    if let Some(write) = self.journal_instead(write) {
                        self.stream.put.push_front(Put::Failed(write));
                        break;
                    }
                }
            }
        }
    }

    /// Admits a write that no unit took as any other; gives it back if there is
    /// no room now.
    fn journal_instead(&mut self, write: Write) -> Option<Write> {
        let offset = self.env.block_size.start_of(write.first);
        let incoming = Incoming::Data(&write.data);
        let done = match self.make_room(offset, &incoming) {
            Ok(()) => self.admit(offset, incoming, &Vec::new()),
            Err(Started::Failed(error)) => Err(error),
            Err(_) => return Some(write),
        };
        self.stream.outstanding -= 1;
        match done {
            Ok(()) => self.stream.applied.push(write.token),
            Err(error) => self.ready.push(base::Completion {
                token: write.token,
                result: Err(error),
            }),
        }
        None
    }

    fn apply(
        &mut self,
        batch: &Arc<Batch>,
        locations: Vec<Location>,
        shares: Vec<PutShare>,
    ) -> Result<(), IoError> {
        if self.layers.active.is_empty() {
            self.destage.dirty_since = self.now();
        }
        // What came before may be durable sooner.
        let position = self.journal.end_record();
        let mut sequences = self.take_sequences(batch.blocks as u64)?;
        for (item, location) in locations.into_iter().enumerate() {
            let (block, sealed_with, _) = batch.block(item);
            let entry = Entry {
                location,
                sequence: sealed_with,
            };
            let sequence = sequences.next().expect("one for each block");
            self.last_sequence = sequence;
            if let Err(error) = self.journal.append_slot(block, entry, sequence) {
                return Err(IoError::Stopped(with_cause(&error)));
            }
            if let Some(old) = self.layers.active.insert(block.0, Written::Slot(entry)) {
                self.stream.overwritten(old);
            }
        }
        let bytes = (batch.blocks * batch.block_bytes) as u64;
        self.counters.blocks_written += batch.blocks as u64;
        self.counters.blocks_streamed += batch.blocks as u64;
        self.stream.streamed_bytes += bytes;
        self.stream.unsettled_bytes += bytes;
        self.stream.outstanding -= batch.writes.len();
        let tokens = batch.writes.iter().map(|write| write.token);
        self.stream.applied.extend(tokens);
        let unsettled = shares.into_iter().map(|put| Unsettled {
            put,
            batch: Arc::clone(batch),
            position,
        });
        self.stream.unsettled.extend(unsettled);
        Ok(())
    }

    /// Starts to make durable what has been applied, if it is much.
    pub(super) fn start_settle_if_due(&mut self) {
        if self.stream.unsettled_bytes >= self.env.config.stream.settle_bytes {
            self.start_settle();
        }
    }

    /// Starts to make durable what has been applied, unless that is under way.
    pub(super) fn start_settle(&mut self) {
        let stream = &mut self.stream;
        if stream.settling.is_some() {
            return;
        }
        let Some(first) = stream.unsettled.front() else {
            return;
        };
        stream.settling = Some(first.position);
        let shares: Vec<Unsettled> = std::mem::take(&mut stream.unsettled).into();
        let pool = Arc::clone(&self.env.world.pool);
        let reporter = self.fetcher.reporter.clone();
        self.env.world.pool.run(Box::new(move || {
            let failed = sync_shares(&*pool, &shares);
            let end = SettleEnd { shares, failed };
            reporter.report(Event::Settled(Box::new(end)));
        }));
    }

    pub(super) fn on_settled(&mut self, end: SettleEnd) {
        self.stream.settling = None;
        if self.stopped.is_some() {
            return;
        }
        for (segment, error) in &end.failed {
            tracing::warn!(volume = %self.env.volume, %segment, %error, "streamed blocks were lost and go to the journal");
            self.stream.given_up.insert(*segment);
        }
        self.stream.leave_given_up();
        for Unsettled {
            put,
            batch,
            position,
        } in end.shares
        {
            let share = &put.share;
            let bytes = share.items.len() * batch.block_bytes;
            self.stream.unsettled_bytes -= bytes as u64;
            if self.stream.given_up.contains(&share.segment) {
                for (slot, item) in (share.first..).zip(&share.items) {
                    let (block, _, data) = batch.block(*item);
                    let slot = base::Slot(u16::try_from(slot).expect("it was dealt"));
                    self.stream.lost.push_back(Lost {
                        block,
                        location: Location::new(share.segment, slot),
                        position,
                        data: data.to_vec(),
                    });
                }
            } else {
                let end = share.first + u32::try_from(share.items.len()).expect("few");
                let segments = &mut self.stream.streamed.segments;
                segments.insert(share.segment, end);
            }
            self.stream.keep_buffers(batch);
        }
        self.journal_lost();
    }

    /// Writes blocks whose slots were lost to the journal, unless they have
    /// been overwritten.
    pub(super) fn journal_lost(&mut self) {
        while let Some(lost) = self.stream.lost.front() {
            let found = self.layers.active.get(lost.block.0);
            let is_newest = matches!(found, Some(crate::map::Found::Data(Written::Slot(entry)))
                if entry.location == lost.location);
            if is_newest && !self.journal.has_room(1) {
                // Older cuts may give room; if there are none, nothing will.
                if self.layers.frozen.is_empty() {
                    self.stop(IoError::Stopped(
                        "streamed blocks were lost by their units, and the journal is full"
                            .to_owned(),
                    ));
                }
                return;
            }
            let Some(lost) = self.stream.lost.pop_front() else {
                return;
            };
            if !is_newest {
                continue;
            }
            let rewritten = match self.take_sequences(1) {
                Ok(mut run) => {
                    let sequence = run.next().expect("one was asked for");
                    self.append(lost.block.0, sequence, &lost.data)
                }
                Err(error) => Err(error),
            };
            if rewritten.is_err() {
                // The volume has stopped.
                return;
            }
        }
    }

    /// Asks for a cut that `pins` point at: it is made as soon as everything
    /// applied is settled, mostly at once.
    pub(super) fn request_cut(&mut self, pins: Vec<SnapshotId>) {
        self.stream.cut.get_or_insert_default().extend(pins);
        self.cut_if_settled();
    }

    /// Makes the cut that was asked for, if everything applied is settled.
    pub(super) fn cut_if_settled(&mut self) {
        if self.stream.cut.is_none() {
            return;
        }
        if !self.stream.is_settled() {
            self.start_settle();
            return;
        }
        if let Some(pins) = self.stream.cut.take() {
            self.cut(pins);
        }
    }
}

impl Batch {
    fn new(writes: Vec<Write>, block_bytes: usize) -> Self {
        let mut starts = Vec::with_capacity(writes.len());
        let mut blocks = 0;
        for write in &writes {
            starts.push(blocks);
            blocks += write.data.len() / block_bytes;
        }
        Self {
            writes,
            starts,
            blocks,
            block_bytes,
        }
    }

    /// The batch's `item`th block: its number, what it is sealed with, and its
    /// content.
    fn block(&self, item: usize) -> (BlockIndex, Sequence, &[u8]) {
        let index = self.starts.partition_point(|start| *start <= item) - 1;
        let write = &self.writes[index];
        let within = item - self.starts[index];
        let block = BlockIndex(write.first.0 + within as u64);
        let sequence = Sequence::from_bits(write.sequence.bits() + within as u64);
        let data = &write.data[within * self.block_bytes..][..self.block_bytes];
        (block, sequence, data)
    }
}

fn run_put(env: &Env, mut dealer: Dealer, batch: Arc<Batch>) -> PutEnd {
    let source: Source = {
        let (batch, keyring) = (Arc::clone(&batch), Arc::clone(&env.keyring));
        // Tried twice, it seals the same bytes with the same sequence.
        Arc::new(move |item, slot| {
            let (block, sequence, data) = batch.block(item);
            slot.copy_from_slice(data);
            Ok(keyring.own().seal(Address::data(block), sequence, slot))
        })
    };
    let random = &*env.world.random;
    let result = put(&env.store, &mut dealer, random, batch.blocks, &source);
    match result {
        Ok(_) => dealer.hand_over(),
        Err(_) => dealer.leave_touched(),
    }
    PutEnd {
        dealer: Some(dealer),
        batch,
        result,
    }
}

/// Syncs the segments of `shares` on every unit that took part of them; those
/// that failed, and why.
fn sync_shares(pool: &dyn world::Pool, shares: &[Unsettled]) -> HashMap<SegmentId, UnitError> {
    let mut segments: HashMap<SegmentId, Vec<Member>> = HashMap::new();
    for Unsettled { put, .. } in shares {
        let writers = segments.entry(put.share.segment).or_default();
        let known: HashSet<_> = writers.iter().map(|writer| writer.id).collect();
        let more = put
            .writers
            .iter()
            .filter(|writer| !known.contains(&writer.id));
        writers.extend(more.cloned());
    }
    let mut segments: Vec<_> = segments.into_iter().collect();
    // The table is a hash map: an order that the seed alone decides.
    segments.sort_unstable_by_key(|(segment, _)| *segment);
    let names: Vec<SegmentId> = segments.iter().map(|(segment, _)| *segment).collect();
    let tasks = segments.into_iter().map(|(segment, writers)| {
        let task = move || sync_segment(segment, &writers);
        Box::new(task) as Box<dyn FnOnce() -> Result<(), UnitError> + Send>
    });
    let results = parallel(pool, PARALLEL, tasks.collect());
    names
        .into_iter()
        .zip(results)
        .filter_map(|(segment, result)| Some((segment, result.err()?)))
        .collect()
}
