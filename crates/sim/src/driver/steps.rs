//! What a run does when all goes well: requests, snapshots, clones, cleaning.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use base::{Durability, Lineage, Location, SnapshotId, VolumeId};
use volume::LeaseTerm;
use volume::catalog::FreePlan;
use volume::catalog::{Catalog, NewVolume, VersionKey};
use volume::clean::Removal;
use world::simulated::SimulatedRandom;
use world::{Clock, Millis};

use super::versions::Trouble;
use super::{Expect, Run, Subject, trace};
use crate::client::Past;
use crate::model::Edit;
use crate::{Check, audit};

/// Volumes that are there at once.
const VOLUMES_MAX: usize = 5;

impl Run {
    pub(super) fn request(&mut self) -> Check {
        let Some(index) = self.any_attached()? else {
            return Ok(());
        };
        for _ in 0..1 + self.random.below(4) {
            self.one_request(index)?;
        }
        let subject = &mut self.subjects[index];
        if let Some(client) = &mut subject.client {
            client.commit(&subject.past);
        }
        Ok(())
    }

    pub(super) fn one_request(&mut self, index: usize) -> Check {
        let may_fail = self.may_fail();
        let size_bytes = self.subjects[index].past.size_bytes;
        let block_bytes = self.setup.block_size.bytes() as u64;
        let first = self.setup.hot_block(&self.random, size_bytes) * block_bytes;
        let is_aligned = self.random.below(3) > 0;
        let (offset, length) = if is_aligned {
            (first, block_bytes * (1 + self.random.below(6)))
        } else {
            let within = self.random.below(block_bytes);
            (first + within, 1 + self.random.below(3 * block_bytes))
        };
        let offset = offset.min(size_bytes - 1);
        let length = length.min(size_bytes - offset);
        let durability = match self.random.below(5) {
            0 => Durability::Durable,
            _ => Durability::Volatile,
        };
        let kind = self.random.below(20);
        trace!(
            self,
            "{} request {kind} at {offset}+{length} {durability:?}", self.subjects[index].id
        );
        let subject = &mut self.subjects[index];
        let Some(client) = &mut subject.client else {
            return Ok(());
        };
        let past = &mut subject.past;
        match kind {
            0..=8 => {
                self.next += 1;
                let data = fill(self.next as u64, length as usize);
                client.change(past, &Edit::Write(offset, data), durability, may_fail)?;
            }
            9 | 10 => {
                client.change(past, &Edit::Zero(offset, length), durability, may_fail)?;
            }
            11 => {
                client.change(past, &Edit::Trim(offset, length), durability, may_fail)?;
            }
            12 => {
                // Much at once: leaves, or everything.
                let length = match self.random.below(3) {
                    0 => 300 * block_bytes,
                    1 => 70_000 * block_bytes,
                    _ => size_bytes,
                };
                let length = length.min(size_bytes - offset);
                client.change(past, &Edit::Trim(offset, length), durability, may_fail)?;
            }
            13..=15 => client.read(past, offset, length, may_fail)?,
            16 => {
                let length = (64 * block_bytes).min(size_bytes - offset);
                client.read(past, offset, length, may_fail)?;
            }
            17 => client.flush(past)?,
            18 => {
                let length = (400 * block_bytes).min(size_bytes - offset);
                client.extents(past, offset, length, may_fail)?;
            }
            _ => client.prefetch(offset, length, may_fail)?,
        }
        Ok(())
    }

    /// Jobs run, and volumes look what came of them.
    pub(super) fn turn(&mut self) -> Check {
        for _ in 0..self.random.below(6) {
            self.machine.simulation.pool.run_one(&self.random);
        }
        self.poll_all()
    }

    pub(super) fn poll_all(&mut self) -> Check {
        let may_fail = self.may_fail();
        let is_spoilt = self.rotten || self.is_lying || self.setup.hazards.journal || self.is_off();
        for subject in &mut self.subjects {
            if let Some(client) = &mut subject.client {
                client.must_wait = !is_spoilt;
                client.poll(&mut subject.past, may_fail)?;
            }
        }
        Ok(())
    }

    pub(super) fn pass_time(&mut self) -> Check {
        let millis = [1, 300, 1000, 6000][self.random.index(4)];
        self.machine
            .simulation
            .clock
            .advance(Duration::from_millis(millis));
        if self.chance(10) {
            let jump = self.random.below(200_000).cast_signed() - 100_000;
            self.machine.simulation.clock.jump(jump);
        }
        self.machine.probe(false);
        self.poll_all()
    }

