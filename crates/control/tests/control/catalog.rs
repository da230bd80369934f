//! The database keeps the promises of `catalog::Catalog`, and those
//! that only the owners of volumes see.

use std::sync::atomic::{AtomicU64, Ordering};

use std::ops::Range;

use api::host::{
    Access, AttachmentReport, AttachmentState, Call, CatalogAnswer, CatalogCall, EncodedPlan,
    Encryption, LeaseCountKey,
};
use auth::Kind;
use base::{
    AttachmentId, BlockSize, ClusterId, JournalFolderId, Lineage, Location, PartyId, SegmentId,
    SnapshotId, VolumeId,
};
use catalog::conformance::{CLAIMS, Fixture};
use catalog::{
    Catalog, CatalogError, FreePlan, Lease, LeaseSalt, LineageKey, MemoryCatalog, Neighbours,
    PLAN_BYTES_MAX, PendingFree, RESTORE_SKIPS_BYTES, StoredVersion, VersionCommit, VersionKey,
};
use control::database::{
    Database, DatabaseError, Need, NewAttachment, NewVolume, Principal, Reach, SnapshotState, Tags,
};
use serde::de::DeserializeOwned;
use tokio::runtime::Handle;
use tokio::runtime::Runtime;
use world::Millis;

use crate::calls;
use crate::postgres::Postgres;
use crate::principals::{local, snapshot};

const SALT: LeaseSalt = LeaseSalt([3; 16]);

static ATTACHMENTS: AtomicU64 = AtomicU64::new(1);

/// The database as a host sees it, every call and answer once through JSON. The
/// volume that it takes a lease on is attached to it.
struct Called {
    database: Database,
    principal: Principal,
    host: PartyId,
    runtime: Handle,
}

impl Called {
    fn new(database: &Database, runtime: &Runtime) -> Self {
        let host = database
            .parties()
            .local(Kind::Host, PartyId::from_u128(1), Millis(0));
        Self {
            host: runtime.block_on(host).expect("there"),
            principal: runtime.block_on(local(database)),
            database: database.clone(),
            runtime: runtime.handle().clone(),
        }
    }

    fn call<T: DeserializeOwned, C: Call<Answer = CatalogAnswer<T>>>(
        &self,
        call: C,
    ) -> Result<T, CatalogError> {
        let json = serde_json::to_vec(&call).expect("JSON");
        let call = CatalogCall::read(C::NAME, &json).expect("a call");
        let reach = Reach::new(self.host, Millis(0));
        let answer = self
            .database
            .catalog()
            .answer(&reach, call.expect("its fields"));
        let answer = self.runtime.block_on(answer).into_bytes();
        serde_json::from_slice::<C::Answer>(&answer).expect("the answer")
    }

    fn attach(&self, volume: VolumeId) {
        let new = NewAttachment {
            id: AttachmentId::from_u128(ATTACHMENTS.fetch_add(1, Ordering::Relaxed).into()),
            volume,
            host: self.host,
            vm: None,
            access: Access::ReadWrite,
            created: Millis(0),
        };
        let attached = self.database.attachments().attach(&self.principal, &new);
        self.runtime.block_on(attached).expect("attached");
    }

    /// As an agent that has closed it.
    fn detach(&self, volume: VolumeId) {
        self.runtime.block_on(async {
            let of = self
                .database
                .attachments()
                .of_volume(volume)
                .await
                .expect("read");
            let asked = self
                .database
                .attachments()
                .detach(&self.principal, of[0].id, false)
                .await
                .expect("there");
            let report = AttachmentReport {
                generation: asked.desired.generation,
                state: AttachmentState::Detached,
                problem: None,
                notice: None,
                device: None,
                chain: None,
                chain_problem: None,
                size_bytes: None,
                uri: None,
                tcp_uri: None,
            };
            let kept =
                self.database
                    .attachments()
                    .record_report(self.host, asked.id, &report, Millis(0));
            assert!(kept.await.expect("heard"));
        });
    }
}

