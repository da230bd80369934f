//! The steps of the start: the file is read, replicas are connected to, and a source is found
//! ([`Startup`]).

use std::io;
use std::time::Duration;

use base::BlockDevice;

use super::filter::Replicate;
use super::granules::Granules;
use super::member::{MemberState, VOLUME};
use super::region_log::Acknowledge;
use super::region_map::{MemberSpec, RegionMap};
use super::selection::Selection;
use super::startup::Startup;
use super::store::{Store, path_in};
use super::timeouts::{CONNECT_WITHIN, READ_FIRST_FOR};
use super::tracker::Tracker;

impl Replicate {
    /// Takes the next step of the start.
    pub(super) fn advance_startup(&mut self, below: &dyn BlockDevice) {
        let now = self.set.now();
        match self.startup {
            Startup::New => self.start_loading(below.geometry().size_bytes, now),
            Startup::Loading { .. } | Startup::Ready | Startup::Failed(_) => {}
            Startup::Connecting { since } => {
                // The file must say first under which lease the filter continues.
                if self.set.log.is_writing() {
                    return;
                }
                let is_waiting = self.set.members.iter().any(|member| {
                    matches!(member.state, MemberState::Connecting(_)) && member.is_connecting()
                });
                if !is_waiting || now.saturating_sub(since) >= CONNECT_WITHIN {
                    self.choose_members(now);
                }
            }
            Startup::Reading { since } => {
                let tracker = self.tracker.as_ref();
                let is_certain = tracker.is_none_or(Tracker::is_certain);
                if is_certain || now.saturating_sub(since) >= READ_FIRST_FOR {
                    self.finish_reading();
                }
            }
        }
    }

    /// Starts to read the file, and to connect to the replicas of a disk of `disk_bytes`.
    fn start_loading(&mut self, disk_bytes: u64, now: Duration) {
        self.set.disk_bytes = disk_bytes;
        let attachment = &self.set.context.attachment;
        let specs = self.set.members.iter().map(|member| {
            let selection = member.selection.as_ref().map_or(0, Selection::number);
            let location = member.location.as_ref();
            let address = location.map(|location| attachment.targets.identity(location));
            let address = address.unwrap_or_default();
            MemberSpec::new(&format!("{}\n{address}", member.name), selection)
        });
        let specs: Vec<MemberSpec> = specs.collect();
        let mut fresh = RegionMap::new(disk_bytes, &specs);
        fresh.epoch = attachment.history.epoch;
        for selection in self.set.members.selections_mut() {
            selection.has = Granules::new(disk_bytes);
        }
        self.set.log.set_map(fresh);
        let Some(state) = &attachment.state else {
            self.startup = Startup::Failed(
                "there is no folder for the state of filters, so it is unknown what replicas are \
                 missing"
                    .to_owned(),
            );
            return;
        };
        let path = path_in(state, &self.set.name);
        self.set
            .log
            .load(Store::new(&self.set.context, state, &path));
        for at in 1..self.set.members.len() {
            self.set.connect(at, now);
        }
        self.startup = Startup::Loading { since: now };
    }

    /// Takes what the file says.
    pub(super) fn loaded(&mut self, loaded: io::Result<Option<RegionMap>>) {
        let Startup::Loading { since } = self.startup else {
            return;
        };
        self.startup = match self.continue_from(loaded) {
            Ok(()) => Startup::Connecting { since },
            Err(reason) => Startup::Failed(reason),
        };
    }

    /// Continues from the map in the file, if there is one.
    ///
    /// # Errors
    /// Why the filter cannot start.
    fn continue_from(&mut self, loaded: io::Result<Option<RegionMap>>) -> Result<(), String> {
        let history = self.set.context.attachment.history;
        let loaded =
            loaded.map_err(|error| format!("cannot read which regions are missing: {error}"))?;
        let mut is_first = false;
        // Without a file, all members but the volume are missing everything.
        if let Some(before) = loaded {
            self.set.log.set_stored(before.sequence);
            is_first = before.released_by == 0 && history.predecessor == 0;
            let fresh = self.set.log.map.clone();
            let map = fresh.continue_from(&before, &history);
            self.set
                .log
                .set_map(map.map_err(|error| error.to_string())?);
        }
        if self.set.log.map.recover().is_none() {
            return Err("according to the filter's file, no member is complete".to_owned());
        }
        self.set.log.change(Acknowledge::OnceStored);
        if is_first {
            // No other filter has the file, and the volume was not written under this lease yet.
            // If the filter cannot start now, the next lease follows this one.
            self.set.log.write();
        }
        Ok(())
    }

    /// Members that are connected and missing nothing are in sync; the others are excluded.
    fn choose_members(&mut self, now: Duration) {
        for at in 0..self.set.members.len() {
            let connection = match at {
                VOLUME => Ok(()),
                _ => self.set.members[at].check_connection(self.set.disk_bytes),
            };
            let is_excluded = self.set.log.map.is_excluded[at];
            match connection {
                Ok(()) if !is_excluded => self.set.members[at].state = MemberState::InSync,
                Ok(()) if at == VOLUME => {
                    self.set.members[at].state = MemberState::Excluded;
                    self.set.members[at].retry_at = now;
                }
                // It is connected, and rebuilt once the filter is in use.
                Ok(()) => {}
                Err(reason) => {
                    // `exclude` skips a member whose state is already `Excluded`. That is the first
                    // state of each member, also of one whose connection could not be started.
                    self.set.members[at].state = MemberState::Connecting(now);
                    self.set.exclude(at, &reason);
                }
            }
        }
        if self.set.members.has_source() {
            self.startup = match self.tracker.is_some() {
                true => Startup::Reading { since: now },
                false => Startup::Ready,
            };
            return;
        }
        let source = self.set.log.map.source().unwrap_or(VOLUME);
        let name = &self.set.members[source].name;
        self.startup = Startup::Failed(format!(
            "only replica {name} has the last writes, and it does not answer"
        ));
    }

    /// The disk was read, or takes too long. Partial replicas have what is wanted, except in
    /// regions that they are missing.
    fn finish_reading(&mut self) {
        self.startup = Startup::Ready;
        let Some(tracker) = &mut self.tracker else {
            return;
        };
        tracker.is_in_use = true;
        if !tracker.is_certain() {
            self.set
                .note("the disk takes long to read: partial replicas are rebuilt".to_owned());
            return tracker.add_all_if_uncertain(&mut self.set);
        }
        let disk = tracker.disk();
        let set = &mut self.set;
        let map = &set.log.map;
        for (member, missing) in set.members.iter_mut().zip(&map.missing) {
            let Some(selection) = &mut member.selection else {
                continue;
            };
            for region in (0..map.regions).filter(|region| !missing.has(*region)) {
                for run in selection.wanted(disk, &map.range_of(region)) {
                    selection.has.set(&run);
                }
            }
        }
    }
}
