//! Attaching a volume and finding out what it holds; closing, healing, and
//! starting again after a crash.

use base::Request;
use std::sync::Arc;
use std::time::Duration;

use testkit::units::InjectedFaults;
use volume::LeaseTerm;
use volume::catalog::Catalog;
use world::Disk;

use super::{Expect, Run, trace};
use crate::Check;
use crate::client::Client;
use crate::machine::unit_id;
use crate::model::{Blocks, content};

/// Jobs and polls after which a volume that should settle is stuck.
const TURNS_MAX: usize = 20_000;

impl Run {
    /// Attaches a volume and looks what it holds. False if that cannot be
    /// done now.
    pub(super) fn attach(&mut self, index: usize) -> Check<bool> {
        if self.subjects[index].client.is_some() {
            return Ok(true);
        }
        let id = self.subjects[index].id;
        let lease = match self.machine.catalog.acquire(id, self.machine.salt(), None) {
            Ok(lease) => lease,
            Err(_) if self.may_fail() => return Ok(false),
            Err(error) => return Err(format!("{id} gives no lease: {error}")),
        };
        let keys = lease.keys.clone();
        let disk = &self.machine.simulation.disk;
        self.nonces
            .note_journal(&**disk, &self.machine.journal(id), &keys)?;
        trace!(self, "{id} attached, epoch {}", lease.epoch);
        let (term, journal) = (LeaseTerm::unlimited(), self.machine.journal(id));
        let opened = self.machine.open_until(lease, term.clone(), journal, false);
        let volume = match opened {
            Ok(volume) => volume,
            Err(_) if self.may_fail() => return Ok(false),
            Err(error) => return Err(format!("{id} does not open: {error}")),
        };
        let subject = &mut self.subjects[index];
        subject.is_fenced = false;
        subject.term = term;
        subject.client = Some(Client::new(
            volume,
            self.setup.block_size,
            &subject.past,
            Arc::clone(&self.machine.simulation.clock),
        ));
        self.verify(index)
    }

    /// Reads everything that was ever written, and finds the boundary.
    pub(super) fn verify(&mut self, index: usize) -> Check<bool> {
        let Some(seen) = self.read_all(index)? else {
            trace!(self, "not verified");
            self.abandon(index);
            return Ok(false);
        };
        let subject = &mut self.subjects[index];
        let id = subject.id;
        let (boundaries, is_durable) = match subject.expect {
            Expect::Since {
                boundary,
                torn,
                is_durable,
            } => {
                let range = boundary..=subject.past.timeline.len();
                (
                    subject.past.timeline.boundaries(range, torn, &seen),
                    is_durable,
                )
            }
            Expect::Version(None) => {
                subject.past.timeline.cut(0, &Blocks::new());
                (subject.past.timeline.boundaries(0..=0, false, &seen), true)
            }
            Expect::Version(Some(key)) => {
                let pinned = &self.versions[&key];
                subject.past.timeline = pinned.timeline.clone();
                let range = pinned.boundaries.clone();
                (subject.past.timeline.boundaries(range, false, &seen), true)
            }
        };
        let Some(boundary) = boundaries.last().copied() else {
            let past = &subject.past.timeline;
            let none = format!(
                "{id} holds no state that it ever had: {:?} of {}",
                subject.expect,
                past.len()
            );
            return Err(none + &past.explain(&seen));
        };
        trace!(
            self,
            "{id} verified: boundary {boundary} of {} ({:?})",
            subject.past.timeline.len(),
            subject.expect
        );
        subject.past.timeline.cut(boundary, &seen);
        let end = subject.past.timeline.len();
        if is_durable {
            subject.past.durable = end;
        }
        if let Expect::Version(_) = subject.expect {
            subject.version_floor = end;
        }
        subject.past.durable = subject.past.durable.min(end);
        if let Some(client) = &mut subject.client {
            client.committed = end;
        }
        subject.is_known = true;
        self.place_commits()?;
        Ok(true)
    }

