//! Units in pools of a real cluster, where there is one: `SCREE_TEST_RADOS` names a
//! pool that may be filled (`rados://scree@pool`), and `CEPH_CONF` how it is reached.
//! `make test-engines` sets both; without them nothing is tried here.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use base::{ClusterId, CopysetId, DatabaseId, LineageTag, SegmentId, Slot, UnitId};
use unit::{Owner, Put, SlotRun, Unit, UnitError};
use unit_rados::{Location, RadosUnit};
use world::World;

const CLUSTER: ClusterId = ClusterId::from_u128(1);
const UNIT: UnitId = UnitId::from_u128(2);

/// A new namespace of the pool, if there is a pool.
fn location(name: &str) -> Option<Location> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let pool = std::env::var("SCREE_TEST_RADOS").ok()?;
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let random = World::real(1).random.u64();
    let url = format!("{pool}/test-{name}-{random:x}-{count}");
    Some(Location::at(&url).expect("SCREE_TEST_RADOS is rados://[USER@]POOL"))
}

fn segment(serial: u64) -> SegmentId {
    SegmentId::new(CopysetId::new(1).expect("few"), serial).expect("few")
}

#[test]
fn a_pool_of_a_cluster_is_a_unit() {
    if location("").is_none() {
        return;
    }
    let world = World::real(8);
    testkit::units::conformance::run(&|| {
        let location = location("conformance").expect("there is a pool");
        Arc::new(RadosUnit::create(&world, &location, CLUSTER, UNIT).expect("made"))
    });
}

#[test]
fn a_unit_of_a_cluster_is_changed_by_its_owner_only_and_says_how_much_more_it_takes() {
    let Some(location) = location("owner") else {
        return;
    };
    let world = World::real(4);
    let owner = |database| Owner {
        database: DatabaseId::from_u128(database),
        generation: 5,
        place: format!("place {database}"),
    };
    let open = |database, takes_over| {
        let unit = RadosUnit::open(&world, &location, CLUSTER, UNIT);
        unit.with_owner(owner(database), takes_over)
    };
    let first = open(1, false).created().expect("made and claimed");
    let stat = first.stat().expect("there");
    assert!(stat.free_bytes.is_some_and(|bytes| bytes > 0), "{stat:?}");
    let held = open(2, false).probe();
    assert!(matches!(held, Err(UnitError::Held { .. })), "{held:?}");
    open(2, true).probe().expect("taken over");
    let held = first.probe();
    assert!(matches!(held, Err(UnitError::Held { .. })), "{held:?}");
    let marker = RadosUnit::identify(&world, &location).expect("a unit");
    assert_eq!((marker.cluster, marker.unit), (CLUSTER, UNIT));
    assert_eq!(marker.owner, Some(owner(2)));
}

#[test]
fn all_asynchronous_reads_complete_even_if_the_unit_is_dropped() {
    let Some(location) = location("later") else {
        return;
    };
    let world = World::real(4);
    let unit = RadosUnit::create(&world, &location, CLUSTER, UNIT).expect("made");
    let (tags, data) = (vec![[7; 16]; 512], vec![9; 512 * 4096]);
    unit.put(Put {
        lineage_tag: LineageTag::NONE,
        segment: segment(1),
        slot_bytes: 4096,
        first: Slot(0),
        tags: &tags,
        data: &data,
    })
    .expect("put");
    let (sender, receiver) = std::sync::mpsc::channel();
    let mut begun = 0;
    for slot in 0..512 {
        let sender = sender.clone();
        let run = SlotRun {
            segment: segment(1),
            first: Slot(slot),
            count: 1,
        };
        let done = move |read: Result<unit::ReadSlots<'_>, UnitError>| {
            let is_right =
                read.is_ok_and(|slots| slots.iter(4096).eq([(&[7; 16], &[9; 4096][..])]));
            sender.send(is_right).expect("the test is waiting");
        };
        begun += usize::from(unit.read_async(run, 4096, Box::new(done)));
    }
    assert_eq!(begun, 512);
    drop((unit, sender));
    let ended: Vec<bool> = receiver.iter().collect();
    assert_eq!(ended, vec![true; 512]);
}

#[test]
fn a_missing_pool_and_an_unknown_user_are_named() {
    let Some(there) = location("none") else {
        return;
    };
    let world = World::real(1);
    let url = there.url();
    let (_, rest) = url.split_once("://").expect("a URL");
    let user = rest.split_once('@').map_or("admin", |(user, _)| user);
    for (url, word) in [
        (
            format!("rados://{user}@no-such-pool"),
            "ceph osd pool create",
        ),
        (
            "rados://no-such-user@no-such-pool".to_owned(),
            "no-such-user",
        ),
    ] {
        let location = Location::at(&url).expect("a URL");
        let error = RadosUnit::open(&world, &location, CLUSTER, UNIT).probe();
        let error = error.expect_err("there is none").to_string();
        assert!(error.contains(word), "{error}");
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "it measures")]
fn a_cluster_that_is_not_there_is_away_in_time() {
    if location("").is_none() {
        return;
    }
    let folder = std::env::temp_dir().join("scree-test-no-cluster.conf");
    std::fs::write(
        &folder,
        "[global]\nmon host = 127.0.0.1:1\nauth client required = none\n",
    )
    .expect("written");
    let args = format!("--conf {}", folder.display());
    let location = Location::with_args("rados://pool", &args).expect("a URL");
    let begun = Instant::now();
    let error = RadosUnit::open(&World::real(1), &location, CLUSTER, UNIT).probe();
    assert!(
        matches!(error, Err(UnitError::Unavailable { .. })),
        "{error:?}"
    );
    assert!(begun.elapsed().as_secs() < 20, "{:?}", begun.elapsed());
}
