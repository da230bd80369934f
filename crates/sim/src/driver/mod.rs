//! One run: the steps that the seed chooses, and the checks after each.
//!
//! ```text
//!   Run ─── chooses steps, restarts the host, ends the run
//!    ├─ Context ──────── machine, random numbers, trace; active faults
//!    │   └─ VersionLedger   committed versions, and what each must contain
//!    ├─ TestVolumes ──── volumes, their clients, and the expected content
//!    ├─ Readers ──────── versions that are open for reading
//!    └─ Maintenance ──── repairer; units that die, drain or are rolled back
//! ```
//!
//! A part is given what it needs: `TestVolumes` knows no readers, `Context` no
//! volumes.

mod attach;
mod cleaning;
mod context;
mod faults;
mod ledger;
mod network;
mod readers;
mod repair;
mod requests;
mod volumes;

use catalog::{Catalog, VersionKey};
use world::{Disk, Millis};

use self::context::{Context, trace};
use self::faults::FaultStep;
use self::readers::Readers;
use self::repair::{Maintenance, UnitChange};
use self::volumes::{Expectation, TestVolumes};
use crate::machine::unit_id;
use crate::{Check, Summary};

/// One run.
pub struct Run {
    context: Context,
    volumes: TestVolumes,
    readers: Readers,
    maintenance: Maintenance,
}

/// How the host's process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Restart {
    /// The power fails.
    PowerFailure,
    /// The process is killed.
    Kill,
    /// The process is killed, and a unit is rolled back before the next one starts.
    RollBack { unit: usize },
}

impl Run {
    /// The run of `seed`.
    #[must_use]
    pub fn new(seed: u64, is_traced: bool) -> Self {
        let mut context = Context::new(seed, is_traced);
        trace!(context, "{:?}", context.setup);
        let mut volumes = TestVolumes::default();
        volumes.create(&mut context, None);
        Self {
            context,
            volumes,
            readers: Readers::default(),
            maintenance: Maintenance::default(),
        }
    }

    /// Takes all steps, and then checks everything.
    ///
    /// # Errors
    /// The first broken promise.
    pub fn all(mut self) -> Check<Summary> {
        for step in 0..self.context.setup.steps {
            trace!(self.context, "step {step}");
            self.step()?;
            self.after_step()?;
        }
        self.finish()?;
        let (machine, mut summary) = (&self.context.machine, self.context.summary);
        summary.operations = machine.simulation.disk.operations();
        summary.cached = machine.cached();
        if let Some(network) = &machine.network {
            summary.network = network.counts();
        }
        Ok(summary)
    }

    fn step(&mut self) -> Check {
        let (context, volumes) = (&mut self.context, &mut self.volumes);
        if context.is_repairing() && context.chance(6) {
            return self.maintenance.repair(context, volumes);
        }
        if context.breaks_network() && context.chance(12) {
            context.break_network();
            return Ok(());
        }
        match context.random.below(100) {
            0..=54 => volumes.request(context),
            55..=71 => volumes.turn(context),
            72..=75 => volumes.pass_time(context),
            76..=78 => volumes.snapshot(context),
            79 | 80 => {
                volumes.clone_version(context);
                Ok(())
            }
            81 => {
                volumes.grow(context);
                Ok(())
            }
            82 => volumes.restore(context),
            83 => volumes.close_any(context),
            84 => volumes.delete(context),
            85..=87 => context.remove_any_version(),
            88 | 89 => context.carry_out(),
            90 => match context.chance(2) {
                true => context.check_any_version(),
                false => self.readers.read_version(context),
            },
            91 => {
                volumes.fence(context);
                Ok(())
            }
            92 => self.maintenance.repair(context, volumes),
            93 | 94 if context.setup.hazards.members => self.change_unit(),
            _ => self.inject_fault(),
        }
    }

    /// Ends a step: a host without power boots, a volume that has stopped is released.
    fn after_step(&mut self) -> Check {
        if self.context.is_off() {
            trace!(self.context, "power failed");
            return self.restart(Restart::PowerFailure);
        }
        self.volumes.release_stopped(&mut self.context)?;
        self.context.advance_network()?;
        self.volumes.record_commits(&mut self.context)
    }

