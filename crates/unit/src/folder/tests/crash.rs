//! The power fails, or the process dies, in every operation.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use base::{SegmentId, Slot};
use world::simulated::{SimulatedRandom, Simulation};
use world::{Disk, OpenMode};

use super::{PATH, create, open, try_create};
use crate::conformance::{SLOT_BYTES, is_absent, put, read, replace, segment};
use crate::folder::place::folder_of;
use crate::{FolderUnit, Unit, UnitError};

/// What the unit has promised about a segment.
#[derive(Default)]
struct Promise {
    put: u16,
    /// Slots that a sync has covered.
    synced: u16,
    /// Slots whose free has returned.
    freed: BTreeSet<u16>,
    /// Slots whose free has failed: they may be free or not.
    perhaps_freed: BTreeSet<u16>,
    /// A delete has failed: it may be there or not.
    perhaps_deleted: bool,
}

/// A unit under test, and what it has promised.
struct Run {
    unit: FolderUnit,
    promises: BTreeMap<SegmentId, Promise>,
    deleted: BTreeSet<SegmentId>,
    next: u64,
}

impl Run {
    /// One random step.
    fn step(&mut self, random: &SimulatedRandom) -> Result<(), UnitError> {
        let known: Vec<SegmentId> = self.promises.keys().copied().collect();
        if known.is_empty() || random.below(4) == 0 {
            let id = segment(self.next * 13);
            self.next += 1;
            let count = 1 + random.below(12) as u16;
            self.promises.entry(id).or_default();
            put(&self.unit, id, SLOT_BYTES, 0, count)?;
            self.promises.entry(id).or_default().put = count;
            return Ok(());
        }
        let id = known[random.index(known.len())];
        let promise = self.promises.get_mut(&id).expect("known");
        match random.below(9) {
            0 | 1 if promise.put > 0 => {
                let count = 1 + random.below(6) as u16;
                put(&self.unit, id, SLOT_BYTES, promise.put, count)?;
                promise.put += count;
            }
            2 | 3 if promise.put > 0 => {
                self.unit.sync(&[id])?;
                promise.synced = promise.put;
            }
            4 | 5 => {
                let chosen = (0..promise.synced).filter(|_| random.below(3) == 0);
                let chosen: BTreeSet<u16> = chosen.collect();
                let slots: Vec<Slot> = chosen.iter().copied().map(Slot).collect();
                promise.perhaps_freed.extend(&chosen);
                self.unit.free(id, &slots, false)?;
                promise.freed.extend(&chosen);
            }
            6 => {
                self.unit.settle()?;
            }
            7 => {
                promise.perhaps_deleted = true;
                // Either way of deleting.
                let is_all = promise.synced == promise.put && random.below(2) == 0;
                if is_all {
                    let slots: Vec<Slot> = (0..promise.put).map(Slot).collect();
                    self.unit.free(id, &slots, true)?;
                } else {
                    self.unit.delete(id)?;
                }
                self.promises.remove(&id);
                self.deleted.insert(id);
            }
            // By one that has the same slots, and can be told by its generation.
            8 if promise.put > 0 => {
                let generation = self.unit.stat_segment(id)?.generation;
                let generations = (Some(generation), generation + 1);
                replace(&self.unit, id, id, generations, promise.put)?;
                promise.synced = promise.put;
                assert_eq!(self.unit.stat_segment(id)?.generation, generation + 1);
            }
            _ => {}
        }
        Ok(())
    }

    /// Looks whether `unit` keeps what this run was promised.
    fn check(&self, unit: &FolderUnit) {
        for id in &self.deleted {
            assert!(is_absent(&read(unit, *id, SLOT_BYTES, 0, 1)), "{id}");
        }
        for (id, promise) in &self.promises {
            for slot in 0..promise.synced {
                let found = read(unit, *id, SLOT_BYTES, slot, 1);
                if promise.freed.contains(&slot) {
                    assert!(is_absent(&found), "{id}/{slot} was freed: {found:?}");
                } else if promise.perhaps_deleted || promise.perhaps_freed.contains(&slot) {
                    // What is there must still be right, which `read` checks.
                    assert!(found.is_ok() || is_absent(&found), "{id}/{slot}: {found:?}");
                } else {
                    assert!(found.is_ok(), "{id}/{slot} was synced: {found:?}");
                }
            }
        }
    }

