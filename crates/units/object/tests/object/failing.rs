//! Stores that fail at any request, before or after it is carried out: nothing
//! that was acknowledged is lost, and trying again succeeds.

use unit::{Unit as _, UnitError};

use crate::help::{Fails, Site, free, live, local, memory, put_slots, segment};

/// Does `act` with each of its requests failing once, on a site that `prepare`
/// has made; then `act` again, until it succeeds, and `check`.
fn at_every_request(
    prepare: impl Fn(&Site),
    act: impl Fn(&Site) -> Result<(), UnitError>,
    after_failure: impl Fn(&Site),
    check: impl Fn(&Site),
) {
    for fails in [Fails::Before, Fails::After] {
        for is_local in [false, true] {
            let mut failures = 0;
            for count in 0.. {
                let (_folder, site) = if is_local {
                    let (folder, store) = local();
                    (Some(folder), Site::new(store))
                } else {
                    (None, Site::new(memory()))
                };
                prepare(&site);
                site.store.fail_after(count, fails);
                let first = act(&site);
                if site.store.take_unfailed() {
                    first.expect("nothing failed");
                    check(&site);
                    break;
                }
                failures += 1;
                after_failure(&site);
                if first.is_err() {
                    act(&site).expect("it can be done again");
                }
                check(&site);
                assert!(count < 100, "it ends");
            }
            assert!(failures > 0, "nothing ever failed");
        }
    }
}

fn prepare(site: &Site) {
    let unit = site.unit();
    for number in [1, 2] {
        put_slots(&unit, segment(number), 4096, 16).expect("put");
    }
    free(&unit, segment(1), [3, 4]).expect("freed");
    put_slots(&unit, segment(5), 4096, 1).expect("put");
}

/// What was acknowledged before.
fn nothing_is_lost(site: &Site) {
    let unit = site.open();
    let rest: Vec<u16> = (0..16).filter(|slot| ![3, 4].contains(slot)).collect();
    let found = live(&unit, segment(1), 0..17);
    assert!(
        found.iter().all(|slot| rest.contains(slot)),
        "freed is freed: {found:?}"
    );
    assert_eq!(live(&unit, segment(2), 0..17), Vec::from_iter(0..16));
}

fn kept(site: &Site, slots: &[u16]) {
    nothing_is_lost(site);
    assert_eq!(live(&site.open(), segment(1), 0..17), slots);
}

#[test]
fn making_a_unit_can_be_tried_again() {
    at_every_request(
        |_| {},
        |site| site.open().created().map(drop),
        |_| {},
        |site| {
            site.open().probe().expect("a unit");
            assert_eq!(site.store.names(), ["scree-unit.toml"]);
        },
    );
}

#[test]
fn a_put_can_be_tried_again_and_is_carried_out_once() {
    let all: Vec<u16> = (0..16).collect();
    let rest: Vec<u16> = (0..16).filter(|slot| ![3, 4].contains(slot)).collect();
    at_every_request(
        prepare,
        |site| put_slots(&site.open(), segment(3), 4096, 16),
        |site| {
            let found = live(&site.open(), segment(3), 0..17);
            assert!(
                found.is_empty() || found == all,
                "all or nothing: {found:?}"
            );
        },
        |site| {
            kept(site, &rest);
            assert_eq!(live(&site.open(), segment(3), 0..17), all);
        },
    );
}

#[test]
fn freeing_can_be_tried_again() {
    let rest: Vec<u16> = (0..16).filter(|slot| !(3..6).contains(slot)).collect();
    at_every_request(
        prepare,
        |site| free(&site.open(), segment(1), [4, 5]),
        |site| {
            nothing_is_lost(site);
            let found = live(&site.open(), segment(1), 0..17);
            assert!(rest.iter().all(|slot| found.contains(slot)), "{found:?}");
        },
        |site| kept(site, &rest),
    );
}

#[test]
fn freeing_the_last_slots_can_be_tried_again() {
    at_every_request(
        prepare,
        |site| free(&site.open(), segment(1), 0..16),
        nothing_is_lost,
        |site| {
            kept(site, &[]);
            let unit = site.open();
            while unit.reclaim().expect("settled") {}
            let names = site.store.names();
            assert!(
                !names.iter().any(|name| name.contains("000000001")),
                "{names:?}"
            );
        },
    );
}

#[test]
fn giving_room_back_can_be_tried_again() {
    let rest: Vec<u16> = (10..16).collect();
    let prepare = |site: &Site| {
        prepare(site);
        free(&site.open(), segment(1), 0..10).expect("freed");
        // What is left of a segment whose deletion was cut short.
        free(&site.open(), segment(2), [0]).expect("freed");
        site.store.put_raw(
            "freed/000000009-002",
            &site.store.get_raw("freed/000000002-002"),
        );
        site.store.remove_raw("freed/000000002-002");
    };
    at_every_request(
        prepare,
        |site| {
            let unit = site.open();
            while unit.reclaim()? {}
            Ok(())
        },
        |site| kept(site, &rest),
        |site| {
            kept(site, &rest);
            let names = site.store.names();
            assert!(
                !names.iter().any(|name| name.contains("000000009")),
                "{names:?}"
            );
            let length = site.store.length("segments/000000001-001");
            assert_eq!(length, 64 + 8 + 6 * 4120);
        },
    );
}

#[test]
fn a_delete_can_be_tried_again() {
    at_every_request(
        prepare,
        |site| site.open().delete(segment(1)),
        nothing_is_lost,
        |site| {
            let unit = site.open();
            let mut expected = vec![segment(2), segment(5)];
            expected.sort_unstable();
            assert_eq!(unit.list().expect("listed"), expected);
            let names = site.store.names();
            assert!(
                !names.iter().any(|name| name.contains("000000001")),
                "{names:?}"
            );
        },
    );
}

#[test]
fn a_note_is_the_old_one_or_the_new_one() {
    at_every_request(
        |site| site.unit().write_note(&[1; 512]).expect("kept"),
        |site| site.open().write_note(&[2; 512]),
        |site| {
            let note = site.open().read_note().expect("answers").expect("one");
            assert!(note == [1; 512] || note == [2; 512]);
        },
        |site| assert_eq!(site.open().read_note().expect("answers"), Some([2; 512])),
    );
}

#[test]
fn reading_fails_with_the_store_and_goes_on_with_it() {
    at_every_request(
        prepare,
        |site| {
            let unit = site.open();
            crate::help::read_slots(&unit, segment(2), 4096, 0, 16)?;
            unit.list()?;
            unit.stat()?;
            unit.stat_segment(segment(2))?;
            unit.scrub(segment(2)).map(drop)
        },
        nothing_is_lost,
        nothing_is_lost,
    );
}