    pub(super) fn snapshot(&mut self) -> Check {
        let Some(index) = self.any_attached()? else {
            return Ok(());
        };
        let id = SnapshotId::from_u128(self.number());
        let subject = &mut self.subjects[index];
        let Some(client) = &mut subject.client else {
            return Ok(());
        };
        trace!(
            self,
            "{} {id} at {}",
            subject.id,
            subject.past.timeline.len()
        );
        client.volume.snapshot(id);
        if !client.is_stopped() {
            client.committed = subject.past.timeline.len();
            subject.pending.insert(id, subject.past.timeline.len());
        }
        Ok(())
    }

    pub(super) fn clone_version(&mut self) -> Check {
        if self.subjects.len() < VOLUMES_MAX {
            let from = self.any_version();
            self.create(from);
        }
        Ok(())
    }

    pub(super) fn create(&mut self, from: Option<VersionKey>) {
        let id = VolumeId::from_u128(self.number());
        let lineage = Lineage::from_u128(self.number());
        let random = self.random.split();
        let is_sealed = self.setup.is_sealed;
        let key = self.machine.new_key(lineage, is_sealed, &random);
        let size_bytes = from.map_or(self.setup.size_bytes, |from| {
            self.versions[&from].size_bytes
        });
        let new = NewVolume {
            volume: id,
            size_bytes,
            block_size: self.setup.block_size,
            replicas: self.setup.replicas,
            erasure: self.setup.erasure,
            key,
            from,
        };
        trace!(self, "{id} made from {from:?}");
        self.machine
            .catalog
            .memory
            .create_volume(new)
            .expect("the version is kept");
        self.subjects.push(Subject {
            id,
            past: Past {
                size_bytes,
                ..Past::default()
            },
            client: None,
            expect: Expect::Version(from),
            version_floor: 0,
            pending: BTreeMap::new(),
            is_known: false,
            is_fenced: false,
            term: LeaseTerm::unlimited(),
        });
        self.summary.volumes += 1;
    }

    pub(super) fn grow(&mut self) -> Check {
        let Some(index) = self.any_subject() else {
            return Ok(());
        };
        let subject = &mut self.subjects[index];
        let size_bytes = subject.past.size_bytes + 512 * (1 + self.random.below(1000));
        self.machine
            .catalog
            .memory
            .grow(subject.id, size_bytes)
            .expect("it is there");
        subject.past.size_bytes = size_bytes;
        if let Some(client) = &mut subject.client {
            client.volume.grow(size_bytes);
        }
        Ok(())
    }

    /// Sets a volume back to a version of its own, after what its journal
    /// holds has become one.
    pub(super) fn restore(&mut self) -> Check {
        let Some(index) = self.any_subject() else {
            return Ok(());
        };
        if !self.attach(index)? || !self.close(index)? {
            return Ok(());
        }
        let id = self.subjects[index].id;
        let own: Vec<VersionKey> = self
            .versions
            .keys()
            .copied()
            .filter(|key| key.volume == id)
            .collect();
        if own.is_empty() {
            return Ok(());
        }
        let to = own[self.random.index(own.len())];
        trace!(self, "{id} restored to {}", to.number);
        self.machine
            .catalog
            .memory
            .restore(id, to)
            .expect("it is kept");
        self.subjects[index].expect = Expect::Version(Some(to));
        self.subjects[index].is_known = false;
        self.subjects[index].pending.clear();
        self.summary.restores += 1;
        Ok(())
    }

    pub(super) fn close_one(&mut self) -> Check {
        if let Some(index) = self.any_subject()
            && self.subjects[index].client.is_some()
        {
            self.close(index)?;
        }
        Ok(())
    }

    pub(super) fn delete(&mut self) -> Check {
        if self.subjects.len() < 2 || self.rotten {
            return Ok(());
        }
        let Some(index) = self.any_subject() else {
            return Ok(());
        };
        // What its last lease left behind is swept when it is attached: nobody
        // does that for a volume that is gone.
        for _ in 0..2 {
            self.settle()?;
            if !self.attach(index)? || !self.close(index)? {
                return Ok(());
            }
            self.machine.simulation.pool.run_all(&self.random);
            if self.is_off() {
                return Ok(());
            }
        }
        let subject = self.subjects.remove(index);
        trace!(self, "{} deleted", subject.id);
        self.machine.catalog.memory.delete_volume(subject.id);
        Ok(())
    }

