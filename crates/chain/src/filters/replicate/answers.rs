//! What members answer, and who is put out because of that.

use std::time::Duration;

use base::{BlockDevice, Completion, IoError, Outcome, Token};

use super::member::{PAUSE_MAX, State};
use super::{Kind, Replicate, Request, VOLUME, VOLUME_STALL_MIN, none_is_there};
use crate::remote::LinkState;

impl Replicate {
    /// A part of a request, of which a member was asked, has ended.
    pub(super) fn part_ended(
        &mut self,
        id: Token,
        at: usize,
        result: Result<Outcome, IoError>,
        completions: &mut Vec<Completion>,
    ) {
        let is_partial = self.is_partial(at);
        let Some(request) = self.requests.get_mut(id) else {
            return;
        };
        // What one has that is not to have all is not carried out yet.
        let counts = !is_partial;
        match result {
            Ok(Outcome::Data(data)) => {
                request.data = Some(data);
                request.is_done = true;
            }
            Ok(_) if matches!(request.kind, Kind::Fill) => request.is_done = true,
            Ok(_) => request.done_by |= u32::from(counts) << at,
            Err(error) => request.error = Some(error),
        }
        request.parts -= 1;
        if request.parts > 0 {
            return;
        }
        let is_away = at != VOLUME && matches!(request.error, Some(IoError::Unavailable(_)));
        let is_unread = matches!(request.kind, Kind::Read { .. }) && !request.is_done;
        if matches!(request.kind, Kind::Fill) {
            self.filled(id, completions);
        } else if is_unread && (is_away || !self.is_only_source(at)) {
            self.again.push(id);
        } else {
            self.end(id, completions);
        }
    }

    /// Whether a member has all that was acknowledged, also if it cannot be asked now.
    pub(super) fn has_all(&self, at: usize) -> bool {
        !self.map.is_out[at] && !self.is_partial(at)
    }

    /// Whether nobody else has all.
    pub(super) fn is_only_source(&self, at: usize) -> bool {
        let mut others = (0..self.members.len()).filter(|other| *other != at);
        self.has_all(at) && !others.any(|other| self.has_all(other))
    }

    /// Whether a change or a flush that these members have may be acknowledged: one of them
    /// has all. What those have that are being filled, or were put out meanwhile, is
    /// overwritten.
    pub(super) fn is_done_by(&self, done_by: u32) -> bool {
        let mut members = 0..self.members.len();
        members.any(|at| done_by >> at & 1 == 1 && self.has_all(at))
    }

    fn is_carried_out(&self, request: &Request) -> bool {
        match request.kind {
            Kind::Change { .. } | Kind::Flush => self.is_done_by(request.done_by),
            Kind::Read { .. } | Kind::Fill => request.is_done,
        }
    }

    /// A member that answers nothing for so long is out.
    pub(super) fn stalls_after(&self, at: usize) -> Duration {
        match at {
            VOLUME => self.stall.max(VOLUME_STALL_MIN),
            _ => self.stall,
        }
    }

    /// All parts of a request have ended.
    pub(super) fn end(&mut self, id: Token, completions: &mut Vec<Completion>) {
        let Some(request) = self.requests.take(id) else {
            return;
        };
        let is_done = self.is_carried_out(&request);
        match request.kind {
            Kind::Change { offset, .. } => drop(self.ranges.remove(&offset)),
            Kind::Flush if self.covering == Some(id) => {
                self.covering = None;
                if is_done {
                    self.flushed();
                }
            }
            _ => {}
        }
        let Some(token) = request.token else {
            if let (Some(own), Some(looking)) = (request.look, &mut self.looking) {
                let read = request.data.filter(|_| is_done);
                let failed = || request.error.unwrap_or_else(none_is_there);
                looking.was_read(own, read.map(Outcome::Data).ok_or_else(failed));
            }
            return;
        };
        let result = match (is_done, request.error) {
            (true, _) => Ok(request.data.map_or(Outcome::Done, Outcome::Data)),
            (false, error) => Err(error.unwrap_or_else(none_is_there)),
        };
        let is_read = matches!(request.kind, Kind::Read { .. });
        match is_read || result.is_err() || self.needed <= self.stored {
            true => completions.push(Completion { token, result }),
            false => self.late.push((token, result)),
        }
    }

