//! The reach of hosts: what each call of the engine's catalog answers to a host that has the
//! volume, had it last, shows it read-only, has a clone of it, or has nothing to do with it.

use api::host::{Access, AttachmentState, CatalogCall, EncodedPlan, LeaseCountKey};
use base::{
    AttachmentId, ClusterId, CopysetId, JournalFolderId, KeyId, Lineage, Location, PartyId,
    SegmentId, SnapshotId, VolumeId,
};
use catalog::{
    CatalogError, FreePlan, Lease, LeaseSalt, Neighbors, OpenSegment, StoredVersion, VersionCommit,
    VersionKey, WrappedKey,
};
use control::database::{
    Database, DatabaseError, NewVolume, Principal, Reach, UNRESPONSIVE_FOR_MS,
};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use world::Millis;

use crate::calls;
use crate::fresh::{self, add_host, number};
use crate::postgres::Postgres;
use crate::principals::{local, snapshot};

/// When all hosts reported.
const NOW: Millis = Millis(1_000_000_000);

/// A little more than an hour after [`NOW`].
const LATER: Millis = Millis(NOW.0 + UNRESPONSIVE_FOR_MS + 1);

const HOSTS: [&str; 5] = ["has", "last", "shows", "clone", "other"];

fn segment() -> SegmentId {
    SegmentId::new(CopysetId::new(0).expect("12 bits"), 7).expect("36 bits")
}

/// The state of the volume that host `last` has written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Host `has` has it attached.
    Attached,
    /// No host has it attached for writing; host `shows` shows its newest version.
    Detached,
    /// It is being deleted.
    Deleting,
}

/// The volume has versions 2 and 3, a slot to free and a degraded segment. Its key is being
/// rewrapped, and host `clone` has a clone of it.
struct Scene {
    database: Database,
    principal: Principal,
    hosts: Vec<PartyId>,
    volume: VolumeId,
    lineage: Lineage,
    epoch: u32,
    keys: [KeyId; 2],
    snapshot: SnapshotId,
}

impl Scene {
    async fn new(database: Database, stage: Stage) -> Self {
        let created_cluster =
            database
                .cluster()
                .create(ClusterId::from_u128(1), &LeaseCountKey([1; 32]), NOW);
        created_cluster.await.expect("created");
        let mut scene = Self {
            principal: local(&database).await,
            database,
            hosts: Vec::new(),
            volume: VolumeId::from_u128(number()),
            lineage: Lineage::from_u128(number()),
            epoch: 1,
            keys: [number(), number()].map(KeyId::from_u128),
            snapshot: SnapshotId::from_u128(number()),
        };
        for name in HOSTS {
            let host = add_host(&scene.database, &scene.principal, name, NOW).await;
            scene.hosts.push(host);
        }
        for (key, name) in scene.keys.into_iter().zip(["old", "new"]) {
            let parameters = json!({"name": name});
            let made = scene.database.keys().insert(key, name, &parameters, NOW);
            made.await.expect("kept");
        }
        scene.write().await;
        scene.clone_it().await;
        let rotated = scene.database.keys().rotate(&scene.principal, "old", "new");
        rotated.await.expect("begun");
        match stage {
            Stage::Attached => {
                scene.attach("has", scene.volume, Access::ReadWrite).await;
                scene.epoch = scene.acquire("has", scene.volume).await.epoch;
            }
            Stage::Detached => {
                scene.attach("shows", scene.volume, Access::ReadOnly).await;
            }
            Stage::Deleting => {
                let begun =
                    scene
                        .database
                        .volumes()
                        .begin_delete(&scene.principal, scene.volume, NOW);
                begun.await.expect("detached");
            }
        }
        scene
    }

    fn host(&self, name: &str) -> PartyId {
        let place = HOSTS.iter().position(|host| *host == name);
        self.hosts[place.expect("a host")]
    }

    async fn insert(&self, volume: VolumeId, lineage: Lineage, origin: Option<SnapshotId>) {
        let new = NewVolume {
            id: volume,
            size_bytes: 1 << 30,
            replicas: 2,
            erasure: None,
            lineage,
            origin,
            ..fresh::volume(&format!("disk-{}", number()), NOW)
        };
        let made = self.database.volumes().insert(&self.principal, &new).await;
        made.expect("made");
    }

