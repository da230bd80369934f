//! Repair of copies in the simulated world, checked against the expected slots of each unit.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::{ClusterId, CopysetId, LineageTag, SegmentId, Slot, UnitId};
use catalog::MemberState::{self, Draining, InSync, Rebuilding};
use testkit::units::{FaultyUnit, InjectedFaults};
use unit::{Put, Read, SlotRun, Unit, UnitError};
use unit_folder::FolderUnit;
use world::simulated::Simulation;

use super::*;

pub(super) const SLOT_BYTES: u32 = 512;
pub(super) const LINEAGE_TAG: LineageTag = LineageTag(7);

pub(super) fn copyset() -> CopysetId {
    CopysetId::new(5).expect("12 bits")
}

pub(super) fn segment(serial: u64) -> SegmentId {
    SegmentId::new(copyset(), serial).expect("36 bits")
}

pub(super) fn path(number: usize) -> PathBuf {
    PathBuf::from(format!("/unit-{number}"))
}

/// Stops a pass after this number of steps.
pub(super) struct Steps(AtomicU64);

impl Steps {
    pub(super) const fn endless() -> Self {
        Self(AtomicU64::new(u64::MAX))
    }
}

impl Pace for Steps {
    fn step(&self, _: u64) -> Result<(), Stopped> {
        let left = self.0.fetch_sub(1, Ordering::Relaxed);
        if left == 0 { Err(Stopped) } else { Ok(()) }
    }

    fn report_progress(&self, _: u64, _: u64) {}
}

/// Counts the bytes that are moved.
#[derive(Default)]
struct Moved(AtomicU64);

impl Pace for Moved {
    fn step(&self, bytes: u64) -> Result<(), Stopped> {
        self.0.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    fn report_progress(&self, _: u64, _: u64) {}
}

pub(super) struct Rig {
    pub(super) simulation: Simulation,
    pub(super) units: Vec<Arc<FaultyUnit>>,
}

impl Rig {
    pub(super) fn new(units: usize) -> Self {
        Self::of_seed(units, 3)
    }

    pub(super) fn of_seed(units: usize, seed: u64) -> Self {
        let simulation = Simulation::new(seed);
        let world = simulation.world();
        for number in 0..units {
            let id = UnitId::from_u128(number as u128);
            FolderUnit::create(&world, &path(number), ClusterId::from_u128(1), id)
                .expect("a new unit");
        }
        let mut rig = Self {
            simulation,
            units: Vec::new(),
        };
        rig.open(units);
        rig
    }

    fn open(&mut self, units: usize) {
        let world = self.simulation.world();
        let open = |number: usize| {
            let id = UnitId::from_u128(number as u128);
            let unit = FolderUnit::open(&world, &path(number), ClusterId::from_u128(1), id)
                .with_segment_data_bytes(64 * u64::from(SLOT_BYTES));
            Arc::new(FaultyUnit::new(Arc::new(unit), number as u64))
        };
        self.units = (0..units).map(open).collect();
    }

    pub(super) fn crash(&mut self) {
        self.simulation.crash();
        self.open(self.units.len());
    }

    /// Kills the units' processes and starts them again.
    pub(super) fn restart(&mut self) {
        self.simulation.kill();
        self.open(self.units.len());
    }

    pub(super) fn members(&self, states: &[MemberState]) -> Vec<RepairMember> {
        let members = self.units.iter().zip(states).enumerate();
        let member =
            |(number, (unit, state)): (usize, (&Arc<FaultyUnit>, &MemberState))| RepairMember {
                id: UnitId::from_u128(number as u128),
                place: number as u8,
                state: *state,
                unit: Arc::clone(unit) as Arc<dyn Unit>,
                suspect: SuspectUnit::All,
            };
        members.map(member).collect()
    }

    pub(super) fn pass(
        &self,
        states: &[MemberState],
        uncommitted: &Uncommitted,
        depth: Depth,
    ) -> PassReport {
        let (members, pace) = (self.members(states), Steps::endless());
        CopysetRepair::new(copyset())
            .pass(None, &members, uncommitted, depth, &pace)
            .expect("nothing stops it")
    }

