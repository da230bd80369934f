//! [`Replicate`]: the filter, composed of its parts.

use std::time::Duration;

use base::{
    BlockDevice, ByteRange, Capabilities, Completion, DeviceGeometry, Extent, ExtentKind, IoError,
    Op, OwnedOp, ReadBuffer, Started, Token, ZeroMode,
};
use chain_policy::ReplicateConfig;

use super::member::{Member, Members, VOLUME};
use super::no_source;
use super::rebuild::Rebuild;
use super::region_log::{Acknowledge, LogEvent, RegionLog};
use super::region_map::{MemberSpec, RegionMap};
use super::replica_set::{ReplicaSet, Usage};
use super::requests::{Request, RequestKind, Requester};
use super::selection::{KnownFiles, Selection};
use super::startup::Startup;
use super::tracker::Tracker;
use crate::{Filter, FilterContext, Opening};

/// The delay of a poll while something waits that no event announces.
const WORK_INTERVAL: Duration = Duration::from_millis(1);

/// The filter: a volume and its replicas.
///
/// The thread of the chain owns it. Each poll takes what members and the file have answered, then
/// all steps that are possible.
pub struct Replicate {
    pub(super) set: ReplicaSet,
    pub(super) startup: Startup,
    /// Tracks files, if there are partial replicas.
    pub(super) tracker: Option<Tracker>,
}

impl Replicate {
    /// The filter `name` with the members of `config`.
    #[must_use]
    pub fn new(name: &str, config: &ReplicateConfig, context: FilterContext) -> Self {
        let mut members = vec![Member::new("volume", None)];
        members.extend(config.replicas.iter().map(|replica| {
            let mut member = Member::new(&replica.name, Some(replica.location.clone()));
            member.selection = replica.paths.clone().map(Selection::new);
            member
        }));
        let memory_max = config.memory_max.min(context.attachment.memory_max);
        let has_partial = members.iter().any(|member| member.selection.is_some());
        let tracker = has_partial.then(|| Tracker::new(memory_max, &context));
        let no_map = RegionMap::new(0, &[MemberSpec::new("volume", 0)]);
        let members = Members::new(members, Duration::from_millis(config.stall_ms));
        Self {
            set: ReplicaSet::new(name, members, RegionLog::new(no_map), context),
            startup: Startup::New,
            tracker,
        }
    }

