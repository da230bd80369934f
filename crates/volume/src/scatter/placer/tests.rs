//! The placer alone, and with folder units of a simulated disk.

use base::{BlockSize, ClusterId, Lineage, UnitId, VolumeId};
use catalog::{Catalog, Copyset, Erasure, LineageKey, MemoryCatalog, NewVolume};
use testkit::units::FaultyUnit;
use unit::{Read, TrackedUnit, Unit};
use unit_folder::FolderUnit;
use world::simulated::Simulation;

use super::*;
use crate::lease_term::LeaseTerm;
use crate::scatter::{Source, Store, place};
use crate::seal::LeaseSalt;

const VOLUME: VolumeId = VolumeId::from_u128(1);

fn serials() -> Arc<Serials> {
    let catalog = Arc::new(MemoryCatalog::default());
    let new = NewVolume {
        volume: VOLUME,
        size_bytes: 1 << 30,
        block_size: BlockSize::DEFAULT,
        replicas: 1,
        erasure: None,
        key: LineageKey {
            lineage: Lineage::from_u128(1),
            epoch_first: 0,
            wrapped: None,
            wrapped_by: None,
            salts: Vec::new(),
        },
        from: None,
    };
    catalog.create_volume(new).expect("a new volume");
    let epoch = catalog
        .acquire(VOLUME, LeaseSalt([0; 16]), None)
        .expect("a lease")
        .epoch;
    Arc::new(Serials::new(catalog, VOLUME, epoch))
}

/// A placement was abandoned after one of its shares had failed and could not be freed. Only
/// the slots before that share were listed as leftovers: its own slots stayed for ever.
#[test]
fn leftovers_of_an_abandoned_placement_include_those_of_a_failed_share() {
    let simulation = Simulation::new(1);
    let world = simulation.world();
    let (cluster, id) = (ClusterId::from_u128(1), UnitId::from_u128(1));
    let unit = FolderUnit::create(&world, "/unit".as_ref(), cluster, id).expect("a new unit");
    let unit = TrackedUnit::new(Arc::new(unit), Arc::clone(&world.clock));
    let copyset = Copyset::of_copies(CopysetId::new(0).expect("the first"), vec![id]);
    let store = Store::new(Arc::clone(&world.pool));
    store.set_table(vec![(id, Arc::new(unit))], &[copyset]);
    let config = PlacerConfig {
        slot_bytes: 4096,
        slots_max: 64,
        destage_width: 1,
        replicas: 1,
        layout: Layout::default(),
        shuffle: false,
    };
    let ledger = Arc::new(Ledger::new(Arc::clone(store.open_segments())));
    for (is_freed, end) in [(false, 7), (true, 4)] {
        let progress = Progress::new(LeaseTerm::unlimited(), Arc::clone(&world.clock));
        let ledger = Arc::clone(&ledger);
        let mut placer = Placer::new(config, serials(), ledger, Arc::new(progress));
        let assign = |placer: &mut Placer, count| {
            let shares = placer.assign(count, &store.table(), &*world.random);
            shares.expect("a unit takes writes").remove(0)
        };
        let good = assign(&mut placer, 4);
        let failed = assign(&mut placer, 3);
        assert_eq!((failed.segment, failed.first), (good.segment, 4));
        placer.abandon(&failed, is_freed);
        assert_eq!(placer.take_unconfirmed(), [(good.segment, 0..end)]);
    }
}

/// The connection broke during a put, its slots were freed, and then the daemon carried the
/// put out: no lease ever swept these slots.
#[test]
fn a_segment_with_an_unresolved_put_is_left_for_the_next_lease_to_sweep() {
    let simulation = Simulation::new(7);
    let random = &*simulation.world().random;
    let store = store(&simulation, 1, 0, 1);
    for (is_first, is_confirmed) in [(true, false), (false, false), (false, true)] {
        let mut placer = placer(&simulation, &store, 1);
        let assign = |placer: &mut Placer, count| {
            let shares = placer.assign(count, &store.table(), random);
            shares.expect("a unit takes writes").remove(0)
        };
        if !is_first {
            assign(&mut placer, 4);
        }
        let failed = assign(&mut placer, 3);
        placer.mark_unresolved(failed.segment);
        placer.abandon(&failed, true);
        let mut committed = 0;
        if is_confirmed {
            placer.confirm();
            committed = failed.first;
        } else {
            for (segment, _) in placer.take_unconfirmed() {
                placer.forget(segment);
            }
        }
        let open = placer.ledger.for_commit(&placer.serials).open_segments;
        let open: Vec<_> = open.iter().map(|open| (open.segment, open.slots)).collect();
        assert_eq!(open, [(failed.segment, committed)]);
    }
}

/// A store with `units` units and copysets of `replicas` of them. The last `whole` units
/// take whole segments only.
fn store(simulation: &Simulation, units: u128, whole: u128, replicas: u8) -> Arc<Store> {
    store_of(simulation, units, whole, replicas, None)
}