impl Catalog for Called {
    fn acquire(
        &self,
        volume: VolumeId,
        salt: LeaseSalt,
        journals: Option<JournalFolderId>,
    ) -> Result<Lease, CatalogError> {
        let of = self.runtime.block_on(async {
            self.database.volumes().get(volume).await?;
            self.database.attachments().of_volume(volume).await
        });
        // One that is gone, the database is to refuse.
        if of.is_ok_and(|of| of.is_empty()) {
            self.attach(volume);
        }
        self.call(calls::Acquire {
            volume,
            salt,
            journals,
        })
    }

    fn name_journal(
        &self,
        volume: VolumeId,
        epoch: u32,
        folder: Option<JournalFolderId>,
    ) -> Result<(), CatalogError> {
        self.call(calls::NameJournal {
            volume,
            epoch,
            folder,
        })
    }

    fn commit(&self, commit: &VersionCommit) -> Result<(), CatalogError> {
        let commit = commit.clone();
        self.call(calls::Commit { commit })
    }

    fn reserve_serials(
        &self,
        volume: VolumeId,
        epoch: u32,
        count: u32,
    ) -> Result<Range<u64>, CatalogError> {
        self.call(calls::ReserveSerials {
            volume,
            epoch,
            count,
        })
    }

    fn swept(&self, volume: VolumeId, epoch: u32) -> Result<(), CatalogError> {
        self.call(calls::Swept { volume, epoch })
    }

    fn version(&self, key: VersionKey) -> Result<StoredVersion, CatalogError> {
        self.call(calls::Version { key })
    }

    fn neighbours(&self, key: VersionKey) -> Result<Neighbours, CatalogError> {
        self.call(calls::NeighboursOf { key })
    }

    fn keys(&self, lineage: Lineage) -> Result<Vec<LineageKey>, CatalogError> {
        self.call(calls::Keys { lineage })
    }

    fn remove_version(
        &self,
        key: VersionKey,
        neighbours: &Neighbours,
        not_before: Millis,
        plan: &[u8],
    ) -> Result<(), CatalogError> {
        self.call(calls::RemoveVersion {
            key,
            neighbours: neighbours.clone(),
            not_before,
            plan: EncodedPlan(plan.to_vec()),
        })
    }

    fn due_frees(
        &self,
        now: Millis,
        after: i64,
        count_max: u32,
    ) -> Result<Vec<PendingFree>, CatalogError> {
        self.call(calls::DueFrees {
            now,
            after,
            count_max,
        })
    }

    fn gather_dead(&self, id: i64, segments: &[SegmentId]) -> Result<Vec<u8>, CatalogError> {
        let segments = segments.to_vec();
        let gathered: EncodedPlan = self.call(calls::GatherDead { id, segments })?;
        Ok(gathered.0)
    }

    fn forget_dead(&self, id: i64, segments: &[SegmentId]) -> Result<(), CatalogError> {
        let segments = segments.to_vec();
        self.call(calls::ForgetDead { id, segments })
    }

    fn joined(&self) -> Result<u64, CatalogError> {
        self.call(calls::Joined {})
    }

    fn freed(&self, id: i64, joined: u64) -> Result<(), CatalogError> {
        self.call(calls::Freed { id, joined })
    }
}

struct Sqlite {
    runtime: Runtime,
    database: Database,
    catalog: Called,
    next: AtomicU64,
    _folder: tempfile::TempDir,
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime")
}

impl Sqlite {
    fn new() -> Self {
        let runtime = runtime();
        let folder = tempfile::tempdir().expect("a folder");
        let database = runtime
            .block_on(Database::open(&folder.path().join("scree.db")))
            .expect("a new database");
        Self::on(runtime, database, folder)
    }

    fn postgres(server: &Postgres) -> Self {
        let runtime = runtime();
        let url = server.database(&runtime);
        let database = runtime
            .block_on(Database::connect(&url.parse().expect("a URL")))
            .expect("a new database");
        Self::on(runtime, database, tempfile::tempdir().expect("a folder"))
    }

    fn on(runtime: Runtime, database: Database, folder: tempfile::TempDir) -> Self {
        let founded =
            database
                .cluster()
                .create(ClusterId::from_u128(1), &LeaseCountKey([1; 32]), Millis(0));
        runtime.block_on(founded).expect("founded");
        let catalog = Called::new(&database, &runtime);
        Self {
            runtime,
            database,
            catalog,
            next: AtomicU64::new(1),
            _folder: folder,
        }
    }

