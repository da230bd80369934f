//! Changes and flushes: each is started at all members that should have it.

use std::ops::Range;

use base::{BlockDevice, ByteRange, IoError, Outcome, OwnedOp, Started, Token};

use super::held::HeldChange;
use super::member::{MemberState, PartOf};
use super::no_source;
use super::region_log::Acknowledge;
use super::replica_set::ReplicaSet;
use super::requests::{Request, RequestKind, Requester};
use crate::follow::Disk;

/// A member that failed at once.
struct FailedMember {
    at: usize,
    reason: String,
}

/// A change or a flush while it is started at all members.
struct Dispatch<'a> {
    of: PartOf,
    kind: RequestKind,
    op: &'a OwnedOp,
    /// What is known of the file systems.
    disk: Option<&'a Disk>,
    /// The regions of a change.
    regions: Range<usize>,
    /// The number of parts that are pending or queued.
    pending: usize,
    /// The complete members that were done at once, as a bit for each.
    done_by: u32,
    /// Whether a member has started it, so that it cannot be refused any more.
    has_begun: bool,
    failed: Vec<FailedMember>,
    error: Option<IoError>,
}

impl ReplicaSet {
    /// Whether a change may begin now: it overlaps no pending one, all its regions are in flight
    /// in the file, and no member has to catch up first.
    ///
    /// # Errors
    /// If it can never begin, or the file cannot be written.
    pub fn may_change(&mut self, range: ByteRange) -> Result<bool, IoError> {
        range.check(self.disk_bytes)?;
        if self.requests.locks.overlaps(range) || self.members.have_queues() {
            return Ok(false);
        }
        let is_marked = self.log.mark(range)?;
        if !is_marked {
            self.log_changed(Acknowledge::AtOnce);
        }
        Ok(is_marked)
    }

    /// Whether a member gets a change of `regions`. A rebuilding member gets a change only if it
    /// is missing none of the regions; otherwise it is missing all of them afterwards.
    fn gets_change(&self, at: usize, regions: Range<usize>) -> bool {
        match self.members[at].state {
            MemberState::InSync => true,
            MemberState::Rebuilding => {
                let rebuild = self.rebuild.as_ref().filter(|rebuild| rebuild.member == at);
                let missing = &self.log.map.missing[at];
                let is_missing = |region| {
                    missing.has(region)
                        && !rebuild.is_some_and(|rebuild| rebuild.has_copied(region))
                };
                !regions.clone().any(is_missing)
            }
            MemberState::Connecting(_) | MemberState::Excluded => false,
        }
    }

    /// The answer to a change or a flush that cannot begin.
    fn refusal(&mut self, kind: RequestKind) -> Option<Started> {
        if !self.members.has_source() {
            // It could not be acknowledged. The source is being connected to again.
            return Some(match self.gives_up {
                false => Started::Busy,
                true => Started::Failed(no_source()),
            });
        }
        if matches!(kind, RequestKind::Flush) && std::mem::take(&mut self.may_have_lost) {
            return Some(Started::Failed(IoError::Unavailable(
                "the only complete replica was unavailable, and may have lost writes that were \
                 not flushed"
                    .to_owned(),
            )));
        }
        None
    }

    /// Starts a change or a flush at all members that should have it. `disk` is what is known of
    /// the file systems, for partial replicas.
    pub fn dispatch(
        &mut self,
        below: &mut dyn BlockDevice,
        token: Token,
        op: &OwnedOp,
        disk: Option<&Disk>,
    ) -> Started {
        let kind = RequestKind::of(op);
        if let Some(answer) = self.refusal(kind) {
            return answer;
        }
        self.must_end_batch = true;
        let regions = match kind {
            RequestKind::Change(range) => self.log.map.regions_of(range.offset, range.length),
            _ => 0..0,
        };
        let now = self.now();
        // It counts one part more than there are until all are started.
        let request = Request::new(Requester::Above(token), kind);
        let id = self.requests.pending.add(request);
        if matches!(kind, RequestKind::Flush) {
            self.requests.covering.get_or_insert(id);
        }
        let mut dispatch = Dispatch {
            of: PartOf { request: id, now },
            kind,
            op,
            disk,
            regions,
            pending: 0,
            done_by: 0,
            has_begun: false,
            failed: Vec::new(),
            error: None,
        };
        for at in 0..self.members.len() {
            if let Err(answer) = dispatch.start_at(self, below, at) {
                self.requests.withdraw(id);
                return answer;
            }
        }
        dispatch.finish(self)
    }

    /// Takes the next held change, if it may be dispatched or has to fail.
    pub fn next_held(&mut self) -> Option<HeldChange> {
        if self.members.have_queues() {
            return None;
        }
        self.requests.held.take_due(&self.log)
    }

