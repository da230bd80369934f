//! The units of a machine: its own folders, or those of machines that it reaches by a
//! network.

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
    /// The folder of a unit, by a process of this host, or of the unit's machine.
    fn open_folder(&self, number: usize) -> Arc<dyn Unit> {
        let (path, cluster) = (unit_path(number), ClusterId::from_u128(1));
        let open = |world: &World| FolderUnit::open(world, &path, cluster, unit_id(number));
        let unit = match &self.network {
            None => open(&self.world),
            Some(network) => open(&network.world(number, &self.world)),
        };
        let unit = unit.with_segment_data_bytes(self.segment_bytes);
        Arc::new(unit.with_open_segments(8))
    }

    pub(super) fn open_unit(&mut self, number: usize) {
        let id = unit_id(number);
        let (unit, again) = (self.open_folder(number), self.open_folder(number));
        let world = &self.world;
        let reached = match &mut self.network {
            None => Arc::clone(&unit),
            Some(network) => Arc::new(network.unit(number, world)),
        };
        let faulty = FaultyUnit::new(reached, world.random.u64());
        let faulty = Arc::new(match number < self.whole_units {
            true => faulty.taking_whole_segments(),
            false => faulty,
        });
        let tracked_unit = tracked(&(Arc::clone(&faulty) as Arc<dyn Unit>), world);
        self.audited_units.push(tracked(&again, world));
        self.units.push((id, unit));
        self.faulty.push(faulty);
        self.tracked.push(tracked_unit);
    }

    /// Makes a new unit. Returns its number.
    ///
    /// # Errors
    /// If the disk is off.
    pub fn add_unit(&mut self) -> Result<usize, unit::UnitError> {
        let number = self.units.len();
        self.make_unit(number)?;
        self.open_unit(number);
        Ok(number)
    }

    pub(super) fn make_unit(&mut self, number: usize) -> Result<(), unit::UnitError> {
        let id = unit_id(number);
        match &mut self.network {
            None => {
                let cluster = ClusterId::from_u128(1);
                FolderUnit::create(&self.world, &unit_path(number), cluster, id).map(drop)
            }
            Some(network) => network.add(number, id, self.segment_bytes),
        }
    }

    /// The disk on which a unit lies.
    #[must_use]
    pub fn unit_disk(&self, number: usize) -> Arc<SimulatedDisk> {
        match &self.network {
            None => Arc::clone(&self.simulation.disk),
            Some(network) => network.disk(number),
        }
    }

    /// The disks of all units as they are now: of each unit its own, or one of all.
    #[must_use]
    pub fn copy_unit_disks(&self) -> Vec<SimulatedDisk> {
        match &self.network {
            None => vec![self.simulation.disk.copy()],
            Some(_) => (0..self.units.len())
                .map(|number| self.unit_disk(number).copy())
                .collect(),
        }
    }

    /// The daemon of a unit has ended, or its machine lost power: both run again, and
    /// are looked at anew.
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

    /// Kills the process; while none runs, a unit is put back to what it was on an
    /// earlier copy of the disk.
    ///
    /// # Errors
    /// What the disk says.
    pub fn kill_and_put_back(&mut self, unit: usize, earlier: &SimulatedDisk) -> io::Result<()> {
        self.simulation.kill();
        if let Some(network) = &self.network {
            network.daemon(unit).kill();
            network.daemon(unit).forget();
        }
        let (now, then) = (&self.unit_disk(unit).spawn(), &earlier.spawn());
        let folder = unit_path(unit);
        // Whoever puts something back does so on a disk that works, and out of one: what
        // was wrong with the unit when it was copied is no part of what it held.
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
        // The power may have failed before one was durable that is in the copy.
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
