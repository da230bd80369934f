//! The units of a machine: folders of its own, or units behind daemons on other machines.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use base::ClusterId;
use testkit::units::FaultyUnit;
use unit::Unit;
use unit_folder::FolderUnit;
use world::simulated::SimulatedDisk;
use world::{Disk, OpenMode, World};

use super::{Machine, tracked, unit_id};
use crate::net::daemon::unit_path;

impl Machine {
    /// Opens the folder of a unit: in a process of this host, or of the unit's machine.
    fn open_folder(&self, number: usize) -> Arc<dyn Unit> {
        let (path, cluster) = (unit_path(number), ClusterId::from_u128(1));
        let open = |world: &World| FolderUnit::open(world, &path, cluster, unit_id(number));
        let unit = match &self.network {
            None => open(&self.world),
            Some(network) => open(&network.world(number, &self.world)),
        };
        let unit = unit.with_segment_data_bytes(self.config.segment_bytes);
        Arc::new(unit.with_open_segments(8))
    }

    pub(super) fn open_unit(&mut self, number: usize) {
        let id = unit_id(number);
        let (unit, audited) = (self.open_folder(number), self.open_folder(number));
        let world = &self.world;
        let connected = match &mut self.network {
            None => Arc::clone(&unit),
            Some(network) => Arc::new(network.unit(number, world)),
        };
        let faulty = FaultyUnit::new(connected, world.random.u64());
        let faulty = Arc::new(match number < self.config.whole_units {
            true => faulty.taking_whole_segments(),
            false => faulty,
        });
        let tracked_unit = tracked(&(Arc::clone(&faulty) as Arc<dyn Unit>), world);
        self.audited_units.push(tracked(&audited, world));
        self.units.push((id, unit));
        self.faulty.push(faulty);
        self.tracked.push(tracked_unit);
    }

    /// Creates a unit, and returns its number.
    ///
    /// # Errors
    /// [`unit::UnitError`] if the disk is off.
    pub fn add_unit(&mut self) -> Result<usize, unit::UnitError> {
        let number = self.units.len();
        self.create_unit(number)?;
        self.open_unit(number);
        Ok(number)
    }

    pub(super) fn create_unit(&mut self, number: usize) -> Result<(), unit::UnitError> {
        let id = unit_id(number);
        match &mut self.network {
            None => {
                let cluster = ClusterId::from_u128(1);
                FolderUnit::create(&self.world, &unit_path(number), cluster, id).map(drop)
            }
            Some(network) => network.add(number, id, self.config.segment_bytes),
        }
    }

    /// The disk of a unit.
    #[must_use]
    pub fn unit_disk(&self, number: usize) -> Arc<SimulatedDisk> {
        match &self.network {
            None => Arc::clone(&self.simulation.disk),
            Some(network) => network.disk(number),
        }
    }

    /// Copies of the units' disks: one for each unit, or a single one without a network.
    #[must_use]
    pub fn copy_unit_disks(&self) -> Vec<SimulatedDisk> {
        match &self.network {
            None => vec![self.simulation.disk.copy()],
            Some(_) => (0..self.units.len())
                .map(|number| self.unit_disk(number).copy())
                .collect(),
        }
    }

    /// Starts the daemon of a unit after it has ended or its machine has lost power, and
    /// opens the unit again.
    pub fn start_daemon(&mut self, number: usize) {
        let Some(network) = &self.network else {
            return;
        };
        network.daemon(number).start();
        let unit = self.open_folder(number);
        self.units[number].1 = unit;
        self.audited_units[number] = tracked(&self.open_folder(number), &self.world);
        self.set_tables();
    }

    /// Kills the process, rolls a unit back to an earlier copy of its disk, and starts the
    /// next process.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn kill_and_roll_back(&mut self, unit: usize, earlier: &SimulatedDisk) -> io::Result<()> {
        self.simulation.kill();
        if let Some(network) = &self.network {
            network.daemon(unit).kill();
            network.daemon(unit).forget_fences();
        }
        let (now, then) = (&self.unit_disk(unit).spawn(), &earlier.spawn());
        let folder = unit_path(unit);
        // Both disks work during the copy: faults of the unit at the time of the copy are
        // not restored.
        now.heal(&folder);
        then.heal(&folder);
        let mut folders = BTreeSet::from([folder.clone()]);
        for (path, _) in now.files_under(&folder) {
            folders.extend(path.parent().map(PathBuf::from));
            now.remove(&path)?;
        }
        let held = then.files_under(&folder);
        for (path, _) in &held {
            let above = path.ancestors().skip(1).take_while(|it| *it != folder);
            folders.extend(above.map(PathBuf::from));
        }
        // A folder of the copy may be missing: the power failed before it was durable.
        for folder in &folders {
            now.create_directory(folder)?;
        }
        for (path, length) in held {
            let mut bytes = vec![0; usize::try_from(length).expect("short")];
            let file = then.open(&path, OpenMode::Read)?;
            file.read_at(&mut bytes, 0)?;
            let file = now.open(&path, OpenMode::CreateNew)?;
            file.write_at(&bytes, 0)?;
            file.sync_data()?;
        }
        for folder in folders {
            now.sync_directory(&folder)?;
        }
        if let Some(network) = &self.network {
            network.daemon(unit).start();
        }
        self.start(self.units.len());
        Ok(())
    }
}
