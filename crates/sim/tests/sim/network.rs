//! Scenarios of the network between a host and unit daemons.

use std::sync::Arc;
use std::time::Duration;

use base::{BlockDevice, CopysetId, Outcome, Request, Started, VolumeId};
use sim::net::faults::LinkFaults;
use sim::net::record::Counts;
use sim::setup::{NetSetup, Setup};
use unit_wire::Verb;
use volume::Volume;
use volume::repair::{CopysetRepair, Depth, Pace, PassReport, RepairMember, Stopped, Uncommitted};
use world::Clock;

use crate::bench::Bench;

/// A network without faults.
fn bench(units: usize, replicas: u8) -> Bench {
    Bench::with(Setup {
        net: Some(NetSetup {
            seed: 3,
            undelete_window: Duration::from_secs(60),
            breaks: false,
        }),
        ..Setup::quiet(units, replicas)
    })
}

/// Sets the faults of all links.
fn set_faults(bench: &Bench, faults: LinkFaults) {
    let network = bench.machine.network.as_ref().expect("there is one");
    (0..bench.machine.units.len()).for_each(|unit| network.set_faults(unit, faults));
}

/// Ends all faults, and probes the units.
fn heal(bench: &Bench) {
    set_faults(bench, LinkFaults::default());
    let clock = &bench.machine.simulation.clock;
    clock.advance(Duration::from_secs(6));
    bench.machine.probe(true);
}

/// Delivers the requests of abandoned connections.
fn deliver(bench: &Bench) {
    let network = bench.machine.network.as_ref().expect("there is one");
    network.deliver_abandoned(true);
    assert_eq!(network.violation(), None);
}

fn counts(bench: &Bench) -> Counts {
    let network = bench.machine.network.as_ref().expect("there is one");
    network.counts()
}

/// Fills blocks 0 to 8 with `byte`, and tries to destage them.
fn write_and_destage(bench: &Bench, volume: &mut Volume, byte: u8) {
    bench.write(volume, 0..8, byte);
    bench.turn(volume, 40);
}

/// Checks the content of blocks 0 to 8.
fn check_content(bench: &Bench, volume: &mut Volume, byte: u8) {
    for block in 0..8 {
        assert_eq!(bench.read(volume, block), Ok(byte), "block {block}");
    }
}

/// Checks that units hold nothing else after another attach has swept them and all versions
/// that are not needed were removed.
fn check_leftovers(bench: &mut Bench, id: VolumeId, volume: Volume) {
    bench.close(volume);
    let volume = bench.attach(id);
    bench.close(volume);
    for stored in bench.machine.catalog.memory.versions() {
        bench.remove(stored.key);
    }
    bench.audit();
}

/// Checks that every kind of event has occurred in a run of many seeds.
pub fn assert_all_events(seen: Counts) {
    let Counts {
        requests,
        broken_before,
        answers_lost,
        cut_in_frame,
        late,
        late_changes,
        reordered,
        timed_out,
        partitions,
        killed,
        crashed,
        falsified,
        refused_older,
    } = seen;
    for (what, count) in [
        ("requests", requests),
        ("breaks before a request", broken_before),
        ("lost answers", answers_lost),
        ("breaks within a frame", cut_in_frame),
        ("late requests", late),
        ("late changes", late_changes),
        ("reordered answers", reordered),
        ("timeouts", timed_out),
        ("partitions", partitions),
        ("killed daemons", killed),
        ("power failures", crashed),
        ("falsified reads", falsified),
        ("refused older leases", refused_older),
    ] {
        assert!(count > 0, "no {what}: {seen:?}");
    }
}

#[test]
fn a_seed_with_a_network_repeats_itself() {
    let seeds = (0..).filter(|seed| NetSetup::choose(*seed).is_some_and(|net| net.breaks));
    for seed in seeds.take(6) {
        assert_eq!(sim::run(seed, false), sim::run(seed, false), "seed {seed}");
    }
}