/// As [`store`], with `erasure` in place of copies, if given.
fn store_of(
    simulation: &Simulation,
    units: u128,
    whole: u128,
    replicas: u8,
    erasure: Option<Erasure>,
) -> Arc<Store> {
    let world = simulation.world();
    let cluster = ClusterId::from_u128(1);
    let ids: Vec<UnitId> = (0..units).map(UnitId::from_u128).collect();
    let made = ids.iter().enumerate().map(|(number, id)| {
        let path = format!("/{id}");
        let unit = FolderUnit::create(&world, path.as_ref(), cluster, *id).expect("made");
        let mut unit = FaultyUnit::new(Arc::new(unit), 1);
        if number as u128 >= units - whole {
            unit = unit.taking_whole_segments();
        }
        let unit = TrackedUnit::new(Arc::new(unit), Arc::clone(&world.clock));
        (*id, Arc::new(unit))
    });
    let table = made.collect();
    let copysets = catalog::copysets::plan(
        &ids,
        &catalog::copysets::Zones::new(),
        replicas,
        erasure,
        &[],
        8,
        &*world.random,
    );
    let store = Store::new(Arc::clone(&world.pool));
    store.set_table(table, &copysets);
    store
}

/// A placer for segments of 2048 slots of 4 KiB over 16 copysets.
fn placer(simulation: &Simulation, store: &Store, replicas: u8) -> Placer {
    placer_of(simulation, store, replicas, Layout::default())
}

fn placer_of(simulation: &Simulation, store: &Store, replicas: u8, layout: Layout) -> Placer {
    let config = PlacerConfig {
        slot_bytes: 4096,
        slots_max: layout.slots_max(2048),
        destage_width: 16,
        replicas,
        layout,
        shuffle: false,
    };
    let ledger = Arc::new(Ledger::new(Arc::clone(store.open_segments())));
    let clock = simulation.world().clock;
    let progress = Arc::new(Progress::new(LeaseTerm::unlimited(), clock));
    Placer::new(config, serials(), ledger, progress)
}

/// A destage of few blocks created a dozen small objects, none of which was ever filled.
#[test]
fn whole_segments_are_few_and_long_and_are_assigned_once() {
    let simulation = Simulation::new(7);
    let random = &*simulation.world().random;
    let store = store(&simulation, 12, 12, 1);
    let mut placer = placer(&simulation, &store, 1);
    let mut seen = std::collections::BTreeSet::new();
    let mut units = std::collections::BTreeSet::new();
    for (count, few, shortest) in [
        (1, 1..=1, 1),
        (20, 1..=1, 20),
        (511, 1..=1, 511),
        (700, 2..=2, 256),
        (12_800, 16..=16, 512),
        (100_000, 50..=56, 1024),
    ] {
        for _ in 0..8 {
            let shares = placer
                .assign(count, &store.table(), random)
                .expect("assigned");
            assert!(few.contains(&shares.len()), "{count}: {}", shares.len());
            let assigned: usize = shares.iter().map(|share| share.items.len()).sum();
            assert_eq!(assigned, count);
            for share in &shares {
                assert!(
                    share.items.len() >= shortest,
                    "{count}: {}",
                    share.items.len()
                );
                assert_eq!(share.first, 0);
                assert!(seen.insert(share.segment), "a segment is put once");
                units.insert(share.segment.copyset());
            }
            placer.confirm();
            assert!(
                placer
                    .ledger
                    .for_commit(&placer.serials)
                    .open_segments
                    .is_empty()
            );
        }
    }
    assert_eq!(units.len(), 12, "all copysets are used");
}

#[test]
fn small_assignments_are_spread_over_all_units() {
    let simulation = Simulation::new(3);
    let random = &*simulation.world().random;
    // Units that can append are chosen as often as the others.
    let store = store(&simulation, 8, 4, 1);
    let mut placer = placer(&simulation, &store, 1);
    let mut counts = BTreeMap::new();
    for _ in 0..400 {
        let shares = placer.assign(20, &store.table(), random).expect("assigned");
        let [share] = &shares[..] else {
            panic!("{} shares", shares.len());
        };
        *counts.entry(share.segment.copyset()).or_insert(0) += 1;
        placer.confirm();
    }
    assert_eq!(counts.len(), 8);
    assert!(
        counts.values().all(|count| (25..80).contains(count)),
        "{counts:?}"
    );
    // Segments that can be appended to stay in the ledger until they are full.
    let open = placer.ledger.for_commit(&placer.serials).open_segments;
    assert_eq!(open.len(), 4);
}