    /// What the volume holds wherever it, or one it came from, ever wrote.
    /// `None` if the power fails meanwhile, or it cannot be read.
    pub(super) fn read_all(&mut self, index: usize) -> Check<Option<Blocks>> {
        use base::{BlockDevice, Completion, Outcome, Started};
        let subject = &self.subjects[index];
        let timeline = match subject.expect {
            Expect::Version(Some(key)) => &self.versions[&key].timeline,
            _ => &subject.past.timeline,
        };
        let mut blocks: Vec<u64> = timeline.touched_in(0..u64::MAX).collect();
        blocks.extend(subject.past.timeline.touched_in(0..u64::MAX));
        blocks.sort_unstable();
        blocks.dedup();
        let block_bytes = self.setup.block_size.bytes() as u64;
        let size_bytes = subject.past.size_bytes;
        // A version's volume may have grown after the version was cut.
        blocks.retain(|block| block * block_bytes < size_bytes);
        let mut seen = Blocks::new();
        for block in blocks {
            let offset = block * block_bytes;
            let mut whole = vec![0; block_bytes as usize];
            let length = (size_bytes - offset).min(block_bytes) as usize;
            let Some(client) = &mut self.subjects[index].client else {
                return Ok(None);
            };
            match client
                .volume
                .start(Request::read(0, offset, &mut whole[..length]))
            {
                Started::Done => {}
                Started::Failed(_) if self.may_fail() => return Ok(None),
                Started::Pending => {
                    let mut completions: Vec<Completion> = Vec::new();
                    for _ in 0..TURNS_MAX {
                        let is_idle = !self.machine.simulation.pool.run_one(&self.random);
                        let Some(client) = &mut self.subjects[index].client else {
                            return Ok(None);
                        };
                        client.volume.poll(&mut completions);
                        if !completions.is_empty() {
                            break;
                        }
                        if is_idle && client.volume.status().reads_waiting > 0 {
                            let timer = client.volume.next_timer().unwrap_or_default();
                            // Until what is away is back; that is another step's.
                            if self.may_fail() {
                                return Ok(None);
                            }
                            self.machine.simulation.clock.advance(timer);
                        }
                    }
                    match completions.pop().map(|completion| completion.result) {
                        Some(Ok(Outcome::Data(data))) => whole[..length].copy_from_slice(&data),
                        Some(Err(_)) if self.may_fail() => return Ok(None),
                        other => return Err(format!("block {block} cannot be read: {other:?}")),
                    }
                }
                other => return Err(format!("block {block} cannot be read: {other:?}")),
            }
            seen.insert(block, content(&whole));
        }
        Ok(Some(seen))
    }

    /// Drops a volume as it is. What it held stays to be found out.
    pub(super) fn abandon(&mut self, index: usize) {
        if !self.is_off() {
            // Its process lives on, and so do its jobs, until they end.
            self.machine.simulation.pool.run_all(&self.random);
        }
        self.subjects[index].client = None;
    }

    /// Lets go of a volume that has stopped.
    pub(super) fn let_go(&mut self, index: usize) -> Check {
        let status = self.subjects[index]
            .client
            .as_ref()
            .map(|client| client.volume.status());
        let stopped = status.and_then(|status| status.stopped);
        if !self.trouble && !self.subjects[index].is_fenced {
            return Err(format!(
                "{} has stopped: {stopped:?}",
                self.subjects[index].id
            ));
        }
        trace!(self, "{} let go: {stopped:?}", self.subjects[index].id);
        self.abandon(index);
        self.place_commits()?;
        let subject = &mut self.subjects[index];
        let boundary = subject.past.durable.max(subject.version_floor);
        subject.expect = Expect::Since {
            boundary,
            torn: true,
            is_durable: false,
        };
        subject.is_known = false;
        subject.pending.clear();
        Ok(())
    }

    /// Closes a volume cleanly. False if that cannot be done now.
    pub(super) fn close(&mut self, index: usize) -> Check<bool> {
        self.settle()?;
        if self.is_off() {
            return Ok(false);
        }
        let Some(client) = &mut self.subjects[index].client else {
            return Ok(false);
        };
        client.is_closing = true;
        client.volume.begin_close();
        let closed = |client: &Client| client.volume.close_state().is_some();
        if !self.drive(index, closed)? {
            return Ok(false);
        }
        self.place_commits()?;
        let subject = &mut self.subjects[index];
        let Some(client) = subject.client.take() else {
            return Ok(false);
        };
        if let Some(Err(error)) = client.volume.close_state() {
            subject.client = Some(client);
            return match self.trouble || subject.is_fenced || self.machine.simulation.disk.is_off()
            {
                true => Ok(false),
                false => Err(format!(
                    "{} cannot be closed: {error}",
                    self.subjects[index].id
                )),
            };
        }
        drop(client);
        let boundary = subject.past.timeline.len();
        subject.past.durable = boundary;
        subject.expect = Expect::Since {
            boundary,
            torn: false,
            is_durable: true,
        };
        // Nothing is left in the journal: the head has it all.
        let head = self.machine.catalog.memory.head(subject.id);
        if let Some(head) = head.filter(|head| head.volume == subject.id)
            && let Some(pinned) = self.versions.get_mut(&head)
        {
            pinned.timeline = subject.past.timeline.clone();
            pinned.boundaries = boundary..=boundary;
            subject.version_floor = boundary;
        }
        if !subject.pending.is_empty() {
            return Err(format!("{} was closed without its snapshots", subject.id));
        }
        trace!(self, "{} closed", self.subjects[index].id);
        Ok(true)
    }