    fn inject_fault(&mut self) -> Check {
        let context = &mut self.context;
        let Some(fault) = context.choose_fault() else {
            return Ok(());
        };
        match fault {
            FaultStep::ArmCrash => context.arm_crash(),
            FaultStep::PowerFailure => return self.restart(Restart::PowerFailure),
            FaultStep::Kill => return self.restart(Restart::Kill),
            FaultStep::HarmUnit => context.harm_unit(),
            FaultStep::Falsify => context.falsify(),
            FaultStep::FlipBit => return context.flip_bit(),
            FaultStep::HarmJournals => context.harm_journals(),
            FaultStep::CatalogUnavailable => context.make_catalog_unavailable(),
            FaultStep::Heal => return self.volumes.heal(context),
            FaultStep::Network => context.break_network(),
        }
        Ok(())
    }

    fn change_unit(&mut self) -> Check {
        let (context, volumes) = (&mut self.context, &mut self.volumes);
        match self.maintenance.choose(context, volumes)? {
            None => Ok(()),
            Some(UnitChange::Replace { unit, is_dead }) => {
                self.maintenance.replace_unit(context, unit, is_dead)
            }
            Some(UnitChange::RollBack { unit }) => {
                trace!(context, "unit {unit} is rolled back");
                self.restart(Restart::RollBack { unit })?;
                let context = &mut self.context;
                let (_, unit) = &context.machine.units[unit];
                let segments = unit.list().map_err(|error| error.to_string())?;
                context.ledger.reappeared.extend(segments);
                context.summary.replaced += 1;
                Ok(())
            }
        }
    }

    /// Ends the host's process, and starts another one.
    fn restart(&mut self, restart: Restart) -> Check {
        self.volumes.record_commits(&mut self.context)?;
        let context = &mut self.context;
        context.faults.is_crash_armed = false;
        context.machine.simulation.disk.arm_crash(u64::MAX);
        context.summary.restarts += 1;
        let restart = match context.is_off() {
            true => Restart::PowerFailure,
            false => restart,
        };
        trace!(context, "restart: {restart:?}");
        self.volumes
            .expect_after_restart(restart == Restart::PowerFailure);
        match restart {
            Restart::PowerFailure => {
                context.machine.crash();
                context.crash_daemons();
            }
            Restart::RollBack { unit } => {
                let copy = self.maintenance.copy_of(unit).expect("it was copied");
                let members = &context.machine.catalog.members;
                members.suspect_unit(unit_id(unit));
                let rolled_back = context.machine.kill_and_roll_back(unit, copy);
                rolled_back.map_err(|error| format!("cannot roll unit {unit} back: {error}"))?;
            }
            Restart::Kill => context.machine.kill(),
        }
        // Falsified answers were a fault of the process.
        context.faults.is_falsifying = false;
        if let Some(network) = &context.machine.network {
            network.stop_falsifying();
        }
        self.readers.clear();
        self.volumes.detach_all(context)
    }

    /// Closes and checks everything, then deletes everything and checks that nothing is
    /// left.
    fn finish(&mut self) -> Check {
        trace!(self.context, "finishing");
        self.context.machine.simulation.disk.arm_crash(u64::MAX);
        self.context.faults.is_any = true;
        self.volumes.heal(&mut self.context)?;
        // The second attach sweeps the leftovers of the first one's lease.
        for _ in 0..2 {
            for index in 0..self.volumes.list.len() {
                self.close_at_end(index)?;
            }
            let context = &self.context;
            context.machine.simulation.pool.run_all(&context.random);
        }
        let context = &mut self.context;
        self.volumes.record_commits(context)?;
        if let Some(network) = &context.machine.network {
            network.deliver_abandoned(true);
        }
        context.check_network()?;
        self.maintenance.repair_all(context, &mut self.volumes)?;
        context.carry_out_due(Millis(i64::MAX))?;
        context.audit()?;
        match context.faults.has_rot {
            true => Ok(()),
            false => self.delete_all(),
        }
    }