/// The connection broke during a put, its slots were freed, and then the daemon carried the
/// put out: nothing swept these slots.
#[test]
fn a_late_put_of_freed_slots_leaves_no_leftovers() {
    let mut bench = bench(2, 1);
    let id = bench.create(None);
    let mut volume = bench.attach(id);
    write_and_destage(&bench, &mut volume, 1);
    let network = bench.machine.network.as_ref().expect("there is one");
    for byte in 2..12 {
        let once = LinkFaults {
            late_one_in: 1,
            is_once: true,
            ..LinkFaults::default()
        };
        network.set_faults(0, once);
        // The other link is so slow that the first one is retried meanwhile.
        let slow = LinkFaults {
            slow_one_in: 1,
            ..LinkFaults::default()
        };
        network.set_faults(1, slow);
        write_and_destage(&bench, &mut volume, byte);
        deliver(&bench);
        heal(&bench);
    }
    write_and_destage(&bench, &mut volume, 12);
    let seen = counts(&bench);
    assert!(seen.late > 0 && seen.refused_older > 0, "{seen:?}");
    assert_eq!(seen.late_changes, 0, "{seen:?}");
    check_content(&bench, &mut volume, 12);
    check_leftovers(&mut bench, id, volume);
}

/// Requests of an older lease were in transit when another host took the volume.
#[test]
fn requests_of_an_older_lease_are_refused_after_a_newer_one_was_shown() {
    let mut bench = bench(3, 1);
    let id = bench.create(None);
    let mut volume = bench.attach(id);
    write_and_destage(&bench, &mut volume, 1);
    bench.write(&mut volume, 0..8, 2);
    set_faults(
        &bench,
        LinkFaults {
            late_one_in: 1,
            ..LinkFaults::default()
        },
    );
    bench.turn(&mut volume, 40);
    let before = counts(&bench);
    // The host continues from its journal, under a new lease.
    drop(volume);
    bench.machine.kill();
    set_faults(&bench, LinkFaults::default());
    let mut volume = bench.attach(id);
    bench.turn(&mut volume, 40);
    deliver(&bench);
    let after = counts(&bench);
    assert_eq!(after.late_changes, before.late_changes, "{after:?}");
    assert!(after.refused_older > before.refused_older, "{after:?}");
    check_content(&bench, &mut volume, 2);
    check_leftovers(&mut bench, id, volume);
}

#[test]
fn falsified_reads_of_a_daemon_are_detected_and_another_copy_is_read() {
    let mut bench = bench(2, 2);
    let id = bench.create(None);
    let mut volume = bench.attach(id);
    for block in 0..8 {
        bench.write(&mut volume, block..block + 1, block as u8 + 1);
    }
    bench.turn(&mut volume, 40);
    bench.close(volume);
    let network = bench.machine.network.as_ref().expect("there is one");
    for faulty in 0..2 {
        network.daemon(faulty).falsify_reads(1);
        for _ in 0..4 {
            let mut volume = bench.attach(id);
            for block in 0..8 {
                assert_eq!(bench.read(&mut volume, block), Ok(block as u8 + 1));
            }
            bench.close(volume);
        }
        network.stop_falsifying();
    }
    assert!(counts(&bench).falsified > 0, "{:?}", counts(&bench));
}

/// Unsynced puts are lost when a daemon's machine loses power, and the next sync reports
/// it.
#[test]
fn an_acknowledged_flush_survives_power_failures_of_all_daemons() {
    let mut bench = bench(2, 2);
    let id = bench.create(None);
    let mut volume = bench.attach(id);
    for byte in 1..12 {
        bench.write(&mut volume, 0..8, byte);
        bench.turn(&mut volume, usize::from(byte));
        for unit in 0..2 {
            let network = bench.machine.network.as_ref().expect("there is one");
            network.daemon(unit).lose_power();
            bench.machine.start_daemon(unit);
        }
        bench.turn(&mut volume, 40);
        heal(&bench);
        bench.turn(&mut volume, 40);
        check_content(&bench, &mut volume, byte);
    }
    bench.close(volume);
    let mut volume = bench.attach(id);
    check_content(&bench, &mut volume, 11);
    bench.close(volume);
}

/// A pace without delays and interruptions.
struct Uninterrupted;

impl Pace for Uninterrupted {
    fn step(&self, _: u64) -> Result<(), Stopped> {
        Ok(())
    }

    fn report_progress(&self, _: u64, _: u64) {}
}

