//! Beginning, and bringing back: members are connected to, and get what they lack.
//!
//! ```text
//!  out ── connected ──▶ filling ── all is there, flushed, and in the file ──▶ in sync
//!   ▲                      │
//!   └──── fails, stalls ───┘
//!
//!  region by region, piece by piece: 1. hold the piece  2. read it from one in sync
//!                                    3. write it        4. let go
//! ```

use std::io;
use std::time::Duration;

use base::{BlockDevice, Completion, Durability, Started, Token};

use super::map::Map;
use super::member::{Ask, PAUSE_MIN, State};
use super::store::Store;
use super::{Begun, CONNECT_WITHIN, Kind, Replicate, Request, VOLUME};
use crate::remote::Link;

/// A piece is as long, in bytes.
const PIECE_BYTES: u64 = 256 << 10;

/// A member that gets what it lacks.
pub(super) struct Fill {
    pub member: usize,
    pub region: usize,
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
    /// Goes on with beginning.
    pub(super) fn begin(&mut self, below: &mut dyn BlockDevice) {
        let now = self.now();
        match self.begun {
            Begun::Not => {
                self.disk_bytes = below.geometry().size_bytes;
                let names: Vec<&str> = self.members.iter().map(|one| &*one.name).collect();
                let fresh = Map::new(self.disk_bytes, &names);
                self.use_map(fresh.clone());
                let Some(state) = &self.surroundings.state else {
                    self.failed = Some("what replicas lack can be kept nowhere here".to_owned());
                    return;
                };
                let path = state.path.join(format!("{}.replicas", self.name));
                let store = Store::new(&self.surroundings, state, &path);
                store.load(fresh);
                self.store = Some(store);
                for at in 1..self.members.len() {
                    self.connect(at, now);
                }
                self.begun = Begun::Loading { since: now };
            }
            Begun::Loading { .. } | Begun::Yes => {}
            Begun::Connecting { since } => {
                let is_waiting = self.members.iter().any(|member| {
                    matches!(member.state, State::Connecting(_))
                        && member
                            .remote
                            .as_ref()
                            .is_some_and(|one| one.link() == Link::Connecting)
                });
                if !is_waiting || now.saturating_sub(since) >= CONNECT_WITHIN {
                    self.take_stock(now);
                }
            }
        }
    }

    fn use_map(&mut self, map: Map) {
        self.in_file = map.in_flight.clone();
        self.touched = map.in_flight.clone();
        self.touched.clear_all();
        self.covered = self.touched.clone();
        self.map = map;
    }

    /// What the file says, as it was read.
    pub(super) fn loaded(&mut self, loaded: io::Result<Option<Map>>) {
        let since = match self.begun {
            Begun::Loading { since } => since,
            _ => return,
        };
        match loaded {
            Ok(Some(map)) => {
                self.stored = map.sequence;
                self.use_map(map);
            }
            // It was never written so, or elsewhere: all but the volume lack everything.
            Ok(None) => {}
            Err(error) => {
                self.failed = Some(format!("what replicas lack cannot be read: {error}"));
                return;
            }
        }
        if self.map.recover().is_none() {
            self.failed = Some("by its file no replica has all".to_owned());
            return;
        }
        self.map.sequence += 1;
        self.needed = self.map.sequence;
        self.begun = Begun::Connecting { since };
    }

    /// Those that are there and lack nothing are in sync; the others are out.
    fn take_stock(&mut self, now: Duration) {
        let mut completions = Vec::new();
        for at in 0..self.members.len() {
            let is_there = at == VOLUME || self.is_connected(at).is_ok();
            if is_there && !self.map.is_out[at] {
                self.members[at].state = State::InSync;
            } else if at == VOLUME {
                (self.members[at].state, self.members[at].again) = (State::Out, now);
            } else if !is_there && self.map.is_out[at] {
                let why = self.is_connected(at).err().unwrap_or_default();
                let name = self.members[at].name.clone();
                self.note(format!("{name} is out: {why}"));
                self.put_out(at, &why, &mut completions);
            } else if !is_there {
                let why = self.is_connected(at).err().unwrap_or_default();
                self.put_out(at, &why, &mut completions);
            }
        }
        debug_assert!(completions.is_empty(), "nobody has asked anything");
        if self.members.iter().any(|one| one.state == State::InSync) {
            self.begun = Begun::Yes;
            return;
        }
        let has_all = self.map.is_out.iter().position(|is| !is).unwrap_or(VOLUME);
        let name = &self.members[has_all].name;
        self.failed = Some(format!(
            "only replica {name} has what was written last, and it does not answer"
        ));
    }

