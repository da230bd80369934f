//! [`Journal`]: what is asked, what the file has, and what is below.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use base::{
    BlockDevice, Capabilities, Completion, Durability, Extent, ExtentKind, IoError, Outcome,
    Started, Token, ZeroMode,
};
use world::{Wake, World};

use super::carry::{CHANGE_BYTES, Carry, Change};
use super::of_chain::OfChain;
use super::opening::{Stage, Told};
use super::overlay::{Overlay, Patch, Run, are_whole};
use super::record::{ALIGNMENT, HEADER_BYTES, Kind, PAYLOAD_BYTES_MAX};
use super::ring;
use super::{FlushMode, JournalConfig};
use crate::{MiddleBox, Opening};

/// What failed below is tried again so often.
const RETRY: Duration = Duration::from_secs(1);

/// What was acknowledged is carried out when it is as old, or there is as much of it: whoever
/// asked is told meanwhile, and has the processor, and what comes in quick succession goes
/// below together.
const GATHER: Duration = Duration::from_micros(100);
const GATHER_BYTES: u64 = 128 << 10;

/// So often it is looked whether a lease that had run out was renewed.
const LEASE_RETRY: Duration = Duration::from_millis(20);

/// How soon a disk below that was busy is asked again.
const BUSY_RETRY: Duration = Duration::from_millis(1);

/// What was asked below.
enum Asked {
    Read(Token, Vec<Patch>),
    Extents(Token),
    Other(Token),
    Carry(u64),
    /// All that was carried out when it was asked: where, and the sequence behind it.
    Flush((u64, u64)),
}

/// Somebody who waits until what he wrote is as safe as he asked for.
struct Waiting {
    token: Token,
    /// The records end there.
    upto: u64,
    /// Carried out and flushed below, too.
    below: bool,
    /// He flushes: what fails below is told.
    is_flush: bool,
    /// And the ring begins behind it: nothing is to be carried out once more.
    empties: bool,
}

/// The box: a journal that acknowledges, and carries out later (docs/chains.md, "Relays").
pub struct Journal {
    pub(super) config: JournalConfig,
    pub(super) world: World,
    pub(super) wake: Wake,
    pub(super) stage: Stage,
    pub(super) job: Option<Receiver<io::Result<Told>>>,
    overlay: Overlay,
    pub(super) carry: Carry,
    asked: HashMap<Token, Asked>,
    last: Token,
    waiting: VecDeque<Waiting>,
    /// The file is durable up to there.
    pub(super) synced: u64,
    /// So is the disk below, with the sequence behind that.
    pub(super) flushed: (u64, u64),
    flushes_below: bool,
    pub(super) can_flush: bool,
    /// The last error below, until something goes on.
    failing: Option<IoError>,
    retry_at: Option<Duration>,
    pub(super) was_busy: bool,
    is_resting: bool,
    is_ending: bool,
    /// There are changes that were acknowledged, since then, and not carried out.
    news: Option<Duration>,
    /// What of the ring's file was there when something was last carried out.
    gathered_upto: u64,
    completions: Vec<Completion>,
    done_at_once: Vec<u64>,
    /// Of what the file had as it was opened nothing was looked at yet.
    pub(super) is_untouched: bool,
    /// It had something, which is carried out when it is in use.
    pub(super) has_left: bool,
    /// As it was opened.
    pub(super) disk_bytes: u64,
    /// Whose box it is in a chain.
    pub(super) of_chain: Option<OfChain>,
    /// Whether the lease held when that was looked at in this turn.
    lease_holds: Option<bool>,
    /// Somebody waits because it did not.
    lease_ran_out: bool,
}

impl Journal {
    /// A journal that is not open. `wake` has the chain polled when a job has ended.
    #[must_use]
    pub fn new(config: JournalConfig, world: World, wake: Wake) -> Self {
        Self {
            config,
            world,
            wake,
            stage: Stage::Closed,
            job: None,
            overlay: Overlay::default(),
            carry: Carry::default(),
            asked: HashMap::new(),
            last: 0,
            waiting: VecDeque::new(),
            synced: 0,
            flushed: (0, 0),
            flushes_below: false,
            can_flush: false,
            failing: None,
            retry_at: None,
            was_busy: false,
            is_resting: false,
            is_ending: false,
            news: None,
            gathered_upto: 0,
            completions: Vec::new(),
            done_at_once: Vec::new(),
            is_untouched: false,
            has_left: false,
            disk_bytes: 0,
            of_chain: None,
            lease_holds: None,
            lease_ran_out: false,
        }
    }

