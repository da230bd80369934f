//! The database as the engine's catalog: it passes the conformance suite, on SQLite and PostgreSQL.

use std::sync::atomic::{AtomicU64, Ordering};

use base::{BlockSize, Lineage, Location, SnapshotId, VolumeId};
use catalog::conformance::{CLAIMS, Fixture};
use catalog::{
    Catalog, CatalogError, FreePlan, LineageKey, MemoryCatalog, PLAN_BYTES_MAX, StoredVersion,
    VersionCommit, VersionKey,
};
use control::database::{Database, DatabaseError, Reach};
use world::Millis;

use crate::catalog_scene::{HostCatalog, SALT, Scene, runtime};
use crate::postgres::Postgres;
use crate::principals::snapshot;

#[test]
fn the_database_is_a_catalog() {
    for (name, claim) in CLAIMS {
        println!("{name}");
        claim(&Scene::new());
    }
}

#[test]
fn the_database_is_a_catalog_on_postgresql_too() {
    let server = Postgres::start();
    for (name, claim) in CLAIMS {
        println!("{name}");
        claim(&Scene::on_postgres(&server));
    }
}

/// Two controllers, each with many threads, work on the same rows.
#[test]
fn controllers_of_one_database_never_grant_the_same_number_twice() {
    const THREADS: usize = 8;
    const TURNS: usize = 15;
    let server = Postgres::start();
    let runtime = runtime();
    let url = server.database(&runtime);
    let open = || {
        runtime
            .block_on(Database::connect(&url.parse().expect("a URL")))
            .expect("open")
    };
    let first = Scene::on(
        self::runtime(),
        open(),
        tempfile::tempdir().expect("a folder"),
    );
    let second = open();
    let volume = first.create();
    let snapshots = AtomicU64::new(0);
    let (mut epochs, mut serials, mut made) = (Vec::new(), Vec::new(), 0);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..2 * THREADS)
            .map(|worker| {
                let database = [&first.database, &second][worker % 2];
                let catalog = HostCatalog::new(database, &runtime);
                let (runtime, snapshots) = (&runtime, &snapshots);
                scope.spawn(move || {
                    let (mut epochs, mut serials, mut made) = (Vec::new(), Vec::new(), 0);
                    for turn in 0..TURNS {
                        let lease = catalog.acquire(volume, SALT, None).expect("a lease");
                        epochs.push(lease.epoch);
                        match catalog.reserve_serials(volume, lease.epoch, 3) {
                            Ok(range) => serials.extend(range),
                            // Another thread has taken the lease.
                            Err(error) => assert!(error.is_fenced(), "{error}"),
                        }
                        let id =
                            SnapshotId::from_u128(snapshots.fetch_add(1, Ordering::Relaxed).into());
                        let name = format!("of-turn-{turn}");
                        let new = snapshot(id, &name, volume);
                        let taken = database.snapshots().insert(&catalog.principal, &new);
                        match runtime.block_on(taken) {
                            Ok(_) => made += 1,
                            Err(DatabaseError::Taken { .. }) => {}
                            Err(error) => panic!("{error}"),
                        }
                    }
                    (epochs, serials, made)
                })
            })
            .collect();
        for worker in workers {
            let (some_epochs, some_serials, some_made) = worker.join().expect("no panic");
            epochs.extend(some_epochs);
            serials.extend(some_serials);
            made += some_made;
        }
    });
    epochs.sort_unstable();
    let leases = (2 * THREADS * TURNS) as u32;
    assert_eq!(epochs, (1..=leases).collect::<Vec<_>>());
    let handed_out = serials.len();
    assert!(handed_out > 0);
    serials.sort_unstable();
    serials.dedup();
    assert_eq!(serials.len(), handed_out);
    assert_eq!(made, TURNS, "each name once");
}

/// The catalog in memory, which the simulator uses.
#[derive(Default)]
struct Memory {
    catalog: MemoryCatalog,
    next: AtomicU64,
}

impl Memory {
    fn insert(&self, from: Option<VersionKey>) -> VolumeId {
        let number = self.next.fetch_add(1, Ordering::Relaxed).into();
        let volume = VolumeId::from_u128(number);
        let key = LineageKey {
            lineage: Lineage::from_u128(number),
            epoch_first: 0,
            wrapped: None,
            wrapped_by: None,
            salts: Vec::new(),
        };
        let new = catalog::NewVolume {
            volume,
            size_bytes: 1 << 30,
            block_size: BlockSize::DEFAULT,
            replicas: 2,
            erasure: None,
            key,
            from,
        };
        self.catalog.create_volume(new).expect("made");
        volume
    }
}

