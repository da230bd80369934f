//! [`Journal`]: what is asked of it.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use base::{
    BlockDevice, ByteRange, Capabilities, Completion, Extent, ExtentKind, IoError, Op, Request,
    Started, Token,
};
use world::{Wake, World};

use super::carry::Carry;
use super::carrying::GATHER;
use super::of_chain::OfChain;
use super::opening::{Stage, Told};
use super::overlay::{Overlay, Patch, Run, are_whole};
use super::waiting::Waiting;
use super::{FlushMode, JournalConfig};
use crate::{Filter, Opening};

/// So often it is looked whether a lease that had run out was renewed.
const LEASE_RETRY: Duration = Duration::from_millis(20);

/// How soon a disk below that was busy is asked again.
const BUSY_RETRY: Duration = Duration::from_millis(1);

/// What was asked below.
pub(super) enum Asked {
    /// From where, and what of it was in memory only.
    Read(Token, u64, Vec<Patch>),
    Extents(Token),
    Other(Token),
    Carry(u64),
    /// All that was carried out when it was asked: where, and the sequence behind it.
    Flush((u64, u64)),
}

/// What has failed below.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failing {
    /// The change with this sequence.
    Change(u64),
    Flush,
}

/// The filter: a journal that acknowledges, and carries out later
/// (docs/internals/journal-filter.md).
pub struct Journal {
    pub(super) config: JournalConfig,
    pub(super) world: World,
    pub(super) wake: Wake,
    pub(super) stage: Stage,
    pub(super) job: Option<Receiver<io::Result<Told>>>,
    pub(super) overlay: Overlay,
    pub(super) carry: Carry,
    pub(super) asked: HashMap<Token, Asked>,
    pub(super) last: Token,
    pub(super) waiting: VecDeque<Waiting>,
    /// The file is durable up to there.
    pub(super) synced: u64,
    /// So is the disk below, with the sequence behind that.
    pub(super) flushed: (u64, u64),
    pub(super) flushes_below: bool,
    /// A flush below has failed: what no flush has covered is carried out once more, when
    /// nothing is under way.
    pub(super) redoes: bool,
    /// Something was refused because memory is full.
    pub(super) lacks_memory: bool,
    pub(super) can_flush: bool,
    /// An error below, until what failed has succeeded.
    pub(super) failing: Option<(IoError, Failing)>,
    pub(super) retry_at: Option<Duration>,
    pub(super) was_busy: bool,
    pub(super) is_resting: bool,
    pub(super) is_ending: bool,
    /// There are changes that were acknowledged, since then, and not carried out.
    pub(super) news: Option<Duration>,
    /// What of the ring's file was there when something was last carried out.
    pub(super) gathered_upto: u64,
    pub(super) completions: Vec<Completion>,
    pub(super) done_at_once: Vec<u64>,
    /// Of what the file had as it was opened nothing was looked at yet.
    pub(super) is_untouched: bool,
    /// It had something, which is carried out when it is in use.
    pub(super) has_left: bool,
    /// As it was opened.
    pub(super) disk_bytes: u64,
    /// Whose filter it is in a chain.
    pub(super) of_chain: Option<OfChain>,
    /// Whether the lease held when that was looked at in this turn.
    pub(super) lease_holds: Option<bool>,
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
            redoes: false,
            lacks_memory: false,
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
    pub(super) fn may_acknowledge(&mut self) -> bool {
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

    pub(super) fn ask(&mut self, asked: Asked) -> Token {
        self.last += 1;
        self.asked.insert(self.last, asked);
        self.last
    }

    /// What a verb is answered that is not to be begun.
    pub(super) fn refuses(&self) -> Option<Started> {
        match &self.stage {
            Stage::Open(_) | Stage::ReadOnly => None,
            Stage::Failed(reason) => Some(Started::Failed(IoError::Stopped(reason.clone()))),
            _ => Some(Started::Busy),
        }
    }

    /// Starts a request below with a token of its own, and forgets it unless the answer comes
    /// later.
    fn pass(
        &mut self,
        below: &mut dyn BlockDevice,
        asked: Asked,
        op: Op<'_>,
    ) -> (Started, Option<Asked>) {
        let own = self.ask(asked);
        let started = below.start(Request { token: own, op });
        match started {
            Started::Pending => (started, None),
            _ => (started, self.asked.remove(&own)),
        }
    }

    fn read(&mut self, below: &mut dyn BlockDevice, token: Token, mut op: Op<'_>) -> Started {
        // Filters above look at the disk before it is used; an empty journal is not in the way.
        let is_idle = matches!(self.stage, Stage::Idle(..)) && !self.has_left;
        if let Some(refusal) = self.refuses().filter(|_| !is_idle) {
            return refusal;
        }
        let ByteRange { offset, length } = op.range();
        let patches = self.overlay.patches(offset, length);
        let apply = |op: &mut Op<'_>, patches: &[Patch]| {
            if let Op::Read { out, .. } = op {
                patches.iter().for_each(|patch| patch.apply(out));
            }
        };
        if !patches.is_empty() && are_whole(&patches, length as usize) {
            apply(&mut op, &patches);
            return Started::Done;
        }
        let asked = Asked::Read(token, offset, patches);
        let (started, asked) = self.pass(below, asked, op.reborrow());
        if let (Started::Done, Some(Asked::Read(.., patches))) = (&started, asked) {
            apply(&mut op, &patches);
        }
        started
    }