    /// Takes what the file's jobs have led to, and answers what waited for that.
    fn check_log(&mut self, now: Duration) {
        while let Some(event) = self.set.log.next_event(now) {
            match event {
                LogEvent::Loaded(loaded) => self.loaded(loaded),
                LogEvent::Failed(reason) => self.set.note(reason),
            }
        }
        if self.set.log.may_retry(now) {
            self.set.write_log();
        }
        if self.set.log.may_acknowledge() {
            self.set
                .requests
                .ended
                .append(&mut self.set.requests.unstored);
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
        if let Err(error) = range.check(self.set.disk_bytes) {
            return Started::Failed(error);
        }
        let request = Request::new(Requester::Above(token), RequestKind::Read(range));
        let id = self.set.requests.pending.add(request);
        let started = self.set.read_from_source(below, id, offset, &mut out);
        if started != Some(Started::Pending) {
            self.set.requests.withdraw(id);
        }
        match started {
            Some(started) => started,
            None if self.set.members.has_source() || !self.set.gives_up => Started::Busy,
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

    /// Starts a change, if it may begin.
    fn change(&mut self, below: &mut dyn BlockDevice, token: Token, op: OwnedOp) -> Started {
        match self.set.may_change(op.range()) {
            Ok(true) => {}
            Ok(false) => return Started::Busy,
            Err(error) => return Started::Failed(error),
        }
        match &mut self.tracker {
            None => self.set.dispatch(below, token, &op, None),
            Some(_) if !self.set.requests.held.have_room() => Started::Busy,
            Some(tracker) => tracker.follow_and_dispatch(&mut self.set, below, token, op),
        }
    }

    fn flush(&mut self, below: &mut dyn BlockDevice, token: Token) -> Started {
        if self.set.members.have_queues() {
            return Started::Busy;
        }
        let covers = self.set.requests.covering.is_none();
        let before = covers.then(|| self.set.log.begin_flush(self.set.requests.locks.iter()));
        let disk = self.tracker.as_ref().and_then(Tracker::disk);
        let started = self.set.dispatch(below, token, &OwnedOp::Flush, disk);
        if let (Started::Busy | Started::Failed(_), Some(before)) = (&started, &before) {
            self.set.log.cancel_flush(before);
        }
        started
    }

    fn extents(&self, range: ByteRange, runs: &mut Vec<Extent>) -> Started {
        let ByteRange { offset, length } = range;
        let length = length.min(self.set.disk_bytes.saturating_sub(offset));
        if length == 0 {
            return Started::Failed(IoError::OutOfRange {
                offset,
                length,
                size: self.set.disk_bytes,
            });
        }
        runs.push(Extent {
            length,
            kind: ExtentKind::Data,
        });
        Started::Done
    }

    /// Takes the next steps of reading and following the disk.
    fn track(&mut self, below: &mut dyn BlockDevice) {
        let may_begin =
            self.set.usage == Usage::Active || matches!(self.startup, Startup::Reading { .. });
        if let Some(tracker) = &mut self.tracker {
            tracker.track(&mut self.set, below, may_begin);
        }
    }

    fn tracker_timer(&self, now: Duration) -> Option<Duration> {
        let tracker = self.tracker.as_ref().filter(|_| !self.set.is_quiesced())?;
        tracker.follower.due().map(|at| at.saturating_sub(now))
    }

    /// The time until work that no event announces.
    fn work_timer(&self) -> Option<Duration> {
        if !self.set.requests.ended.is_empty() {
            return Some(Duration::ZERO);
        }
        let is_quiesced = self.set.is_quiesced();
        let has_source = self.set.members.has_source();
        let has_retries =
            !self.set.requests.retries.is_empty() && (has_source || self.set.gives_up);
        let tracker = self.tracker.as_ref();
        let may_track = !is_quiesced || matches!(self.startup, Startup::Reading { .. });
        let has_work = has_retries
            || !self.set.requests.held.is_empty()
            || may_track && tracker.is_some_and(|tracker| tracker.has_work(&self.set.requests))
            || self.set.members.have_queues()
            || self.set.rebuild.as_ref().is_some_and(Rebuild::is_waiting)
                && !is_quiesced
                && has_source;
        has_work.then_some(WORK_INTERVAL)
    }
}

impl Filter for Replicate {
    fn geometry(&self, below: DeviceGeometry) -> DeviceGeometry {
        // A volume that grows keeps its size until the filter is opened again, as its replicas do.
        let known = (self.set.disk_bytes > 0).then_some(self.set.disk_bytes);
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
            Startup::Failed(reason) => Opening::Failed(reason.clone().into()),
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

    fn end_batch(&mut self, below: &mut dyn BlockDevice) -> Result<(), IoError> {
        self.set.end_batch(below)
    }

    fn poll(&mut self, below: &mut dyn BlockDevice, completions: &mut Vec<Completion>) {
        let now = self.set.now();
        self.set.collect(below);
        self.set.check_members(now);
        self.check_log(now);
        match self.startup {
            Startup::Reading { .. } => {
                self.set.retry_reads(below);
                self.track(below);
            }
            Startup::Ready => {
                self.track(below);
                if let Some(tracker) = &mut self.tracker {
                    tracker.dispatch_held(&mut self.set, below);
                }
                self.set.start_queued(below);
                self.set.retry_reads(below);
                let tracker = self.tracker.as_ref();
                let files = tracker.map_or(KnownFiles::UNTRACKED, Tracker::known_files);
                self.set.reconnect(now, files);
                self.set.advance_rebuild(below, files);
                if !self.set.is_quiesced() && self.set.log.forget_covered(now) {
                    self.set.log_changed(Acknowledge::AtOnce);
                }
            }
            _ => {}
        }
        self.set.end_own_batch(below);
        completions.append(&mut self.set.requests.ended);
    }

    fn stop_waiting(&mut self, below: &mut dyn BlockDevice) {
        self.set.gives_up = true;
        for member in self.set.members.iter_mut() {
            if let Some(remote) = &mut member.remote {
                remote.stop_waiting();
            }
        }
        below.stop_waiting();
    }

    fn next_timer(&self) -> Option<Duration> {
        let now = self.set.now();
        let remotes = self.set.members.iter();
        let remotes = remotes.filter_map(|member| member.remote.as_ref()?.next_timer());
        let may_retry = !self.set.is_quiesced();
        let own = [
            self.set.members.stall_timer(now, &self.set.log.map),
            may_retry
                .then(|| self.set.members.retry_timer(now))
                .flatten(),
            self.tracker_timer(now),
            self.work_timer(),
            self.set.log.timer(now),
        ];
        remotes.chain(own.into_iter().flatten()).min()
    }

    fn check_removable(&self) -> Result<(), String> {
        match self.set.members.is_source(VOLUME) || self.set.usage == Usage::Unused {
            true => Ok(()),
            false => Err(
                "the volume is missing writes that its replicas have, and is rebuilding".to_owned(),
            ),
        }
    }

    fn quiesce(&mut self) -> bool {
        if self.set.usage == Usage::Active {
            self.set.usage = Usage::Quiesced;
        }
        let was_used = self.set.usage == Usage::Quiesced;
        if was_used && self.set.log.map.released_by == 0 {
            // Others may write the volume before the filter is used again.
            self.set.log.map.released_by = self.set.context.attachment.history.chain.max(1);
            self.set.log_changed(Acknowledge::OnceStored);
        }
        let rebuild = self.set.rebuild.as_ref();
        let tracker = self.tracker.as_ref();
        !rebuild.is_some_and(Rebuild::is_pending)
            && tracker.is_none_or(|tracker| tracker.follower.is_idle())
            && !self.set.log.is_writing()
            && (!was_used || self.set.log.is_current())
    }

    fn resume(&mut self) {
        self.set.usage = Usage::Active;
        if std::mem::take(&mut self.set.log.map.released_by) != 0 {
            self.set.log_changed(Acknowledge::OnceStored);
        }
        self.set.write_log();
    }
}