impl Fixture for Memory {
    fn catalog(&self) -> &dyn Catalog {
        &self.catalog
    }

    fn create(&self) -> VolumeId {
        self.insert(None)
    }

    fn snapshot(&self, _: VolumeId) -> SnapshotId {
        SnapshotId::from_u128(self.next.fetch_add(1, Ordering::Relaxed).into())
    }

    fn clone_of(&self, snapshot: SnapshotId) -> VolumeId {
        self.insert(Some(self.catalog.snapshot(snapshot).expect("completed")))
    }

    fn delete_snapshot(&self, snapshot: SnapshotId) {
        self.catalog.delete_snapshot(snapshot);
    }

    fn detach_by_force(&self, volume: VolumeId) {
        self.catalog.detach_by_force(volume).expect("it exists");
    }
}

#[test]
fn the_catalog_in_memory_passes_the_conformance_suite() {
    for (name, claim) in CLAIMS {
        println!("{name}");
        claim(&Memory::default());
    }
}

/// Repeated calls once reserved all the serials that a cluster can ever have.
#[test]
fn segment_serials_are_reserved_in_small_numbers() {
    let server = Postgres::start();
    for fixture in [Scene::new(), Scene::on_postgres(&server)] {
        let volume = fixture.create();
        let lease = fixture
            .catalog
            .acquire(volume, SALT, None)
            .expect("a lease");
        let reserve = |count| fixture.catalog.reserve_serials(volume, lease.epoch, count);
        let all = reserve(u32::MAX);
        assert!(matches!(all, Err(CatalogError::Refused { .. })), "{all:?}");
        let first = reserve(64).expect("as an agent asks");
        assert_eq!(reserve(64).expect("more").start, first.end);
    }
}

/// Each host once examined every volume of the cluster in every round of cleaning.
#[test]
fn only_volumes_with_removable_versions_are_examined() {
    let server = Postgres::start();
    for fixture in [Scene::new(), Scene::on_postgres(&server)] {
        let [busy, idle, gone] = [(); 3].map(|()| fixture.create());
        let versions = [busy, busy, busy].map(|volume| fixture.write(volume));
        fixture.write(idle);
        let _held = fixture.write(gone);
        fixture.take_snapshot(gone, "held").expect("a new name");
        let reach = Reach::new(fixture.catalog.host, Millis(0));
        let owners = |count_max, before| {
            let owners = fixture
                .database
                .catalog()
                .version_owners(&reach, count_max, before);
            fixture.runtime.block_on(owners).expect("read")
        };
        let first = Millis(versions[0].number.cast_signed());
        let last = Millis(i64::MAX);
        assert!(
            owners(3, first).is_empty(),
            "nothing is too many or too old"
        );
        assert_eq!(owners(2, first), [busy], "three are more than two");
        assert_eq!(owners(3, last), [busy], "heads stay, however old");
        let deleted =
            fixture
                .database
                .volumes()
                .begin_delete(&fixture.catalog.principal, gone, Millis(0));
        fixture.runtime.block_on(deleted).expect("detached");
        assert_eq!(owners(3, first), [gone]);
        fixture.finish_delete(gone);
        assert_eq!(owners(3, first), [gone], "its snapshot is still there");
    }
}

/// A host repeats a commit whose answer was lost.
#[test]
fn a_repeated_commit_succeeds() {
    let scene = Scene::new();
    let volume = scene.create();
    let lease = scene.catalog.acquire(volume, SALT, None).expect("a lease");
    let version = StoredVersion {
        key: VersionKey { volume, number: 1 },
        parent: None,
        lineage: lease.keys[0].lineage,
        epoch: lease.epoch,
        journal_next: 0,
        created: Millis(1),
        record: vec![1],
    };
    let mut commit = VersionCommit {
        version,
        pins: vec![],
        open_segments: vec![],
        serial_next: 0,
        degraded: vec![],
        joined: 0,
        joined_last: 0,
    };
    for _ in 0..2 {
        scene.catalog.commit(&commit).expect("made");
    }
    commit.version.record = vec![2];
    let other = scene.catalog.commit(&commit);
    assert!(other.expect_err("another one").is_fenced());
}

