//! The answers of members, and excluding members.

use std::time::Duration;

use base::{BlockDevice, Completion, IoError, Outcome, Token};

use super::member::{MemberState, VOLUME};
use super::no_source;
use super::region_log::Acknowledge;
use super::replica_set::ReplicaSet;
use super::requests::{RequestKind, Requester};
use super::timeouts::PAUSE_MAX;
use crate::remote::LinkState;

impl ReplicaSet {
    /// A part of a request at a member has ended.
    pub fn part_ended(&mut self, id: Token, at: usize, result: Result<Outcome, IoError>) {
        let Some(request) = self.requests.pending.get_mut(id) else {
            return;
        };
        // What only a partial replica has is not carried out yet.
        let counts = !self.members.is_partial(at);
        match result {
            Ok(Outcome::Data(data)) => {
                request.data = Some(data);
                request.is_done = true;
            }
            Ok(_) if matches!(request.kind, RequestKind::Rebuild) => request.is_done = true,
            Ok(_) => request.done_by |= u32::from(counts) << at,
            Err(error) => request.error = Some(error),
        }
        request.parts -= 1;
        if request.parts > 0 {
            return;
        }
        let is_unavailable = at != VOLUME && matches!(request.error, Some(IoError::Unavailable(_)));
        let is_unread = matches!(request.kind, RequestKind::Read(_)) && !request.is_done;
        if matches!(request.kind, RequestKind::Rebuild) {
            self.rebuild_step_ended(id);
        } else if is_unread && (is_unavailable || !self.is_only_complete(at)) {
            self.requests.retries.push(id);
        } else {
            self.end(id);
        }
    }

    /// All parts of a request have ended: it is answered, now or when the file has the map.
    pub fn end(&mut self, id: Token) {
        let Some(request) = self.requests.pending.take(id) else {
            return;
        };
        let is_done = request.is_carried_out(&self.members, &self.log.map);
        match request.kind {
            RequestKind::Change(range) => self.requests.locks.unlock(range.offset),
            RequestKind::Flush if self.requests.covering == Some(id) => {
                self.requests.covering = None;
                if is_done {
                    self.log.flushed(self.now());
                }
            }
            _ => {}
        }
        let is_read = matches!(request.kind, RequestKind::Read(_));
        let result = match (is_done, request.error) {
            (true, _) => Ok(request.data.map_or(Outcome::Done, Outcome::Data)),
            (false, error) => Err(error.unwrap_or_else(no_source)),
        };
        match request.requester {
            Requester::Above(token) => {
                let completion = Completion { token, result };
                match is_read || completion.result.is_err() || self.log.may_acknowledge() {
                    true => self.requests.ended.push(completion),
                    false => self.requests.unstored.push(completion),
                }
            }
            Requester::Tracker(token) => {
                if let Some(token) = token {
                    self.requests.follower_reads.push((token, result));
                }
            }
            Requester::Rebuild => {}
        }
    }

    /// Takes the answers of all members.
    pub fn collect(&mut self, below: &mut dyn BlockDevice) {
        let mut answers = Vec::new();
        for at in 0..self.members.len() {
            let member = &mut self.members[at];
            match (&mut member.remote, &member.location) {
                (Some(remote), _) => remote.poll(&mut answers),
                (None, None) => below.poll(&mut answers),
                (None, Some(_)) => {}
            }
            for answer in answers.drain(..) {
                if at != VOLUME && self.members[at].state == MemberState::Excluded {
                    // It was excluded in this loop, and its answers were lost with its connection.
                    break;
                }
                self.take_answer(at, answer);
            }
        }
    }

    fn take_answer(&mut self, at: usize, answer: Completion) {
        let Completion { token, result } = answer;
        let Some(part) = self.members[at].parts.take(token) else {
            debug_assert!(false, "no request to the member has the token {token}");
            return;
        };
        self.members[at].pending_bytes -= part.bytes;
        let Some(id) = part.request else {
            return;
        };
        let reason = result.as_ref().err().map(IoError::to_string);
        if reason.is_none() {
            self.note_return(at);
        }
        if reason.is_some()
            && let Some(request) = self.requests.pending.get_mut(id)
            && let RequestKind::Read(range) = request.kind
        {
            self.add_unreadable(at, range);
        }
        // This part ends here, and not with those that the member abandons.
        self.part_ended(id, at, result);
        if let Some(reason) = reason {
            self.exclude(at, &reason);
        }
    }