    fn close_at_end(&mut self, index: usize) -> Check {
        for _ in 0..3 {
            let (context, volumes) = (&mut self.context, &mut self.volumes);
            if volumes.attach(context, index)? && volumes.close(context, index)? {
                break;
            }
            self.after_step()?;
        }
        let volume = &self.volumes.list[index];
        match volume.client.is_none() || self.context.faults.has_rot {
            true => Ok(()),
            false => Err(format!("{} cannot be closed", volume.id)),
        }
    }

    /// Deletes all volumes, snapshots and versions, and checks that units have no segments
    /// left.
    fn delete_all(&mut self) -> Check {
        let context = &mut self.context;
        for volume in std::mem::take(&mut self.volumes.list) {
            context.machine.catalog.memory.delete_volume(volume.id);
        }
        for snapshot in std::mem::take(&mut context.ledger.snapshots) {
            context.machine.catalog.memory.delete_snapshot(snapshot);
        }
        while !context.ledger.versions.is_empty() {
            // In random order: a version at which several branches begin is refused until
            // only one is left.
            let mut keys: Vec<VersionKey> = context.ledger.versions.keys().copied().collect();
            context.random.shuffle(&mut keys);
            let mut is_any_removed = false;
            for key in keys {
                is_any_removed |= context.remove(key)?;
                if context.chance(4) {
                    context.carry_out_due(Millis(i64::MAX))?;
                    context.audit()?;
                }
            }
            if !is_any_removed {
                return Err(format!(
                    "these versions are not needed and cannot be removed: {:?}",
                    context.ledger.versions.keys()
                ));
            }
        }
        context.carry_out_due(Millis(i64::MAX))?;
        context.audit()?;
        for (number, (_, unit)) in context.machine.units.iter().enumerate() {
            if context.machine.removed.contains(&number) {
                continue;
            }
            let mut left = unit.list().map_err(|error| error.to_string())?;
            left.retain(|segment| !context.ledger.reappeared.contains(segment));
            if !left.is_empty() {
                return Err(format!("unit {number} keeps empty segments: {left:?}"));
            }
        }
        Ok(())
    }
}

impl TestVolumes {
    /// Sets what each volume must contain after a restart of the host.
    fn expect_after_restart(&mut self, is_power_failure: bool) {
        for volume in &mut self.list {
            let (in_journal, torn) = match (&volume.client, volume.expect) {
                (Some(client), _) if client.is_stopped() => (volume.history.durable, true),
                (Some(client), _) => (client.in_journal, true),
                (None, Expectation::Since { boundary, torn, .. }) => (boundary, torn),
                (None, Expectation::Version(_)) => continue,
            };
            let boundary = match is_power_failure {
                true => volume.history.durable,
                false => in_journal,
            };
            volume.expect = Expectation::Since {
                boundary: boundary.max(volume.version_floor),
                torn,
                is_durable: is_power_failure,
            };
            volume.is_known = false;
            volume.pending.clear();
        }
    }

    /// The process that had the volumes attached has ended. Sometimes a journal is lost
    /// with it.
    fn detach_all(&mut self, context: &mut Context) -> Check {
        for index in 0..self.list.len() {
            let was_attached = self.list[index].client.take().is_some();
            let is_lost = context.setup.hazards.journal && context.chance(6);
            if is_lost && was_attached {
                self.lose_journal(context, index)?;
            }
        }
        Ok(())
    }

    /// Removes a volume's journal: its newest version is what is left.
    fn lose_journal(&mut self, context: &mut Context, index: usize) -> Check {
        let id = self.list[index].id;
        trace!(context, "{id} loses its journal");
        let machine = &context.machine;
        let (disk, path) = (&machine.simulation.disk, machine.journal(id));
        let lease = machine.catalog.memory.acquire(id, machine.salt(), None);
        let keys = lease.expect("the volume exists").keys;
        context.ledger.nonces.note_journal(&**disk, &path, &keys)?;
        disk.heal(&machine.journal_folder());
        let removed = disk.remove(&path);
        let synced = removed.and_then(|()| disk.sync_directory(&machine.journal_folder()));
        if synced.is_ok() {
            let head = machine.catalog.memory.head(id);
            self.list[index].expect = Expectation::Version(head);
        }
        Ok(())
    }
}
