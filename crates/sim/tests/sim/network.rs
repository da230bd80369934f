//! The network between a host and unit daemons: seeds, and stories.

use std::sync::Arc;
use std::time::Duration;

use base::{BlockDevice, CopysetId, Outcome, Request, Started, VolumeId};
use sim::net::Counts;
use sim::net::link::Strikes;
use sim::setup::{NetSetup, Setup};
use unit_wire::Verb;
use volume::Volume;
use volume::repair::{Depth, Pace, PassReport, RepairMember, Stopped, Task, Uncommitted};
use world::Clock;

use crate::bench::Bench;

/// A network that is well until it is told otherwise.
fn bench(units: usize, replicas: u8) -> Bench {
    Bench::with(Setup {
        net: Some(NetSetup {
            seed: 3,
            keeps_freed: Duration::from_secs(60),
            breaks: false,
        }),
        ..Setup::quiet(units, replicas)
    })
}

fn strike(bench: &Bench, strikes: Strikes) {
    let network = bench.machine.network.as_ref().expect("there is one");
    (0..bench.machine.units.len()).for_each(|unit| network.strike(unit, strikes));
}

/// All is well again, and units that were away are looked at.
fn heal(bench: &Bench) {
    strike(bench, Strikes::default());
    let clock = &bench.machine.simulation.clock;
    clock.advance(Duration::from_secs(6));
    bench.machine.probe(true);
}

/// What is on its way arrives.
fn arrive(bench: &Bench) {
    let network = bench.machine.network.as_ref().expect("there is one");
    network.haunt(true);
    assert_eq!(network.wrong(), None);
}

fn counts(bench: &Bench) -> Counts {
    let network = bench.machine.network.as_ref().expect("there is one");
    network.counts()
}

/// Blocks 0 to 8 are `byte`, and are destaged, or that is tried.
fn write_out(bench: &Bench, volume: &mut Volume, byte: u8) {
    bench.write(volume, 0..8, byte);
    bench.turn(volume, 40);
}

fn holds(bench: &Bench, volume: &mut Volume, byte: u8) {
    for block in 0..8 {
        assert_eq!(bench.read(volume, block), Ok(byte), "block {block}");
    }
}

/// What the next lease sweeps and what removed versions held is gone from all units.
fn leaves_nothing(bench: &mut Bench, id: VolumeId, volume: Volume) {
    bench.close(volume);
    let volume = bench.attach(id);
    bench.close(volume);
    for stored in bench.machine.catalog.memory.versions() {
        bench.remove(stored.key);
    }
    bench.audit();
}