    /// Whether anything may be acknowledged: it is looked at once a turn.
    fn may_acknowledge(&mut self) -> bool {
        let holds = match (self.lease_holds, &self.of_chain) {
            (Some(known), _) => known,
            (None, Some(of_chain)) => of_chain.lease_holds(),
            (None, None) => true,
        };
        self.lease_holds = Some(holds);
        self.lease_ran_out |= !holds;
        holds
    }

    pub(super) fn fail(&mut self, reason: String) {
        tracing::error!(reason, "a journal is stopped");
        for waiting in self.waiting.drain(..) {
            let result = Err(IoError::Stopped(reason.clone()));
            let token = waiting.token;
            self.completions.push(Completion { token, result });
        }
        self.stage = Stage::Failed(reason);
        self.news = None;
    }

    fn ask(&mut self, asked: Asked) -> Token {
        self.last += 1;
        self.asked.insert(self.last, asked);
        self.last
    }

    /// What a verb is answered that is not to be begun.
    fn refuses(&self) -> Option<Started> {
        match &self.stage {
            Stage::Open(_) | Stage::ReadOnly => None,
            Stage::Failed(reason) => Some(Started::Failed(IoError::Stopped(reason.clone()))),
            _ => Some(Started::Busy),
        }
    }

    /// Asks below with a token of its own, and forgets it unless the answer comes later.
    fn pass(
        &mut self,
        asked: Asked,
        ask: impl FnOnce(Token) -> Started,
    ) -> (Started, Option<Asked>) {
        let own = self.ask(asked);
        let started = ask(own);
        match started {
            Started::Pending => (started, None),
            _ => (started, self.asked.remove(&own)),
        }
    }

    /// A change of a range: in the batch, and on its way.
    fn change(
        &mut self,
        below: &dyn BlockDevice,
        token: Token,
        (kind, offset, length): (Kind, u64, u64),
        data: &[u8],
        durability: Durability,
    ) -> Started {
        if let Some(refusal) = self.refuses() {
            return refusal;
        }
        if below.capabilities().read_only {
            return Started::Failed(IoError::ReadOnly);
        }
        let size = below.geometry().size_bytes;
        if offset.checked_add(length).is_none_or(|end| end > size) {
            return Started::Failed(IoError::OutOfRange {
                offset,
                length,
                size,
            });
        }
        if length == 0 {
            return Started::Done;
        }
        if !self.may_acknowledge() {
            return Started::Busy;
        }
        // What the disk below cannot take may not be acknowledged.
        let block_min = u64::from(self.config.block_min);
        if !offset.is_multiple_of(block_min) || !length.is_multiple_of(block_min) {
            return Started::Failed(IoError::NotSupported);
        }
        let Stage::Open(ring) = &mut self.stage else {
            return Started::Busy;
        };
        let pieces = (data.len() as u64).div_ceil(PAYLOAD_BYTES_MAX).max(1);
        let around = HEADER_BYTES + ALIGNMENT;
        let needed = data.len() as u64 + pieces * around;
        let longest = (data.len() as u64).min(PAYLOAD_BYTES_MAX) + around;
        if needed > ring.ring_bytes() / 2 {
            let words = format!("{length} bytes at once are too many for the journal");
            return Started::Failed(IoError::NoSpace(words));
        }
        let memory = self.carry.bytes;
        let more = data.len() as u64 + pieces * CHANGE_BYTES;
        let is_full = memory > 0 && memory + more > self.config.memory_max;
        if is_full || !ring.has_room(needed, longest) {
            self.was_busy = true;
            return match self.failing.clone() {
                Some(error) => Started::Failed(error),
                None => Started::Busy,
            };
        }
        let carried = match self.config.flush {
            FlushMode::Through => durability,
            FlushMode::Journal => Durability::Volatile,
        };
        if kind == Kind::Write {
            let mut at = offset;
            for piece in data.chunks(PAYLOAD_BYTES_MAX as usize) {
                let length = piece.len() as u64;
                let data: Arc<[u8]> = piece.into();
                let end = ring.append(kind, (at, length), Some(&data));
                self.overlay
                    .insert(at, length, end.1, Some(Arc::clone(&data)));
                let change = Change::new((kind, at, length), Some(data), end, carried);
                self.carry.push(change);
                at += length;
            }
        } else {
            let end = ring.append(kind, (offset, length), None);
            self.overlay.insert(offset, length, end.1, None);
            let change = Change::new((kind, offset, length), None, end, carried);
            self.carry.push(change);
        }
        if durability == Durability::Volatile {
            return Started::Done;
        }
        self.waiting.push_back(Waiting {
            token,
            upto: ring.head(),
            below: self.config.flush == FlushMode::Through,
            is_flush: false,
            empties: false,
        });
        Started::Pending
    }