    /// Runs passes until one finds nothing to copy. Returns the members that are in sync
    /// then.
    pub(super) fn repair(&self, states: &[MemberState], depth: Depth) -> BTreeSet<usize> {
        for _ in 0..4 {
            let found = self.pass(states, &all_committed(), depth);
            assert_eq!(found.problems, BTreeSet::new());
            if found.incomplete.is_empty() {
                let number = |id: &UnitId| id.as_u128() as usize;
                return found.in_sync.iter().map(number).collect();
            }
        }
        panic!("every pass copies something");
    }

    /// Puts the first slots of a segment, durably.
    pub(super) fn put(&self, unit: usize, serial: u64, slots: std::ops::Range<u16>) {
        let unit = &self.units[unit];
        let tags: Vec<_> = slots.clone().map(|slot| tag(serial, slot)).collect();
        let data: Vec<u8> = slots
            .clone()
            .flat_map(|slot| content(serial, slot))
            .collect();
        unit.put(Put {
            lineage_tag: LINEAGE_TAG,
            segment: segment(serial),
            slot_bytes: SLOT_BYTES,
            first: Slot(slots.start),
            tags: &tags,
            data: &data,
        })
        .and_then(|()| unit.sync(&[segment(serial)]))
        .expect("put");
    }

    pub(super) fn free(&self, unit: usize, serial: u64, slots: &[u16]) {
        let slots: Vec<Slot> = slots.iter().copied().map(Slot).collect();
        self.units[unit]
            .free(segment(serial), &slots, false)
            .expect("freed");
    }

