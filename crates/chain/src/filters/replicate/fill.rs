//! Bringing back: members are connected to anew, and get what they lack.
//!
//! ```text
//!  out ── connected ──▶ filling ── all is there, flushed, and in the file ──▶ in sync
//!   ▲                      │
//!   └──── fails, stalls ───┘
//!
//!  region by region, piece by piece: 1. hold the piece  2. read it from one in sync
//!                                    3. write it        4. let go
//! ```

use std::ops::Range;
use std::time::Duration;

use base::{BlockDevice, Completion, Durability, OwnedOp, Started, Token};

use super::map::Regions;
use super::member::{PAUSE_MIN, State};
use super::{CONNECT_WITHIN, Kind, Replicate, Request, VOLUME};
use crate::remote::LinkState;

/// A piece is as long, in bytes.
const PIECE_BYTES: u64 = 256 << 10;

/// Of a member that is not to have all, so many bytes are looked at for what it is to have
/// and has not, and so many times before others have their turn.
const WINDOW_BYTES: u64 = 1 << 20;
const WINDOWS_MAX: u32 = 64;

/// A member that gets what it lacks.
pub(super) struct Fill {
    pub member: usize,
    pub region: usize,
    /// Regions that were copied, and are lacking until that is flushed.
    pub copied: Regions,
    /// Something was written to this region that it did not get.
    pub has_missed: bool,
    /// How much was copied, in bytes.
    bytes: u64,
    /// How often nothing was found to be copied, in this turn.
    windows: u32,
    /// Where the next piece begins.
    at: u64,
    step: Step,
}

enum Step {
    /// The next piece is to be held and read, as soon as nobody writes there.
    Next,
    /// It is read.
    Reading { id: Token, length: u64 },
    /// It could not be written yet.
    Read { data: Vec<u8> },
    /// It is written.
    Writing { id: Token, length: u64 },
    /// All is there, and is flushed.
    Flushing { id: Token },
    /// That is to begin.
    Flush,
}

impl Fill {
    /// Whether it goes on by itself, and not when something ends.
    pub fn is_waiting(&self) -> bool {
        matches!(self.step, Step::Next | Step::Read { .. } | Step::Flush)
    }

    /// Where the piece begins that nobody else may write.
    pub fn held(&self) -> Option<u64> {
        let is_held = !matches!(self.step, Step::Next | Step::Flush | Step::Flushing { .. });
        is_held.then_some(self.at)
    }

    /// Whether something of it is under way below.
    pub fn is_under_way(&self) -> bool {
        !matches!(self.step, Step::Next | Step::Flush)
    }
}

impl Replicate {
    /// Those that are out are tried again, and filled if they are there.
    pub(super) fn bring_back(&mut self, now: Duration) {
        if self.is_resting {
            return;
        }
        for at in 0..self.members.len() {
            match self.members[at].state {
                State::Out if now >= self.members[at].again => {
                    if at != VOLUME {
                        self.connect(at, now);
                    } else if self.members[at].tokens.is_empty() {
                        self.members[at].state = State::Filling;
                    }
                }
                State::Connecting(since) => match self.is_connected(at) {
                    Ok(()) if self.has_all(at) => self.source_is_back(at),
                    Ok(()) => {
                        self.members[at].state = State::Filling;
                        let pieces = self.map.lacking[at].count();
                        let of = self.map.regions;
                        let name = &self.members[at].name;
                        let what = match self.is_partial(at) {
                            true => "what it is to have of ",
                            false => "",
                        };
                        self.note(format!(
                            "{name} is being filled: it lacks {what}{pieces} of {of} regions"
                        ));
                    }
                    Err(why) => {
                        let remote = self.members[at].remote.as_ref();
                        let is_on_its_way =
                            remote.is_some_and(|one| one.link_state() == LinkState::Connecting);
                        if !is_on_its_way || now.saturating_sub(since) >= CONNECT_WITHIN {
                            let mut completions = Vec::new();
                            self.put_out(at, &why, &mut completions);
                            self.ended.append(&mut completions);
                        }
                    }
                },
                _ => {}
            }
        }
        if self.fill.is_none()
            && let Some(member) = self.next_to_fill()
        {
            self.fill = Some(self.first_region(member));
        }
    }

    /// Whoever alone has all can be asked again. It may have lost what it had not flushed: what
    /// it has is what there is, and the others may have other things where that was.
    fn source_is_back(&mut self, at: usize) {
        self.members[at].state = State::InSync;
        self.members[at].pause = PAUSE_MIN;
        self.map.lacking[at].clear_all();
        let regions = 0..self.map.regions;
        let in_flight: Vec<usize> = regions.filter(|one| self.map.in_flight.has(*one)).collect();
        for other in (0..self.members.len()).filter(|other| *other != at) {
            for region in &in_flight {
                self.lacks_regions(other, *region..region + 1);
            }
        }
        self.changed(true);
        let name = &self.members[at].name;
        self.note(format!("{name} is there again"));
    }