    /// Goes on with all that may go on. What it has begun below it commits.
    fn go_on(&mut self, below: &mut dyn BlockDevice) {
        self.hear(below);
        let written = match &self.stage {
            Stage::Open(ring) => ring.written(),
            Stage::Replaying(..) => u64::MAX,
            _ => 0,
        };
        let now = self.world.clock.monotonic();
        let may_try = self.retry_at.is_none_or(|at| at <= now);
        // While it rests it carries out what somebody waits for.
        let may_carry = !self.is_resting
            || self.begins()
            || self.empties_alone()
            || self.waiting.iter().any(|one| one.below);
        let gathers = self.gathers(now);
        if let (false, Stage::Open(ring)) = (gathers, &self.stage) {
            // What may not be carried out now waits for something else.
            self.news = None;
            self.gathered_upto = ring.written();
        }
        if may_try {
            // Also where there is nothing to carry out: what failed may have been a flush.
            self.retry_at = None;
            if may_carry && written > 0 && !gathers {
                self.carry_out(below, written, now);
            }
        }
        self.flush_below(below);
        if let Err(error) = below.commit() {
            return self.fail(error.to_string());
        }
        for sequence in std::mem::take(&mut self.done_at_once) {
            self.carried(sequence);
        }
        self.answer();
        self.sync_or_trim();
        self.go_on_opening();
    }

    /// Whether what there is to be carried out may wait for more.
    fn gathers(&self, now: Duration) -> bool {
        let (Some(since), Stage::Open(ring)) = (self.news, &self.stage) else {
            return false;
        };
        let is_free = self.waiting.is_empty() && !self.is_resting && !self.is_ending;
        let is_little = ring.written() - self.gathered_upto < GATHER_BYTES;
        is_free && is_little && now < since + GATHER
    }

    fn carry_out(&mut self, below: &mut dyn BlockDevice, written: u64, now: Duration) {
        let (asked, last) = (&mut self.asked, &mut self.last);
        let done_at_once = &mut self.done_at_once;
        let mut stuck = None;
        self.carry.start(written, |change| {
            *last += 1;
            let started = change.start(below, *last);
            match &started {
                Started::Done => done_at_once.push(change.sequence),
                Started::Pending => {
                    asked.insert(*last, Asked::Carry(change.sequence));
                }
                Started::Busy | Started::Failed(_) => {
                    stuck = Some(started);
                    return false;
                }
            }
            true
        });
        match stuck {
            Some(Started::Failed(error)) => self.failed_below(error, now),
            Some(_) => self.was_busy = true,
            None => {}
        }
    }

    fn failed_below(&mut self, error: IoError, now: Duration) {
        if self.failing.is_none() {
            tracing::warn!(%error, "what a journal has cannot be carried out; it is tried again");
        }
        self.retry_at = Some(now + RETRY);
        // Whoever flushes is told; the journal has it still.
        let (flushing, others) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition(|one| one.is_flush && one.below);
        self.waiting = others;
        let flushing: VecDeque<Waiting> = flushing;
        for waiting in flushing {
            let result = Err(error.clone());
            let token = waiting.token;
            self.completions.push(Completion { token, result });
        }
        self.failing = Some(error);
    }

    fn carried(&mut self, sequence: u64) {
        self.failing = None;
        if let Some((offset, length)) = self.carry.finish(sequence) {
            self.overlay.remove(offset, length, sequence);
        }
    }

