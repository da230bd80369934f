//! [`Journal`]: the filter, and the requests that change nothing.

use std::collections::VecDeque;
use std::time::Duration;

use base::{
    BlockDevice, Capabilities, Completion, Extent, ExtentKind, IoError, Op, Request, Started, Token,
};
use world::{Wake, World};

use super::flush_state::FlushPhase;
use super::gathering::Gathering;
use super::lease::LeaseCheck;
use super::lifecycle::Lifecycle;
use super::overlay::{Patch, Run, are_complete};
use super::pending::{PendingRequest, PendingRequests};
use super::stage::Stage;
use super::waiting::{Condition, Waiting};
use super::write_back::WriteBack;
use super::{FlushMode, JournalConfig};
use crate::{Filter, FilterError, Opening};

/// The delay before a busy disk below is tried again.
const BUSY_RETRY: Duration = Duration::from_millis(1);

/// The filter: a journal that acknowledges changes and writes them below later
/// (docs/internals/journal-filter.md).
///
/// The thread of the chain owns it. Each turn of that thread starts requests, ends their
/// batch, and polls. The latter two end with `Journal::advance`, which takes all steps that are
/// possible. Only operations on the file that may wait run elsewhere, one at a time.
pub struct Journal {
    pub(super) lifecycle: Lifecycle,
    pub(super) write_back: WriteBack,
    pub(super) pending: PendingRequests,
    pub(super) waiting: VecDeque<Waiting>,
    pub(super) gathering: Gathering,
    pub(super) lease: LeaseCheck,
    pub(super) completions: Vec<Completion>,
    /// Something was busy in this turn, so the next poll should come soon.
    pub(super) was_busy: bool,
    /// The filter is quiesced: it starts nothing of its own below.
    pub(super) is_quiesced: bool,
    /// The requester stopped waiting: it will send a last flush at most.
    pub(super) is_ending: bool,
}

impl Journal {
    /// A journal that is not open. `wake` has the chain polled when a job has ended.
    #[must_use]
    pub fn new(config: JournalConfig, world: World, wake: Wake) -> Self {
        Self {
            write_back: WriteBack::new(config.memory_max),
            lifecycle: Lifecycle::new(config, world, wake),
            pending: PendingRequests::default(),
            waiting: VecDeque::new(),
            gathering: Gathering::default(),
            lease: LeaseCheck::default(),
            completions: Vec::new(),
            was_busy: false,
            is_quiesced: false,
            is_ending: false,
        }
    }

    /// Whether changes may be acknowledged. The lease is checked once a turn.
    pub(super) fn may_acknowledge(&mut self) -> bool {
        self.lease.holds(self.lifecycle.chain.as_ref())
    }

    /// Stops the journal for good.
    pub(super) fn fail(&mut self, error: impl Into<FilterError>) {
        let error = error.into();
        let reason = error.reason();
        tracing::error!(error = reason, "journal filter stopped");
        for waiting in self.waiting.drain(..) {
            self.completions.push(Completion {
                token: waiting.token,
                result: Err(IoError::Stopped(reason.to_owned())),
            });
        }
        self.lifecycle.stage = Stage::Failed(error);
        self.gathering.cancel();
    }

    /// The answer to a request that cannot be started now, if it cannot.
    pub(super) fn refusal(&self) -> Option<Started> {
        match &self.lifecycle.stage {
            Stage::Open(_) | Stage::ReadOnly => None,
            Stage::Failed(error) => Some(Started::Failed(IoError::Stopped(error.to_string()))),
            _ => Some(Started::Busy),
        }
    }

    /// Starts a request of the requester below.
    fn forward(&mut self, below: &mut dyn BlockDevice, token: Token, op: Op<'_>) -> Started {
        let own = self.pending.next_token();
        let started = below.start(Request { token: own, op });
        if started == Started::Pending {
            self.pending.insert(own, PendingRequest::Forwarded(token));
        }
        started
    }

    fn read(&mut self, below: &mut dyn BlockDevice, token: Token, mut op: Op<'_>) -> Started {
        // Filters above read the disk before they are in use. An empty journal has nothing to add.
        if let Some(refusal) = self
            .refusal()
            .filter(|_| !self.lifecycle.stage.is_idle_and_empty())
        {
            return refusal;
        }
        let range = op.range();
        let patches = self.write_back.backlog.overlay.patches(range);
        let apply = |op: &mut Op<'_>, patches: &[Patch]| {
            if let Op::Read { out, .. } = op {
                patches.iter().for_each(|patch| patch.apply(out));
            }
        };
        if !patches.is_empty() && are_complete(&patches, range.length as usize) {
            apply(&mut op, &patches);
            return Started::Done;
        }
        let own = self.pending.next_token();
        let started = below.start(Request {
            token: own,
            op: op.reborrow(),
        });
        match started {
            Started::Pending => {
                let read = PendingRequest::Read {
                    token,
                    offset: range.offset,
                    patches,
                };
                self.pending.insert(own, read);
            }
            Started::Done => apply(&mut op, &patches),
            Started::Busy | Started::Failed(_) => {}
        }
        started
    }

    fn flush(&mut self, below: &mut dyn BlockDevice, token: Token) -> Started {
        if let Some(refusal) = self.refusal() {
            return refusal;
        }
        if matches!(self.lifecycle.stage, Stage::ReadOnly) {
            return self.forward(below, token, Op::Flush);
        }
        if !self.may_acknowledge() {
            return Started::Busy;
        }
        let Stage::Open(ring) = &self.lifecycle.stage else {
            return Started::Busy;
        };
        // If others may use the disk below afterwards, it has to have everything, and nothing may
        // be written again.
        let condition = match (
            self.is_quiesced || self.is_ending,
            self.lifecycle.config.flush,
        ) {
            (true, _) => Condition::Emptied,
            (false, FlushMode::Through) => Condition::FlushedBelow,
            (false, FlushMode::Journal) => Condition::Synced,
        };
        let waiting = Waiting {
            token,
            end: ring.head(),
            condition,
        };
        if waiting.is_safe(&self.progress(ring)) {
            return Started::Done;
        }
        self.waiting.push_back(waiting);
        Started::Pending
    }

    fn extents(&mut self, below: &mut dyn BlockDevice, token: Token, op: Op<'_>) -> Started {
        if let Some(refusal) = self.refusal() {
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
        let (length, run) = self.write_back.backlog.overlay.run(offset, end);
        let kind = match run {
            Run::Data => ExtentKind::Data,
            Run::Zeroes => ExtentKind::Hole,
            Run::Below => {
                let op = Op::Extents {
                    offset,
                    length,
                    runs,
                };
                return self.forward(below, token, op);
            }
        };
        runs.push(Extent { length, kind });
        Started::Done
    }
}