    async fn attach(&self, host: &str, volume: VolumeId, access: Access) -> AttachmentId {
        let new = fresh::attachment(volume, self.host(host), access, NOW);
        let made = self
            .database
            .attachments()
            .attach(&self.principal, &new)
            .await;
        made.expect("the request is accepted").id
    }

    async fn detach(&self, host: &str, id: AttachmentId) {
        let asked = self
            .database
            .attachments()
            .detach(&self.principal, id, false)
            .await;
        let report = fresh::report(&asked.expect("it exists"), AttachmentState::Detached);
        let database = &self.database;
        let kept = database
            .attachments()
            .record_report(self.host(host), id, &report, NOW);
        assert!(kept.await.expect("heard"));
    }

    async fn call_at(
        &self,
        host: &str,
        now: Millis,
        call: impl Into<CatalogCall>,
    ) -> Result<Value, CatalogError> {
        let reach = Reach::new(self.host(host), now);
        calls::answer(&self.database, &reach, call).await
    }

    async fn call(&self, host: &str, call: impl Into<CatalogCall>) -> Value {
        let answer = self.call_at(host, NOW, call).await;
        answer.expect("it is this host's")
    }

    async fn acquire(&self, host: &str, volume: VolumeId) -> Lease {
        let salt = LeaseSalt([3; 16]);
        let lease = self
            .call(
                host,
                calls::Acquire {
                    volume,
                    salt,
                    journals: None,
                },
            )
            .await;
        serde_json::from_value(lease).expect("a lease")
    }

    fn version(&self, number: u64) -> StoredVersion {
        let key = |number| VersionKey {
            volume: self.volume,
            number,
        };
        StoredVersion {
            key: key(number),
            parent: (number > 1).then(|| key(number - 1)),
            lineage: self.lineage,
            epoch: self.epoch,
            journal_next: 0,
            created: NOW,
            record: vec![1],
        }
    }

    /// Host `last` commits versions 1 to 3, and removes the first.
    async fn write(&self) {
        let (volume, lineage) = (self.volume, self.lineage);
        self.insert(volume, lineage, None).await;
        let id = self.attach("last", volume, Access::ReadWrite).await;
        self.acquire("last", volume).await;
        let set = calls::SetKey {
            volume,
            lineage,
            key: self.keys[0],
            wrapped: WrappedKey(vec![4]),
        };
        self.call("last", set).await;
        for number in 1..=3 {
            let commit = self.commit(number);
            self.call("last", calls::Commit { commit }).await;
        }
        self.call("last", self.remove(1)).await;
        self.detach("last", id).await;
    }

    async fn clone_it(&self) {
        let new = snapshot(self.snapshot, "moment", self.volume);
        let taken = self
            .database
            .snapshots()
            .insert(&self.principal, &new)
            .await;
        taken.expect("a new name");
        let clone = VolumeId::from_u128(number());
        let lineage = Lineage::from_u128(number());
        self.insert(clone, lineage, Some(self.snapshot)).await;
        self.attach("clone", clone, Access::ReadWrite).await;
        self.acquire("clone", clone).await;
    }

    fn commit(&self, number: u64) -> VersionCommit {
        VersionCommit {
            version: self.version(number),
            pins: vec![],
            open_segments: vec![],
            serial_next: 0,
            degraded: vec![],
            joined: 0,
            joined_last: 0,
        }
    }

    fn remove(&self, number: u64) -> CatalogCall {
        let mut plan = FreePlan::default();
        plan.add(Location::from_bits(number));
        let remove = calls::RemoveVersion {
            key: self.version(number).key,
            neighbors: Neighbors {
                parent: None,
                children: vec![self.version(number + 1)],
                needed: false,
            },
            not_before: Millis(0),
            plan: EncodedPlan(plan.encode()),
        };
        remove.into()
    }