/// A copyset can append only if all its members can. The member that could append receives
/// the same whole share, in parts.
#[test]
fn a_copyset_of_both_kinds_of_units_has_the_same_segments_on_both() {
    let simulation = Simulation::new(5);
    let world = simulation.world();
    let store = store(&simulation, 2, 1, 2);
    let mut placer = placer(&simulation, &store, 2);
    let source: Source = Arc::new(|index, slot| {
        slot.fill(index as u8);
        Ok([index as u8; 16])
    });
    let mut segments = std::collections::BTreeSet::new();
    for count in [1, 300, 700] {
        let placed = place(&store, &mut placer, &*world.random, count, &source);
        let placed = placed.expect("placed");
        placer.confirm();
        segments.extend(placed.iter().map(|location| location.segment()));
        for member in store.table().units() {
            for (index, location) in placed.iter().enumerate() {
                let run = unit::SlotRun {
                    segment: location.segment(),
                    first: location.slot(),
                    count: 1,
                };
                let (mut tags, mut data) = ([[0; 16]], vec![0; 4096]);
                let read = member.unit.read(Read {
                    run,
                    slot_bytes: 4096,
                    tags: &mut tags,
                    data: &mut data,
                });
                read.expect("it is there");
                assert_eq!((tags[0][0], data[4095]), (index as u8, index as u8));
            }
        }
    }
    let on = |member: &crate::scatter::Member| member.unit.list().expect("listed");
    for member in store.table().units() {
        assert_eq!(on(member), segments.iter().copied().collect::<Vec<_>>());
    }
    assert_eq!(segments.len(), 1 + 1 + 2);
}

/// With parity, whole rows are assigned: every member receives a long part.
#[test]
fn whole_rows_are_assigned_to_few_segments_that_are_long_on_every_member() {
    let simulation = Simulation::new(9);
    let random = &*simulation.world().random;
    let erasure = Erasure::new(4, 2);
    // One unit that cannot append makes all segments of its copysets whole.
    for whole in [8, 1] {
        let store = store_of(&simulation, 8, whole, 1, erasure);
        let mut placer = placer_of(&simulation, &store, 1, Layout::new(erasure));
        let mut seen = std::collections::BTreeSet::new();
        for (count, few) in [(1, 1), (20, 1), (2047, 1), (2048, 2), (12_801, 12)] {
            let shares = placer
                .assign(count, &store.table(), random)
                .expect("assigned");
            assert_eq!(shares.len(), few, "{count}");
            let mut assigned: Vec<usize> = Vec::new();
            for share in &shares {
                let slots = (share.end - share.first) as usize;
                assert_eq!(slots, share.items.len().next_multiple_of(4));
                let is_last = share.items.last() == Some(&(count - 1));
                assert!(
                    is_last || slots == share.items.len(),
                    "padding is at the end"
                );
                for row in share.items.chunks(4) {
                    assert!(row[0] % 4 == 0 && row.is_sorted(), "{row:?}");
                }
                if !store.table().can_append(share.segment.copyset()) {
                    assert_eq!(share.first, 0);
                    assert!(seen.insert(share.segment), "a segment is put once");
                }
                assigned.extend(&share.items);
            }
            assigned.sort_unstable();
            assert_eq!(assigned, (0..count).collect::<Vec<_>>());
            placer.confirm();
            let open = placer.ledger.for_commit(&placer.serials).open_segments;
            let table = store.table();
            let is_open = |open: &catalog::OpenSegment| table.can_append(open.segment.copyset());
            assert!(open.iter().all(is_open), "the others are closed");
        }
        assert!(!seen.is_empty());
    }
}

/// With parity, too, a copyset can append only if all its members can.
#[test]
fn a_copyset_of_both_kinds_of_units_receives_rows_in_one_put_or_in_parts() {
    let simulation = Simulation::new(5);
    let world = simulation.world();
    let erasure = Erasure::new(2, 1);
    let store = store_of(&simulation, 3, 1, 1, erasure);
    let layout = Layout::new(erasure);
    let mut placer = placer_of(&simulation, &store, 1, layout);
    let source: Source = Arc::new(|index, slot| {
        slot.fill(index as u8);
        Ok([index as u8; 16])
    });
    for count in [1, 300, 1201] {
        let placed = place(&store, &mut placer, &*world.random, count, &source);
        let placed = placed.expect("placed");
        placer.confirm();
        assert!(
            placer
                .ledger
                .for_commit(&placer.serials)
                .open_segments
                .is_empty()
        );
        let table = store.table();
        let mut rows = BTreeMap::new();
        for (index, location) in placed.iter().enumerate() {
            let segment = location.segment();
            let home = layout.home(location.slot());
            let run = unit::SlotRun {
                segment,
                first: home.slot,
                count: 1,
            };
            let member = table.member_at(segment.copyset(), home.member_index.expect("one has it"));
            let (mut tags, mut data) = ([[0; 16]], vec![0; 4096]);
            let read = member.expect("known").unit.read(Read {
                run,
                slot_bytes: 4096,
                tags: &mut tags,
                data: &mut data,
            });
            read.expect("it is there");
            assert_eq!((tags[0][0], data[4095]), (index as u8, index as u8));
            let last = rows.entry(segment).or_insert(0);
            *last = (*last).max(u32::from(home.slot.0) + 1);
        }
        for (segment, rows) in rows {
            for member in table.members(segment.copyset()) {
                let stat = member.unit.stat_segment(segment).expect("there");
                assert_eq!(stat.slots, rows, "on every member alike");
            }
        }
    }
}
