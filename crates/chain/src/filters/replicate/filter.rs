//! [`Replicate`]: the filter, composed of its parts.

use std::sync::Arc;
use std::time::Duration;

use base::{
    BlockDevice, ByteRange, Capabilities, Completion, DeviceGeometry, Extent, ExtentKind, IoError,
    Op, Outcome, OwnedOp, ReadBuffer, Started, Token, ZeroMode,
};
use chain_policy::ReplicateConfig;

use super::member::{Member, MemberState, Members, VOLUME};
use super::no_source;
use super::rebuild::Rebuild;
use super::region_log::{LogEvent, RegionLog};
use super::region_map::{MemberSpec, RegionMap};
use super::requests::{Request, RequestKind, Requester, Requests};
use super::selection::Selection;
use super::startup::Startup;
use super::tracker::Tracker;
use crate::{Filter, FilterContext, Opening};

/// The delay of a poll while something waits that no event announces.
const WORK_INTERVAL: Duration = Duration::from_millis(1);

/// How the filter is used by its chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Usage {
    /// The filter was never in use. Another filter may have its file.
    Unused,
    Active,
    /// The filter starts nothing of its own: others may write the volume soon.
    Quiesced,
}

/// The filter: a volume and its replicas.
///
/// The thread of the chain owns it. Each poll takes what members and the file have answered, then
/// all steps that are possible.
pub struct Replicate {
    pub(super) name: Arc<str>,
    pub(super) context: FilterContext,
    pub(super) members: Members,
    pub(super) log: RegionLog,
    pub(super) requests: Requests,
    pub(super) startup: Startup,
    /// The rebuild of one member, if one is missing something.
    pub(super) rebuild: Option<Rebuild>,
    /// Tracks files, if there are partial replicas.
    pub(super) tracker: Option<Tracker>,
    pub(super) usage: Usage,
    /// Whether requests fail instead of waiting for an unavailable source.
    pub(super) gives_up: bool,
    /// The only complete member was unavailable, and may have lost changes that were acknowledged
    /// and not flushed. The next flush returns that.
    pub(super) may_have_lost: bool,
    /// Something was started that is not committed.
    pub(super) must_commit: bool,
    /// The size of the disk when the filter was opened, in bytes.
    pub(super) disk_bytes: u64,
}

impl Replicate {
    /// The filter `name` with the members of `config`.
    #[must_use]
    pub fn new(name: &str, config: &ReplicateConfig, context: FilterContext) -> Self {
        let mut members = vec![Member::new("volume", None)];
        members.extend(config.replicas.iter().map(|one| {
            let mut member = Member::new(&one.name, Some(one.location.clone()));
            member.selection = one.paths.clone().map(Selection::new);
            member
        }));
        let memory_max = config.memory_max.min(context.attachment.memory_max);
        let has_partial = members.iter().any(|member| member.selection.is_some());
        let tracker = has_partial.then(|| Tracker::new(memory_max, &context));
        let no_map = RegionMap::new(0, &[MemberSpec::new("volume", 0)]);
        Self {
            name: name.into(),
            context,
            members: Members::new(members, Duration::from_millis(config.stall_ms)),
            log: RegionLog::new(no_map),
            requests: Requests::default(),
            startup: Startup::New,
            rebuild: None,
            tracker,
            usage: Usage::Unused,
            gives_up: false,
            may_have_lost: false,
            must_commit: false,
            disk_bytes: 0,
        }
    }

    pub(super) fn now(&self) -> Duration {
        self.context.host.clock.monotonic()
    }

    /// Reports something about the filter, as an event.
    pub(super) fn note(&self, note: String) {
        self.context.report(&self.name, note);
    }

    /// Whether the filter may start nothing of its own.
    pub(super) fn is_quiesced(&self) -> bool {
        self.usage != Usage::Active
    }

    /// Whether a member is the only complete one.
    pub(super) fn is_only_complete(&self, at: usize) -> bool {
        self.members.is_only_complete(at, &self.log.map)
    }

    /// Whether it is known what a member should have.
    pub(super) fn is_certain(&self, at: usize) -> bool {
        !self.members.is_partial(at) || self.tracker.as_ref().is_none_or(Tracker::is_certain)
    }

    /// The map has changed. With `is_needed`, nothing is acknowledged before that is in the file.
    pub(super) fn log_changed(&mut self, is_needed: bool) {
        self.log.change(is_needed);
        self.write_log();
    }

    /// Starts to write the map, if it is not in the file. Until the filter is in use, another
    /// filter may have the file. While it is quiesced, pending requests may wait for the file.
    pub(super) fn write_log(&mut self) {
        let has_held = self.tracker.as_ref().is_some_and(Tracker::has_held);
        let may_write = !self.is_quiesced()
            || has_held
            || self.log.map.released_by != 0
            || !self.requests.unstored.is_empty();
        if may_write {
            self.log.write();
        }
    }