impl Filter for Journal {
    fn capabilities(&self, below: Capabilities) -> Capabilities {
        let can_zero = below.can_write_zeroes && !below.read_only;
        Capabilities {
            can_flush: below.can_flush
                || self.lifecycle.config.flush == FlushMode::Journal && !below.read_only,
            // A trim is written as zeroes that may become a hole.
            can_trim: can_zero,
            can_write_zeroes: can_zero,
            ..below
        }
    }

    fn open(&mut self, below: &mut dyn BlockDevice) -> Opening {
        match &self.lifecycle.stage {
            Stage::Closed => {
                self.lifecycle.disk_bytes = below.geometry().size_bytes;
                self.lifecycle.begin(below);
                Opening::Pending
            }
            Stage::Open(_) | Stage::Idle { .. } | Stage::ReadOnly => Opening::Ready,
            Stage::Failed(error) => Opening::Failed(error.clone()),
            _ => Opening::Pending,
        }
    }

    fn start(&mut self, below: &mut dyn BlockDevice, request: Request<'_>) -> Started {
        let Request { token, op } = request;
        match op {
            Op::Read { .. } => self.read(below, token, op),
            Op::Write { .. } | Op::Trim { .. } | Op::WriteZeroes { .. } => {
                self.accept(below, token, &op)
            }
            Op::Flush => self.flush(below, token),
            Op::Extents { .. } => self.extents(below, token, op),
            Op::Prefetch { .. } => self.forward(below, token, op),
        }
    }

    fn end_batch(&mut self, below: &mut dyn BlockDevice) -> Result<(), IoError> {
        if let Stage::Open(ring) = &mut self.lifecycle.stage {
            let has_batch = ring.written() < ring.head();
            if let Err(error) = ring.write_batch() {
                self.fail(self.lifecycle.file_error(&error));
            } else if self.waiting.is_empty() {
                // The requesters are answered first, and the changes written back afterwards.
                if has_batch {
                    self.gathering.begin(self.lifecycle.world.clock.monotonic());
                }
            } else {
                self.advance(below);
            }
        }
        self.lease.end_turn();
        match &self.lifecycle.stage {
            Stage::Failed(error) => Err(IoError::Stopped(error.to_string())),
            _ => below.end_batch(),
        }
    }

    fn poll(&mut self, below: &mut dyn BlockDevice, completions: &mut Vec<Completion>) {
        self.was_busy = false;
        self.lease.begin_poll();
        let mut completed = Vec::new();
        below.poll(&mut completed);
        for completion in completed {
            self.completed_below(completion);
        }
        self.advance(below);
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
        let now = self.lifecycle.world.clock.monotonic();
        let timers = [
            self.gathering.timer(self.gathers(now), now),
            self.write_back.retry.timer(now),
            self.was_busy.then_some(BUSY_RETRY),
            self.lease.timer(),
        ];
        timers.into_iter().flatten().min()
    }

    fn check_removable(&self) -> Result<(), String> {
        let reason = match (self.write_back.retry.error(), &self.lifecycle.stage) {
            // The next filter that opens the file finds its records.
            (_, Stage::Failed(_)) => return Ok(()),
            (Some(error), _) => format!("cannot be written back: {error}"),
            // The last flush has ended, and no further requests come.
            (None, Stage::Open(ring)) if self.is_ending && ring.used_bytes() > 0 => {
                "are not written back yet".to_owned()
            }
            _ => return Ok(()),
        };
        let chain = self.lifecycle.chain.as_ref();
        let name = chain.map_or_else(String::new, |chain| format!(" {}", chain.name()));
        Err(format!(
            "the journal{name} has acknowledged writes that {reason}"
        ))
    }

    fn quiesce(&mut self) -> bool {
        self.is_quiesced = true;
        let has_records = match &self.lifecycle.stage {
            Stage::Open(ring) => ring.used_bytes() > 0,
            _ => false,
        };
        self.write_back.backlog.changes.pending() == 0
            && self.write_back.flush.phase != FlushPhase::Pending
            && !self.lifecycle.stage.is_starting()
            && !(self.must_empty_itself() && (has_records || self.lifecycle.job.is_running()))
    }

    fn resume(&mut self) {
        self.is_quiesced = false;
        self.lifecycle.leave_idle();
    }

    fn has_replayed(&self) -> bool {
        matches!(
            self.lifecycle.stage,
            Stage::Open(_) | Stage::ReadOnly | Stage::Failed(_)
        )
    }
}