    /// The slots of a segment that a unit keeps; each must have the content that was put.
    pub(super) fn kept(&self, unit: usize, serial: u64) -> Vec<u16> {
        let unit = &self.units[unit];
        let report = match unit.segment_slots(segment(serial)) {
            Ok(report) => report,
            Err(UnitError::NoSegment { .. }) => return Vec::new(),
            Err(error) => panic!("{error}"),
        };
        assert_eq!(report.lineage_tag, LINEAGE_TAG);
        let slots =
            (0..report.stat.slots as u16).filter(|slot| !report.freed.contains(&Slot(*slot)));
        slots
            .filter(|slot| {
                let run = SlotRun {
                    segment: segment(serial),
                    first: Slot(*slot),
                    count: 1,
                };
                let (mut tags, mut data) = ([[0; 16]], vec![0; SLOT_BYTES as usize]);
                let read = unit.read(Read {
                    run,
                    slot_bytes: SLOT_BYTES,
                    tags: &mut tags,
                    data: &mut data,
                });
                read.expect("it is kept");
                // A crash may leave an empty slot that was about to be freed.
                if tags[0] == [0; 16] {
                    return false;
                }
                assert_eq!(tags[0], tag(serial, *slot));
                assert!(data == content(serial, *slot), "{serial}/{slot}");
                true
            })
            .collect()
    }
}

pub(super) fn tag(serial: u64, slot: u16) -> [u8; 16] {
    (u128::from(serial) << 16 | u128::from(slot) | 1 << 100).to_le_bytes()
}

pub(super) fn content(serial: u64, slot: u16) -> Vec<u8> {
    vec![serial as u8 ^ slot as u8; SLOT_BYTES as usize]
}

pub(super) fn all_committed() -> Uncommitted {
    Uncommitted::new([], Vec::new(), u64::MAX)
}

#[test]
fn a_new_member_receives_kept_slots_and_no_freed_ones() {
    let rig = Rig::new(2);
    rig.put(0, 1, 0..20);
    rig.free(0, 1, &[0, 3, 19]);
    rig.put(0, 2, 0..5);
    // It missed the end of segment 2.
    rig.put(1, 2, 0..2);
    // A segment of another copyset is ignored.
    let other = SegmentId::new(CopysetId::new(6).expect("12 bits"), 9).expect("36 bits");
    rig.units[0]
        .put(Put {
            lineage_tag: LineageTag::NONE,
            segment: other,
            slot_bytes: SLOT_BYTES,
            first: Slot(0),
            tags: &[[1; 16]],
            data: &[1; SLOT_BYTES as usize],
        })
        .expect("put");
    assert_eq!(
        rig.repair(&[InSync, Rebuilding], Depth::Rebuild),
        [0, 1].into()
    );
    for serial in [1, 2] {
        assert_eq!(rig.kept(1, serial), rig.kept(0, serial));
        assert!(!rig.kept(0, serial).is_empty());
    }
    assert_eq!(
        rig.units[1].list().expect("listed"),
        [segment(1), segment(2)]
    );
}

/// The final pass of a repair read again everything that the repair had copied and synced,
/// which took as long as copying it.
#[test]
fn a_repair_does_not_read_again_what_it_has_copied() {
    let rig = Rig::new(2);
    rig.put(0, 1, 0..20);
    rig.put(0, 2, 0..20);
    let open = Uncommitted::new([(segment(2), 20)], Vec::new(), u64::MAX);
    let members = rig.members(&[InSync, Rebuilding]);
    let moved = |repair: &mut CopysetRepair| {
        let pace = Moved::default();
        let found = repair.pass(None, &members, &open, Depth::Rebuild, &pace);
        let slots = pace.0.load(Ordering::Relaxed) / u64::from(SLOT_BYTES);
        (found.expect("nothing stops it").copied_bytes > 0, slots)
    };
    let mut repair = CopysetRepair::new(copyset());
    assert_eq!(moved(&mut repair), (true, 40));
    // An open segment may have been written in part.
    assert_eq!(moved(&mut repair), (false, 20));
    let another = moved(&mut CopysetRepair::new(copyset()));
    assert_eq!(another, (false, 40), "another repair trusts no copy unread");
    rig.units[1].delete(segment(1)).expect("deleted");
    assert_eq!(moved(&mut repair), (true, 40));
    assert_eq!(rig.kept(1, 1), rig.kept(0, 1));
}

/// A unit that reports all slots as freed, or that has lost all of them, does not delete
/// anything on the others.
#[test]
fn slots_that_one_member_freed_or_lost_stay_on_the_others() {
    let rig = Rig::new(3);
    for unit in 0..3 {
        rig.put(unit, 1, 0..10);
        rig.put(unit, 2, 0..4);
    }
    rig.free(0, 1, &[0, 1, 2, 3, 4, 5, 6, 7, 8]);
    rig.units[0].delete(segment(2)).expect("deleted");
    rig.repair(&[InSync, Rebuilding, Rebuilding], Depth::Compare);
    for unit in 1..3 {
        assert_eq!(rig.kept(unit, 1), (0..10).collect::<Vec<_>>());
        assert_eq!(rig.kept(unit, 2), [0, 1, 2, 3]);
    }
    assert_eq!(rig.kept(0, 1), [9], "freed slots stay freed there");
    assert_eq!(rig.kept(0, 2), [0, 1, 2, 3], "lost slots are restored");
}

#[test]
fn uncommitted_slots_are_not_copied() {
    let rig = Rig::new(2);
    rig.put(0, 1, 0..10);
    rig.put(0, 2, 0..10);
    rig.put(0, 3, 0..10);
    rig.put(0, 9, 0..10);
    let open = [(segment(1), 4), (segment(2), 0)];
    let reserved = 3..5;
    let uncommitted = Uncommitted::new(open, vec![reserved], 9);
    let states = [InSync, Rebuilding];
    let found = rig.pass(&states, &uncommitted, Depth::Rebuild);
    assert_eq!(found.incomplete.len(), 1);
    assert_eq!(rig.kept(1, 1), [0, 1, 2, 3]);
    for serial in [2, 3, 9] {
        assert_eq!(rig.kept(1, serial), [] as [u16; 0]);
    }
    let found = rig.pass(&states, &uncommitted, Depth::Rebuild);
    assert_eq!((found.incomplete.len(), found.in_sync.len()), (0, 2));
    // The slots were committed since, without that member.
    assert_eq!(rig.repair(&states, Depth::Rebuild), [0, 1].into());
    assert_eq!(rig.kept(1, 1), (0..10).collect::<Vec<_>>());
}

#[test]
fn repair_continues_after_a_crash_at_any_step_and_loses_nothing() {
    let whole: Vec<u16> = (0..20).filter(|slot| *slot != 3).collect();
    let mut crashes = 0;
    for number in 1.. {
        let mut rig = Rig::new(2);
        rig.put(0, 1, 0..20);
        rig.free(0, 1, &[3]);
        rig.put(0, 2, 0..20);
        rig.free(0, 2, &[3]);
        rig.put(1, 2, 0..7);
        let before = rig.simulation.disk.operations();
        rig.simulation.disk.arm_crash(before + number);
        let (members, pace) = (rig.members(&[InSync, Rebuilding]), Steps::endless());
        let passed = CopysetRepair::new(copyset()).pass(
            None,
            &members,
            &all_committed(),
            Depth::Rebuild,
            &pace,
        );
        drop(members);
        let is_off = rig.simulation.disk.is_off();
        rig.simulation.disk.arm_crash(u64::MAX);
        if is_off {
            crashes += 1;
            rig.crash();
        }
        assert_eq!(rig.kept(0, 1), whole, "crash {number}");
        assert_eq!(
            rig.repair(&[InSync, Rebuilding], Depth::Rebuild),
            [0, 1].into()
        );
        assert_eq!(rig.kept(1, 1), whole, "crash {number}");
        // A free that the member missed is still pending.
        assert_eq!(rig.kept(1, 2), (0..20).collect::<Vec<_>>());
        if !is_off {
            assert!(passed.expect("nothing stopped it").problems.is_empty());
            break;
        }
    }
    assert!(crashes > 5, "{crashes}");
}

#[test]
fn repair_continues_after_being_stopped_at_any_step() {
    for steps in 0.. {
        let rig = Rig::new(2);
        rig.put(0, 1, 0..20);
        rig.put(0, 2, 0..20);
        let pace = Steps(AtomicU64::new(steps));
        let members = rig.members(&[InSync, Rebuilding]);
        let passed = CopysetRepair::new(copyset()).pass(
            None,
            &members,
            &all_committed(),
            Depth::Rebuild,
            &pace,
        );
        // A stopped pass reports no problems of members.
        let problems = passed.as_ref().map(|found| found.problems.clone());
        assert!(
            problems.is_err() || problems == Ok(BTreeSet::new()),
            "{problems:?}"
        );
        assert_eq!(
            rig.repair(&[InSync, Rebuilding], Depth::Rebuild),
            [0, 1].into()
        );
        assert_eq!(rig.kept(1, 2), rig.kept(0, 2));
        if passed.is_ok() {
            assert!(steps > 5, "a pass has more steps than that");
            return;
        }
    }
}

/// While the only in-sync member is unavailable, the slots that another one is missing
/// are unknown.
#[test]
fn a_member_is_in_sync_only_after_a_comparison_with_an_in_sync_member() {
    let rig = Rig::new(3);
    rig.put(0, 1, 0..4);
    rig.put(1, 1, 0..2);
    rig.put(2, 1, 0..2);
    let unavailable = InjectedFaults {
        is_missing: true,
        ..InjectedFaults::default()
    };
    rig.units[0].set(unavailable);
    for first in [InSync, Rebuilding, Draining] {
        let found = rig.pass(
            &[first, Rebuilding, Rebuilding],
            &all_committed(),
            Depth::Rebuild,
        );
        assert_eq!(found.in_sync, []);
        assert_eq!(found.problems.len(), 1);
    }
    // Another member is in sync.
    let found = rig.pass(
        &[InSync, InSync, Rebuilding],
        &all_committed(),
        Depth::Rebuild,
    );
    assert_eq!(found.in_sync.len(), 2);
    rig.units[0].set(InjectedFaults::default());
    let all = rig.repair(&[Rebuilding, Rebuilding, Rebuilding], Depth::Rebuild);
    assert_eq!(all, [0, 1, 2].into());
    assert_eq!(rig.kept(2, 1), [0, 1, 2, 3], "from the member that had it");
}

/// One unit fails, and the next one fails while the first is being replaced.
#[test]
fn two_units_that_fail_one_after_the_other_lose_nothing() {
    let rig = Rig::new(4);
    for unit in 0..2 {
        for serial in 1..6 {
            rig.put(unit, serial, 0..9);
        }
    }
    let missing = InjectedFaults {
        is_missing: true,
        ..InjectedFaults::default()
    };
    rig.units[0].set(missing);
    let rest = [&rig.members(&[Draining, InSync, Rebuilding])[1..]].concat();
    for _ in 0..2 {
        CopysetRepair::new(copyset())
            .pass(
                None,
                &rest,
                &all_committed(),
                Depth::Rebuild,
                &Steps::endless(),
            )
            .expect("passes");
    }
    rig.units[1].set(missing);
    let members = rig.members(&[Draining, Draining, InSync, Rebuilding]);
    let mut in_sync = Vec::new();
    for _ in 0..2 {
        let found = CopysetRepair::new(copyset()).pass(
            None,
            &members[2..],
            &all_committed(),
            Depth::Rebuild,
            &Steps::endless(),
        );
        in_sync = found.expect("passes").in_sync;
    }
    assert_eq!(in_sync.len(), 2);
    for serial in 1..6 {
        assert_eq!(rig.kept(3, serial), (0..9).collect::<Vec<_>>());
    }
}

/// A unit was rolled back to an earlier state; the others have what it received since.
#[test]
fn a_unit_that_was_rolled_back_is_restored_and_takes_nothing_from_the_others() {
    let rig = Rig::new(2);
    for serial in 1..4 {
        rig.put(0, serial, 0..8);
    }
    // Its state before the rest was put and before anything was freed.
    rig.put(1, 1, 0..8);
    rig.put(1, 2, 0..3);
    rig.free(0, 1, &[0, 1]);
    assert_eq!(
        rig.repair(&[InSync, Rebuilding], Depth::Rebuild),
        [0, 1].into()
    );
    for serial in 2..4 {
        assert_eq!(rig.kept(1, serial), rig.kept(0, serial));
    }
    // The free stays pending until it was carried out on all members.
    assert_eq!(rig.kept(0, 1), (2..8).collect::<Vec<_>>());
}

#[test]
fn a_full_member_is_reported_and_does_not_delay_the_others() {
    let mut rig = Rig::new(3);
    rig.put(0, 1, 0..20);
    rig.simulation.disk.set_capacity(&path(1), 20 << 10);
    let states = [InSync, Rebuilding, Rebuilding];
    let found = rig.pass(&states, &all_committed(), Depth::Rebuild);
    assert_eq!(found.full.len(), 1, "{:?}", found.problems);
    let found = rig.pass(&states, &all_committed(), Depth::Rebuild);
    assert_eq!(found.in_sync.len(), 2, "the other one is in sync");
    assert_eq!(rig.kept(2, 1), rig.kept(0, 1));
    // There is room again.
    rig.simulation.disk.set_capacity(&path(1), 1 << 30);
    rig.crash();
    assert_eq!(rig.repair(&states, Depth::Rebuild), [0, 1, 2].into());
}

/// A unit was rolled back to a state from before a segment was deleted, and before slots
/// of another segment were freed.
#[test]
fn freed_content_on_a_rolled_back_unit_is_not_copied_to_others() {
    let rig = Rig::new(3);
    rig.put(0, 1, 0..10);
    rig.free(0, 1, &[0, 3, 8, 9]);
    rig.put(1, 1, 0..10);
    rig.put(1, 2, 0..10);
    let states = [InSync, Rebuilding, Rebuilding];
    assert_eq!(rig.repair(&states, Depth::Rebuild), [0, 1, 2].into());
    assert_eq!(rig.kept(2, 1), rig.kept(0, 1));
    assert_eq!(rig.kept(2, 2), [] as [u16; 0]);
    assert_eq!(
        rig.kept(1, 2),
        (0..10).collect::<Vec<_>>(),
        "it stays where it is"
    );
    // If no member is in sync or draining, the content of all members counts.
    let rig = Rig::new(3);
    rig.put(1, 2, 0..10);
    rig.repair(&[Rebuilding, Rebuilding, Rebuilding], Depth::Rebuild);
    assert_eq!(rig.kept(2, 2), (0..10).collect::<Vec<_>>());
}