    /// Who is to be filled: one that is not in sync, or is to have more than it had.
    fn next_to_fill(&self) -> Option<usize> {
        let mut members = 0..self.members.len();
        members.find(|at| match self.members[*at].state {
            State::Filling => self.is_certain(*at),
            State::InSync if self.is_partial(*at) => {
                self.map.lacking[*at].count() > 0 && self.is_certain(*at)
            }
            _ => false,
        })
    }

    fn first_region(&self, member: usize) -> Fill {
        let mut fill = Fill {
            member,
            region: 0,
            copied: Regions::new(self.map.regions),
            has_missed: false,
            bytes: 0,
            windows: 0,
            at: 0,
            step: Step::Next,
        };
        self.go_to_region(&mut fill, 0);
        fill
    }

    /// Goes on with the next region that is lacking, or with the flush.
    fn go_to_region(&self, fill: &mut Fill, from: usize) {
        let next = self.map.lacking[fill.member].first(from, self.map.regions);
        (fill.region, fill.step) = match next {
            Some(region) => (region, Step::Next),
            None => (self.map.regions, Step::Flush),
        };
        fill.at = fill.region as u64 * self.map.region_bytes;
        fill.has_missed = false;
    }

    /// Fills a member as far as nothing has to be waited for.
    pub(super) fn go_on_filling(
        &mut self,
        below: &mut dyn BlockDevice,
        completions: &mut Vec<Completion>,
    ) {
        if let Some(fill) = &mut self.fill {
            fill.windows = 0;
        }
        loop {
            let Some(fill) = self.fill.as_mut().filter(|fill| fill.is_waiting()) else {
                return;
            };
            let member = fill.member;
            let goes_on = match std::mem::replace(&mut fill.step, Step::Next) {
                Step::Next | Step::Flush if !self.is_certain(member) => {
                    // What it is to have is found out first.
                    self.fill = None;
                    false
                }
                Step::Next if self.is_resting => false,
                Step::Next => self.read_piece(below),
                Step::Read { data } => self.write_piece(below, data, completions),
                Step::Flush => {
                    self.set_step(Step::Flush);
                    !self.is_resting && self.flush_filled(below, member, completions)
                }
                step => {
                    self.set_step(step);
                    false
                }
            };
            if !goes_on {
                return;
            }
        }
    }

    fn set_step(&mut self, step: Step) {
        if let Some(fill) = &mut self.fill {
            fill.step = step;
        }
    }

    fn add_step(&mut self) -> Token {
        self.requests.add(Request::new(None, Kind::Fill))
    }

    /// Holds the next piece and begins to read it.
    fn read_piece(&mut self, below: &mut dyn BlockDevice) -> bool {
        let Some(fill) = &self.fill else { return false };
        let (region, at) = (fill.region, fill.at);
        let end = ((region as u64 + 1) * self.map.region_bytes).min(self.disk_bytes);
        if at >= end {
            if let Some(mut fill) = self.fill.take() {
                if !fill.has_missed {
                    fill.copied.set(region);
                }
                self.go_to_region(&mut fill, region + 1);
                self.fill = Some(fill);
            }
            return true;
        }
        let Some((at, length)) = self.next_piece(at..end) else {
            return self
                .fill
                .as_ref()
                .is_some_and(|fill| fill.windows < WINDOWS_MAX);
        };
        let before = self.ranges.range(..at + length).next_back();
        if before.is_some_and(|(_, other)| *other > at) {
            return false;
        }
        let id = self.add_step();
        let mut data = vec![0; length as usize];
        match self.read_somewhere(below, id, at, &mut data.as_mut_slice().into()) {
            Some(Started::Done) => {
                self.withdraw(id);
                self.ranges.insert(at, at + length);
                self.set_step(Step::Read { data });
                true
            }
            Some(_) => {
                self.ranges.insert(at, at + length);
                self.set_step(Step::Reading { id, length });
                false
            }
            None => {
                self.withdraw(id);
                false
            }
        }
    }

