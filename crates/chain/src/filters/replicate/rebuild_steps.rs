//! The steps of a rebuild: excluded members are connected to again, and get what they are missing,
//! piece by piece ([`Rebuild`]).

use std::time::Duration;

use base::{BlockDevice, Durability, OwnedOp, Started, Token};

use super::member::{MemberState, PartOf, Reports, VOLUME};
use super::rebuild::{Rebuild, Step, WINDOWS_MAX};
use super::region_log::Acknowledge;
use super::replica_set::ReplicaSet;
use super::selection::KnownFiles;
use super::timeouts::{CONNECT_WITHIN, PAUSE_MIN};
use crate::follow::Disk;

/// What a step of a rebuild leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// The next step may be taken at once.
    Continue,
    Wait,
}

impl ReplicaSet {
    /// Tries excluded members again, and starts a rebuild if one is connected.
    pub fn reconnect(&mut self, now: Duration, files: KnownFiles<'_>) {
        if self.is_quiesced() {
            return;
        }
        for at in 0..self.members.len() {
            match self.members[at].state {
                MemberState::Excluded if now >= self.members[at].retry_at => {
                    if at != VOLUME {
                        self.connect(at, now);
                    } else if self.members[at].parts.is_empty() {
                        self.members[at].state = MemberState::Rebuilding;
                    }
                }
                MemberState::Connecting(since) => self.check_connecting(at, since, now),
                _ => {}
            }
        }
        if self.rebuild.is_none()
            && let Some(member) = self.next_to_rebuild(files)
        {
            self.rebuild = Some(Rebuild::new(member, &self.log.map));
        }
    }

    /// A replica is being connected to since `since`.
    fn check_connecting(&mut self, at: usize, since: Duration, now: Duration) {
        let member = &self.members[at];
        match member.check_connection(self.disk_bytes) {
            Ok(()) if self.members.is_complete(at, &self.log.map) => self.source_returned(at),
            Ok(()) => {
                let (missing, of) = (self.log.map.missing[at].count(), self.log.map.regions);
                let of_what = match self.members.is_partial(at) {
                    true => " of its files",
                    false => "",
                };
                let text = format!(
                    "{} is rebuilding: {missing} of {of} regions{of_what} are missing",
                    member.label()
                );
                self.members[at].reports.pending_return = Some(text);
                self.members[at].state = MemberState::Rebuilding;
            }
            Err(reason) => {
                let is_late = now.saturating_sub(since) >= CONNECT_WITHIN;
                if is_late || !member.is_connecting() {
                    self.exclude(at, &reason);
                }
            }
        }
    }

    /// The only complete member is available again. It may have lost what was not flushed. Its
    /// content counts, and the others may differ where that was.
    fn source_returned(&mut self, at: usize) {
        self.members[at].state = MemberState::InSync;
        self.members[at].pause = PAUSE_MIN;
        self.log.map.missing[at].clear_all();
        let in_flight = self.log.map.in_flight.clone();
        let regions = 0..self.log.map.regions;
        let in_flight: Vec<usize> = regions.filter(|region| in_flight.has(*region)).collect();
        for other in (0..self.members.len()).filter(|other| *other != at) {
            for region in &in_flight {
                self.add_missing(other, *region..region + 1);
            }
        }
        self.log_changed(Acknowledge::OnceStored);
        let text = format!("{} is available again", self.members[at].label());
        let reports = &mut self.members[at].reports;
        reports.pending_return = Some(text);
        reports.last_return = None;
    }

    /// The member to rebuild: one that is not in sync, or a partial one that should have more.
    fn next_to_rebuild(&self, files: KnownFiles<'_>) -> Option<usize> {
        let mut members = 0..self.members.len();
        members.find(|at| match self.members[*at].state {
            MemberState::Rebuilding => self.members.is_certain(*at, files),
            MemberState::InSync if self.members.is_partial(*at) => {
                self.log.map.missing[*at].count() > 0 && self.members.is_certain(*at, files)
            }
            _ => false,
        })
    }