/// All that can happen to a network has happened to those of a run of many seeds.
pub fn all_has_happened(seen: Counts) {
    let Counts {
        asked,
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
        lies,
        refused_older,
    } = seen;
    for (what, count) in [
        ("requests", asked),
        ("breaks before a request", broken_before),
        ("answers that were lost", answers_lost),
        ("breaks within a frame", cut_in_frame),
        ("late requests", late),
        ("late changes", late_changes),
        ("answers in another order", reordered),
        ("connections that timed out", timed_out),
        ("partitions", partitions),
        ("daemons killed", killed),
        ("machines without power", crashed),
        ("lies", lies),
        ("older leases refused", refused_older),
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

/// The connection broke, what the daemon might have was freed, and then it carried the
/// put out: nothing swept that.
#[test]
fn a_put_that_comes_after_it_was_freed_leaves_nothing() {
    let mut bench = bench(2, 1);
    let id = bench.create(None);
    let mut volume = bench.attach(id);
    write_out(&bench, &mut volume, 1);
    let network = bench.machine.network.as_ref().expect("there is one");
    for byte in 2..12 {
        let once = Strikes {
            late_one_in: 1,
            is_once: true,
            ..Strikes::default()
        };
        network.strike(0, once);
        // What goes to the other one takes so long that the first is tried again.
        let slow = Strikes {
            slow_one_in: 1,
            ..Strikes::default()
        };
        network.strike(1, slow);
        write_out(&bench, &mut volume, byte);
        arrive(&bench);
        heal(&bench);
    }
    write_out(&bench, &mut volume, 12);
    let seen = counts(&bench);
    assert!(seen.late > 0 && seen.refused_older > 0, "{seen:?}");
    assert_eq!(seen.late_changes, 0, "{seen:?}");
    holds(&bench, &mut volume, 12);
    leaves_nothing(&mut bench, id, volume);
}

/// What it had asked was on its way when another host took the volume.
#[test]
fn what_an_older_lease_has_sent_is_refused_after_a_newer_one_was_shown() {
    let mut bench = bench(3, 1);
    let id = bench.create(None);
    let mut volume = bench.attach(id);
    write_out(&bench, &mut volume, 1);
    bench.write(&mut volume, 0..8, 2);
    strike(
        &bench,
        Strikes {
            late_one_in: 1,
            ..Strikes::default()
        },
    );
    bench.turn(&mut volume, 40);
    let before = counts(&bench);
    // Its journal is there: the host goes on under a lease of its own.
    drop(volume);
    bench.machine.kill();
    strike(&bench, Strikes::default());
    let mut volume = bench.attach(id);
    bench.turn(&mut volume, 40);
    arrive(&bench);
    let after = counts(&bench);
    assert_eq!(after.late_changes, before.late_changes, "{after:?}");
    assert!(after.refused_older > before.refused_older, "{after:?}");
    holds(&bench, &mut volume, 2);
    leaves_nothing(&mut bench, id, volume);
}

#[test]
fn what_a_lying_daemon_answers_is_found_out_and_another_copy_serves() {
    let mut bench = bench(2, 2);
    let id = bench.create(None);
    let mut volume = bench.attach(id);
    for block in 0..8 {
        bench.write(&mut volume, block..block + 1, block as u8 + 1);
    }
    bench.turn(&mut volume, 40);
    bench.close(volume);
    let network = bench.machine.network.as_ref().expect("there is one");
    for liar in 0..2 {
        network.daemon(liar).lie(1);
        for _ in 0..4 {
            let mut volume = bench.attach(id);
            for block in 0..8 {
                assert_eq!(bench.read(&mut volume, block), Ok(block as u8 + 1));
            }
            bench.close(volume);
        }
        network.be_honest();
    }
    assert!(counts(&bench).lies > 0, "{:?}", counts(&bench));
}

/// What was put and not synced is gone with the daemon's power, and a sync says so.
#[test]
fn a_flush_that_was_acknowledged_survives_the_power_of_every_daemon() {
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
        holds(&bench, &mut volume, byte);
    }
    bench.close(volume);
    let mut volume = bench.attach(id);
    holds(&bench, &mut volume, 11);
    bench.close(volume);
}

/// A repairer that nothing disturbs.
struct Calm;

impl Pace for Calm {
    fn step(&self, _: u64) -> Result<(), Stopped> {
        Ok(())
    }

    fn compared(&self, _: u64, _: u64) {}
}

/// One pass over a copyset.
fn repair_once(bench: &Bench, copyset: CopysetId) -> PassReport {
    let machine = &bench.machine;
    let members = &machine.catalog.members;
    let missed = members.missed(copyset);
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
    network.capability_cache().repairs(copyset, false);
    let erasure = set.erasure();
    let passed = Task::new(copyset).pass(erasure, &placed, &uncommitted, Depth::Rebuild, &Calm);
    network.capability_cache().has_repaired(copyset);
    let found = passed.expect("nobody stops it");
    members.end(copyset, &missed, &found, &found.lacking);
    found
}

/// A repairer removed what could not be read, its connection broke, and it removed it once
/// more and put it anew; then the daemon carried out what it had been asked first.
#[test]
fn a_delete_that_comes_late_takes_nothing_that_was_repaired_since() {
    let mut bench = bench(2, 2);
    let id = bench.create(None);
    let mut volume = bench.attach(id);
    write_out(&bench, &mut volume, 1);
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
    members.suspicion(sim::machine::unit_id(0));
    let network = bench.machine.network.as_ref().expect("there is one");
    network.strike(
        0,
        Strikes {
            late_one_in: 1,
            is_once: true,
            only: Some(Verb::Delete),
            ..Strikes::default()
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
    arrive(&bench);
    bench.machine.catalog.memory.forget_degraded(copyset);
    bench.audit();
}

/// The connection broke, and a guest's read failed with it.
#[test]
fn a_read_whose_answer_is_lost_is_asked_for_again() {
    let mut bench = bench(1, 1);
    let id = bench.create(None);
    let mut volume = bench.attach(id);
    write_out(&bench, &mut volume, 1);
    bench.close(volume);
    let mut volume = bench.attach(id);
    let once = |before_one_in, after_one_in| Strikes {
        before_one_in,
        after_one_in,
        is_once: true,
        only: Some(Verb::Read),
        ..Strikes::default()
    };
    for strikes in [once(1, 0), once(0, 1)] {
        // For a while after that there is a pause.
        let clock = &bench.machine.simulation.clock;
        clock.advance(Duration::from_secs(6));
        strike(&bench, strikes);
        let began = clock.monotonic();
        let asked = volume.start(Request::read(3, 0, &mut [0; 4096]));
        assert_eq!(asked, Started::Pending);
        let mut completions = Vec::new();
        while completions.is_empty() {
            assert!(bench.machine.simulation.pool.run_one(bench.random()));
            volume.poll(&mut completions);
        }
        let read = Outcome::Data(vec![1; 4096]);
        assert_eq!(completions[0].result, Ok(read));
        let took = clock.monotonic() - began;
        assert!(took < Duration::from_millis(50), "it has waited: {took:?}");
    }
    let seen = counts(&bench);
    assert!(
        seen.broken_before == 1 && seen.answers_lost == 1,
        "{seen:?}"
    );
    bench.close(volume);
}
