//! Several hosts, and several threads, at one unit.

use std::collections::BTreeSet;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};

use base::{LineageTag, Slot};
use unit::{Put, Unit as _, UnitError};

use crate::help::{Site, data, free, live, memory, put_slots, read_slots, segment, tags};

#[test]
fn what_two_hosts_free_at_once_is_free() {
    let site = Site::new(memory());
    put_slots(&site.unit(), segment(1), 4096, 200).expect("put");
    let hosts = [site.open(), site.open(), site.open(), site.open()];
    let together = Barrier::new(hosts.len());
    let together = &together;
    std::thread::scope(|scope| {
        for (host, unit) in (0u16..).zip(&hosts) {
            scope.spawn(move || {
                for slot in (0..160).filter(|slot| slot % 4 == host) {
                    together.wait();
                    free(unit, segment(1), [slot]).expect("freed");
                    if slot % 16 < 4 {
                        unit.reclaim().expect("settled");
                    }
                }
            });
        }
    });
    let unit = site.open();
    assert_eq!(unit.stat_segment(segment(1)).expect("there").freed, 160);
    while unit.reclaim().expect("settled") {}
    for unit in hosts.iter().chain([&unit]) {
        assert_eq!(live(unit, segment(1), 0..201), Vec::from_iter(160..200));
        assert_eq!(unit.scrub(segment(1)).expect("scrubbed"), []);
    }
    // Less than half of what is in it is dead.
    let length = site.store.length("segments/000000001-001");
    assert!(length < 64 + 32 + 80 * 4120, "{length}");
}

#[test]
fn the_last_slots_may_be_freed_by_two_hosts_at_once() {
    for _ in 0..50 {
        let site = Site::new(memory());
        put_slots(&site.unit(), segment(1), 4096, 8).expect("put");
        let hosts = [site.open(), site.open()];
        std::thread::scope(|scope| {
            for (host, unit) in (0u16..).zip(&hosts) {
                scope.spawn(move || free(unit, segment(1), host * 4..host * 4 + 4).expect("freed"));
            }
        });
        let unit = site.open();
        assert_eq!(unit.list().expect("listed"), []);
        while unit.reclaim().expect("settled") {}
        assert_eq!(site.store.names(), ["scree-unit.toml"]);
    }
}

#[test]
fn a_segment_is_made_once() {
    for _ in 0..20 {
        let site = Site::new(memory());
        site.unit();
        let hosts = [site.open(), site.open()];
        let made: Vec<Result<(), UnitError>> = std::thread::scope(|scope| {
            let counts = [8, 9];
            let puts = hosts.iter().zip(counts);
            let puts: Vec<_> = puts
                .map(|(unit, count)| scope.spawn(move || put_slots(unit, segment(1), 4096, count)))
                .collect();
            puts.into_iter()
                .map(|put| put.join().expect("ends"))
                .collect()
        });
        let slots = site.open().stat_segment(segment(1)).expect("there").slots;
        match (&made[0], &made[1]) {
            (Ok(()), Err(UnitError::Misplaced { slots: 8, .. })) => assert_eq!(slots, 8),
            (Err(UnitError::Misplaced { slots: 9, .. }), Ok(())) => assert_eq!(slots, 9),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_put_of_something_else_in_its_place_is_refused() {
    let site = Site::new(memory());
    let unit = site.unit();
    put_slots(&unit, segment(1), 4096, 8).expect("put");
    let (tags, mut data) = (tags(segment(1), 8), data(segment(1), 4096, 8));
    let put = |data: &[u8]| {
        unit.put(Put {
            lineage_tag: LineageTag::NONE,
            segment: segment(1),
            slot_bytes: 4096,
            first: Slot(0),
            tags: &tags,
            data,
        })
    };
    put(&data).expect("the same once more");
    data[20_000] ^= 1;
    let other = put(&data);
    assert!(
        matches!(other, Err(UnitError::Misplaced { slots: 8, .. })),
        "{other:?}"
    );
    assert_eq!(live(&unit, segment(1), 0..9), Vec::from_iter(0..8));
}

#[test]
fn reads_are_right_while_another_host_rewrites_what_they_read() {
    let site = Site::new(memory());
    let unit = site.unit();
    put_slots(&unit, segment(1), 4096, 256).expect("put");
    let (reader, cleaner) = (site.open(), site.open());
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut kept: BTreeSet<u16> = (0..256).collect();
            while kept.len() > 16 {
                let half: Vec<u16> = kept
                    .iter()
                    .copied()
                    .filter(|slot| *slot < 240)
                    .step_by(2)
                    .collect();
                half.iter().for_each(|slot| {
                    kept.remove(slot);
                });
                free(&cleaner, segment(1), half).expect("freed");
                while cleaner.reclaim().expect("settled") {}
            }
            is_done.store(true, Ordering::SeqCst);
        });
        while !is_done.load(Ordering::SeqCst) {
            read_slots(&reader, segment(1), 4096, 240, 16).expect("never freed");
        }
    });
    read_slots(&reader, segment(1), 4096, 240, 16).expect("never freed");
    assert_eq!(reader.stat_segment(segment(1)).expect("there").freed, 240);
}

