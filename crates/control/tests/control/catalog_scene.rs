//! A database as one host sees it: every call and answer goes through JSON once, as over the host
//! RPC.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use api::host::{
    Access, AttachmentReport, AttachmentState, Call, CatalogAnswer, CatalogCall, EncodedPlan,
    Encryption, LeaseCountKey,
};
use auth::Kind;
use base::{
    AttachmentId, BlockSize, ClusterId, JournalFolderId, Lineage, PartyId, SegmentId, SnapshotId,
    VolumeId,
};
use catalog::conformance::Fixture;
use catalog::{
    Catalog, CatalogError, Lease, LeaseSalt, LineageKey, Neighbors, PendingFree, StoredVersion,
    VersionCommit, VersionKey,
};
use control::database::{
    AttachmentRow, Database, DatabaseError, NewAttachment, NewVolume, Principal, Reach,
    SnapshotState, Tags,
};
use serde::de::DeserializeOwned;
use tokio::runtime::{Handle, Runtime};
use world::Millis;

use crate::calls;
use crate::postgres::Postgres;
use crate::principals::{local, snapshot};

pub const SALT: LeaseSalt = LeaseSalt([3; 16]);

static ATTACHMENTS: AtomicU64 = AtomicU64::new(1);

/// The catalog of one host. Acquiring a lease attaches the volume to the host first.
pub struct HostCatalog {
    pub database: Database,
    pub principal: Principal,
    pub host: PartyId,
    pub runtime: Handle,
}

impl HostCatalog {
    pub fn new(database: &Database, runtime: &Runtime) -> Self {
        let host = database
            .parties()
            .local(Kind::Host, PartyId::from_u128(1), Millis(0));
        Self {
            host: runtime.block_on(host).expect("it exists"),
            principal: runtime.block_on(local(database)),
            database: database.clone(),
            runtime: runtime.handle().clone(),
        }
    }

    pub fn call<T: DeserializeOwned, C: Call<Answer = CatalogAnswer<T>>>(
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

    pub fn attach(&self, volume: VolumeId) {
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

    /// Requests that the attachment of the volume ends.
    async fn request_detachment(&self, volume: VolumeId, is_forced: bool) -> AttachmentRow {
        let attachments = self.database.attachments();
        let of = attachments.of_volume(volume).await.expect("read");
        let requested = attachments.detach(&self.principal, of[0].id, is_forced);
        requested.await.expect("it exists")
    }

    /// Detaches the volume, as an agent that has closed it does.
    pub fn detach(&self, volume: VolumeId) {
        self.runtime.block_on(async {
            let asked = self.request_detachment(volume, false).await;
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

impl Catalog for HostCatalog {
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
        // A deleted volume is not attached: the database has to refuse the lease.
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

    fn finish_sweep(&self, volume: VolumeId, epoch: u32) -> Result<(), CatalogError> {
        self.call(calls::Swept { volume, epoch })
    }

    fn version(&self, key: VersionKey) -> Result<StoredVersion, CatalogError> {
        self.call(calls::Version { key })
    }

    fn neighbors(&self, key: VersionKey) -> Result<Neighbors, CatalogError> {
        self.call(calls::NeighborsOf { key })
    }

    fn keys(&self, lineage: Lineage) -> Result<Vec<LineageKey>, CatalogError> {
        self.call(calls::Keys { lineage })
    }

    fn remove_version(
        &self,
        key: VersionKey,
        neighbors: &Neighbors,
        not_before: Millis,
        plan: &[u8],
    ) -> Result<(), CatalogError> {
        self.call(calls::RemoveVersion {
            key,
            neighbors: neighbors.clone(),
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

    fn gather_dead_slots(&self, id: i64, segments: &[SegmentId]) -> Result<Vec<u8>, CatalogError> {
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

    fn finish_free(&self, id: i64, joined: u64) -> Result<(), CatalogError> {
        self.call(calls::Freed { id, joined })
    }
}

pub struct Scene {
    pub runtime: Runtime,
    pub database: Database,
    pub catalog: HostCatalog,
    pub next: AtomicU64,
    pub _folder: tempfile::TempDir,
}

pub fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime")
}

impl Scene {
    pub fn new() -> Self {
        let runtime = runtime();
        let folder = tempfile::tempdir().expect("a folder");
        let database = runtime
            .block_on(Database::open(&folder.path().join("scree.db")))
            .expect("a new database");
        Self::on(runtime, database, folder)
    }

    pub fn on_postgres(server: &Postgres) -> Self {
        let runtime = runtime();
        let url = server.database(&runtime);
        let database = runtime
            .block_on(Database::connect(&url.parse().expect("a URL")))
            .expect("a new database");
        Self::on(runtime, database, tempfile::tempdir().expect("a folder"))
    }

    pub fn on(runtime: Runtime, database: Database, folder: tempfile::TempDir) -> Self {
        let created_cluster =
            database
                .cluster()
                .create(ClusterId::from_u128(1), &LeaseCountKey([1; 32]), Millis(0));
        runtime.block_on(created_cluster).expect("created");
        let catalog = HostCatalog::new(&database, &runtime);
        Self {
            runtime,
            database,
            catalog,
            next: AtomicU64::new(1),
            _folder: folder,
        }
    }

    pub fn number(&self) -> u128 {
        self.next.fetch_add(1, Ordering::Relaxed).into()
    }

    pub fn insert(
        &self,
        name: &str,
        origin: Option<SnapshotId>,
    ) -> Result<VolumeId, DatabaseError> {
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

    pub fn attach(&self, volume: VolumeId) {
        self.catalog.attach(volume);
    }

    pub fn take_snapshot(&self, volume: VolumeId, name: &str) -> Result<SnapshotId, DatabaseError> {
        let id = SnapshotId::from_u128(self.number());
        let new = snapshot(id, name, volume);
        let insert = self
            .database
            .snapshots()
            .insert(&self.catalog.principal, &new);
        self.runtime.block_on(insert).map(|row| row.id)
    }

    pub fn state(&self, snapshot: SnapshotId) -> SnapshotState {
        let row = self
            .runtime
            .block_on(self.database.snapshots().get(snapshot));
        row.expect("it exists").state
    }

    /// Opens the volume, commits one version and closes it.
    pub fn write(&self, volume: VolumeId) -> VersionKey {
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

    pub fn finish_delete(&self, volume: VolumeId) {
        let call = calls::FinishDelete { volume };
        self.catalog.call(call).expect("gone");
    }

    pub fn remove(&self, key: VersionKey) -> Result<(), CatalogError> {
        let around = self.catalog.neighbors(key)?;
        self.catalog.remove_version(key, &around, Millis(0), &[])
    }
}

impl Fixture for Scene {
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
            .expect("it exists");
    }

    fn detach_by_force(&self, volume: VolumeId) {
        self.runtime.block_on(async {
            let requested = self.catalog.request_detachment(volume, true).await;
            let ended = self.database.hosts().end_forced(1, Millis(1)).await;
            assert_eq!(ended.expect("no host reported"), [requested.id]);
        });
    }
}