    /// Takes what the file's jobs have led to, and answers what waited for that.
    fn check_log(&mut self, now: Duration) {
        while let Some(event) = self.log.next_event(now) {
            match event {
                LogEvent::Loaded(loaded) => self.loaded(loaded),
                LogEvent::Failed(reason) => self.note(reason),
            }
        }
        if self.log.may_retry(now) {
            self.write_log();
        }
        if self.log.may_acknowledge() {
            self.requests.ended.append(&mut self.requests.unstored);
        }
    }

    fn read(
        &mut self,
        below: &mut dyn BlockDevice,
        token: Token,
        offset: u64,
        mut out: ReadBuffer<'_>,
    ) -> Started {
        let range = ByteRange::new(offset, out.len() as u64);
        if let Err(error) = range.check(self.disk_bytes) {
            return Started::Failed(error);
        }
        let request = Request::new(Requester::Above(token), RequestKind::Read(range));
        let id = self.requests.pending.add(request);
        let started = self.read_from_source(below, id, offset, &mut out);
        if started != Some(Started::Pending) {
            self.requests.withdraw(id);
        }
        match started {
            Some(started) => started,
            None if self.members.has_source() || !self.gives_up => Started::Busy,
            None => Started::Failed(no_source()),
        }
    }

    fn zero(
        &mut self,
        below: &mut dyn BlockDevice,
        token: Token,
        range: ByteRange,
        mode: ZeroMode,
    ) -> Started {
        let ByteRange { offset, length } = range;
        let op = OwnedOp::WriteZeroes {
            offset,
            length,
            mode,
        };
        self.change(below, token, op)
    }

    fn flush(&mut self, below: &mut dyn BlockDevice, token: Token) -> Started {
        if self.members.have_queues() {
            return Started::Busy;
        }
        let covers = self.requests.covering.is_none();
        let before = covers.then(|| self.log.begin_flush(self.requests.locks.iter()));
        let started = self.dispatch(below, token, RequestKind::Flush, &OwnedOp::Flush);
        if let (Started::Busy | Started::Failed(_), Some(before)) = (&started, &before) {
            self.log.cancel_flush(before);
        }
        started
    }

    fn extents(&self, range: ByteRange, runs: &mut Vec<Extent>) -> Started {
        let ByteRange { offset, length } = range;
        let length = length.min(self.disk_bytes.saturating_sub(offset));
        if length == 0 {
            return Started::Failed(IoError::OutOfRange {
                offset,
                length,
                size: self.disk_bytes,
            });
        }
        runs.push(Extent {
            length,
            kind: ExtentKind::Data,
        });
        Started::Done
    }

    /// The time until a member has stalled for too long.
    fn stall_timer(&self, now: Duration) -> Option<Duration> {
        let may_be_put_out = (0..self.members.len()).filter(|at| !self.is_only_complete(*at));
        let due = may_be_put_out.filter_map(|at| {
            let oldest = self.members[at].oldest_part()?;
            Some((oldest + self.members.stall_of(at)).saturating_sub(now))
        });
        due.min()
    }

    /// The time until a member that is out is tried again. A volume that hangs is tried when it has
    /// answered.
    fn retry_timer(&self, now: Duration) -> Option<Duration> {
        if self.is_quiesced() {
            return None;
        }
        let members = self.members.iter();
        let out = members.filter(|one| one.state == MemberState::Out);
        let may_try = |one: &&Member| one.location.is_some() || one.parts.is_empty();
        let due = out.filter(may_try).map(|one| one.retry_at);
        due.min().map(|at| at.saturating_sub(now))
    }

    fn tracker_timer(&self, now: Duration) -> Option<Duration> {
        let tracker = self.tracker.as_ref().filter(|_| !self.is_quiesced())?;
        tracker.follower.due().map(|at| at.saturating_sub(now))
    }

    /// The time until work that no event announces.
    fn work_timer(&self) -> Option<Duration> {
        if !self.requests.ended.is_empty() {
            return Some(Duration::ZERO);
        }
        let is_quiesced = self.is_quiesced();
        let has_source = self.members.has_source();
        let has_retries = !self.requests.retries.is_empty() && (has_source || self.gives_up);
        let tracker = self.tracker.as_ref();
        let may_track = !is_quiesced || matches!(self.startup, Startup::Reading { .. });
        let has_work = has_retries
            || tracker.is_some_and(Tracker::has_held)
            || may_track && tracker.is_some_and(Tracker::has_work)
            || self.members.have_queues()
            || self.rebuild.as_ref().is_some_and(Rebuild::is_waiting) && !is_quiesced && has_source;
        has_work.then_some(WORK_INTERVAL)
    }
}

impl Filter for Replicate {
    fn geometry(&self, below: DeviceGeometry) -> DeviceGeometry {
        // A volume that grows keeps its size until the filter is opened again, as its replicas do.
        let known = (self.disk_bytes > 0).then_some(self.disk_bytes);
        DeviceGeometry {
            size_bytes: known.map_or(below.size_bytes, |known| known.min(below.size_bytes)),
            ..below
        }
    }