#[test]
fn what_another_host_deletes_meanwhile_stays_deleted() {
    let (name, freed) = ("segments/000000001-001", "freed/000000001-001");
    let site = Site::new(memory());
    let unit = site.unit();
    put_slots(&unit, segment(1), 4096, 8).expect("put");
    free(&unit, segment(1), 0..6).expect("freed");
    let deleted = vec![(name.to_owned(), None), (freed.to_owned(), None)];
    site.store.change_before_put(name, deleted.clone());
    while unit.reclaim().expect("settled") {}
    assert_eq!(site.store.names(), ["scree-unit.toml"], "it was rewritten");
    // And while slots are freed in it.
    put_slots(&unit, segment(1), 4096, 8).expect("put");
    free(&unit, segment(1), [1]).expect("freed");
    site.store.change_before_put(freed, deleted);
    free(&unit, segment(1), [2]).expect("gone");
    assert_eq!(site.store.names(), ["scree-unit.toml"]);
}

#[test]
fn what_another_host_frees_meanwhile_is_free() {
    let name = "freed/000000001-001";
    let site = Site::new(memory());
    let unit = site.unit();
    put_slots(&unit, segment(1), 4096, 12).expect("put");
    // What another host has to say, the first time and the next.
    let twin = Site::new(memory());
    put_slots(&twin.unit(), segment(1), 4096, 12).expect("put");
    for (slot, others) in [(2, 1), (4, 3)] {
        free(&twin.open(), segment(1), [others]).expect("freed");
        let answer = twin.store.get_raw(name);
        site.store
            .change_before_put(name, vec![(name.to_owned(), Some(answer))]);
        free(&unit, segment(1), [slot]).expect("freed");
        free(&twin.open(), segment(1), [slot]).expect("freed");
        let rest: Vec<u16> = (0..12)
            .filter(|found| !(1..=slot).contains(found))
            .collect();
        for unit in [&unit, &site.open()] {
            assert_eq!(live(unit, segment(1), 0..12), rest);
        }
    }
}

/// A host freed slots of a segment that a rebuilding member was missing: it found no segment and
/// deleted what the repair had put there meanwhile.
#[test]
fn freeing_what_is_not_there_takes_nothing_that_comes_meanwhile() {
    let site = Site::new(memory());
    put_slots(&site.unit(), segment(1), 4096, 8).expect("put");
    let frees = site.open();
    site.store.forget_requests();
    free(&frees, segment(2), [3]).expect("there is nothing to free");
    let requests = site.store.requests();
    let is_reading = |request: &String| request.starts_with("get ");
    assert!(requests.iter().all(is_reading), "{requests:?}");
    put_slots(&site.open(), segment(2), 4096, 8).expect("put");
    while frees.reclaim().expect("settled") {}
    assert_eq!(live(&site.open(), segment(2), 0..9), Vec::from_iter(0..8));
}