    /// Asks for a flush below if somebody waits for one, or the ring has to begin later.
    fn flush_below(&mut self, below: &mut dyn BlockDevice) {
        let done = self.carry.done();
        let (is_wanted, is_replayed) = match &self.stage {
            Stage::Open(ring) => {
                // What is flushed already waits for the file only: another flush would not
                // have ended when the box is left.
                let (flushed, done) = (self.flushed.0, done.0);
                let waits_for = |one: &Waiting| {
                    one.below && one.is_flush && flushed < one.upto && one.upto <= done
                };
                let waits = self.waiting.iter().any(waits_for);
                let is_full = self.empties_alone() || ring.used_bytes() > ring.ring_bytes() / 2;
                (waits || is_full && done > flushed, false)
            }
            Stage::Flushing(..) => (true, true),
            _ => (false, false),
        };
        if !is_wanted || self.flushes_below || self.retry_at.is_some() {
            return;
        }
        if !self.can_flush {
            self.flushed = done;
            if is_replayed {
                self.begin_start();
            }
            return;
        }
        let own = self.ask(Asked::Flush(done));
        match below.flush(own) {
            Started::Pending => self.flushes_below = true,
            Started::Done => {
                self.asked.remove(&own);
                match below.commit() {
                    Ok(()) => self.flushed_below(done),
                    Err(error) => self.fail(error.to_string()),
                }
            }
            Started::Busy => {
                self.asked.remove(&own);
                self.was_busy = true;
            }
            Started::Failed(error) => {
                self.asked.remove(&own);
                self.failed_below(error, self.world.clock.monotonic());
            }
        }
    }

    fn flushed_below(&mut self, done: (u64, u64)) {
        self.flushed = done;
        if matches!(self.stage, Stage::Flushing(..)) {
            self.begin_start();
        }
    }

    /// It carries out what it had: before that has ended it is not left.
    fn begins(&self) -> bool {
        let is_under_way = matches!(
            self.stage,
            Stage::Scanning(..) | Stage::Replaying(..) | Stage::Flushing(..) | Stage::Starting(..)
        );
        is_under_way && self.config.tenure.is_some()
    }

    /// Nobody flushes before it is left, as the disk below cannot: it has to become empty.
    fn empties_alone(&self) -> bool {
        self.is_resting && !self.can_flush
    }

    /// Tells those whose changes are safe.
    fn answer(&mut self) {
        if self.waiting.is_empty() || !self.may_acknowledge() {
            return;
        }
        let (synced, flushed, done) = (self.synced, self.flushed.0, self.carry.done().0);
        let tail = match &self.stage {
            Stage::Open(ring) => ring.tail(),
            _ => 0,
        };
        let completions = &mut self.completions;
        self.waiting.retain(|one| {
            let is_below = match (one.below, one.is_flush) {
                (false, _) => true,
                (true, true) => one.upto <= flushed,
                // Each was carried out as durable by itself.
                (true, false) => one.upto <= done,
            };
            let is_safe = one.upto <= synced && is_below && !(one.empties && one.upto > tail);
            if is_safe {
                let result = Ok(Outcome::Done);
                let token = one.token;
                completions.push(Completion { token, result });
            }
            !is_safe
        });
    }

    /// Begins a sync if somebody waits for one, or lets the ring begin later.
    fn sync_or_trim(&mut self) {
        let Stage::Open(ring) = &self.stage else {
            return;
        };
        if self.job.is_some() {
            return;
        }
        let (file, written) = (Arc::clone(ring.file()), ring.written());
        let waits = self.waiting.iter().any(|one| one.upto > self.synced);
        if waits && written > self.synced {
            return self.run(move || file.sync_data().map(|()| Told::Synced(written)));
        }
        let empties = self.empties_alone() || self.waiting.iter().any(|one| one.empties);
        let is_full = empties || ring.used_bytes() > ring.ring_bytes() / 2;
        let start = ring.next_start(self.flushed.0, self.flushed.1);
        if is_full && ring.head() - self.flushed.0 < ring.used_bytes() {
            self.run(move || ring::write_start(&*file, &start).map(|()| Told::Started(start)));
        }
    }

