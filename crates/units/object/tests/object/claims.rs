//! Whose a unit is, and what is no unit.

use base::{ClusterId, DatabaseId, UnitId};
use unit::{Owner, Unit as _, UnitError};
use unit_object::{Conditional, Location, ObjectUnit};

use crate::help::{self, CLUSTER, Site, UNIT, local, memory, put_slots, runtime, segment};

fn owner(database: u128, generation: u32) -> Owner {
    Owner {
        database: DatabaseId::from_u128(database),
        generation,
        place: format!("place {database}"),
    }
}

#[test]
fn what_the_store_can_do_is_learned_when_the_unit_is_made() {
    let site = Site::new(memory());
    site.unit();
    let marker = ObjectUnit::identify(runtime(), &site.location).expect("a unit");
    assert_eq!(
        (
            marker.common.cluster,
            marker.common.unit,
            marker.common.owner
        ),
        (CLUSTER, UNIT, None)
    );
    let all = Conditional {
        create: true,
        update: true,
    };
    assert_eq!(marker.conditional, all);
    assert_eq!(site.store.names(), ["scree-unit.toml"]);
    let (_folder, store) = local();
    let site = Site::new(store);
    site.unit();
    let marker = ObjectUnit::identify(runtime(), &site.location).expect("a unit");
    let some = Conditional {
        create: true,
        update: false,
    };
    assert_eq!(marker.conditional, some);
}

#[test]
fn a_prefix_that_is_no_unit_is_missing_and_one_that_holds_something_is_not_taken() {
    let site = Site::new(memory());
    let unit = site.open();
    for missing in [
        unit.probe(),
        unit.list().map(drop),
        unit.stat().map(drop),
        unit.read_note().map(drop),
        unit.write_note(&[0; 512]),
        put_slots(&unit, segment(1), 4096, 1),
        help::read_slots(&unit, segment(1), 4096, 0, 1),
        help::free(&unit, segment(1), [0]),
        unit.delete(segment(1)),
        unit.scrub(segment(1)).map(drop),
        ObjectUnit::identify(runtime(), &site.location).map(drop),
    ] {
        assert!(
            matches!(missing, Err(UnitError::Missing { .. })),
            "{missing:?}"
        );
    }
    assert_eq!(site.store.names(), [""; 0], "nothing was written");
    site.store.put_raw("holiday.jpg", b"a picture");
    let foreign = site.open().created().map(drop);
    assert!(
        matches!(foreign, Err(UnitError::Foreign { .. })),
        "{foreign:?}"
    );
    site.store.remove_raw("holiday.jpg");
    site.store.put_raw("scree-unit.toml", b"format = 1");
    let foreign = site.open().created().map(drop);
    assert!(
        matches!(foreign, Err(UnitError::Foreign { .. })),
        "{foreign:?}"
    );
    site.store.put_raw("scree-unit.toml", b"format = 2");
    let newer = site.open().probe();
    assert!(
        matches!(
            newer,
            Err(UnitError::Newer {
                found: 2,
                known: 1,
                ..
            })
        ),
        "{newer:?}"
    );
}

#[test]
fn another_unit_is_foreign_and_so_is_a_unit_within_one() {
    let site = Site::new(memory());
    site.unit();
    let world = site.simulation.world();
    for (cluster, unit) in [
        (ClusterId::from_u128(9), UNIT),
        (CLUSTER, UnitId::from_u128(9)),
    ] {
        let other = ObjectUnit::open(&world, runtime(), &site.location, cluster, unit);
        for refused in [
            other.probe(),
            other.list().map(drop),
            put_slots(&other, segment(1), 512, 1),
        ] {
            assert!(
                matches!(refused, Err(UnitError::Foreign { .. })),
                "{refused:?}"
            );
        }
        let made = other.created().map(drop);
        assert!(matches!(made, Err(UnitError::Foreign { .. })), "{made:?}");
    }
    let shared: std::sync::Arc<dyn object_store::ObjectStore> = site.store.clone();
    let within = Location::on(shared, "a/unit/b/c".into(), "test://within".to_owned());
    let within = ObjectUnit::create(&world, runtime(), &within, CLUSTER, UnitId::from_u128(3));
    let within = within.map(drop);
    assert!(
        matches!(&within, Err(UnitError::Foreign { reason, .. }) if reason.contains("is within")),
        "{within:?}"
    );
    assert_eq!(site.unit().id(), UNIT, "made twice is opened");
}

fn check_owners(site: &Site) {
    let open = |owner, takes_over| site.open().with_owner(owner, takes_over);
    site.unit();
    let first = open(owner(1, 5), false);
    let early = put_slots(&first, segment(1), 4096, 1);
    assert!(
        matches!(early, Err(UnitError::Missing { .. })),
        "not claimed: {early:?}"
    );
    first.probe().expect("claimed");
    put_slots(&first, segment(1), 4096, 4).expect("its own");
    let held = |result: Result<(), UnitError>| {
        let Err(UnitError::Held { holder, .. }) = result else {
            panic!("{result:?}");
        };
        holder.place
    };
    let second = open(owner(2, 5), false);
    assert_eq!(held(second.probe()), "place 1");
    assert_eq!(held(put_slots(&second, segment(2), 4096, 1)), "place 1");
    assert_eq!(held(help::free(&second, segment(1), [0])), "place 1");
    assert_eq!(held(second.delete(segment(1))), "place 1");
    assert_eq!(held(second.write_note(&[1; 512])), "place 1");
    help::read_slots(&second, segment(1), 4096, 0, 4).expect("it may be read");
    assert_eq!(held(open(owner(2, 4), true).probe()), "place 1");
    // The operator confirms that the first one was removed.
    open(owner(2, 5), true).probe().expect("taken over");
    assert_eq!(held(first.probe()), "place 2");
    assert_eq!(held(help::free(&first, segment(1), [0])), "place 2");
    open(owner(3, 6), false)
        .probe()
        .expect("of a later generation");
    assert_eq!(held(open(owner(2, 5), true).probe()), "place 3");
}

#[test]
fn a_unit_is_changed_by_its_owner_only() {
    check_owners(&Site::new(memory()));
    let (_folder, store) = local();
    check_owners(&Site::new(store));
}

#[test]
fn a_put_soon_notices_that_the_unit_was_taken_over() {
    let site = Site::new(memory());
    let first = site.unit().with_owner(owner(1, 5), false);
    first.probe().expect("claimed");
    let second = site.open().with_owner(owner(2, 6), false);
    second.probe().expect("claimed");
    site.simulation
        .clock
        .advance(std::time::Duration::from_secs(5));
    let late = put_slots(&first, segment(1), 4096, 1);
    assert!(matches!(late, Err(UnitError::Held { .. })), "{late:?}");
}
