//! The power fails, or the process dies, in every operation.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use base::{SegmentId, Slot};
use testkit::units::conformance::{
    Generations, SLOT_BYTES, is_absent, put, read, replace, segment,
};
use unit::{Unit, UnitError};
use world::simulated::{SimulatedRandom, Simulation};
use world::{Disk, Millis, OpenMode, World};

use super::{PATH, create, open, try_create};
use crate::FolderUnit;
use crate::root::folder_of;
use crate::{RestoreFilter, UndeletePolicy};

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
    /// Another one may have taken its place.
    perhaps_replaced: bool,
}

/// A unit under test, and what it has promised.
struct Run {
    unit: FolderUnit,
    promises: BTreeMap<SegmentId, Promise>,
    /// How many of their slots a sync had covered; none of what was replaced.
    deleted: BTreeMap<SegmentId, u16>,
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
                self.unit.reclaim()?;
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
                let synced = match promise.perhaps_replaced {
                    true => 0,
                    false => promise.synced,
                };
                self.promises.remove(&id);
                self.deleted.insert(id, synced);
            }
            // By one that has the same slots, and can be told by its generation.
            8 if promise.put > 0 => {
                let generation = self.unit.stat_segment(id)?.generation;
                let generations = Generations::new(Some(generation), generation + 1);
                promise.perhaps_replaced = true;
                replace(&self.unit, id, id, generations, promise.put)?;
                promise.synced = promise.put;
                assert_eq!(self.unit.stat_segment(id)?.generation, generation + 1);
            }
            _ => {}
        }
        Ok(())
    }

    /// Checks that `unit` keeps what this run was promised.
    fn check(&self, unit: &FolderUnit) {
        for id in self.deleted.keys() {
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

    /// Repeats what was interrupted, frees everything, and checks what is left.
    fn clean_up(&self, unit: &FolderUnit, disk: &dyn Disk) {
        self.do_again(unit);
        while unit.reclaim().expect("settled") {}
        self.check_holes(unit, disk);
    }

    /// Does again what was cut short.
    fn do_again(&self, unit: &FolderUnit) {
        for (id, promise) in &self.promises {
            if promise.synced == 0 || promise.perhaps_deleted {
                unit.delete(*id).expect("a leftover can be deleted");
                continue;
            }
            let slots: Vec<Slot> = promise.perhaps_freed.iter().copied().map(Slot).collect();
            unit.free(*id, &slots, false).expect("freed again");
        }
    }

    /// Checks that freed slots, and only they, are holes.
    fn check_holes(&self, unit: &FolderUnit, disk: &dyn Disk) {
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
    run_so(seed, steps, crash_at, create)
}

fn run_so(
    seed: u64,
    steps: usize,
    crash_at: Option<u64>,
    create: fn(&World) -> FolderUnit,
) -> (Simulation, Run) {
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
        deleted: BTreeMap::new(),
        next: 0,
    };
    for _ in 0..steps {
        // Much of it in one log, and some in the next.
        simulation.clock.advance(POLICY.window / 100);
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

const POLICY: UndeletePolicy = UndeletePolicy {
    window: std::time::Duration::from_secs(3600),
    room_percent: 10,
};

/// All that was ever freed.
const ALL: RestoreFilter = RestoreFilter {
    since: Millis(0),
    until: Millis(i64::MAX),
    segment: None,
    replaced: false,
};

impl Run {
    /// Checks that everything that was freed or deleted since it was synced can be restored. A
    /// replaced segment is restored as it was before, when it may have had fewer slots.
    fn check_restored(&self, unit: &FolderUnit) {
        // The walk finds what no log names any more.
        while unit.reclaim().expect("settled") {}
        unit.restore(&ALL, false).expect("restored");
        let promises = self.promises.iter();
        for (id, promise) in promises.filter(|(_, promise)| !promise.perhaps_replaced) {
            for slot in 0..promise.synced {
                let found = read(unit, *id, SLOT_BYTES, slot, 1);
                assert!(found.is_ok(), "{id}/{slot}: {found:?}");
            }
        }
        for (id, synced) in &self.deleted {
            for slot in 0..*synced {
                let found = read(unit, *id, SLOT_BYTES, slot, 1);
                assert!(found.is_ok(), "{id}/{slot}: {found:?}");
            }
        }
        let again = unit.restore(&ALL, false).expect("restored again");
        let slots: u32 = again.segments.iter().map(|segment| segment.slots).sum();
        assert_eq!(slots, 0, "{again:?}");
    }
}

#[test]
fn what_is_kept_keeps_every_promise_and_can_be_brought_back_after_a_crash_in_any_operation() {
    let create = |world: &World| create(world).with_undelete(POLICY);
    for seed in 0..3 {
        let (simulation, run) = run_so(seed, 40, None, create);
        run.check(&run.unit);
        let operations = simulation.disk.operations();
        for number in 0..operations {
            let (mut simulation, run) = run_so(seed, 40, Some(number), create);
            simulation.crash();
            let world = simulation.world();
            let unit = open(&world).with_undelete(POLICY);
            unit.probe().expect("the unit was made");
            run.check(&unit);
            match number % 2 {
                0 => run.check_restored(&unit),
                _ => {
                    let settle = || while unit.reclaim().expect("settled") {};
                    settle();
                    run.do_again(&unit);
                    simulation.clock.advance(POLICY.window * 2);
                    settle();
                    run.clean_up(&unit, &*world.disk);
                    let kept = unit.undelete_usage().expect("known");
                    assert_eq!((kept.bytes, kept.segments), (0, 0));
                }
            }
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

/// A process that dies leaves all that it wrote, in logs that it had not synced and in
/// those of the one before it.
#[test]
fn what_is_kept_survives_the_death_of_the_process() {
    let create = |world: &World| create(world).with_undelete(POLICY);
    for seed in 0..40 {
        let (mut simulation, mut run) = run_so(seed, 30, None, create);
        let random = SimulatedRandom::new(seed + 1000);
        // The next process goes on where that one was.
        simulation.kill();
        run.unit = open(&simulation.world()).with_undelete(POLICY);
        for promise in run.promises.values_mut() {
            promise.synced = promise.put;
        }
        for _ in 0..30 {
            simulation.clock.advance(POLICY.window / 100);
            run.step(&random).expect("nothing fails");
        }
        simulation.kill();
        let world = simulation.world();
        let unit = open(&world).with_undelete(POLICY);
        run.check(&unit);
        match seed % 2 {
            0 => run.check_restored(&unit),
            _ => {
                for promise in run.promises.values_mut() {
                    promise.synced = promise.put;
                }
                while unit.reclaim().expect("settled") {}
                run.do_again(&unit);
                simulation.clock.advance(POLICY.window * 2);
                while unit.reclaim().expect("settled") {}
                run.clean_up(&unit, &*world.disk);
                let kept = unit.undelete_usage().expect("known");
                assert_eq!((kept.bytes, kept.segments), (0, 0), "{seed}");
            }
        }
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