    fn heard_below(&mut self, completion: Completion) {
        let Completion { token, result } = completion;
        match self.asked.remove(&token) {
            None => tracing::warn!(token, "the disk below answered nobody's request"),
            Some(Asked::Read(token, patches)) => {
                let result = result.map(|outcome| match outcome {
                    Outcome::Data(mut data) => {
                        patches.iter().for_each(|patch| patch.apply(&mut data));
                        Outcome::Data(data)
                    }
                    other => other,
                });
                self.completions.push(Completion { token, result });
            }
            Some(Asked::Extents(token) | Asked::Other(token)) => {
                self.completions.push(Completion { token, result });
            }
            Some(Asked::Carry(sequence)) => match result {
                Ok(_) => self.carried(sequence),
                Err(error) => {
                    self.carry.put_back(sequence);
                    self.failed_below(error, self.world.clock.monotonic());
                }
            },
            Some(Asked::Flush(done)) => {
                self.flushes_below = false;
                match result {
                    Ok(_) => self.flushed_below(done),
                    Err(error) => self.failed_below(error, self.world.clock.monotonic()),
                }
            }
        }
    }
}

impl MiddleBox for Journal {
    fn capabilities(&self, below: Capabilities) -> Capabilities {
        let zeroes = below.can_write_zeroes && !below.read_only;
        Capabilities {
            can_flush: below.can_flush
                || self.config.flush == FlushMode::Journal && !below.read_only,
            // A trim is carried out as zeroes that may become a hole.
            can_trim: zeroes,
            can_write_zeroes: zeroes,
            ..below
        }
    }

    fn open(&mut self, below: &mut dyn BlockDevice) -> Opening {
        match &self.stage {
            Stage::Closed => {
                self.disk_bytes = below.geometry().size_bytes;
                self.begin(below);
                Opening::UnderWay
            }
            Stage::Open(_) | Stage::Idle(..) | Stage::ReadOnly => Opening::Ready,
            Stage::Failed(reason) => Opening::Failed(reason.clone()),
            _ => Opening::UnderWay,
        }
    }

    fn read(
        &mut self,
        below: &mut dyn BlockDevice,
        token: Token,
        offset: u64,
        out: &mut [u8],
    ) -> Started {
        // Boxes above look at the disk before it is used; an empty journal is not in the way.
        let is_idle = matches!(self.stage, Stage::Idle(..));
        if let Some(refusal) = self.refuses().filter(|_| !is_idle) {
            return refusal;
        }
        let patches = self.overlay.patches(offset, out.len() as u64);
        if !patches.is_empty() && are_whole(&patches, out.len()) {
            patches.iter().for_each(|patch| patch.apply(out));
            return Started::Done;
        }
        let asked = Asked::Read(token, patches);
        let (started, asked) = self.pass(asked, |own| below.read(own, offset, out));
        if let (Started::Done, Some(Asked::Read(_, patches))) = (&started, asked) {
            patches.iter().for_each(|patch| patch.apply(out));
        }
        started
    }

    fn write(
        &mut self,
        below: &mut dyn BlockDevice,
        token: Token,
        offset: u64,
        data: &[u8],
        durability: Durability,
    ) -> Started {
        let what = (Kind::Write, offset, data.len() as u64);
        self.change(below, token, what, data, durability)
    }

    fn flush(&mut self, below: &mut dyn BlockDevice, token: Token) -> Started {
        if let Some(refusal) = self.refuses() {
            return refusal;
        }
        if matches!(self.stage, Stage::ReadOnly) {
            return self.pass(Asked::Other(token), |own| below.flush(own)).0;
        }
        if !self.may_acknowledge() {
            return Started::Busy;
        }
        let Stage::Open(ring) = &self.stage else {
            return Started::Busy;
        };
        // Others may use the disk below without this one: then all has to be there, and
        // nothing of it may be carried out once more.
        let empties = self.is_resting || self.is_ending;
        let goes_below = self.config.flush == FlushMode::Through || empties;
        let upto = ring.head();
        let is_there = !goes_below || upto <= self.flushed.0;
        if upto <= self.synced && is_there && !(empties && ring.used_bytes() > 0) {
            return Started::Done;
        }
        self.waiting.push_back(Waiting {
            token,
            upto,
            below: goes_below,
            is_flush: true,
            empties,
        });
        Started::Pending
    }

    fn trim(
        &mut self,
        below: &mut dyn BlockDevice,
        token: Token,
        offset: u64,
        length: u64,
        durability: Durability,
    ) -> Started {
        let mode = ZeroMode {
            durability,
            may_punch: true,
            fast_only: false,
        };
        // Parts of blocks at its ends may keep their content.
        let block_min = u64::from(self.config.block_min);
        let end = offset.saturating_add(length);
        let (from, to) = (
            offset.div_ceil(block_min).saturating_mul(block_min),
            end / block_min * block_min,
        );
        let is_there = end <= below.geometry().size_bytes;
        match from < to {
            true => self.write_zeroes(below, token, from, to - from, mode),
            false if is_there => self.write_zeroes(below, token, end, 0, mode),
            false => self.write_zeroes(below, token, offset, length, mode),
        }
    }