    /// The call with this name, on the volume.
    async fn call_named(&self, name: &str) -> CatalogCall {
        let (volume, epoch, lineage) = (self.volume, self.epoch, self.lineage);
        let [from, to] = self.keys;
        let key = self.version(3).key;
        match name {
            "version" => calls::Version { key }.into(),
            "neighbors" => calls::NeighborsOf { key }.into(),
            "keys" => calls::Keys { lineage }.into(),
            "wrapped-by" => calls::WrappedBy {
                key: from,
                after: None,
                count_max: 9,
            }
            .into(),
            "rewrap" => calls::Rewrap {
                lineage,
                from,
                to,
                before: WrappedKey(vec![4]),
                after: WrappedKey(vec![5]),
            }
            .into(),
            "remove-version" => self.remove(2),
            "due-frees" => calls::DueFrees {
                now: NOW,
                after: 0,
                count_max: 9,
            }
            .into(),
            "freed" => {
                let free = calls::DueFrees {
                    now: NOW,
                    after: 0,
                    count_max: 9,
                };
                let id = self.due(free).await;
                calls::Freed { id, joined: 0 }.into()
            }
            "gather-dead" | "forget-dead" => {
                let free = calls::DueFrees {
                    now: NOW,
                    after: 0,
                    count_max: 9,
                };
                let (id, segments) = (self.due(free).await, vec![segment()]);
                match name {
                    "gather-dead" => calls::GatherDead { id, segments }.into(),
                    _ => calls::ForgetDead { id, segments }.into(),
                }
            }
            "commit" => calls::Commit {
                commit: self.commit(4),
            }
            .into(),
            "reserve-serials" => calls::ReserveSerials {
                volume,
                epoch,
                count: 1,
            }
            .into(),
            "swept" => calls::Swept { volume, epoch }.into(),
            "name-journal" => calls::NameJournal {
                volume,
                epoch,
                folder: Some(JournalFolderId::from_u128(1)),
            }
            .into(),
            "finish-delete" => calls::FinishDelete { volume }.into(),
            other => panic!("no call is named {other}"),
        }
    }

    /// The free plan that is due.
    async fn due(&self, free: calls::DueFrees) -> i64 {
        // The hosts that may see the plan: the writer, or the last writer.
        let mut due = self.call("last", free.clone()).await;
        if due == json!([]) {
            due = self.call("has", free).await;
        }
        due[0]["id"].as_i64().expect("one is due")
    }

    /// Whether a host gets a capability for this.
    async fn may(&self, what: &str, host: &str, now: Millis) -> bool {
        let reach = Reach::new(self.host(host), now);
        let (database, volume) = (&self.database, self.volume);
        let outcome = match what {
            "write" => {
                let rights = database
                    .catalog()
                    .lease_rights(reach.host, volume, self.epoch)
                    .await;
                rights.map(drop)
            }
            "sweep" => database
                .catalog()
                .sweep_rights(&reach, volume)
                .await
                .map(drop),
            "read" => {
                let lines = database.catalog().read_rights(&reach, self.lineage).await;
                lines.map(|lineages| assert_eq!(lineages, [self.lineage]))
            }
            "free" => {
                let plan = self.call_named("freed").await;
                let CatalogCall::Freed(calls::Freed { id, .. }) = plan else {
                    panic!("it is one");
                };
                let early = database.catalog().free_rights(&reach, Millis(-1), id).await;
                assert!(early.is_err(), "it is not due yet");
                let segments = database.catalog().free_rights(&reach, NOW, id).await;
                segments.map(|rights| {
                    assert_eq!(rights.segments.len(), 1);
                    assert_eq!(rights.lineages, [self.lineage]);
                })
            }
            other => panic!("nothing is called {other}"),
        };
        match outcome {
            Ok(()) => true,
            Err(DatabaseError::NotFound { .. } | DatabaseError::Fenced { .. }) => false,
            Err(error) => panic!("{what} by {host}: {error}"),
        }
    }

    /// Whether a call returned or changed anything of the volume.
    async fn does(&self, name: &str, host: &str, now: Millis) -> bool {
        if let Some(what) = name.strip_prefix("may ") {
            return self.may(what, host, now).await;
        }
        let call = self.call_named(name).await;
        let answer = self.call_at(host, now, call).await;
        let database = &self.database;
        match (name, answer) {
            ("wrapped-by" | "due-frees", Ok(list)) => list != json!([]),
            ("rewrap", Ok(is_done)) => is_done == json!(true),
            ("freed", Ok(_)) => database.catalog().pending_free_count().await.expect("read") == 0,
            ("finish-delete", Ok(_)) => database.volumes().get(self.volume).await.is_err(),
            (_, Ok(_)) => true,
            (_, Err(CatalogError::NotFound { .. } | CatalogError::Fenced { .. })) => false,
            ("remove-version", Err(CatalogError::Refused { reason })) => {
                assert!(reason.ends_with("was removed already"), "{reason}");
                false
            }
            (_, Err(error)) => panic!("{name} by {host}: {error}"),
        }
    }
}

/// Runs a claim on a new SQLite database.
async fn on_sqlite(stage: Stage) -> (Scene, tempfile::TempDir) {
    let (database, folder) = fresh::sqlite().await;
    (Scene::new(database, stage).await, folder)
}