    /// Takes all steps of the rebuild that wait for nothing. `files` says what partial replicas
    /// should have.
    pub fn advance_rebuild(&mut self, below: &mut dyn BlockDevice, files: KnownFiles<'_>) {
        if let Some(rebuild) = &mut self.rebuild {
            rebuild.windows = 0;
        }
        while self.take_step(below, files) == Progress::Continue {}
    }

    fn take_step(&mut self, below: &mut dyn BlockDevice, files: KnownFiles<'_>) -> Progress {
        let rebuild = self.rebuild.as_mut();
        let Some(rebuild) = rebuild.filter(|rebuild| rebuild.is_waiting()) else {
            return Progress::Wait;
        };
        let member = rebuild.member;
        match std::mem::replace(&mut rebuild.step, Step::Next) {
            Step::Next | Step::Flush if !self.members.is_certain(member, files) => {
                // What it should have has to be found out first.
                self.rebuild = None;
                Progress::Wait
            }
            Step::Next if self.is_quiesced() => Progress::Wait,
            Step::Next => self.read_piece(below, files.disk),
            Step::Read { data } => self.write_piece(below, data),
            Step::Flush => {
                self.set_step(Step::Flush);
                if !self.is_quiesced() {
                    self.flush_rebuilt(below, member);
                }
                Progress::Wait
            }
            step => {
                self.set_step(step);
                Progress::Wait
            }
        }
    }

    fn set_step(&mut self, step: Step) {
        if let Some(rebuild) = &mut self.rebuild {
            rebuild.step = step;
        }
    }

    /// Locks the next piece and starts to read it.
    fn read_piece(&mut self, below: &mut dyn BlockDevice, disk: Option<&Disk>) -> Progress {
        let Some(rebuild) = &mut self.rebuild else {
            return Progress::Wait;
        };
        let (region, at) = (rebuild.region, rebuild.at);
        let end = self.log.map.range_of(region).end;
        if at >= end {
            rebuild.finish_region(&self.log.map, region);
            return Progress::Continue;
        }
        let selection = self.members[rebuild.member].selection.as_ref();
        let Some(piece) = rebuild.next_piece(selection, disk, at..end) else {
            return match rebuild.windows < WINDOWS_MAX {
                true => Progress::Continue,
                false => Progress::Wait,
            };
        };
        if self.requests.locks.overlaps(piece) {
            return Progress::Wait;
        }
        let id = self.requests.add_rebuild_step();
        let length = piece.length;
        let mut data = vec![0; length as usize];
        let buffer = &mut data.as_mut_slice().into();
        match self.read_from_source(below, id, piece.offset, buffer) {
            Some(Started::Done) => {
                self.requests.withdraw(id);
                self.requests.locks.lock(piece);
                self.set_step(Step::Read { data });
                Progress::Continue
            }
            Some(_) => {
                self.requests.locks.lock(piece);
                self.set_step(Step::Reading { id, length });
                Progress::Wait
            }
            None => {
                self.requests.withdraw(id);
                Progress::Wait
            }
        }
    }

    /// Starts to write a piece that was read.
    fn write_piece(&mut self, below: &mut dyn BlockDevice, data: Vec<u8>) -> Progress {
        let Some(rebuild) = &self.rebuild else {
            return Progress::Wait;
        };
        let (member, at) = (rebuild.member, rebuild.at);
        let length = data.len() as u64;
        let op = OwnedOp::Write {
            offset: at,
            data,
            durability: Durability::Volatile,
        };
        let (id, started) = self.start_step(below, member, &op);
        match started {
            Started::Done => {
                self.piece_written(length);
                return Progress::Continue;
            }
            Started::Pending => self.set_step(Step::Writing { id, length }),
            Started::Busy => {
                if let OwnedOp::Write { data, .. } = op {
                    self.set_step(Step::Read { data });
                }
            }
            Started::Failed(error) => {
                self.requests.locks.unlock(at);
                self.exclude(member, &error.to_string());
            }
        }
        Progress::Wait
    }