    /// The next piece of a region, and how long it is; none, if nothing was found so far: then
    /// it is looked for further on.
    fn next_piece(&mut self, rest: Range<u64>) -> Option<(u64, u64)> {
        let fill = self.fill.as_mut()?;
        let Some(choice) = &self.members[fill.member].choice else {
            return Some((fill.at, PIECE_BYTES.min(rest.end - rest.start)));
        };
        let window = rest.start
            ..rest
                .end
                .min(rest.start + WINDOW_BYTES.max(choice.has.bytes));
        let looking = self.looking.as_ref();
        let disk = looking.and_then(|looking| looking.follower.disk());
        let piece_max = PIECE_BYTES.max(choice.has.bytes);
        let missing = choice.missing(disk, &window, piece_max);
        match missing {
            Some(piece) => {
                fill.at = piece.start;
                Some((piece.start, piece.end - piece.start))
            }
            None => {
                fill.at = window.end;
                fill.windows += 1;
                None
            }
        }
    }

    /// Writes a piece that was read.
    fn write_piece(
        &mut self,
        below: &mut dyn BlockDevice,
        data: Vec<u8>,
        completions: &mut Vec<Completion>,
    ) -> bool {
        let Some(fill) = &self.fill else { return false };
        let (member, at) = (fill.member, fill.at);
        let length = data.len() as u64;
        let op = OwnedOp::Write {
            offset: at,
            data,
            durability: Durability::Volatile,
        };
        let (id, now) = (self.add_step(), self.now());
        self.has_asked = true;
        let started = self.members[member].carry_out(below, (id, now), &op);
        if started != Started::Pending {
            self.withdraw(id);
        }
        match started {
            Started::Done => {
                self.let_go(at, length);
                true
            }
            Started::Pending => {
                self.set_step(Step::Writing { id, length });
                false
            }
            Started::Busy => {
                if let OwnedOp::Write { data, .. } = op {
                    self.set_step(Step::Read { data });
                }
                false
            }
            Started::Failed(error) => {
                self.ranges.remove(&at);
                self.put_out(member, &error.to_string(), completions);
                false
            }
        }
    }

    /// A piece is there.
    fn let_go(&mut self, at: u64, length: u64) {
        self.ranges.remove(&at);
        if let Some(fill) = &mut self.fill {
            fill.at = at + length;
            fill.bytes += length;
            fill.step = Step::Next;
            if let Some(choice) = &mut self.members[fill.member].choice {
                choice.has.set(&(at..at + length));
            }
        }
    }

    fn flush_filled(
        &mut self,
        below: &mut dyn BlockDevice,
        member: usize,
        completions: &mut Vec<Completion>,
    ) -> bool {
        let (id, now) = (self.add_step(), self.now());
        self.has_asked = true;
        let started = self.members[member].carry_out(below, (id, now), &OwnedOp::Flush);
        if started != Started::Pending {
            self.withdraw(id);
        }
        match started {
            Started::Done => self.is_whole(member),
            Started::Pending => self.set_step(Step::Flushing { id }),
            Started::Busy => {}
            Started::Failed(error) => self.put_out(member, &error.to_string(), completions),
        }
        false
    }

    /// A member has all, on its stable storage.
    fn is_whole(&mut self, member: usize) {
        let mut bytes = 0;
        if let Some(fill) = self.fill.take() {
            self.map.lacking[member].remove(&fill.copied);
            bytes = fill.bytes;
        }
        if self.map.lacking[member].count() > 0 {
            // Somebody wrote what it was not to have meanwhile.
            let mut fill = self.first_region(member);
            fill.bytes = bytes;
            self.fill = Some(fill);
            return;
        }
        let was_in_sync = self.members[member].state == State::InSync;
        self.map.is_out[member] = false;
        self.members[member].state = State::InSync;
        self.members[member].pause = PAUSE_MIN;
        self.changed(false);
        let name = &self.members[member].name;
        if !was_in_sync {
            self.note(match self.is_partial(member) {
                true => format!(
                    "{name} is in sync: of {} bytes it got {bytes}",
                    self.disk_bytes
                ),
                false => format!("{name} is in sync"),
            });
        }
    }

    /// A step that was under way has ended.
    pub(super) fn filled(&mut self, id: Token, completions: &mut Vec<Completion>) {
        let Some(request) = self.requests.take(id) else {
            return;
        };
        let Some(fill) = &mut self.fill else { return };
        let (member, at) = (fill.member, fill.at);
        match std::mem::replace(&mut fill.step, Step::Next) {
            Step::Reading { id: of, length } if of == id => match request.data {
                Some(data) if data.len() as u64 == length => self.set_step(Step::Read { data }),
                // It is read from another one, if there is one.
                _ => drop(self.ranges.remove(&at)),
            },
            Step::Writing { id: of, length } if of == id => match request.is_done {
                true => self.let_go(at, length),
                false => {
                    self.ranges.remove(&at);
                    self.put_out(member, "it could not be filled", completions);
                }
            },
            Step::Flushing { id: of } if of == id => match request.is_done {
                true => self.is_whole(member),
                false => self.put_out(member, "it could not be flushed", completions),
            },
            step => self.set_step(step),
        }
    }
}