    fn write_zeroes(
        &mut self,
        below: &mut dyn BlockDevice,
        token: Token,
        offset: u64,
        length: u64,
        mode: ZeroMode,
    ) -> Started {
        if !below.capabilities().can_write_zeroes {
            return Started::Failed(IoError::NotSupported);
        }
        let may_punch = mode.may_punch;
        let what = (Kind::Zeroes { may_punch }, offset, length);
        self.change(below, token, what, &[], mode.durability)
    }

    fn extents(
        &mut self,
        below: &mut dyn BlockDevice,
        token: Token,
        offset: u64,
        length: u64,
        runs: &mut Vec<Extent>,
    ) -> Started {
        if let Some(refusal) = self.refuses() {
            return refusal;
        }
        let size = below.geometry().size_bytes;
        let end = offset.saturating_add(length).min(size);
        if length == 0 || end <= offset {
            return below.extents(token, offset, length, runs);
        }
        let (length, run) = self.overlay.run(offset, end);
        let kind = match run {
            Run::Data => ExtentKind::Data,
            Run::Zeroes => ExtentKind::Hole,
            Run::Below => {
                let ask = |own| below.extents(own, offset, length, runs);
                return self.pass(Asked::Extents(token), ask).0;
            }
        };
        runs.push(Extent { length, kind });
        Started::Done
    }

    fn prefetch(
        &mut self,
        below: &mut dyn BlockDevice,
        token: Token,
        offset: u64,
        length: u64,
    ) -> Started {
        self.pass(Asked::Other(token), |own| {
            below.prefetch(own, offset, length)
        })
        .0
    }

    fn commit(&mut self, below: &mut dyn BlockDevice) -> Result<(), IoError> {
        if let Stage::Open(ring) = &mut self.stage {
            let is_behind = ring.written() < ring.head();
            if let Err(error) = ring.write_batch() {
                let path = self.config.path.display();
                self.fail(format!("the journal {path}: {error}"));
            } else if self.waiting.is_empty() {
                // What is acknowledged now is told first, and carried out then.
                if is_behind && self.news.is_none() {
                    self.news = Some(self.world.clock.monotonic());
                }
            } else {
                self.go_on(below);
            }
        }
        self.lease_holds = None;
        match &self.stage {
            Stage::Failed(reason) => Err(IoError::Stopped(reason.clone())),
            _ => below.commit(),
        }
    }

    fn poll(&mut self, below: &mut dyn BlockDevice, completions: &mut Vec<Completion>) {
        self.was_busy = false;
        self.lease_holds = None;
        self.lease_ran_out = false;
        let mut heard = Vec::new();
        below.poll(&mut heard);
        for completion in heard {
            self.heard_below(completion);
        }
        self.go_on(below);
        completions.append(&mut self.completions);
    }

    fn stop_waiting(&mut self, below: &mut dyn BlockDevice) {
        self.is_ending = true;
        below.stop_waiting();
    }

    fn next_timer(&self) -> Option<Duration> {
        if !self.completions.is_empty() {
            return Some(Duration::ZERO);
        }
        let now = self.world.clock.monotonic();
        let news = self.news.map(|since| match self.gathers(now) {
            true => (since + GATHER).saturating_sub(now),
            false => Duration::ZERO,
        });
        let retry = self.retry_at.map(|at| at.saturating_sub(now));
        let busy = self.was_busy.then_some(BUSY_RETRY);
        let lease = self.lease_ran_out.then_some(LEASE_RETRY);
        let all = retry.into_iter().chain(busy).chain(news).chain(lease);
        all.min()
    }

    fn rest(&mut self) -> bool {
        self.is_resting = true;
        let is_full = match &self.stage {
            Stage::Open(ring) => ring.used_bytes() > 0,
            _ => false,
        };
        self.carry.under_way() == 0
            && !self.flushes_below
            && !self.begins()
            && !(self.empties_alone() && (is_full || self.job.is_some()))
    }

    fn resume(&mut self) {
        self.is_resting = false;
        self.begin_idle();
    }
}