    /// Starts a write or a flush at the member.
    fn start_step(
        &mut self,
        below: &mut dyn BlockDevice,
        member: usize,
        op: &OwnedOp,
    ) -> (Token, Started) {
        let (id, now) = (self.requests.add_rebuild_step(), self.now());
        self.must_end_batch = true;
        let of = PartOf { request: id, now };
        let started = self.members[member].start_change(below, of, op);
        if started != Started::Pending {
            self.requests.withdraw(id);
        }
        (id, started)
    }

    /// The member has the piece.
    fn piece_written(&mut self, length: u64) {
        if let Some(member) = self.rebuild.as_ref().map(|rebuild| rebuild.member) {
            self.note_return(member);
        }
        if let Some(rebuild) = &mut self.rebuild {
            let at = rebuild.piece_written(&mut self.requests.locks, length);
            if let Some(selection) = &mut self.members[rebuild.member].selection {
                selection.has.set(&(at..at + length));
            }
        }
    }

    /// Starts the flush after everything was copied.
    fn flush_rebuilt(&mut self, below: &mut dyn BlockDevice, member: usize) {
        let (id, started) = self.start_step(below, member, &OwnedOp::Flush);
        match started {
            Started::Done => self.rebuilt(member),
            Started::Pending => self.set_step(Step::Flushing { id }),
            Started::Busy => {}
            Started::Failed(error) => self.exclude(member, &error.to_string()),
        }
    }

    /// The member has everything on its stable storage. If it has missed writes meanwhile, the
    /// rebuild continues with these.
    fn rebuilt(&mut self, member: usize) {
        self.note_return(member);
        let mut bytes = 0;
        if let Some(rebuild) = self.rebuild.take() {
            self.log.map.missing[member].remove(&rebuild.copied);
            bytes = rebuild.bytes;
        }
        if self.log.map.missing[member].count() > 0 {
            let mut rebuild = Rebuild::new(member, &self.log.map);
            rebuild.bytes = bytes;
            self.rebuild = Some(rebuild);
            return;
        }
        let was_in_sync = self.members[member].state == MemberState::InSync;
        self.log.map.is_excluded[member] = false;
        self.members[member].state = MemberState::InSync;
        self.members[member].pause = PAUSE_MIN;
        self.members[member].reports = Reports::default();
        self.log_changed(Acknowledge::AtOnce);
        if !was_in_sync {
            let label = self.members[member].label();
            self.note(match self.members.is_partial(member) {
                true => {
                    let all = self.disk_bytes;
                    format!("{label} is in sync: {bytes} of {all} bytes were copied")
                }
                false => format!("{label} is in sync"),
            });
        }
    }

    /// The request of a step has ended.
    pub fn rebuild_step_ended(&mut self, id: Token) {
        let Some(request) = self.requests.pending.take(id) else {
            return;
        };
        let Some(rebuild) = &mut self.rebuild else {
            return;
        };
        let (member, at) = (rebuild.member, rebuild.at);
        match std::mem::replace(&mut rebuild.step, Step::Next) {
            Step::Reading { id: of, length } if of == id => match request.data {
                Some(data) if data.len() as u64 == length => self.set_step(Step::Read { data }),
                // It is read from another source, if there is one.
                _ => self.requests.locks.unlock(at),
            },
            Step::Writing { id: of, length } if of == id => match request.is_done {
                true => self.piece_written(length),
                false => {
                    self.requests.locks.unlock(at);
                    self.exclude(member, "a piece could not be copied to it");
                }
            },
            Step::Flushing { id: of } if of == id => match request.is_done {
                true => self.rebuilt(member),
                false => self.exclude(member, "it could not be flushed"),
            },
            step => self.set_step(step),
        }
    }
}