/// Cleaning, which reads and changes the volume: one host does it.
const CLEANING: [&str; 8] = [
    "neighbors",
    "wrapped-by",
    "rewrap",
    "remove-version",
    "due-frees",
    "gather-dead",
    "forget-dead",
    "freed",
];

/// The calls of the holder of the lease.
const WRITING: [&str; 4] = ["commit", "reserve-serials", "swept", "name-journal"];

/// Each call, and the hosts for which it succeeds.
fn table() -> Vec<(&'static str, Stage, &'static [&'static str])> {
    let mut table = vec![
        ("version", Stage::Attached, &["has"][..]),
        ("version", Stage::Detached, &["last", "shows"]),
        ("keys", Stage::Attached, &["has", "clone"]),
        ("keys", Stage::Detached, &["last", "shows", "clone"]),
        ("finish-delete", Stage::Deleting, &["last"]),
        ("finish-delete", Stage::Detached, &[]),
        ("may read", Stage::Attached, &["has", "clone"]),
        ("may read", Stage::Detached, &["last", "shows", "clone"]),
        ("may sweep", Stage::Deleting, &["last"]),
        ("may sweep", Stage::Detached, &[]),
        ("may write", Stage::Attached, &["has"]),
        ("may write", Stage::Detached, &[]),
        ("may free", Stage::Attached, &["has"]),
        ("may free", Stage::Detached, &["last"]),
    ];
    for name in CLEANING {
        table.push((name, Stage::Attached, &["has"]));
        table.push((name, Stage::Detached, &["last"]));
    }
    for name in WRITING {
        table.push((name, Stage::Attached, &["has"]));
        table.push((name, Stage::Detached, &[]));
    }
    table
}

#[tokio::test]
async fn each_call_of_the_host_rpc_checks_the_reach_of_its_host() {
    let mut wrong = Vec::new();
    for (name, stage, expected) in table() {
        for host in HOSTS {
            let (scene, _folder) = on_sqlite(stage).await;
            let does = scene.does(name, host, NOW).await;
            if does != expected.contains(&host) {
                wrong.push(format!("{name} by {host}, {stage:?}: {does}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn it_is_so_on_postgresql_too() {
    let server = Postgres::start();
    let runtime = Runtime::new().expect("a runtime");
    let mut wrong = Vec::new();
    for (name, stage, expected) in table() {
        let url = server.database(&runtime);
        runtime.block_on(async {
            let database = Database::connect(&url.parse().expect("a URL")).await;
            let scene = Scene::new(database.expect("made"), stage).await;
            // Calls that change nothing come first.
            let rest = HOSTS.iter().filter(|host| !expected.contains(host));
            for host in rest.chain(expected.first()) {
                let does = scene.does(name, host, NOW).await;
                if does != expected.contains(host) {
                    wrong.push(format!("{name} by {host}, {stage:?}: {does}"));
                }
            }
        });
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test]
async fn any_host_cleans_after_an_hour_without_reports_and_none_before() {
    for name in CLEANING.into_iter().chain(["version", "keys"]) {
        let (scene, _folder) = on_sqlite(Stage::Detached).await;
        let before = Millis(NOW.0 + UNRESPONSIVE_FOR_MS - 1);
        assert!(!scene.does(name, "other", before).await, "{name}");
        assert!(scene.does(name, "other", LATER).await, "{name}");
    }
    // An attached volume is not cleaned by another host, however long its host is unresponsive.
    for name in CLEANING {
        let (scene, _folder) = on_sqlite(Stage::Attached).await;
        assert!(!scene.does(name, "other", LATER).await, "{name}");
    }
    let (scene, _folder) = on_sqlite(Stage::Deleting).await;
    assert!(scene.does("finish-delete", "other", LATER).await);
}

#[tokio::test]
async fn the_last_host_of_a_deleted_volume_cleans_until_nothing_is_left() {
    let (scene, _folder) = on_sqlite(Stage::Deleting).await;
    assert!(scene.does("finish-delete", "last", NOW).await);
    for name in CLEANING {
        assert!(!scene.does(name, "other", NOW).await, "{name}");
        assert!(!scene.does(name, "clone", NOW).await, "{name}");
    }
    // Only version 3 is left, which a snapshot holds.
    for name in ["version", "neighbors", "freed", "remove-version"] {
        assert!(scene.does(name, "last", NOW).await, "{name}");
    }
    assert!(
        scene.does("keys", "clone", NOW).await,
        "the clone reads with it"
    );
    assert!(!scene.does("keys", "other", NOW).await);
}

#[tokio::test]
async fn objects_out_of_reach_are_answered_like_absent_ones() {
    let (scene, _folder) = on_sqlite(Stage::Attached).await;
    let (absent, no_lineage) = (VolumeId::from_u128(1 << 60), Lineage::from_u128(1 << 61));
    let names = ["version", "neighbors", "keys", "remove-version"];
    for name in names.into_iter().chain(WRITING) {
        let call = scene.call_named(name).await;
        let there = scene.call_at("other", NOW, call.clone()).await;
        let text = serde_json::to_string(&call).expect("JSON");
        let text = text
            .replace(&scene.volume.to_string(), &absent.to_string())
            .replace(&scene.lineage.to_string(), &no_lineage.to_string());
        let call = CatalogCall::read(name, text.as_bytes()).expect("a call");
        let call = call.expect("its fields");
        let gone = scene.call_at("other", NOW, call).await;
        let gone = gone.expect_err("it is not there").to_string();
        let gone = gone
            .replace(&absent.to_string(), &scene.volume.to_string())
            .replace(&no_lineage.to_string(), &scene.lineage.to_string());
        assert_eq!(there.expect_err("out of reach").to_string(), gone, "{name}");
    }
}

/// The next lease may delete what a lease leaves open. A host that named segments of other volumes
/// as open was once allowed to delete them.
#[tokio::test]
async fn a_lease_leaves_open_only_segments_reserved_for_its_volume() {
    let (scene, _folder) = on_sqlite(Stage::Attached).await;
    let mut commit = scene.commit(4);
    commit.open_segments = vec![OpenSegment {
        segment: segment(),
        slots: 1,
    }];
    let call = calls::Commit { commit };
    let refused = scene.call_at("has", NOW, call).await;
    assert!(
        matches!(refused, Err(CatalogError::Refused { .. })),
        "{refused:?}"
    );
    let host = scene.host("has");
    let rights = scene
        .database
        .catalog()
        .lease_rights(host, scene.volume, scene.epoch);
    assert_eq!(rights.await.expect("its own").serials, []);

    let reserve = scene.call_named("reserve-serials").await;
    let serials = scene.call("has", reserve).await;
    let serials: std::ops::Range<u64> = serde_json::from_value(serials).expect("serials");
    let mut commit = scene.commit(4);
    let copyset = CopysetId::new(0).expect("12 bits");
    commit.open_segments = vec![OpenSegment {
        segment: SegmentId::new(copyset, serials.start).expect("36 bits"),
        slots: 1,
    }];
    scene.call("has", calls::Commit { commit }).await;
    // This holds even when the segment is not reserved any more.
    let mut commit = scene.commit(5);
    commit.open_segments = vec![OpenSegment {
        segment: SegmentId::new(copyset, serials.start).expect("36 bits"),
        slots: 2,
    }];
    commit.serial_next = serials.end;
    scene.call("has", calls::Commit { commit }).await;
    let rights = scene
        .database
        .catalog()
        .lease_rights(host, scene.volume, scene.epoch);
    assert_eq!(rights.await.expect("its own").serials, [serials]);
}

#[tokio::test]
async fn a_version_is_committed_under_its_volumes_own_lineage_only() {
    let (scene, _folder) = on_sqlite(Stage::Attached).await;
    let mut commit = scene.commit(4);
    commit.version.lineage = Lineage::from_u128(number());
    let refused = scene.call_at("has", NOW, calls::Commit { commit }).await;
    assert!(
        matches!(refused, Err(CatalogError::Refused { .. })),
        "{refused:?}"
    );
}

/// A clone that is attached nowhere once made the keys of its parents available to every host.
#[tokio::test]
async fn a_clone_that_no_host_had_gives_no_host_the_keys_of_its_parents() {
    let (scene, _folder) = on_sqlite(Stage::Detached).await;
    let clone = VolumeId::from_u128(number());
    let lineage = Lineage::from_u128(number());
    scene.insert(clone, lineage, Some(scene.snapshot)).await;
    assert!(!scene.does("keys", "other", NOW).await);
    scene.attach("other", clone, Access::ReadWrite).await;
    assert!(scene.does("keys", "other", NOW).await, "it opens the clone");
}