    /// Whether a replica may be asked; why not.
    fn is_connected(&self, at: usize) -> Result<(), String> {
        let Some(remote) = &self.members[at].remote else {
            return Err("it cannot be connected to".to_owned());
        };
        match remote.link() {
            Link::Ready => {}
            Link::Connecting => return Err("it does not answer".to_owned()),
            Link::Broken(why) => return Err(why),
        }
        let (size, is) = (remote.geometry().size_bytes, remote.capabilities());
        if size < self.disk_bytes {
            let needed = self.disk_bytes;
            return Err(format!("it has {size} bytes, and {needed} are needed"));
        }
        match is.read_only || !is.can_flush || !is.can_write_zeroes {
            true => Err("it cannot be written, flushed or zeroed".to_owned()),
            false => Ok(()),
        }
    }

    fn connect(&mut self, at: usize, now: Duration) {
        let member = &mut self.members[at];
        let Some(uri) = &member.uri else { return };
        match self.surroundings.targets.open(uri) {
            Ok(remote) => {
                member.remote = Some(remote);
                member.state = State::Connecting(now);
            }
            Err(why) => {
                member.again = now + member.pause;
                let name = member.name.clone();
                self.note(format!("{name} is out: {why}"));
            }
        }
    }

    /// Those that are out are tried again, and filled if they are there.
    pub(super) fn bring_back(&mut self, _: &mut dyn BlockDevice, now: Duration) {
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
                    Ok(()) => {
                        self.members[at].state = State::Filling;
                        let pieces = self.map.lacking[at].count();
                        let of = self.map.regions;
                        let name = &self.members[at].name;
                        self.note(format!("{name} is filled: {pieces} of {of} regions"));
                    }
                    Err(why) => {
                        let remote = self.members[at].remote.as_ref();
                        let is_on_its_way =
                            remote.is_some_and(|one| one.link() == Link::Connecting);
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
        if self.fill.is_none() {
            let filling = self
                .members
                .iter()
                .position(|one| one.state == State::Filling);
            if let Some(member) = filling {
                self.fill = Some(self.next_region(member, 0));
            }
        }
    }

    fn next_region(&self, member: usize, from: usize) -> Fill {
        let next = self.map.lacking[member].first(from, self.map.regions);
        match next {
            Some(region) => Fill {
                member,
                region,
                at: region as u64 * self.map.region_bytes,
                step: Step::Next,
            },
            None => Fill {
                member,
                region: self.map.regions,
                at: 0,
                step: Step::Flush,
            },
        }
    }

    /// Fills a member as far as nothing has to be waited for.
    pub(super) fn go_on_filling(
        &mut self,
        below: &mut dyn BlockDevice,
        completions: &mut Vec<Completion>,
    ) {
        loop {
            let Some(fill) = self.fill.as_mut().filter(|fill| fill.is_waiting()) else {
                return;
            };
            let member = fill.member;
            let goes_on = match std::mem::replace(&mut fill.step, Step::Next) {
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
        self.requests.add(Request {
            token: None,
            kind: Kind::Fill,
            parts: 1,
            is_done: false,
            data: None,
            error: None,
        })
    }

    /// Holds the next piece and begins to read it.
    fn read_piece(&mut self, below: &mut dyn BlockDevice) -> bool {
        let Some(fill) = &self.fill else { return false };
        let (member, region, at) = (fill.member, fill.region, fill.at);
        let end = ((region as u64 + 1) * self.map.region_bytes).min(self.disk_bytes);
        if at >= end {
            self.map.lacking[member].clear(region);
            self.fill = Some(self.next_region(member, region + 1));
            return true;
        }
        let length = PIECE_BYTES.min(end - at);
        let before = self.ranges.range(..at + length).next_back();
        if before.is_some_and(|(_, other)| *other > at) {
            return false;
        }
        let id = self.add_step();
        let mut data = vec![0; length as usize];
        match self.read_somewhere(below, id, at, &mut data) {
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
        let ask = Ask::Write {
            offset: at,
            data,
            durability: Durability::Volatile,
        };
        let (id, now) = (self.add_step(), self.now());
        let started = self.members[member].carry_out(below, (id, now), &ask);
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
                if let Ask::Write { data, .. } = ask {
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
            fill.step = Step::Next;
        }
    }

    fn flush_filled(
        &mut self,
        below: &mut dyn BlockDevice,
        member: usize,
        completions: &mut Vec<Completion>,
    ) -> bool {
        let (id, now) = (self.add_step(), self.now());
        let started = self.members[member].carry_out(below, (id, now), &Ask::Flush);
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
        self.fill = None;
        if self.map.lacking[member].count() > 0 {
            // Somebody wrote what it was not to have meanwhile.
            self.fill = Some(self.next_region(member, 0));
            return;
        }
        self.map.is_out[member] = false;
        self.members[member].state = State::InSync;
        self.members[member].pause = PAUSE_MIN;
        self.changed(false);
        let name = &self.members[member].name;
        self.note(format!("{name} is in sync"));
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