    /// Does again what was cut short, gives everything back, and looks
    /// whether that leaves holes and nothing else.
    fn clean_up(&self, unit: &FolderUnit, disk: &dyn Disk) {
        for (id, promise) in &self.promises {
            if promise.synced == 0 || promise.perhaps_deleted {
                unit.delete(*id).expect("an orphan can be deleted");
                continue;
            }
            let slots: Vec<Slot> = promise.perhaps_freed.iter().copied().map(Slot).collect();
            unit.free(*id, &slots, false).expect("freed again");
        }
        while unit.settle().expect("settled") {}
        let mut bytes = 0;
        for id in unit.list().expect("listed") {
            let promise = self.promises.get(&id).expect("the others are deleted");
            let stat = unit.stat_segment(id).expect("it was synced");
            let freed = promise.perhaps_freed.len() as u32;
            assert_eq!(stat.freed, freed, "{id}");
            let folder = format!("{PATH}/segments/{:03x}", folder_of(id));
            let names = disk.list(Path::new(&folder)).expect("listed");
            let is_draft = |name: &str| name.contains(".draft-");
            assert!(!names.iter().any(|entry| is_draft(&entry.name)), "{id}");
            let path = format!("{folder}/{id}");
            let file = disk.open(Path::new(&path), OpenMode::Read).expect("there");
            let allocated = file.allocated().expect("measured");
            bytes += allocated;
            // Header, table, and what is kept, torn or never named.
            let kept = u64::from(promise.put.max(stat.slots as u16)) + 6 - u64::from(freed);
            assert!(allocated <= 53_248 + kept * 4096, "{id}: {allocated}");
        }
        let stat = unit.stat().expect("there");
        assert_eq!(stat.bytes, bytes);
    }
}

fn run_until_failure(seed: u64, steps: usize, crash_at: Option<u64>) -> (Simulation, Run) {
    let simulation = Simulation::new(seed);
    let random = SimulatedRandom::new(seed);
    let unit = create(&simulation.world());
    let made = simulation.disk.operations();
    if let Some(number) = crash_at {
        simulation.disk.arm_crash(made + number);
    }
    let mut run = Run {
        unit,
        promises: BTreeMap::new(),
        deleted: BTreeSet::new(),
        next: 0,
    };
    for _ in 0..steps {
        if run.step(&random).is_err() {
            assert!(simulation.disk.is_off(), "nothing else fails");
            break;
        }
    }
    (simulation, run)
}

#[test]
fn what_was_synced_survives_a_crash_in_any_operation_and_everything_can_be_done_again() {
    for seed in 0..12 {
        let (simulation, run) = run_until_failure(seed, 40, None);
        run.check(&run.unit);
        let operations = simulation.disk.operations();
        for number in 0..operations {
            let (mut simulation, run) = run_until_failure(seed, 40, Some(number));
            simulation.crash();
            let world = simulation.world();
            let unit = open(&world);
            unit.probe().expect("the unit was made");
            run.check(&unit);
            run.clean_up(&unit, &*world.disk);
        }
    }
}

#[test]
fn what_was_put_survives_the_death_of_the_process() {
    for seed in 0..50 {
        let (mut simulation, mut run) = run_until_failure(seed, 60, None);
        simulation.kill();
        let world = simulation.world();
        let unit = open(&world);
        for promise in run.promises.values_mut() {
            promise.synced = promise.put;
        }
        run.check(&unit);
        run.clean_up(&unit, &*world.disk);
    }
}

#[test]
fn a_unit_whose_making_was_cut_short_can_be_made_again() {
    let operations = {
        let simulation = Simulation::new(1);
        create(&simulation.world());
        simulation.disk.operations()
    };
    for number in 0..operations {
        for seed in 0..20 {
            let mut simulation = Simulation::new(seed);
            simulation.disk.arm_crash(number);
            assert!(try_create(&simulation.world()).is_err());
            simulation.crash();
            let unit = try_create(&simulation.world()).expect("made again");
            unit.probe().expect("it works");
        }
    }
}

#[test]
fn a_unit_that_was_made_is_there_after_a_crash() {
    for seed in 0..50 {
        let mut simulation = Simulation::new(seed);
        create(&simulation.world());
        simulation.crash();
        let unit = open(&simulation.world());
        unit.probe().expect("it is durable");
        put(&unit, segment(1), SLOT_BYTES, 0, 1).expect("put");
    }
}
