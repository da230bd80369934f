//! Asking members: a change is asked of all that are to have it, a read of one.

use std::ops::Range;

use base::{BlockDevice, Completion, IoError, Op, Outcome, OwnedOp, ReadBuffer, Started, Token};

use super::member::State;
use super::{Kind, Replicate, Request, none_is_there};

impl Replicate {
    /// Whether a change may begin now: nothing is under way that it overlaps, every region
    /// of it is in flight in the file, and nobody has to catch up first.
    ///
    /// # Errors
    /// If it never may.
    pub(super) fn may_change(&mut self, offset: u64, length: u64) -> Result<bool, IoError> {
        let end = offset
            .checked_add(length)
            .filter(|end| *end <= self.disk_bytes);
        let Some(end) = end else {
            return Err(IoError::OutOfRange {
                offset,
                length,
                size: self.disk_bytes,
            });
        };
        let before = self.ranges.range(..end).next_back();
        let is_overlapped = before.is_some_and(|(_, other)| *other > offset);
        if is_overlapped || self.members.iter().any(|member| !member.queue.is_empty()) {
            return Ok(false);
        }
        let mut is_marked = true;
        for region in self.map.regions_of(offset, length) {
            self.map.in_flight.set(region);
            self.touched.set(region);
            self.covered.clear(region);
            is_marked &= self.is_marked(region);
        }
        if !is_marked {
            if let Some((why, _)) = &self.store_error {
                return Err(IoError::NoSpace(why.clone()));
            }
            self.changed(false);
        }
        Ok(is_marked)
    }

    /// Whether a member gets what is written to `regions`.
    pub(super) fn takes(&self, at: usize, regions: Range<usize>) -> bool {
        match self.members[at].state {
            State::InSync => true,
            State::Filling => {
                let being_filled = self.fill.as_ref().filter(|fill| fill.member == at);
                let lacks = |region| {
                    let is_copied = being_filled
                        .is_some_and(|fill| fill.region == region || fill.copied.has(region));
                    self.map.lacking[at].has(region) && !is_copied
                };
                // One that lacks some of it would lack all of it.
                !regions.clone().any(lacks)
            }
            State::Connecting(_) | State::Out => false,
        }
    }

