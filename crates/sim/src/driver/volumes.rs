//! [`TestVolumes`]: the volumes of a run, and the requests of their owners.

use std::collections::BTreeMap;
use std::time::Duration;

use base::{Lineage, SnapshotId, VolumeId};
use catalog::{Catalog, NewVolume, VersionCommit, VersionKey};
use volume::LeaseTerm;

use super::context::{Context, trace};
use crate::Check;
use crate::client::{Client, VolumeHistory};
use crate::model::Pinned;

/// The most volumes that exist at once.
const VOLUMES_MAX: usize = 5;

/// The state in which a detached volume must be found when it is attached.
#[derive(Debug, Clone, Copy)]
pub(super) enum Expectation {
    /// The state at a boundary from this one on; if `torn`, in the middle of an
    /// operation. After a power failure the state that is found is durable.
    Since {
        boundary: usize,
        torn: bool,
        is_durable: bool,
    },
    /// The state of this version; an empty volume if there is none.
    Version(Option<VersionKey>),
}

/// A volume under test.
pub(super) struct TestVolume {
    pub id: VolumeId,
    pub history: VolumeHistory,
    /// The client of the attached volume.
    pub client: Option<Client>,
    pub expect: Expectation,
    /// The next version's consistency point is at this boundary or a later one.
    pub version_floor: usize,
    /// Requested snapshots, and the boundaries of their consistency points.
    pub pending: BTreeMap<SnapshotId, usize>,
    /// Whether `history` is known to be that of the volume's content, also for versions
    /// that it commits now.
    pub is_known: bool,
    /// Whether another host has taken the lease: the owner will stop sooner or later.
    pub is_fenced: bool,
    /// The term of its last lease.
    pub term: LeaseTerm,
}

impl TestVolume {
    fn new(id: VolumeId, size_bytes: u64, from: Option<VersionKey>) -> Self {
        Self {
            id,
            history: VolumeHistory {
                size_bytes,
                ..VolumeHistory::default()
            },
            client: None,
            expect: Expectation::Version(from),
            version_floor: 0,
            pending: BTreeMap::new(),
            is_known: false,
            is_fenced: false,
            term: LeaseTerm::unlimited(),
        }
    }

    /// The status of the attached volume, for messages.
    pub fn status(&self) -> Option<volume::VolumeStatus> {
        self.client.as_ref().map(|client| client.volume.status())
    }

    /// Whether the attached volume has stopped.
    pub fn is_stopped(&self) -> bool {
        self.client.as_ref().is_some_and(Client::is_stopped)
    }
}

/// All volumes of a run.
#[derive(Default)]
pub(super) struct TestVolumes {
    pub list: Vec<TestVolume>,
}

impl TestVolumes {
    pub fn any(&self, context: &Context) -> Option<usize> {
        (!self.list.is_empty()).then(|| context.random.index(self.list.len()))
    }

    /// Some volume, attached. `None` if it cannot be attached now.
    pub fn any_attached(&mut self, context: &mut Context) -> Check<Option<usize>> {
        let Some(index) = self.any(context) else {
            return Ok(None);
        };
        Ok(self.attach(context, index)?.then_some(index))
    }

    /// Runs some jobs, and then polls all volumes.
    pub fn turn(&mut self, context: &Context) -> Check {
        for _ in 0..context.random.below(6) {
            context.machine.simulation.pool.run_one(&context.random);
        }
        self.poll_all(context)
    }

    pub fn poll_all(&mut self, context: &Context) -> Check {
        let may_fail = context.may_fail();
        let faults = &context.faults;
        let may_lose = faults.has_rot
            || faults.is_falsifying
            || context.setup.hazards.journal
            || context.is_off();
        for volume in &mut self.list {
            if let Some(client) = &mut volume.client {
                client.must_wait = !may_lose;
                client.poll(&mut volume.history, may_fail)?;
            }
        }
        Ok(())
    }

    /// Advances the clock, and sometimes sets the wall clock.
    pub fn pass_time(&mut self, context: &Context) -> Check {
        let clock = &context.machine.simulation.clock;
        let millis = [1, 300, 1000, 6000][context.random.index(4)];
        clock.advance(Duration::from_millis(millis));
        if context.chance(10) {
            let jump = context.random.below(200_000).cast_signed() - 100_000;
            clock.jump(jump);
        }
        context.machine.probe(false);
        self.poll_all(context)
    }

    pub fn snapshot(&mut self, context: &mut Context) -> Check {
        let Some(index) = self.any_attached(context)? else {
            return Ok(());
        };
        let id = SnapshotId::from_u128(context.next_number());
        let volume = &mut self.list[index];
        let Some(client) = &mut volume.client else {
            return Ok(());
        };
        let boundary = volume.history.timeline.len();
        trace!(context, "{} {id} at {boundary}", volume.id);
        client.volume.snapshot(id);
        if !client.is_stopped() {
            client.in_journal = boundary;
            volume.pending.insert(id, boundary);
        }
        Ok(())
    }

    /// Creates a clone of some version, unless there are enough volumes.
    pub fn clone_version(&mut self, context: &mut Context) {
        if self.list.len() < VOLUMES_MAX {
            let from = context.any_version();
            self.create(context, from);
        }
    }

    /// Creates a volume, from a version if one is given.
    pub fn create(&mut self, context: &mut Context, from: Option<VersionKey>) {
        let id = VolumeId::from_u128(context.next_number());
        let lineage = Lineage::from_u128(context.next_number());
        let random = context.random.split();
        let setup = context.setup;
        let key = context.machine.new_key(lineage, setup.is_sealed, &random);
        let size_bytes = from.map_or(setup.size_bytes, |from| {
            context.ledger.versions[&from].size_bytes
        });
        let new = NewVolume {
            volume: id,
            size_bytes,
            block_size: setup.block_size,
            replicas: setup.replicas,
            erasure: setup.erasure,
            key,
            from,
        };
        trace!(context, "{id} created from {from:?}");
        context
            .machine
            .catalog
            .memory
            .create_volume(new)
            .expect("the version is kept");
        self.list.push(TestVolume::new(id, size_bytes, from));
        context.summary.volumes += 1;
    }