    fn number(&self) -> u128 {
        self.next.fetch_add(1, Ordering::Relaxed).into()
    }

    fn insert(&self, name: &str, origin: Option<SnapshotId>) -> Result<VolumeId, DatabaseError> {
        let id = VolumeId::from_u128(self.number());
        let new = NewVolume {
            id,
            name: name.to_owned(),
            size_bytes: 1 << 30,
            block_size: BlockSize::DEFAULT,
            encryption: Encryption::Aes256Gcm,
            replicas: 2,
            erasure: None,
            project: None,
            tags: Tags::new(),
            lineage: Lineage::from_u128(self.number()),
            origin,
            created: Millis(1),
            settings: control::database::VolumeSettings::default(),
        };
        let inserted = self
            .database
            .volumes()
            .insert(&self.catalog.principal, &new);
        self.runtime.block_on(inserted)?;
        Ok(id)
    }

    fn attach(&self, volume: VolumeId) {
        self.catalog.attach(volume);
    }

    fn take_snapshot(&self, volume: VolumeId, name: &str) -> Result<SnapshotId, DatabaseError> {
        let id = SnapshotId::from_u128(self.number());
        let new = snapshot(id, name, volume);
        let insert = self
            .database
            .snapshots()
            .insert(&self.catalog.principal, &new);
        self.runtime.block_on(insert).map(|row| row.id)
    }

    fn state(&self, snapshot: SnapshotId) -> SnapshotState {
        let row = self
            .runtime
            .block_on(self.database.snapshots().get(snapshot));
        row.expect("there").state
    }

    /// Opens the volume, commits one version, closes it.
    fn write(&self, volume: VolumeId) -> VersionKey {
        self.attach(volume);
        let lease = self.catalog.acquire(volume, SALT, None).expect("a lease");
        let key = VersionKey {
            volume,
            number: lease.number_last + 1,
        };
        let version = StoredVersion {
            key,
            parent: lease.head.map(|head| head.key),
            lineage: lease.keys[0].lineage,
            epoch: lease.epoch,
            journal_next: 0,
            created: Millis(key.number.cast_signed()),
            record: vec![1],
        };
        let commit = VersionCommit {
            version,
            pins: vec![],
            open_segments: vec![],
            serial_next: 0,
            degraded: vec![],
            joined: 0,
            joined_last: 0,
        };
        self.catalog.commit(&commit).expect("commits");
        self.catalog.detach(volume);
        key
    }

    fn finish_delete(&self, volume: VolumeId) {
        let call = calls::FinishDelete { volume };
        self.catalog.call(call).expect("gone");
    }

    fn remove(&self, key: VersionKey) -> Result<(), CatalogError> {
        let around = self.catalog.neighbours(key)?;
        self.catalog.remove_version(key, &around, Millis(0), &[])
    }
}

impl Fixture for Sqlite {
    fn catalog(&self) -> &dyn Catalog {
        &self.catalog
    }

    fn create(&self) -> VolumeId {
        let name = format!("disk-{}", self.number());
        self.insert(&name, None).expect("a new name")
    }

    fn snapshot(&self, volume: VolumeId) -> SnapshotId {
        self.attach(volume);
        let name = format!("moment-{}", self.number());
        self.take_snapshot(volume, &name).expect("a new name")
    }

    fn clone_of(&self, snapshot: SnapshotId) -> VolumeId {
        let name = format!("clone-{}", self.number());
        self.insert(&name, Some(snapshot)).expect("a new name")
    }

    fn delete_snapshot(&self, snapshot: SnapshotId) {
        self.runtime
            .block_on(
                self.database
                    .snapshots()
                    .delete(&self.catalog.principal, snapshot),
            )
            .expect("there");
    }

    fn take_away(&self, volume: VolumeId) {
        self.runtime.block_on(async {
            let of = self
                .database
                .attachments()
                .of_volume(volume)
                .await
                .expect("read");
            let asked = self
                .database
                .attachments()
                .detach(&self.catalog.principal, of[0].id, true);
            asked.await.expect("there");
            let ended = self.database.hosts().end_forced(1, Millis(1)).await;
            assert_eq!(ended.expect("no host reported"), [of[0].id]);
        });
    }
}