    /// Asks all members that are to have it.
    pub(super) fn dispatch(
        &mut self,
        below: &mut dyn BlockDevice,
        token: Token,
        kind: Kind,
        op: &OwnedOp,
    ) -> Started {
        if !self.has_source() {
            // Nobody may acknowledge it. Whoever has all is connected to once more.
            return match self.gives_up {
                false => Started::Busy,
                true => Started::Failed(none_is_there()),
            };
        }
        if matches!(kind, Kind::Flush) && std::mem::take(&mut self.may_have_lost) {
            return Started::Failed(IoError::Unavailable(
                "the replica that alone had all was away, and may have lost what was not flushed"
                    .to_owned(),
            ));
        }
        self.has_asked = true;
        let now = self.now();
        let regions = match kind {
            Kind::Change { offset, length } => self.map.regions_of(offset, length),
            _ => 0..0,
        };
        // One part more than there are, until all have been asked.
        let id = self.requests.add(Request::new(Some(token), kind.clone()));
        if matches!(kind, Kind::Flush) && self.covering.is_none() {
            self.covering = Some(id);
        }
        let (mut parts, mut error, mut failed) = (0, None, Vec::new());
        let (mut is_begun, mut done_by) = (false, 0);
        for at in 0..self.members.len() {
            let pieces;
            let ops = if self.is_partial(at) {
                pieces = self.pieces(at, &kind, op);
                &pieces[..]
            } else if self.takes(at, regions.clone()) {
                std::slice::from_ref(op)
            } else {
                self.lacks_regions(at, regions.clone());
                continue;
            };
            let done = u32::from(!self.is_partial(at)) << at;
            for op in ops {
                match self.members[at].carry_out(below, (id, now), op) {
                    Started::Done => (is_begun, done_by) = (true, done_by | done),
                    Started::Pending => (is_begun, parts) = (true, parts + 1),
                    Started::Busy if !is_begun => {
                        self.withdraw(id);
                        return Started::Busy;
                    }
                    Started::Busy => {
                        self.members[at].queue.push_back((id, op.clone()));
                        parts += 1;
                    }
                    Started::Failed(
                        mistake @ (IoError::OutOfRange { .. }
                        | IoError::ReadOnly
                        | IoError::NotSupported),
                    ) if !is_begun => {
                        self.withdraw(id);
                        return Started::Failed(mistake);
                    }
                    Started::Failed(why) => {
                        is_begun = true;
                        failed.push((at, why.to_string()));
                        error = Some(why);
                        break;
                    }
                }
            }
        }
        let is_simple = failed.is_empty() && parts == 0 && self.is_done_by(done_by);
        if is_simple && self.needed <= self.stored && !matches!(kind, Kind::Flush) {
            self.withdraw(id);
            return Started::Done;
        }
        if let Kind::Change { offset, length } = kind
            && parts > 0
        {
            self.ranges.insert(offset, offset + length);
        }
        if let Some(request) = self.requests.get_mut(id) {
            request.parts += parts;
            request.done_by = done_by;
            request.error.clone_from(&error);
        }
        // Whatever ends meanwhile is told by the next poll.
        let mut completions = Vec::new();
        for (at, why) in failed {
            self.put_out(at, &why, &mut completions);
        }
        if parts == 0 && !self.is_done_by(done_by) {
            self.withdraw(id);
            self.ended.append(&mut completions);
            return Started::Failed(error.unwrap_or_else(none_is_there));
        }
        let is_over = self.requests.get_mut(id).is_some_and(|request| {
            request.parts -= 1;
            request.parts == 0
        });
        if is_over {
            self.end(id, &mut completions);
        }
        self.ended.append(&mut completions);
        Started::Pending
    }

    /// A request does not begin after all.
    pub(super) fn withdraw(&mut self, id: Token) {
        self.requests.take(id);
        self.covering.take_if(|covering| *covering == id);
    }

    /// Whether any member may be read.
    pub(super) fn has_source(&self) -> bool {
        (0..self.members.len()).any(|at| self.is_source(at))
    }

    /// What a partial replica is asked of a change: the pieces that it is to have.
    fn pieces(&mut self, at: usize, kind: &Kind, op: &OwnedOp) -> Vec<OwnedOp> {
        let Kind::Change { offset, length } = *kind else {
            return match self.members[at].state {
                State::InSync | State::Filling => vec![op.clone()],
                State::Connecting(_) | State::Out => Vec::new(),
            };
        };
        let range = offset..offset + length;
        let looking = self.looking.as_ref();
        let disk = looking.and_then(|looking| looking.follower.disk());
        let member = &mut self.members[at];
        let Some(choice) = &mut member.choice else {
            return Vec::new();
        };
        if !matches!(member.state, State::InSync | State::Filling) {
            choice.has.clear(&range);
            let regions = self.map.regions_of(offset, length);
            self.lacks_regions(at, regions);
            return Vec::new();
        }
        match op {
            OwnedOp::Write {
                data, durability, ..
            } => {
                let pieces = choice.pieces(disk, &range).into_iter();
                let piece = |piece: Range<u64>| OwnedOp::Write {
                    offset: piece.start,
                    data: data[(piece.start - offset) as usize..(piece.end - offset) as usize]
                        .to_vec(),
                    durability: *durability,
                };
                pieces.map(piece).collect()
            }
            // They cost nothing, and give up what is there.
            op => {
                choice.has.set(&range);
                vec![op.clone()]
            }
        }
    }