    pub fn grow(&mut self, context: &Context) {
        let Some(index) = self.any(context) else {
            return;
        };
        let volume = &mut self.list[index];
        let size_bytes = volume.history.size_bytes + 512 * (1 + context.random.below(1000));
        context
            .machine
            .catalog
            .memory
            .grow(volume.id, size_bytes)
            .expect("the volume exists");
        volume.history.size_bytes = size_bytes;
        if let Some(client) = &mut volume.client {
            client.volume.grow(size_bytes);
        }
    }

    /// Restores a volume to an earlier version of its own, after its journal has been
    /// destaged.
    pub fn restore(&mut self, context: &mut Context) -> Check {
        let Some(index) = self.any(context) else {
            return Ok(());
        };
        if !self.attach(context, index)? || !self.close(context, index)? {
            return Ok(());
        }
        let volume = &mut self.list[index];
        let versions = context.ledger.versions.keys().copied();
        let own: Vec<VersionKey> = versions.filter(|key| key.volume == volume.id).collect();
        if own.is_empty() {
            return Ok(());
        }
        let to = own[context.random.index(own.len())];
        trace!(context, "{} restored to {}", volume.id, to.number);
        let memory = &context.machine.catalog.memory;
        memory.restore(volume.id, to).expect("it is kept");
        volume.expect = Expectation::Version(Some(to));
        volume.is_known = false;
        volume.pending.clear();
        context.summary.restores += 1;
        Ok(())
    }

    /// Closes some volume, if it is attached.
    pub fn close_any(&mut self, context: &mut Context) -> Check {
        if let Some(index) = self.any(context)
            && self.list[index].client.is_some()
        {
            self.close(context, index)?;
        }
        Ok(())
    }

    /// Deletes some volume, unless it is the only one.
    pub fn delete(&mut self, context: &mut Context) -> Check {
        if self.list.len() < 2 || context.faults.has_rot {
            return Ok(());
        }
        let Some(index) = self.any(context) else {
            return Ok(());
        };
        // An attach sweeps the leftovers of the last lease. Those of a deleted volume
        // would stay.
        for _ in 0..2 {
            self.heal(context)?;
            if !self.attach(context, index)? || !self.close(context, index)? {
                return Ok(());
            }
            context.machine.simulation.pool.run_all(&context.random);
            if context.is_off() {
                return Ok(());
            }
        }
        let volume = self.list.remove(index);
        trace!(context, "{} deleted", volume.id);
        context.machine.catalog.memory.delete_volume(volume.id);
        Ok(())
    }

    /// Another host takes the lease of some attached volume, and does not use it.
    pub fn fence(&mut self, context: &Context) {
        let Some(index) = self.any(context) else {
            return;
        };
        let volume = &mut self.list[index];
        if volume.client.is_none() {
            return;
        }
        trace!(context, "{} fenced", volume.id);
        let machine = &context.machine;
        let lease = machine
            .catalog
            .memory
            .acquire(volume.id, machine.salt(), None)
            .expect("the volume exists");
        if let Some(network) = &machine.network {
            network.present_from_elsewhere(volume.id, lease.epoch);
        }
        volume.is_fenced = true;
    }

    /// Notifies fenced volumes that their lease is lost, as the renewer of leases does.
    /// Units refuse their puts, and they may not call the catalog for a long time.
    pub fn notify_fenced(&self, context: &Context) {
        let fenced = self.list.iter().filter(|volume| volume.is_fenced);
        if context.machine.network.is_some() {
            fenced.for_each(|volume| volume.term.lose());
        }
    }

    /// Records the versions that were committed since the last call.
    pub fn record_commits(&mut self, context: &mut Context) -> Check {
        for version in context.machine.catalog.take_records() {
            context.ledger.nonces.note_record(&version)?;
        }
        let mut commits = std::mem::take(&mut context.ledger.unattributed);
        commits.append(&mut context.machine.catalog.take_commits());
        for commit in commits {
            self.record_commit(context, commit)?;
        }
        Ok(())
    }

    fn record_commit(&mut self, context: &mut Context, commit: VersionCommit) -> Check {
        let key = commit.version.key;
        let mut volumes = self.list.iter_mut();
        let Some(volume) = volumes.find(|volume| volume.id == key.volume) else {
            return Ok(());
        };
        if !volume.is_known {
            context.ledger.unattributed.push(commit);
            return Ok(());
        }
        let timeline = volume.history.timeline.clone();
        let mut boundaries = volume.version_floor..=timeline.len();
        for pin in &commit.pins {
            let Some(boundary) = volume.pending.remove(pin) else {
                return Err(format!("{pin} was completed twice, or never requested"));
            };
            if boundary < volume.version_floor {
                return Err(format!("{pin} is older than an earlier version"));
            }
            boundaries = boundary..=boundary;
            context.ledger.snapshots.push(*pin);
            context.summary.snapshots += 1;
        }
        trace!(
            context,
            "{key:?} committed: {boundaries:?}, {:?}, degraded {:?}, joined {}",
            commit.open_segments,
            commit.degraded,
            commit.joined
        );
        volume.version_floor = *boundaries.start();
        let size_bytes = volume.history.size_bytes;
        context.ledger.versions.insert(
            key,
            Pinned {
                timeline,
                boundaries,
                size_bytes,
            },
        );
        context.summary.versions += 1;
        Ok(())
    }
}