/// Runs one pass over a copyset.
fn repair_once(bench: &Bench, copyset: CopysetId) -> PassReport {
    let machine = &bench.machine;
    let members = &machine.catalog.members;
    let missed = members.missed_writes(copyset);
    let (open, serials, serial_next) = machine.catalog.memory.uncommitted();
    let open = open.iter().map(|open| (open.segment, open.slots));
    let uncommitted = Uncommitted::new(open, serials, serial_next);
    let sets = members.copysets();
    let set = sets.into_iter().find(|set| set.id == copyset);
    let set = set.expect("there is one");
    let placed = set.members_by_place().map(|(place, id, state)| {
        let unit = machine.units.iter().position(|(unit, _)| *unit == id);
        let unit = Arc::clone(&machine.tracked[unit.expect("there")]);
        RepairMember {
            id,
            place,
            state,
            unit,
            suspect: members.suspect(copyset, id),
        }
    });
    let placed: Vec<RepairMember> = placed.collect();
    let network = machine.network.as_ref().expect("there is one");
    network.capability_cache().begin_repair(copyset, false);
    let erasure = set.erasure();
    let mut repair = CopysetRepair::new(copyset);
    let passed = repair.pass(
        erasure,
        &placed,
        &uncommitted,
        Depth::Rebuild,
        &Uninterrupted,
    );
    network.capability_cache().end_repair(copyset);
    let found = passed.expect("nothing stops it");
    members.end_repair(copyset, &missed, &found, &found.incomplete);
    found
}

/// A repairer deleted an unreadable segment, and its connection broke. It deleted the
/// segment again and rewrote it; then the daemon carried out the first delete.
#[test]
fn a_late_delete_does_not_delete_a_repaired_segment() {
    let mut bench = bench(2, 2);
    let id = bench.create(None);
    let mut volume = bench.attach(id);
    write_and_destage(&bench, &mut volume, 1);
    bench.close(volume);
    let volume = bench.attach(id);
    bench.close(volume);
    let folder = bench.machine.unit_path(0).join("segments");
    let disk = bench.machine.unit_disk(0);
    for (path, _) in disk.files_under(&folder) {
        disk.flip_bit(&path, 9, 1).expect("it is there");
    }
    let network = bench.machine.network.as_ref().expect("there is one");
    network.daemon(0).kill();
    bench.machine.start_daemon(0);
    let members = Arc::clone(&bench.machine.catalog.members);
    let copyset = members.copysets()[0].id;
    members.suspect_unit(sim::machine::unit_id(0));
    let network = bench.machine.network.as_ref().expect("there is one");
    network.set_faults(
        0,
        LinkFaults {
            late_one_in: 1,
            is_once: true,
            only: Some(Verb::Delete),
            ..LinkFaults::default()
        },
    );
    let found = repair_once(&bench, copyset);
    assert!(!found.problems.is_empty(), "{found:?}");
    let clock = &bench.machine.simulation.clock;
    clock.advance(Duration::from_millis(200));
    bench.machine.probe(true);
    while !members.to_repair().is_empty() {
        let found = repair_once(&bench, copyset);
        assert_eq!(found.problems.len(), 0, "{found:?}");
    }
    deliver(&bench);
    bench.machine.catalog.memory.forget_degraded(copyset);
    bench.audit();
}

/// The connection broke, and a guest's read failed with it.
#[test]
fn a_read_whose_answer_is_lost_is_repeated() {
    let mut bench = bench(1, 1);
    let id = bench.create(None);
    let mut volume = bench.attach(id);
    write_and_destage(&bench, &mut volume, 1);
    bench.close(volume);
    let mut volume = bench.attach(id);
    let once = |before_one_in, after_one_in| LinkFaults {
        before_one_in,
        after_one_in,
        is_once: true,
        only: Some(Verb::Read),
        ..LinkFaults::default()
    };
    for faults in [once(1, 0), once(0, 1)] {
        // The link pauses for a while after the last failure.
        let clock = &bench.machine.simulation.clock;
        clock.advance(Duration::from_secs(6));
        set_faults(&bench, faults);
        let start = clock.monotonic();
        let started = volume.start(Request::read(3, 0, &mut [0; 4096]));
        assert_eq!(started, Started::Pending);
        let mut completions = Vec::new();
        while completions.is_empty() {
            assert!(bench.machine.simulation.pool.run_one(bench.random()));
            volume.poll(&mut completions);
        }
        let read = Outcome::Data(vec![1; 4096]);
        assert_eq!(completions[0].result, Ok(read));
        let took = clock.monotonic() - start;
        assert!(took < Duration::from_millis(50), "it has waited: {took:?}");
    }
    let seen = counts(&bench);
    assert!(
        seen.broken_before == 1 && seen.answers_lost == 1,
        "{seen:?}"
    );
    bench.close(volume);
}