    pub(super) fn remove_version(&mut self) -> Check {
        if let Some(key) = self.any_version() {
            self.remove(key)?;
        }
        if let Some(at) =
            (!self.snapshots.is_empty()).then(|| self.random.index(self.snapshots.len()))
            && self.chance(3)
        {
            let id = self.snapshots.swap_remove(at);
            self.machine.catalog.memory.delete_snapshot(id);
        }
        Ok(())
    }

    pub(super) fn remove(&mut self, key: VersionKey) -> Check<bool> {
        let now = self.machine.simulation.clock.wall();
        let not_before = Millis(now.0 + self.setup.grace_ms);
        match self.machine.cleaner().remove_version(key, not_before) {
            Ok(Removal::Removed { slots }) => {
                if self.chance(if self.is_traced { 1 } else { 8 }) {
                    self.check_plans(key)?;
                }
                trace!(self, "removed {key:?}: {slots} slots");
                self.versions.remove(&key);
                self.summary.removed += 1;
                Ok(true)
            }
            Ok(Removal::Needed) => Ok(false),
            Err(_) if self.may_fail() => {
                // It may have been carried out all the same.
                if self.machine.catalog.memory.version(key).is_err() {
                    self.versions.remove(&key);
                }
                Ok(false)
            }
            Err(error) => Err(format!("{key:?} cannot be removed: {error}")),
        }
    }

    /// No kept version names what waits to be freed.
    pub(super) fn check_plans(&mut self, removed: VersionKey) -> Check {
        let memory = &self.machine.catalog.memory;
        let plans = memory.due_frees(Millis(i64::MAX), 0, u32::MAX);
        let mut freed = BTreeSet::new();
        for free in plans.map_err(|error| error.to_string())? {
            let plan = FreePlan::decode(&free.plan).map_err(|error| error.to_string())?;
            for (segment, slots) in plan.segments() {
                freed.extend(slots.into_iter().map(|slot| Location::new(segment, slot)));
            }
        }
        for stored in self.machine.catalog.memory.versions() {
            let Ok(walked) = audit::walk(&self.machine, &stored) else {
                continue;
            };
            if let Some(entry) = walked
                .entries()
                .find(|entry| freed.contains(&entry.location))
            {
                return Err(format!(
                    "{:?}, which {:?} names, is to be freed after {removed:?} was removed",
                    entry.location, stored.key
                ));
            }
        }
        Ok(())
    }

    pub(super) fn carry_out(&mut self) -> Check {
        let now = self.machine.simulation.clock.wall();
        self.carry_out_due(now)
    }

    pub(super) fn carry_out_due(&mut self, now: Millis) -> Check {
        let due = match self.machine.catalog.due_frees(now, 0, u32::MAX) {
            Ok(due) => due,
            Err(_) if self.may_fail() => return Ok(()),
            Err(error) => return Err(error.to_string()),
        };
        for free in due {
            match self.machine.carry_out(&free) {
                Ok(_) => {}
                // With parity, what is repaired is not freed.
                Err(_) if self.may_fail() || self.is_repairing() => return Ok(()),
                Err(error) => return Err(format!("cannot free: {error}")),
            }
        }
        Ok(())
    }

    /// A random version holds exactly what it was cut with.
    pub(super) fn check_version(&mut self) -> Check {
        let Some(key) = self.any_version() else {
            return Ok(());
        };
        let Ok(stored) = self.machine.catalog.memory.version(key) else {
            return Ok(());
        };
        match self.hold(&stored) {
            Ok(()) => Ok(()),
            Err(Trouble::Unreadable(_)) if self.may_fail() => Ok(()),
            Err(Trouble::Unreadable(why) | Trouble::Wrong(why)) => Err(why),
        }
    }

    /// Another host takes the lease, and gives it up unused.
    pub(super) fn fence(&mut self) -> Check {
        let Some(index) = self.any_subject() else {
            return Ok(());
        };
        if self.subjects[index].client.is_some() {
            trace!(self, "{} fenced", self.subjects[index].id);
            let epoch = self
                .machine
                .catalog
                .memory
                .acquire(self.subjects[index].id, self.machine.salt(), None)
                .map(|lease| lease.epoch)
                .expect("it is there");
            if let Some(network) = &self.machine.network {
                network.show_elsewhere(self.subjects[index].id, epoch);
            }
            self.subjects[index].is_fenced = true;
        }
        Ok(())
    }
}

/// Bytes that no other number gives.
fn fill(number: u64, length: usize) -> Rc<[u8]> {
    let random = SimulatedRandom::new(number);
    let mut bytes = vec![0; length];
    world::Random::fill(&random, &mut bytes);
    bytes.into()
}