#[test]
fn the_database_is_a_catalog() {
    for (name, claim) in CLAIMS {
        println!("{name}");
        claim(&Sqlite::new());
    }
}

#[test]
fn the_database_is_a_catalog_on_postgresql_too() {
    let server = Postgres::start();
    for (name, claim) in CLAIMS {
        println!("{name}");
        claim(&Sqlite::postgres(&server));
    }
}

/// Two instances of the controller, and many threads in each, on the same rows.
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
    let first = Sqlite::on(
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
                let catalog = Called::new(database, &runtime);
                let (runtime, snapshots) = (&runtime, &snapshots);
                scope.spawn(move || {
                    let (mut epochs, mut serials, mut made) = (Vec::new(), Vec::new(), 0);
                    for turn in 0..TURNS {
                        let lease = catalog.acquire(volume, SALT, None).expect("a lease");
                        epochs.push(lease.epoch);
                        match catalog.reserve_serials(volume, lease.epoch, 3) {
                            Ok(range) => serials.extend(range),
                            // Another one has taken the lease since.
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

/// The simulator's catalog.
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

    fn take_away(&self, volume: VolumeId) {
        self.catalog.take_away(volume).expect("there");
    }
}

#[test]
fn the_catalog_in_memory_passes_the_conformance_suite() {
    for (name, claim) in CLAIMS {
        println!("{name}");
        claim(&Memory::default());
    }
}

/// What a journal has does not follow the version that was gone back to.
#[test]
fn restoring_a_volume_discards_its_journal() {
    let sqlite = Sqlite::new();
    let volume = sqlite.create();
    let held = sqlite.write(volume);
    sqlite.write(volume);
    sqlite.attach(volume);
    let folder = Some(JournalFolderId::from_u128(1));
    let lease = sqlite.catalog.acquire(volume, SALT, folder);
    let epoch = lease.expect("a lease").epoch;
    let named = sqlite.catalog.name_journal(volume, epoch, folder);
    named.expect("its lease holds");
    sqlite.take_away(volume);
    let set_back = sqlite
        .database
        .volumes()
        .set_head(&sqlite.catalog.principal, volume, held);
    sqlite.runtime.block_on(set_back).expect("detached");
    let lease = sqlite.catalog.acquire(volume, SALT, folder);
    assert_eq!(lease.expect("a lease").journal, None);
}

/// A clone could be taken back to versions from before it was made, and then
/// not to what it had been: its line was that of what it had gone back to.
#[test]
fn a_clone_is_restored_to_its_origin_and_no_earlier_version() {
    let sqlite = Sqlite::new();
    let volume = sqlite.create();
    sqlite.write(volume);
    let held = sqlite.write(volume);
    let snapshot = sqlite.take_snapshot(volume, "held").expect("a new name");
    sqlite.write(volume);
    let clone = sqlite.clone_of(snapshot);
    let own = sqlite.write(clone);
    assert_eq!((held.number, own.number), (2, 3));
    let line = || {
        let line = sqlite
            .runtime
            .block_on(sqlite.database.catalog().line_of(clone));
        line.expect("a line")
    };
    let keys = || -> Vec<VersionKey> { line().iter().map(|version| version.key).collect() };
    assert_eq!(keys(), [held, own]);
    assert_eq!(line()[0].snapshots, ["held"]);
    let go_back = |to| {
        let gone = sqlite.runtime.block_on(sqlite.database.volumes().set_head(
            &sqlite.catalog.principal,
            clone,
            to,
        ));
        gone.expect("detached");
    };
    go_back(held);
    assert_eq!(keys(), [held, own], "and forth");
    go_back(own);
    // Whatever becomes of the snapshot and of the versions around it.
    let forgotten = sqlite
        .database
        .snapshots()
        .delete(&sqlite.catalog.principal, snapshot);
    sqlite.runtime.block_on(forgotten).expect("there");
    assert_eq!(keys(), [held, own]);
    let around = sqlite.catalog.neighbours(held).expect("kept");
    let removed = sqlite.catalog.remove_version(held, &around, Millis(0), &[]);
    removed.expect("nothing needs it");
    assert_eq!(keys(), [own], "not version 1 in its place");
}

#[test]
fn a_name_is_free_when_its_volume_is_deleted() {
    let sqlite = Sqlite::new();
    let first = sqlite.insert("disk", None).expect("a new name");
    assert!(matches!(
        sqlite.insert("disk", None),
        Err(DatabaseError::Taken { .. })
    ));
    sqlite
        .runtime
        .block_on(sqlite.database.volumes().begin_delete(
            &sqlite.catalog.principal,
            first,
            Millis(0),
        ))
        .expect("detached");
    let second = sqlite.insert("disk", None).expect("free again");
    let found = sqlite
        .runtime
        .block_on(
            sqlite
                .database
                .volumes()
                .find(&sqlite.catalog.principal, "disk", Need::See),
        )
        .expect("there");
    assert_eq!(found.id, second);
}

#[test]
fn a_snapshot_of_a_detached_volume_holds_its_head_at_once() {
    let sqlite = Sqlite::new();
    let volume = sqlite.create();
    let empty = sqlite.take_snapshot(volume, "empty").expect("a new name");
    assert_eq!(sqlite.state(empty), SnapshotState::Completed(None));
    let key = sqlite.write(volume);
    let full = sqlite.take_snapshot(volume, "full").expect("a new name");
    assert_eq!(sqlite.state(full), SnapshotState::Completed(Some(key)));
    assert!(matches!(
        sqlite.take_snapshot(volume, "full"),
        Err(DatabaseError::Taken { .. })
    ));
}

#[test]
fn a_pending_snapshot_is_completed_or_fails() {
    let sqlite = Sqlite::new();
    let is_error = |snapshot| matches!(sqlite.state(snapshot), SnapshotState::Error { .. });
    let cut = |snapshot| {
        let cut = sqlite
            .database
            .snapshots()
            .record_cut(snapshot, sqlite.catalog.host);
        sqlite.runtime.block_on(cut).expect("noted");
    };
    let volume = sqlite.create();
    let early = sqlite.snapshot(volume);
    assert_eq!(sqlite.state(early), SnapshotState::Pending);
    assert!(matches!(
        sqlite.insert("early", Some(early)),
        Err(DatabaseError::Refused { .. })
    ));
    sqlite.catalog.acquire(volume, SALT, None).expect("a lease");
    sqlite.catalog.detach(volume);
    let state = sqlite.state(early);
    assert_eq!(state, SnapshotState::Completed(None), "as it was closed");

    let lost = sqlite.snapshot(volume);
    let later = sqlite.snapshot(volume);
    cut(lost);
    sqlite
        .catalog
        .acquire(volume, SALT, None)
        .expect("after a crash");
    assert!(is_error(lost), "its moment went with the process");
    assert_eq!(sqlite.state(later), SnapshotState::Pending);
    assert!(matches!(
        sqlite.insert("late", Some(lost)),
        Err(DatabaseError::Refused { .. })
    ));
    cut(later);
    sqlite.catalog.detach(volume);
    assert!(is_error(later), "no version has its moment");

    let deleted = sqlite.snapshot(volume);
    let attachments = sqlite.database.attachments().of_volume(volume);
    let attachments = sqlite.runtime.block_on(attachments).expect("read");
    let asked =
        sqlite
            .database
            .attachments()
            .detach(&sqlite.catalog.principal, attachments[0].id, false);
    sqlite.runtime.block_on(asked).expect("there");
    sqlite
        .runtime
        .block_on(sqlite.database.volumes().begin_delete(
            &sqlite.catalog.principal,
            volume,
            Millis(0),
        ))
        .expect("not wanted");
    assert!(is_error(deleted));
}

#[test]
fn deleting_a_volume_leaves_its_snapshots_and_their_clones() {
    let sqlite = Sqlite::new();
    let volume = sqlite.create();
    let held = sqlite.write(volume);
    let snapshot = sqlite.take_snapshot(volume, "held").expect("a new name");
    let head = sqlite.write(volume);
    sqlite
        .runtime
        .block_on(sqlite.database.volumes().begin_delete(
            &sqlite.catalog.principal,
            volume,
            Millis(0),
        ))
        .expect("detached");
    sqlite.remove(head).expect("nothing holds the head now");
    assert!(matches!(
        sqlite.remove(held),
        Err(CatalogError::Refused { .. })
    ));
    sqlite.finish_delete(volume);
    let clone = sqlite.clone_of(snapshot);
    let lease = sqlite.catalog.acquire(clone, SALT, None).expect("a lease");
    assert_eq!(lease.head.expect("a head").key, held);
}

/// One call after another took all that the cluster will ever have.
#[test]
fn segment_serials_are_reserved_in_small_numbers() {
    let server = Postgres::start();
    for fixture in [Sqlite::new(), Sqlite::postgres(&server)] {
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

/// Every volume of a cluster was looked at, at each turn of each host.
#[test]
fn only_volumes_with_removable_versions_are_examined() {
    let server = Postgres::start();
    for fixture in [Sqlite::new(), Sqlite::postgres(&server)] {
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

#[test]
fn a_key_is_erased_when_nothing_sealed_with_it_is_left() {
    let sqlite = Sqlite::new();
    let volume = sqlite.create();
    let key = sqlite.write(volume);
    let snapshot = sqlite.take_snapshot(volume, "moment").expect("a new name");
    let clone = sqlite.clone_of(snapshot);
    let keys = sqlite
        .catalog
        .acquire(clone, SALT, None)
        .expect("a lease")
        .keys;
    let parent = keys[1].lineage;
    sqlite
        .runtime
        .block_on(sqlite.database.volumes().begin_delete(
            &sqlite.catalog.principal,
            volume,
            Millis(0),
        ))
        .expect("detached");
    sqlite.finish_delete(volume);
    sqlite.delete_snapshot(snapshot);
    assert!(
        sqlite.catalog.keys(parent).is_ok(),
        "the clone reads with it"
    );
    sqlite.catalog.detach(clone);
    sqlite
        .runtime
        .block_on(sqlite.database.volumes().begin_delete(
            &sqlite.catalog.principal,
            clone,
            Millis(0),
        ))
        .expect("detached");
    sqlite.remove(key).expect("nothing holds it now");
    assert!(
        sqlite.catalog.keys(parent).is_ok(),
        "the clone is not gone yet"
    );
    sqlite.finish_delete(clone);
    assert!(matches!(
        sqlite.catalog.keys(parent),
        Err(CatalogError::NotFound { .. })
    ));
    assert!(matches!(
        sqlite.catalog.keys(keys[0].lineage),
        Err(CatalogError::NotFound { .. })
    ));
}

#[test]
fn restoring_fences_the_owner_and_needs_a_closed_volume() {
    let sqlite = Sqlite::new();
    let volume = sqlite.create();
    let old = sqlite.write(volume);
    sqlite.write(volume);
    let lease = sqlite.catalog.acquire(volume, SALT, None).expect("a lease");
    sqlite.attach(volume);
    let set_head = || {
        sqlite.runtime.block_on(sqlite.database.volumes().set_head(
            &sqlite.catalog.principal,
            volume,
            old,
        ))
    };
    assert!(matches!(set_head(), Err(DatabaseError::Refused { .. })));
    sqlite.catalog.detach(volume);
    set_head().expect("closed");
    let late = sqlite.catalog.reserve_serials(volume, lease.epoch, 1);
    assert!(matches!(late, Err(CatalogError::Fenced { .. })));
    let next = sqlite.catalog.acquire(volume, SALT, None).expect("a lease");
    assert_eq!((next.head.expect("a head").key, next.number_last), (old, 2));
    let skipped = next.journal_next - lease.journal_next;
    assert_eq!(skipped, RESTORE_SKIPS_BYTES, "no stale record follows it");
    assert_eq!((lease.restores, next.restores), (Some(0), Some(1)));
}

#[test]
fn a_volume_in_use_is_not_deleted() {
    let sqlite = Sqlite::new();
    let volume = sqlite.create();
    sqlite.attach(volume);
    let refused = sqlite
        .runtime
        .block_on(sqlite.database.volumes().begin_delete(
            &sqlite.catalog.principal,
            volume,
            Millis(0),
        ));
    assert!(matches!(refused, Err(DatabaseError::Refused { .. })));
}

/// The answer to a commit was lost, and the host made it once more.
#[test]
fn a_repeated_commit_succeeds() {
    let sqlite = Sqlite::new();
    let volume = sqlite.create();
    let lease = sqlite.catalog.acquire(volume, SALT, None).expect("a lease");
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
        sqlite.catalog.commit(&commit).expect("made");
    }
    commit.version.record = vec![2];
    let other = sqlite.catalog.commit(&commit);
    assert!(other.expect_err("another one").is_fenced());
}

#[test]
fn a_long_plan_is_kept_in_parts_and_fetched_some_at_a_time() {
    let sqlite = Sqlite::new();
    let volume = sqlite.create();
    let key = sqlite.write(volume);
    sqlite.write(volume);
    let mut plan = FreePlan::default();
    for segment in 0..20_000_u64 {
        for slot in 0..3 {
            plan.add(Location::from_bits(segment << 16 | slot));
        }
    }
    let around = sqlite.catalog.neighbours(key).expect("there");
    let none = sqlite
        .catalog
        .remove_version(key, &around, Millis(5), b"no plan");
    assert!(
        matches!(none, Err(CatalogError::Refused { .. })),
        "{none:?}"
    );
    sqlite
        .catalog
        .remove_version(key, &around, Millis(5), &plan.encode())
        .expect("not needed");
    let due = |now, after, count_max| {
        let due = sqlite.catalog.due_frees(Millis(now), after, count_max);
        due.expect("answers")
    };
    assert_eq!(due(4, 0, 9), []);
    let first = due(5, 0, 2);
    // No answer has more, whatever count the call names.
    let more = due(5, first[1].id, u32::MAX);
    let rest = due(5, more[15].id, u32::MAX);
    assert_eq!((first.len(), more.len(), rest.len()), (2, 16, 2));
    let parts = first.iter().chain(&more).chain(&rest).map(|free| {
        assert!(free.plan.len() <= PLAN_BYTES_MAX);
        FreePlan::decode(&free.plan).expect("a plan")
    });
    assert_eq!(parts.map(|part| part.slots()).sum::<usize>(), plan.slots());
}

/// An operator put back the database of a day before, as the handbook said:
/// the next lease had an epoch that had been used, and with it nonces.
#[test]
fn a_database_that_was_moved_ahead_grants_no_number_twice() {
    let sqlite = Sqlite::new();
    let leases = || {
        sqlite
            .runtime
            .block_on(sqlite.database.catalog().lease_count())
            .expect("read")
    };
    let volume = sqlite.create();
    let before = sqlite.catalog.acquire(volume, SALT, None).expect("a lease");
    assert_eq!(leases(), 1);
    let serials = sqlite
        .catalog
        .reserve_serials(volume, before.epoch, 1)
        .expect("many");
    sqlite
        .runtime
        .block_on(
            sqlite
                .database
                .catalog()
                .move_ahead(70_000, sqlite.catalog.host, Millis(0)),
        )
        .expect("moved");
    let after = sqlite.catalog.acquire(volume, SALT, None).expect("a lease");
    assert_eq!(after.epoch, before.epoch + 65_536 + 1);
    assert!(leases() > 70_000);
    let next = sqlite
        .catalog
        .reserve_serials(volume, after.epoch, 1)
        .expect("many");
    assert_eq!(next.start, serials.end + (1 << 24));
    sqlite.catalog.detach(volume);
    let moved = sqlite
        .database
        .catalog()
        .move_ahead(80_000, sqlite.catalog.host, Millis(0));
    sqlite.runtime.block_on(moved).expect("moved");
    let of = sqlite
        .runtime
        .block_on(sqlite.database.attachments().of_volume(volume));
    let of = of.expect("read");
    assert!(
        of[0].epoch.is_some() && !of[0].desired.is_attached,
        "its journal may be younger"
    );
}

#[test]
fn a_database_from_a_newer_program_is_refused() {
    let sqlite = Sqlite::new();
    let path = sqlite._folder.path().join("scree.db");
    sqlite.runtime.block_on(async {
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
    let sqlite = Sqlite::new();
    let path = sqlite._folder.path().join("other.db");
    world::World::real(1)
        .disk
        .open(&path, world::OpenMode::CreateNew)
        .and_then(|file| file.write_at(&[b'x'; 8192], 0))
        .expect("written");
    let refused = sqlite.runtime.block_on(Database::open(&path));
    assert!(
        matches!(refused, Err(DatabaseError::Damaged { .. })),
        "{refused:?}"
    );
}
