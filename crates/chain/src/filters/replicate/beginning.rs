//! Beginning: the file is read, replicas are connected to, and one is found that has all.

use std::io;
use std::time::Duration;

use base::BlockDevice;

use super::choice::Choice;
use super::granules::Granules;
use super::looking::READ_FIRST_FOR;
use super::map::Map;
use super::member::State;
use super::store::{Store, path_in};
use super::{Begun, CONNECT_WITHIN, Replicate, VOLUME};
use crate::remote::LinkState;

impl Replicate {
    /// Goes on with beginning.
    pub(super) fn begin(&mut self, below: &mut dyn BlockDevice) {
        let now = self.now();
        match self.begun {
            Begun::Not => {
                self.disk_bytes = below.geometry().size_bytes;
                let members = self.members.iter().map(|one| {
                    let choice = one.choice.as_ref().map_or(0, Choice::number);
                    let targets = &self.context.attachment.targets;
                    let place = one.place.as_ref().map(|place| targets.identity(place));
                    let place = place.unwrap_or_default();
                    (format!("{}\n{place}", one.name), choice)
                });
                let members: Vec<(String, u32)> = members.collect();
                let members = members.iter().map(|(name, choice)| (&**name, *choice));
                let mut fresh = Map::new(self.disk_bytes, &members.collect::<Vec<_>>());
                fresh.epoch = self.context.attachment.history.epoch;
                for choice in self
                    .members
                    .iter_mut()
                    .filter_map(|one| one.choice.as_mut())
                {
                    choice.has = Granules::new(self.disk_bytes);
                }
                self.use_map(fresh);
                let Some(state) = &self.context.attachment.state else {
                    self.failed = Some("what replicas lack can be kept nowhere here".to_owned());
                    return;
                };
                let path = path_in(state, &self.name);
                let store = Store::new(&self.context, state, &path);
                store.load();
                self.store = Some(store);
                for at in 1..self.members.len() {
                    self.connect(at, now);
                }
                self.begun = Begun::Loading { since: now };
            }
            Begun::Loading { .. } | Begun::Yes => {}
            // Under which lease it goes on is kept first.
            Begun::Connecting { .. } if self.writing.is_some() => {}
            Begun::Connecting { since } => {
                let is_waiting = self.members.iter().any(|member| {
                    matches!(member.state, State::Connecting(_))
                        && member
                            .remote
                            .as_ref()
                            .is_some_and(|one| one.link_state() == LinkState::Connecting)
                });
                if !is_waiting || now.saturating_sub(since) >= CONNECT_WITHIN {
                    self.take_stock(now);
                }
            }
            Begun::Looking { since } => {
                let looking = self.looking.as_ref();
                let is_certain = looking.is_none_or(super::looking::Looking::is_certain);
                if is_certain || now.saturating_sub(since) >= READ_FIRST_FOR {
                    self.settle();
                }
            }
        }
    }

    pub(super) fn use_map(&mut self, map: Map) {
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
        let history = self.context.attachment.history;
        let mut is_first = false;
        match loaded {
            Ok(Some(before)) => {
                self.stored = before.sequence;
                is_first = before.left == 0 && history.predecessor == 0;
                let fresh = self.map.clone();
                match fresh.go_on_from(&before, &history) {
                    Ok(map) => self.use_map(map),
                    Err(useless) => {
                        self.failed = Some(useless.to_string());
                        return;
                    }
                }
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
        if let Some(store) = self.store.as_mut().filter(|_| is_first) {
            // No other filter has the file, and nobody has written the volume under this lease.
            // If it does not begin now the next lease follows this one.
            self.writing = Some(self.map.in_flight.clone());
            store.write(&self.map);
        }
        self.begun = Begun::Connecting { since };
    }

    /// Those that are there and lack nothing are in sync; the others are out.
    pub(super) fn take_stock(&mut self, now: Duration) {
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
        if self.has_source() {
            self.begun = match self.looking.is_some() {
                true => Begun::Looking { since: now },
                false => Begun::Yes,
            };
            return;
        }
        let has_all = self.map.source().unwrap_or(VOLUME);
        let name = &self.members[has_all].name;
        self.failed = Some(format!(
            "only replica {name} has what was written last, and it does not answer"
        ));
    }

    /// Whether a replica may be asked; why not.
    pub(super) fn is_connected(&self, at: usize) -> Result<(), String> {
        let Some(remote) = &self.members[at].remote else {
            return Err("it cannot be connected to".to_owned());
        };
        match remote.link_state() {
            LinkState::Ready => {}
            LinkState::Connecting => return Err("it does not answer".to_owned()),
            LinkState::Broken(why) => return Err(why),
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

    pub(super) fn connect(&mut self, at: usize, now: Duration) {
        let member = &mut self.members[at];
        let Some(place) = &member.place else { return };
        match self.context.attachment.targets.open(place) {
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
}