    /// What members have answered.
    pub(super) fn collect(
        &mut self,
        below: &mut dyn BlockDevice,
        completions: &mut Vec<Completion>,
    ) {
        let mut answers = Vec::new();
        for at in 0..self.members.len() {
            let member = &mut self.members[at];
            match (&mut member.remote, &member.place) {
                (Some(remote), _) => remote.poll(&mut answers),
                (None, None) => below.poll(&mut answers),
                (None, Some(_)) => {}
            }
            for Completion { token, result } in answers.drain(..) {
                if at != VOLUME && self.members[at].state == State::Out {
                    // Its answers went with its connection, when it was put out a moment ago.
                    break;
                }
                let Some(part) = self.members[at].tokens.take(token) else {
                    debug_assert!(false, "nobody asked a member for {token}");
                    continue;
                };
                self.members[at].bytes -= part.bytes;
                let Some(request) = part.request else {
                    continue;
                };
                if let Err(error) = &result {
                    let asked = self
                        .requests
                        .get_mut(request)
                        .map(|request| request.kind.clone());
                    if let Some(Kind::Read { offset, length }) = asked
                        && !self.is_only_source(at)
                    {
                        self.lacks(at, offset, length as u64);
                    }
                    // This part is counted here, and not by what is abandoned.
                    let why = error.to_string();
                    self.part_ended(request, at, result, completions);
                    self.put_out(at, &why, completions);
                } else {
                    self.part_ended(request, at, result, completions);
                }
            }
        }
    }

    /// Whoever does not answer is out.
    pub(super) fn look_at_members(&mut self, now: Duration, completions: &mut Vec<Completion>) {
        for at in 0..self.members.len() {
            let member = &self.members[at];
            // Whoever alone has all is waited for.
            let stall = self.stalls_after(at);
            if member.is_stalled(now, stall) && !self.is_only_source(at) {
                let why = format!("it has answered nothing for {} ms", stall.as_millis());
                self.put_out(at, &why, completions);
                continue;
            }
            let link = member.remote.as_ref().map(|remote| remote.link_state());
            if let Some(LinkState::Broken(why)) = link {
                self.put_out(at, &why, completions);
            }
        }
    }

    /// A member gets nothing any more. What it was asked counts as failed.
    pub(super) fn put_out(&mut self, at: usize, why: &str, completions: &mut Vec<Completion>) {
        let now = self.now();
        let is_only = self.is_only_source(at);
        let member = &mut self.members[at];
        if matches!(member.state, State::Out) || is_only && at == VOLUME {
            // Nobody has what it has: whoever asks it is told what is wrong.
            return;
        }
        member.state = State::Out;
        member.again = now + member.pause;
        member.pause = (member.pause * 2).min(PAUSE_MAX);
        let name = member.name.clone();
        let of = member.abandon();
        if let Some(fill) = self.fill.take_if(|fill| fill.member == at)
            && let Some(held) = fill.held()
        {
            self.ranges.remove(&held);
        }
        if is_only {
            // Its server may have lost what it had not flushed, and there is nobody else.
            self.may_have_lost |= self.touched.count() > 0 || self.covering.is_some();
            self.note(format!("{name}, which alone has all, is waited for: {why}"));
        } else {
            if !self.map.is_out[at] {
                self.note(format!("{name} is out: {why}"));
            }
            self.map.is_out[at] = true;
            // What it has acknowledged and not flushed may be lost there, and what is under
            // way; of one that alone has all it is what there is.
            let in_flight = self.map.in_flight.clone();
            self.map.lack(at, &in_flight);
        }
        if let Some(choice) = &mut self.members[at].choice {
            // Nor is it known what it has of what it was given elsewhere.
            let lacking = &self.map.lacking[at];
            for region in (0..self.map.regions).filter(|region| lacking.has(*region)) {
                let begin = region as u64 * self.map.region_bytes;
                choice.has.clear(&(begin..begin + self.map.region_bytes));
            }
        }
        self.changed(true);
        let error = IoError::Unavailable(format!("replica {name}: {why}"));
        for request in of {
            self.part_ended(request, at, Err(error.clone()), completions);
        }
    }
}