    /// Runs jobs and lets time pass until the volume is as it should be. False
    /// if the power fails.
    pub(super) fn drive(&mut self, index: usize, is_done: impl Fn(&Client) -> bool) -> Check<bool> {
        for turn in 0..TURNS_MAX {
            if self.is_off() {
                return Ok(false);
            }
            self.poll_all()?;
            match &self.subjects[index].client {
                Some(client) if !is_done(client) => {}
                _ => return Ok(true),
            }
            if !self.machine.simulation.pool.run_one(&self.random) {
                self.machine
                    .simulation
                    .clock
                    .advance(Duration::from_millis(200));
            }
            if turn % 1000 == 999 {
                self.machine.probe(true);
            }
        }
        let status = self.subjects[index]
            .client
            .as_ref()
            .map(|client| client.volume.status());
        Err(format!(
            "{} does not settle: {status:?}",
            self.subjects[index].id
        ))
    }

    /// Heals everything, and waits until nothing is in flight that could still
    /// fail because of it.
    pub(super) fn settle(&mut self) -> Check {
        if !self.trouble {
            return Ok(());
        }
        trace!(self, "settling");
        let disk = &self.machine.simulation.disk;
        disk.heal(&self.machine.host());
        for unit in 0..self.machine.units.len() {
            if !self.machine.removed.contains(&unit) {
                let disk = self.machine.unit_disk(unit);
                disk.heal(&self.machine.unit_path(unit));
            }
        }
        self.heal_network();
        for unit in 0..self.machine.units.len() {
            self.machine.lie(unit, InjectedFaults::default());
        }
        self.is_lying = false;
        self.machine.catalog.set_unavailable(0);
        self.machine.probe(true);
        for index in 0..self.subjects.len() {
            // Stopped, or with nothing in flight and nothing to try again.
            let is_done = |client: &Client| {
                let status = client.volume.status();
                client.is_stopped() || (client.in_flight() == 0 && status.destage_error.is_none())
            };
            if !self.drive(index, is_done)? {
                return Ok(());
            }
            if self.subjects[index]
                .client
                .as_ref()
                .is_some_and(Client::is_stopped)
            {
                self.let_go(index)?;
            }
        }
        self.trouble = false;
        Ok(())
    }

    /// The machine crashes, or the process dies, and another starts.
    pub(super) fn restart(&mut self, is_power: bool) -> Check {
        self.place_commits()?;
        self.crash_armed = false;
        self.machine.simulation.disk.arm_crash(u64::MAX);
        self.summary.restarts += 1;
        trace!(self, "restart, power: {is_power}");
        let is_off = self.is_off();
        let is_power = is_power || is_off;
        for subject in &mut self.subjects {
            let (was_committed, was_torn) = match (&subject.client, subject.expect) {
                (Some(client), _) if client.is_stopped() => (subject.past.durable, true),
                (Some(client), _) => (client.committed, true),
                (None, Expect::Since { boundary, torn, .. }) => (boundary, torn),
                (None, Expect::Version(_)) => continue,
            };
            let boundary = if is_power {
                subject.past.durable
            } else {
                was_committed
            };
            subject.expect = Expect::Since {
                boundary: boundary.max(subject.version_floor),
                torn: was_torn,
                is_durable: is_power,
            };
            subject.is_known = false;
            subject.pending.clear();
        }
        let earlier = self.earlier.as_ref().map(|(_, disks)| disks);
        match self.put_back.take().zip(earlier) {
            _ if is_power => {
                self.machine.crash();
                self.power_of_daemons();
            }
            Some((unit, disks)) => {
                let earlier = disks.get(unit).unwrap_or(&disks[0]);
                let members = &self.machine.catalog.members;
                members.suspicion(unit_id(unit));
                let done = self.machine.kill_and_put_back(unit, earlier);
                done.map_err(|error| format!("unit {unit} is not put back: {error}"))?;
            }
            None => self.machine.kill(),
        }
        // What a process was told to do wrong went with it.
        self.is_lying = false;
        if let Some(network) = &self.machine.network {
            network.be_honest();
        }
        self.readers.clear();
        for index in 0..self.subjects.len() {
            let was_attached = self.subjects[index].client.take().is_some();
            let is_lost = self.setup.hazards.journal && self.chance(6);
            if is_lost && was_attached {
                let id = self.subjects[index].id;
                trace!(self, "{id} loses its journal");
                let disk = &self.machine.simulation.disk;
                let path = self.machine.journal(id);
                let keys = self
                    .machine
                    .catalog
                    .memory
                    .acquire(id, self.machine.salt(), None)
                    .expect("it is there")
                    .keys;
                self.nonces.note_journal(&**disk, &path, &keys)?;
                disk.heal(&self.machine.host());
                let removed = disk.remove(&path);
                if removed
                    .and_then(|()| disk.sync_directory(&self.machine.host()))
                    .is_ok()
                {
                    let head = self.machine.catalog.memory.head(id);
                    self.subjects[index].expect = Expect::Version(head);
                }
            }
        }
        Ok(())
    }
}