    fn flush(&mut self, below: &mut dyn BlockDevice, token: Token) -> Started {
        if let Some(refusal) = self.refuses() {
            return refusal;
        }
        if matches!(self.stage, Stage::ReadOnly) {
            return self.pass(below, Asked::Other(token), Op::Flush).0;
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

    fn extents(&mut self, below: &mut dyn BlockDevice, token: Token, op: Op<'_>) -> Started {
        if let Some(refusal) = self.refuses() {
            return refusal;
        }
        let Op::Extents {
            offset,
            length,
            runs,
        } = op
        else {
            return Started::Failed(IoError::NotSupported);
        };
        let size = below.geometry().size_bytes;
        let end = offset.saturating_add(length).min(size);
        if length == 0 || end <= offset {
            return below.start(Request::extents(token, offset, length, runs));
        }
        let (length, run) = self.overlay.run(offset, end);
        let kind = match run {
            Run::Data => ExtentKind::Data,
            Run::Zeroes => ExtentKind::Hole,
            Run::Below => {
                let op = Op::Extents {
                    offset,
                    length,
                    runs,
                };
                return self.pass(below, Asked::Extents(token), op).0;
            }
        };
        runs.push(Extent { length, kind });
        Started::Done
    }
}

impl Filter for Journal {
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
                Opening::Pending
            }
            Stage::Open(_) | Stage::Idle(..) | Stage::ReadOnly => Opening::Ready,
            Stage::Failed(reason) => Opening::Failed(reason.clone()),
            _ => Opening::Pending,
        }
    }

    fn start(&mut self, below: &mut dyn BlockDevice, request: Request<'_>) -> Started {
        let Request { token, op } = request;
        match op {
            Op::Read { .. } => self.read(below, token, op),
            Op::Write { .. } | Op::Trim { .. } | Op::WriteZeroes { .. } => {
                self.change(below, token, &op)
            }
            Op::Flush => self.flush(below, token),
            Op::Extents { .. } => self.extents(below, token, op),
            Op::Prefetch { .. } => self.pass(below, Asked::Other(token), op).0,
        }
    }

    fn commit(&mut self, below: &mut dyn BlockDevice) -> Result<(), IoError> {
        if let Stage::Open(ring) = &mut self.stage {
            let is_behind = ring.written() < ring.head();
            if let Err(error) = ring.write_batch() {
                let path = self.config.told_path();
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

    fn check_removable(&self) -> Result<(), String> {
        let held = match (&self.failing, &self.stage) {
            // What its file has, whoever opens that sees.
            (_, Stage::Failed(_)) => return Ok(()),
            (Some((error, _)), _) => format!("cannot be carried out: {error}"),
            // Nobody asks for anything any more, and the last flush has ended.
            (None, Stage::Open(ring)) if self.is_ending && ring.used_bytes() > 0 => {
                "is not carried out".to_owned()
            }
            _ => return Ok(()),
        };
        let name = self.of_chain.as_ref().map_or("of it", OfChain::name);
        Err(format!("what the journal {name} has acknowledged {held}"))
    }

    fn quiesce(&mut self) -> bool {
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

    fn has_replayed(&self) -> bool {
        matches!(
            self.stage,
            Stage::Open(_) | Stage::ReadOnly | Stage::Failed(_)
        )
    }
}
