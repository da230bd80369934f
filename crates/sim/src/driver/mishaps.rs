//! Faults, as the seed chooses them.

use std::sync::Arc;
use std::time::Duration;

use testkit::units::InjectedFaults;
use world::simulated::Fault;

use super::{Run, trace};
use crate::Check;

/// A fault that can happen between two steps.
#[derive(Debug, Clone, Copy)]
enum Mishap {
    ArmCrash,
    PowerFails,
    Kill,
    HarmUnit,
    Lie,
    Flip,
    HarmJournal,
    CatalogUnavailable,
    Settle,
    Network,
}

impl Run {
    pub(super) fn mishap(&mut self) -> Check {
        let hazards = self.setup.hazards;
        let possible = [
            (hazards.power, Mishap::ArmCrash),
            (hazards.power, Mishap::PowerFails),
            (hazards.kill, Mishap::Kill),
            (hazards.units, Mishap::HarmUnit),
            (hazards.units, Mishap::HarmUnit),
            (hazards.lies, Mishap::Lie),
            (hazards.rot, Mishap::Flip),
            (hazards.journal, Mishap::HarmJournal),
            (hazards.catalog, Mishap::CatalogUnavailable),
            (self.trouble, Mishap::Settle),
            (self.is_disturbed(), Mishap::Network),
            (self.is_disturbed(), Mishap::Network),
            (self.is_disturbed(), Mishap::Network),
        ];
        let possible: Vec<Mishap> = possible
            .into_iter()
            .filter_map(|(may, mishap)| may.then_some(mishap))
            .collect();
        if possible.is_empty() || self.chance(3) {
            return Ok(());
        }
        match possible[self.random.index(possible.len())] {
            Mishap::ArmCrash if !self.crash_armed => {
                let disk = &self.machine.simulation.disk;
                disk.arm_crash(disk.operations() + self.random.below(60));
                self.crash_armed = true;
            }
            Mishap::ArmCrash => {}
            Mishap::PowerFails => self.restart(true)?,
            Mishap::Kill => self.restart(false)?,
            Mishap::HarmUnit => self.harm_unit(),
            Mishap::Lie => self.lie(),
            Mishap::Flip => self.flip()?,
            Mishap::HarmJournal => self.harm_journal(),
            Mishap::CatalogUnavailable => {
                self.machine.catalog.set_unavailable(4);
                self.trouble = true;
            }
            Mishap::Settle => self.settle()?,
            Mishap::Network => self.disturb(),
        }
        Ok(())
    }

    /// Whether the network may break.
    pub(super) fn is_disturbed(&self) -> bool {
        self.setup.net.is_some_and(|net| net.breaks)
    }

    /// A unit errs, and brings what was not asked for.
    pub(super) fn lie(&mut self) {
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
        trace!(self, "unit {unit} lies: {faults:?}");
        self.is_lying |= faults.flipped_bits_one_in > 0 || faults.misdirected_one_in > 0;
        self.machine.lie(unit, faults);
        if let Some(network) = &self.machine.network
            && self.random.one_in(2)
        {
            network.daemon(unit).lie(often);
            self.is_lying = true;
        }
        self.trouble = true;
    }

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
        self.trouble = true;
    }

    pub(super) fn harm_journal(&mut self) {
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
            .inject(&self.machine.host(), fault);
        self.trouble = true;
    }

    pub(super) fn flip(&mut self) -> Check {
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
            self.rotten = true;
        }
        Ok(())
    }
}