    /// Starts queued changes and flushes, in order.
    pub fn start_queued(&mut self, below: &mut dyn BlockDevice) {
        let now = self.now();
        for at in 0..self.members.len() {
            while let Some((request, op)) = self.members[at].queue.pop_front() {
                self.must_end_batch = true;
                match self.members[at].start_change(below, PartOf { request, now }, &op) {
                    Started::Done => self.part_ended(request, at, Ok(Outcome::Done)),
                    Started::Pending => {}
                    Started::Busy => {
                        self.members[at].queue.push_front((request, op));
                        break;
                    }
                    Started::Failed(error) => {
                        let reason = error.to_string();
                        self.part_ended(request, at, Err(error));
                        self.exclude(at, &reason);
                    }
                }
            }
        }
    }
}

impl Dispatch<'_> {
    /// Starts a change or a flush at one member. An error is the answer to the whole request,
    /// which no member has started.
    fn start_at(
        &mut self,
        set: &mut ReplicaSet,
        below: &mut dyn BlockDevice,
        at: usize,
    ) -> Result<(), Started> {
        let is_partial = set.members.is_partial(at);
        let pieces;
        let ops = if is_partial {
            pieces = self.pieces(set, at);
            &pieces[..]
        } else if set.gets_change(at, self.regions.clone()) {
            std::slice::from_ref(self.op)
        } else {
            set.add_missing(at, self.regions.clone());
            return Ok(());
        };
        for op in ops {
            let member = &mut set.members[at];
            match member.start_change(below, self.of, op) {
                Started::Done => self.done_by |= u32::from(!is_partial) << at,
                Started::Pending => self.pending += 1,
                Started::Busy if !self.has_begun => return Err(Started::Busy),
                Started::Busy => {
                    member.queue.push_back((self.of.request, op.clone()));
                    self.pending += 1;
                }
                // The request itself is wrong.
                Started::Failed(
                    error
                    @ (IoError::OutOfRange { .. } | IoError::ReadOnly | IoError::NotSupported),
                ) if !self.has_begun => return Err(Started::Failed(error)),
                Started::Failed(error) => {
                    self.has_begun = true;
                    let reason = error.to_string();
                    self.failed.push(FailedMember { at, reason });
                    self.error = Some(error);
                    break;
                }
            }
            self.has_begun = true;
        }
        Ok(())
    }

    /// All members have started it.
    fn finish(self, set: &mut ReplicaSet) -> Started {
        let id = self.of.request;
        let (pending, done_by) = (self.pending, self.done_by);
        let is_done = pending == 0 && set.members.may_acknowledge(done_by, &set.log.map);
        let is_flush = matches!(self.kind, RequestKind::Flush);
        if is_done && self.failed.is_empty() && set.log.may_acknowledge() && !is_flush {
            set.requests.withdraw(id);
            return Started::Done;
        }
        if let RequestKind::Change(range) = self.kind
            && pending > 0
        {
            set.requests.locks.lock(range);
        }
        if let Some(request) = set.requests.pending.get_mut(id) {
            request.parts += pending;
            request.done_by = done_by;
            request.error.clone_from(&self.error);
        }
        for FailedMember { at, reason } in self.failed {
            set.exclude(at, &reason);
        }
        if pending == 0 && !set.members.may_acknowledge(done_by, &set.log.map) {
            set.requests.withdraw(id);
            return Started::Failed(self.error.unwrap_or_else(no_source));
        }
        let has_ended = set.requests.pending.get_mut(id).is_some_and(|request| {
            request.parts -= 1;
            request.parts == 0
        });
        if has_ended {
            set.end(id);
        }
        Started::Pending
    }

    /// The parts of a change that a partial replica gets.
    fn pieces(&self, set: &mut ReplicaSet, at: usize) -> Vec<OwnedOp> {
        let state = set.members[at].state;
        let is_connected = matches!(state, MemberState::InSync | MemberState::Rebuilding);
        let RequestKind::Change(range) = self.kind else {
            return match is_connected {
                true => vec![self.op.clone()],
                false => Vec::new(),
            };
        };
        let (offset, bytes) = (range.offset, range.offset..range.end());
        let Some(selection) = &mut set.members[at].selection else {
            return Vec::new();
        };
        if !is_connected {
            selection.has.clear(&bytes);
            let regions = set.log.map.regions_of(offset, range.length);
            set.add_missing(at, regions);
            return Vec::new();
        }
        match self.op {
            OwnedOp::Write {
                data, durability, ..
            } => {
                let pieces = selection.pieces(self.disk, &bytes).into_iter();
                let piece = |piece: Range<u64>| OwnedOp::Write {
                    offset: piece.start,
                    data: data[(piece.start - offset) as usize..(piece.end - offset) as usize]
                        .to_vec(),
                    durability: *durability,
                };
                pieces.map(piece).collect()
            }
            // Zeroes cost nothing, and free what the replica has there.
            op => {
                selection.has.set(&bytes);
                vec![op.clone()]
            }
        }
    }
}