#[test]
fn a_long_plan_is_kept_in_parts_and_fetched_some_at_a_time() {
    let scene = Scene::new();
    let volume = scene.create();
    let key = scene.write(volume);
    scene.write(volume);
    let mut plan = FreePlan::default();
    for segment in 0..20_000_u64 {
        for slot in 0..3 {
            plan.add(Location::from_bits(segment << 16 | slot));
        }
    }
    let around = scene.catalog.neighbors(key).expect("it exists");
    let none = scene
        .catalog
        .remove_version(key, &around, Millis(5), b"no plan");
    assert!(
        matches!(none, Err(CatalogError::Refused { .. })),
        "{none:?}"
    );
    scene
        .catalog
        .remove_version(key, &around, Millis(5), &plan.encode())
        .expect("not needed");
    let due = |now, after, count_max| {
        let due = scene.catalog.due_frees(Millis(now), after, count_max);
        due.expect("answers")
    };
    assert_eq!(due(4, 0, 9), []);
    let first = due(5, 0, 2);
    // An answer has at most 16 plans, even if the call requests more.
    let more = due(5, first[1].id, u32::MAX);
    let rest = due(5, more[15].id, u32::MAX);
    assert_eq!((first.len(), more.len(), rest.len()), (2, 16, 2));
    let parts = first.iter().chain(&more).chain(&rest).map(|free| {
        assert!(free.plan.len() <= PLAN_BYTES_MAX);
        FreePlan::decode(&free.plan).expect("a plan")
    });
    assert_eq!(parts.map(|part| part.slots()).sum::<usize>(), plan.slots());
}

/// After an operator had restored the database from a backup, the next lease got an epoch that had
/// been used before, and with it used nonces.
#[test]
fn a_database_that_was_moved_ahead_grants_no_number_twice() {
    let scene = Scene::new();
    let leases = || {
        scene
            .runtime
            .block_on(scene.database.catalog().lease_count())
            .expect("read")
    };
    let volume = scene.create();
    let before = scene.catalog.acquire(volume, SALT, None).expect("a lease");
    assert_eq!(leases(), 1);
    let serials = scene
        .catalog
        .reserve_serials(volume, before.epoch, 1)
        .expect("many");
    scene
        .runtime
        .block_on(
            scene
                .database
                .catalog()
                .move_ahead(70_000, scene.catalog.host, Millis(0)),
        )
        .expect("moved");
    let after = scene.catalog.acquire(volume, SALT, None).expect("a lease");
    assert_eq!(after.epoch, before.epoch + 65_536 + 1);
    assert!(leases() > 70_000);
    let next = scene
        .catalog
        .reserve_serials(volume, after.epoch, 1)
        .expect("many");
    assert_eq!(next.start, serials.end + (1 << 24));
    scene.catalog.detach(volume);
    let moved = scene
        .database
        .catalog()
        .move_ahead(80_000, scene.catalog.host, Millis(0));
    scene.runtime.block_on(moved).expect("moved");
    let of = scene
        .runtime
        .block_on(scene.database.attachments().of_volume(volume));
    let of = of.expect("read");
    assert!(
        of[0].epoch.is_some() && !of[0].desired.is_attached,
        "its journal may be younger"
    );
}

#[test]
fn a_database_from_a_newer_program_is_refused() {
    let scene = Scene::new();
    let path = scene._folder.path().join("scree.db");
    scene.runtime.block_on(async {
        let pool = sqlx::SqlitePool::connect(path.to_str().expect("UTF-8"))
            .await
            .expect("opens");
        sqlx::query(
            "INSERT INTO _sqlx_migrations (version, description, success, checksum, \
             execution_time) VALUES (9999, 'from the future', 1, x'00', 0)",
        )
        .execute(&pool)
        .await
        .expect("inserted");
        let refused = Database::open(&path).await;
        assert!(
            matches!(refused, Err(DatabaseError::Newer { step: 9999 })),
            "{refused:?}"
        );
    });
}

#[test]
fn a_file_that_is_not_a_database_is_refused_as_damaged() {
    let scene = Scene::new();
    let path = scene._folder.path().join("other.db");
    world::World::real(1)
        .disk
        .open(&path, world::OpenMode::CreateNew)
        .and_then(|file| file.write_at(&[b'x'; 8192], 0))
        .expect("written");
    let refused = scene.runtime.block_on(Database::open(&path));
    assert!(
        matches!(refused, Err(DatabaseError::Damaged { .. })),
        "{refused:?}"
    );
}