    /// Excludes members that do not answer, or whose connection is broken.
    pub fn check_members(&mut self, now: Duration) {
        for at in 0..self.members.len() {
            let stall = self.members.stall_of(at);
            let oldest = self.members[at].oldest_part();
            let has_stalled = oldest.is_some_and(|oldest| now.saturating_sub(oldest) >= stall);
            // The only complete member is waited for.
            if has_stalled && !self.is_only_complete(at) {
                let reason = format!("it did not answer for {} ms", stall.as_millis());
                self.exclude(at, &reason);
                continue;
            }
            let remote = self.members[at].remote.as_ref();
            if let Some(LinkState::Broken(reason)) = remote.map(|remote| remote.link_state()) {
                self.exclude(at, &reason);
            }
        }
    }

    /// Excludes a member: it gets nothing any more, and its pending requests count as failed.
    pub fn exclude(&mut self, at: usize, reason: &str) {
        let now = self.now();
        let is_only = self.is_only_complete(at);
        let member = &mut self.members[at];
        if member.state == MemberState::Excluded || is_only && at == VOLUME {
            // No other member has its content, so its requesters get its errors.
            return;
        }
        member.state = MemberState::Excluded;
        member.retry_at = now + member.pause;
        member.pause = (member.pause * 2).min(PAUSE_MAX);
        let (name, label) = (member.name.clone(), member.label());
        member.reports.pending_return = None;
        let requests = member.abandon();
        let rebuild = self.rebuild.take_if(|rebuild| rebuild.member == at);
        if let Some(offset) = rebuild.and_then(|rebuild| rebuild.locked()) {
            self.requests.locks.unlock(offset);
        }
        if is_only {
            // Its server may have lost what was not flushed, and no other member has it.
            self.may_have_lost |= self.log.has_unflushed() || self.requests.covering.is_some();
            let text = format!("requests wait for {label}, the only complete one: {reason}");
            self.note_trouble(at, reason, text);
        } else {
            self.note_trouble(at, reason, format!("{label} is excluded: {reason}"));
            self.log.map.is_excluded[at] = true;
            // It may lose acknowledged writes that are not flushed, and pending ones.
            let in_flight = self.log.map.in_flight.clone();
            self.log.map.add_missing(at, &in_flight);
        }
        self.members[at].forget_missing_blocks(at, &self.log.map);
        self.log_changed(Acknowledge::OnceStored);
        let error = IoError::Unavailable(format!("replica {name}: {reason}"));
        for request in requests {
            self.part_ended(request, at, Err(error.clone()));
        }
    }

    /// Starts to connect to a replica.
    pub fn connect(&mut self, at: usize, now: Duration) {
        let member = &mut self.members[at];
        let Some(location) = &member.location else {
            return;
        };
        match self.context.attachment.targets.open(location) {
            Ok(remote) => {
                member.remote = Some(remote);
                member.state = MemberState::Connecting(now);
            }
            Err(reason) => {
                member.retry_at = now + member.pause;
                let text = format!("{} is excluded: {reason}", member.label());
                if member.reports.trouble.as_ref() != Some(&reason) {
                    member.reports.trouble = None;
                    self.note_trouble(at, &reason, text);
                }
            }
        }
    }

    /// Reports why a member cannot be used, unless that was reported since it was last used.
    fn note_trouble(&mut self, at: usize, reason: &str, text: String) {
        let reports = &mut self.members[at].reports;
        if reports.trouble.is_none() {
            reports.trouble = Some(reason.to_owned());
            self.note(text);
        }
    }

    /// Reports that a member is used again, if that has not been reported. It has carried out a
    /// request.
    pub fn note_return(&mut self, at: usize) {
        let reports = &mut self.members[at].reports;
        let Some(text) = reports.pending_return.take() else {
            return;
        };
        // An attempt to rebuild that begins where the last one did is no change.
        if reports.last_return.as_ref() != Some(&text) {
            reports.trouble = None;
            reports.last_return = Some(text.clone());
            self.note(text);
        }
    }
}
