//! Starting requests at members: a change at all that should have it, a read at one.

use std::ops::Range;

use base::{BlockDevice, ByteRange, IoError, Op, Outcome, OwnedOp, ReadBuffer, Started, Token};

use super::filter::Replicate;
use super::member::{MemberState, PartOf};
use super::no_source;
use super::requests::{Request, RequestKind, Requester};

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

impl Replicate {
    /// Whether a change may begin now: it overlaps no pending one, all its regions are in flight
    /// in the file, and no member has to catch up first.
    ///
    /// # Errors
    /// If it can never begin, or the file cannot be written.
    pub(super) fn may_change(&mut self, range: ByteRange) -> Result<bool, IoError> {
        range.check(self.disk_bytes)?;
        if self.requests.locks.overlaps(range) || self.members.have_queues() {
            return Ok(false);
        }
        let is_marked = self.log.mark(range)?;
        if !is_marked {
            self.log_changed(false);
        }
        Ok(is_marked)
    }

    /// Whether a member gets a change of `regions`. A rebuilding member gets a change only if it
    /// is missing none of the regions; otherwise it is missing all of them afterwards.
    fn gets_change(&self, at: usize, regions: Range<usize>) -> bool {
        match self.members[at].state {
            MemberState::InSync => true,
            MemberState::Rebuilding => {
                let rebuild = self.rebuild.as_ref().filter(|one| one.member == at);
                let missing = &self.log.map.missing[at];
                let is_missing = |region| {
                    missing.has(region) && !rebuild.is_some_and(|one| one.has_copied(region))
                };
                !regions.clone().any(is_missing)
            }
            MemberState::Connecting(_) | MemberState::Out => false,
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

    /// Starts a change or a flush at all members that should have it.
    pub(super) fn dispatch(
        &mut self,
        below: &mut dyn BlockDevice,
        token: Token,
        kind: RequestKind,
        op: &OwnedOp,
    ) -> Started {
        if let Some(answer) = self.refusal(kind) {
            return answer;
        }
        self.must_commit = true;
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
            regions,
            pending: 0,
            done_by: 0,
            has_begun: false,
            failed: Vec::new(),
            error: None,
        };
        for at in 0..self.members.len() {
            if let Err(answer) = self.start_at(below, at, &mut dispatch) {
                self.requests.withdraw(id);
                return answer;
            }
        }
        self.finish_dispatch(dispatch)
    }

    /// Starts a change or a flush at one member. An error is the answer to the whole request,
    /// which no member has started.
    fn start_at(
        &mut self,
        below: &mut dyn BlockDevice,
        at: usize,
        dispatch: &mut Dispatch<'_>,
    ) -> Result<(), Started> {
        let is_partial = self.members.is_partial(at);
        let pieces;
        let ops = if is_partial {
            pieces = self.pieces(at, dispatch.kind, dispatch.op);
            &pieces[..]
        } else if self.gets_change(at, dispatch.regions.clone()) {
            std::slice::from_ref(dispatch.op)
        } else {
            self.add_missing(at, dispatch.regions.clone());
            return Ok(());
        };
        for op in ops {
            let member = &mut self.members[at];
            match member.start_change(below, dispatch.of, op) {
                Started::Done => dispatch.done_by |= u32::from(!is_partial) << at,
                Started::Pending => dispatch.pending += 1,
                Started::Busy if !dispatch.has_begun => return Err(Started::Busy),
                Started::Busy => {
                    member.queue.push_back((dispatch.of.request, op.clone()));
                    dispatch.pending += 1;
                }
                // The request itself is wrong.
                Started::Failed(
                    error
                    @ (IoError::OutOfRange { .. } | IoError::ReadOnly | IoError::NotSupported),
                ) if !dispatch.has_begun => return Err(Started::Failed(error)),
                Started::Failed(error) => {
                    dispatch.has_begun = true;
                    let reason = error.to_string();
                    dispatch.failed.push(FailedMember { at, reason });
                    dispatch.error = Some(error);
                    break;
                }
            }
            dispatch.has_begun = true;
        }
        Ok(())
    }

    /// All members have started it.
    fn finish_dispatch(&mut self, dispatch: Dispatch<'_>) -> Started {
        let id = dispatch.of.request;
        let (pending, done_by) = (dispatch.pending, dispatch.done_by);
        let is_done = pending == 0 && self.members.may_acknowledge(done_by, &self.log.map);
        let is_flush = matches!(dispatch.kind, RequestKind::Flush);
        if is_done && dispatch.failed.is_empty() && self.log.may_acknowledge() && !is_flush {
            self.requests.withdraw(id);
            return Started::Done;
        }
        if let RequestKind::Change(range) = dispatch.kind
            && pending > 0
        {
            self.requests.locks.lock(range);
        }
        if let Some(request) = self.requests.pending.get_mut(id) {
            request.parts += pending;
            request.done_by = done_by;
            request.error.clone_from(&dispatch.error);
        }
        for FailedMember { at, reason } in dispatch.failed {
            self.put_out(at, &reason);
        }
        if pending == 0 && !self.members.may_acknowledge(done_by, &self.log.map) {
            self.requests.withdraw(id);
            return Started::Failed(dispatch.error.unwrap_or_else(no_source));
        }
        let has_ended = self.requests.pending.get_mut(id).is_some_and(|request| {
            request.parts -= 1;
            request.parts == 0
        });
        if has_ended {
            self.end(id);
        }
        Started::Pending
    }

    /// The parts of a change that a partial replica gets.
    fn pieces(&mut self, at: usize, kind: RequestKind, op: &OwnedOp) -> Vec<OwnedOp> {
        let state = self.members[at].state;
        let is_connected = matches!(state, MemberState::InSync | MemberState::Rebuilding);
        let RequestKind::Change(range) = kind else {
            return match is_connected {
                true => vec![op.clone()],
                false => Vec::new(),
            };
        };
        let (offset, bytes) = (range.offset, range.offset..range.end());
        let tracker = self.tracker.as_ref();
        let disk = tracker.and_then(|tracker| tracker.follower.disk());
        let Some(selection) = &mut self.members[at].selection else {
            return Vec::new();
        };
        if !is_connected {
            selection.has.clear(&bytes);
            let regions = self.log.map.regions_of(offset, range.length);
            self.add_missing(at, regions);
            return Vec::new();
        }
        match op {
            OwnedOp::Write {
                data, durability, ..
            } => {
                let pieces = selection.pieces(disk, &bytes).into_iter();
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

    /// Starts a read at a source. `None` if no source can take it now.
    pub(super) fn read_from_source(
        &mut self,
        below: &mut dyn BlockDevice,
        id: Token,
        offset: u64,
        out: &mut ReadBuffer<'_>,
    ) -> Option<Started> {
        let (now, length) = (self.now(), out.len() as u64);
        self.members.next_turn();
        let mut tried = 0;
        while let Some(at) = self.members.choose_source(tried) {
            tried |= 1 << at;
            let op = Op::Read {
                offset,
                out: out.reborrow(),
            };
            match self.members[at].start(below, PartOf { request: id, now }, op) {
                Started::Busy => {}
                Started::Failed(error) => {
                    self.read_failed(at, ByteRange::new(offset, length), &error)
                }
                started => return Some(started),
            }
        }
        None
    }

    /// A member could not be read: it is put out, and what it could not read is written to it
    /// again.
    fn read_failed(&mut self, at: usize, range: ByteRange, error: &IoError) {
        self.add_unreadable(at, range);
        self.put_out(at, &error.to_string());
    }

    /// A member is missing what it could not read, unless it is the only complete one.
    pub(super) fn add_unreadable(&mut self, at: usize, range: ByteRange) {
        if !self.is_only_complete(at) {
            let regions = self.log.map.regions_of(range.offset, range.length);
            self.add_missing(at, regions);
        }
    }

    /// A member is missing regions, even if they were just copied.
    pub(super) fn add_missing(&mut self, at: usize, regions: Range<usize>) {
        if let Some(rebuild) = self.rebuild.as_mut().filter(|one| one.member == at) {
            rebuild.discard(regions.clone());
        }
        for region in regions {
            self.log.map.missing[at].set(region);
        }
    }

    /// Tries failed reads at another source.
    pub(super) fn retry_reads(&mut self, below: &mut dyn BlockDevice) {
        for id in std::mem::take(&mut self.requests.retries) {
            let request = self.requests.pending.get_mut(id);
            let Some(RequestKind::Read(range)) = request.map(|request| request.kind) else {
                continue;
            };
            let mut out = vec![0; range.length as usize];
            let may_wait = self.members.has_source() || !self.gives_up;
            let buffer = &mut out.as_mut_slice().into();
            let started = self.read_from_source(below, id, range.offset, buffer);
            let Some(request) = self.requests.pending.get_mut(id) else {
                continue;
            };
            match started {
                Some(Started::Done) => {
                    (request.data, request.is_done) = (Some(out), true);
                    self.end(id);
                }
                Some(_) => request.parts += 1,
                None if may_wait => self.requests.retries.push(id),
                None => self.end(id),
            }
        }
    }

    /// Starts queued changes and flushes, in order.
    pub(super) fn start_queued(&mut self, below: &mut dyn BlockDevice) {
        let now = self.now();
        for at in 0..self.members.len() {
            while let Some((request, op)) = self.members[at].queue.pop_front() {
                self.must_commit = true;
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
                        self.put_out(at, &reason);
                    }
                }
            }
        }
    }
}