    fn capabilities(&self, below: Capabilities) -> Capabilities {
        Capabilities {
            can_trim: below.can_trim && below.can_write_zeroes,
            ..below
        }
    }

    fn open(&mut self, below: &mut dyn BlockDevice) -> Opening {
        self.advance_startup(below);
        match &self.startup {
            Startup::Failed(reason) => Opening::Failed(reason.clone()),
            Startup::Ready => Opening::Ready,
            _ => Opening::Pending,
        }
    }

    fn start(&mut self, below: &mut dyn BlockDevice, request: base::Request<'_>) -> Started {
        let base::Request { token, op } = request;
        match op {
            Op::Read { offset, out } => self.read(below, token, offset, out),
            Op::Write { .. } => self.change(below, token, op.to_owned()),
            Op::Flush => self.flush(below, token),
            // Each device may treat the ends of a trim differently, and all must have the same.
            Op::Trim { durability, .. } => {
                let mode = ZeroMode {
                    durability,
                    may_punch: true,
                    fast_only: false,
                };
                self.zero(below, token, op.range(), mode)
            }
            // A replica without a fast way uses a slow one.
            Op::WriteZeroes { mode, .. } => {
                let mode = ZeroMode {
                    fast_only: false,
                    ..mode
                };
                self.zero(below, token, op.range(), mode)
            }
            // Members may have different holes.
            Op::Extents {
                offset,
                length,
                runs,
            } => self.extents(ByteRange::new(offset, length), runs),
            // Any member may serve the read.
            Op::Prefetch { .. } => Started::Done,
        }
    }

    fn commit(&mut self, below: &mut dyn BlockDevice) -> Result<(), IoError> {
        self.must_commit = false;
        for at in 1..self.members.len() {
            let remote = self.members[at].remote.as_mut();
            if let Some(Err(error)) = remote.map(|remote| remote.commit()) {
                self.put_out(at, &error.to_string());
            }
        }
        below.commit()
    }

    fn poll(&mut self, below: &mut dyn BlockDevice, completions: &mut Vec<Completion>) {
        let now = self.now();
        self.collect(below);
        self.check_members(now);
        self.check_log(now);
        match self.startup {
            Startup::Reading { .. } => {
                self.retry_reads(below);
                self.track(below);
            }
            Startup::Ready => {
                self.track(below);
                self.dispatch_held(below);
                self.start_queued(below);
                self.retry_reads(below);
                self.reconnect(now);
                self.advance_rebuild(below);
                if !self.is_quiesced() && self.log.forget_covered(now) {
                    self.log_changed(false);
                }
            }
            _ => {}
        }
        // Answers count on this commit: the chain commits only what was started from above.
        let answered = self.requests.ended.len();
        if self.must_commit
            && let Err(error) = self.commit(below)
        {
            for one in &mut self.requests.ended[..answered] {
                if let Ok(Outcome::Done) = one.result {
                    one.result = Err(error.clone());
                }
            }
        }
        completions.append(&mut self.requests.ended);
    }

    fn stop_waiting(&mut self, below: &mut dyn BlockDevice) {
        self.gives_up = true;
        for member in self.members.iter_mut() {
            if let Some(remote) = &mut member.remote {
                remote.stop_waiting();
            }
        }
        below.stop_waiting();
    }

    fn next_timer(&self) -> Option<Duration> {
        let now = self.now();
        let remotes = self.members.iter();
        let remotes = remotes.filter_map(|one| one.remote.as_ref()?.next_timer());
        let own = [
            self.stall_timer(now),
            self.retry_timer(now),
            self.tracker_timer(now),
            self.work_timer(),
            self.log.timer(now),
        ];
        remotes.chain(own.into_iter().flatten()).min()
    }

    fn check_removable(&self) -> Result<(), String> {
        match self.members.is_source(VOLUME) || self.usage == Usage::Unused {
            true => Ok(()),
            false => Err(
                "the volume is missing writes that its replicas have, and is rebuilding".to_owned(),
            ),
        }
    }

    fn quiesce(&mut self) -> bool {
        if self.usage == Usage::Active {
            self.usage = Usage::Quiesced;
        }
        let was_used = self.usage == Usage::Quiesced;
        if was_used && self.log.map.released_by == 0 {
            // Others may write the volume before the filter is used again.
            self.log.map.released_by = self.context.attachment.history.chain.max(1);
            self.log_changed(true);
        }
        let rebuild = self.rebuild.as_ref();
        let tracker = self.tracker.as_ref();
        !rebuild.is_some_and(Rebuild::is_pending)
            && tracker.is_none_or(|tracker| tracker.follower.is_idle())
            && !self.log.is_writing()
            && (!was_used || self.log.is_current())
    }

    fn resume(&mut self) {
        self.usage = Usage::Active;
        if std::mem::take(&mut self.log.map.released_by) != 0 {
            self.log_changed(true);
        }
        self.write_log();
    }
}
