//! Faults of units, journals and the catalog, as the seed chooses them.

use std::sync::Arc;
use std::time::Duration;

use testkit::units::InjectedFaults;
use world::simulated::Fault;

use super::context::{Context, trace};
use crate::Check;

/// A fault that can happen between two steps, or the end of all faults.
#[derive(Debug, Clone, Copy)]
pub(super) enum FaultStep {
    ArmCrash,
    PowerFailure,
    Kill,
    HarmUnit,
    Falsify,
    FlipBit,
    HarmJournals,
    CatalogUnavailable,
    Heal,
    Network,
}

impl Context {
    /// Chooses a fault among those that the setup allows; often none.
    pub(super) fn choose_fault(&self) -> Option<FaultStep> {
        let hazards = self.setup.hazards;
        let possible = [
            (hazards.power, FaultStep::ArmCrash),
            (hazards.power, FaultStep::PowerFailure),
            (hazards.kill, FaultStep::Kill),
            (hazards.units, FaultStep::HarmUnit),
            (hazards.units, FaultStep::HarmUnit),
            (hazards.falsified, FaultStep::Falsify),
            (hazards.rot, FaultStep::FlipBit),
            (hazards.journal, FaultStep::HarmJournals),
            (hazards.catalog, FaultStep::CatalogUnavailable),
            (self.faults.is_any, FaultStep::Heal),
            (self.breaks_network(), FaultStep::Network),
            (self.breaks_network(), FaultStep::Network),
            (self.breaks_network(), FaultStep::Network),
        ];
        let possible: Vec<FaultStep> = possible
            .into_iter()
            .filter_map(|(is_possible, fault)| is_possible.then_some(fault))
            .collect();
        if possible.is_empty() || self.chance(3) {
            return None;
        }
        Some(possible[self.random.index(possible.len())])
    }

    /// The power fails in one of the next operations of the host's disk.
    pub(super) fn arm_crash(&mut self) {
        if !self.faults.is_crash_armed {
            let disk = &self.machine.simulation.disk;
            disk.arm_crash(disk.operations() + self.random.below(60));
            self.faults.is_crash_armed = true;
        }
    }

    /// The catalog fails one in four calls.
    pub(super) fn make_catalog_unavailable(&mut self) {
        self.machine.catalog.set_unavailable(4);
        self.faults.is_any = true;
    }

    /// A unit returns errors, and content other than what was put.
    pub(super) fn falsify(&mut self) {
        let often = 2 + self.random.below(12);
        let mut faults = InjectedFaults::default();
        for (kind, rate) in [
            &mut faults.read_errors_one_in,
            &mut faults.write_errors_one_in,
            &mut faults.release_errors_one_in,
            &mut faults.flipped_bits_one_in,
            &mut faults.misdirected_one_in,
        ]
        .into_iter()
        .enumerate()
        {
            if self.random.one_in(2) {
                *rate = often + kind as u64;
            }
        }
        if self.random.one_in(2) {
            faults.async_reads_one_in = 1 + self.random.below(3);
        }
        let unit = self.random.index(self.machine.units.len());
        trace!(self, "unit {unit} is faulty: {faults:?}");
        self.faults.is_falsifying |=
            faults.flipped_bits_one_in > 0 || faults.misdirected_one_in > 0;
        self.machine.inject(unit, faults);
        if let Some(network) = &self.machine.network
            && self.random.one_in(2)
        {
            network.daemon(unit).falsify_reads(often);
            self.faults.is_falsifying = true;
        }
        self.faults.is_any = true;
    }

    /// The folder of a unit has a fault.
    pub(super) fn harm_unit(&mut self) {
        let unit = self.random.index(self.machine.units.len());
        let fault = [
            Fault::Missing,
            Fault::Full,
            Fault::ReadOnly,
            Fault::Broken,
            Fault::Unreadable,
            Fault::SyncFails,
            Fault::Slow(Duration::from_millis(5)),
        ][self.random.index(7)];
        trace!(self, "unit {unit}: {fault:?}");
        let disk = self.machine.unit_disk(unit);
        disk.inject(&self.machine.unit_path(unit), fault);
        self.faults.is_any = true;
    }

    /// The folder of journals has a fault.
    pub(super) fn harm_journals(&mut self) {
        let fault = [
            Fault::Full,
            Fault::ReadOnly,
            Fault::Broken,
            Fault::SyncFails,
        ][self.random.index(4)];
        trace!(self, "journals: {fault:?}");
        self.machine
            .simulation
            .disk
            .inject(&self.machine.journal_folder(), fault);
        self.faults.is_any = true;
    }

    /// Flips a bit in a segment of some unit.
    pub(super) fn flip_bit(&mut self) -> Check {
        let files: Vec<_> = (0..self.machine.units.len())
            .flat_map(|unit| {
                let disk = self.machine.unit_disk(unit);
                let files = disk.files_under(&self.machine.unit_path(unit).join("segments"));
                files
                    .into_iter()
                    .map(move |(path, length)| (Arc::clone(&disk), path, length))
            })
            .filter(|(_, _, length)| *length > 0)
            .collect();
        if !files.is_empty() {
            let (disk, path, length) = &files[self.random.index(files.len())];
            let offset = self.random.below(*length);
            trace!(self, "flipped a bit of {} at {offset}", path.display());
            disk.flip_bit(path, offset, self.random.below(8) as u8)
                .map_err(|error| error.to_string())?;
            self.faults.has_rot = true;
        }
        Ok(())
    }

    /// Ends the faults of disks and units. The caller ends those of the network.
    pub(super) fn heal_disks(&self) {
        let machine = &self.machine;
        let disk = &machine.simulation.disk;
        disk.heal(&machine.journal_folder());
        for unit in 0..machine.units.len() {
            if !machine.removed.contains(&unit) {
                machine.unit_disk(unit).heal(&machine.unit_path(unit));
            }
        }
    }

    /// Ends falsified answers and failures of the catalog, and probes all units.
    pub(super) fn heal_calls(&mut self) {
        for unit in 0..self.machine.units.len() {
            self.machine.inject(unit, InjectedFaults::default());
        }
        self.faults.is_falsifying = false;
        self.machine.catalog.set_unavailable(0);
        self.machine.probe(true);
    }
}