    /// The member that has the least to read, of those in sync that were not tried: another
    /// one each time, if they have the same.
    pub(super) fn choose(&self, tried: u32) -> Option<usize> {
        let count = self.members.len();
        let in_turn = (0..count).map(|step| (self.turn + step) % count);
        let may = |at: &usize| self.is_source(*at) && tried >> at & 1 == 0;
        in_turn.filter(may).min_by_key(|at| self.members[*at].bytes)
    }

    /// Reads from some member; `None` if it could not be asked anywhere now.
    pub(super) fn read_somewhere(
        &mut self,
        below: &mut dyn BlockDevice,
        id: Token,
        offset: u64,
        out: &mut ReadBuffer<'_>,
    ) -> Option<Started> {
        let (now, length) = (self.now(), out.len() as u64);
        self.turn = (self.turn + 1) % self.members.len();
        let mut tried = 0;
        while let Some(at) = self.choose(tried) {
            tried |= 1 << at;
            let op = Op::Read {
                offset,
                out: out.reborrow(),
            };
            let started = self.members[at].begin(below, (id, now), op);
            match started {
                Started::Busy => {}
                Started::Failed(error) => {
                    if !self.is_only_source(at) {
                        self.lacks(at, offset, length);
                    }
                    let mut completions = Vec::new();
                    self.put_out(at, &error.to_string(), &mut completions);
                    self.ended.append(&mut completions);
                }
                started => return Some(started),
            }
        }
        None
    }

    /// What a member could not read it is given anew.
    pub(super) fn lacks(&mut self, at: usize, offset: u64, length: u64) {
        let regions = self.map.regions_of(offset, length);
        self.lacks_regions(at, regions);
    }

    /// A member lacks what was written there, also if it was copied a moment ago.
    pub(super) fn lacks_regions(&mut self, at: usize, regions: Range<usize>) {
        if let Some(fill) = self.fill.as_mut().filter(|fill| fill.member == at) {
            fill.has_missed |= regions.contains(&fill.region);
            regions.clone().for_each(|region| fill.copied.clear(region));
        }
        for region in regions {
            self.map.lacking[at].set(region);
        }
    }

    /// Tries reads elsewhere that failed somewhere.
    pub(super) fn read_again(
        &mut self,
        below: &mut dyn BlockDevice,
        completions: &mut Vec<Completion>,
    ) {
        for id in std::mem::take(&mut self.again) {
            let Some(Request { kind, .. }) = self.requests.get_mut(id) else {
                continue;
            };
            let Kind::Read { offset, length } = *kind else {
                continue;
            };
            let mut out = vec![0; length];
            let is_waited_for = self.has_source() || !self.gives_up;
            let started = self.read_somewhere(below, id, offset, &mut out.as_mut_slice().into());
            let Some(request) = self.requests.get_mut(id) else {
                continue;
            };
            match started {
                Some(Started::Done) => {
                    (request.data, request.is_done) = (Some(out), true);
                    self.end(id, completions);
                }
                Some(_) => request.parts += 1,
                None if is_waited_for => self.again.push(id),
                None => self.end(id, completions),
            }
        }
    }

    /// What could not begin begins, in order.
    pub(super) fn empty_queues(
        &mut self,
        below: &mut dyn BlockDevice,
        completions: &mut Vec<Completion>,
    ) {
        let now = self.now();
        for at in 0..self.members.len() {
            while let Some((id, op)) = self.members[at].queue.pop_front() {
                self.has_asked = true;
                match self.members[at].carry_out(below, (id, now), &op) {
                    Started::Done => self.part_ended(id, at, Ok(Outcome::Done), completions),
                    Started::Pending => {}
                    Started::Busy => {
                        self.members[at].queue.push_front((id, op));
                        break;
                    }
                    Started::Failed(error) => {
                        self.part_ended(id, at, Err(error.clone()), completions);
                        self.put_out(at, &error.to_string(), completions);
                    }
                }
            }
        }
    }
}
