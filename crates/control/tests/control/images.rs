//! Base images and preloads, on both databases.

use api::host::{Access, AttachmentState, BaseImage, CatalogCall, LeaseCountKey, PreloadReport};
use api::words::{ImageMark, PreloadState};
use auth::{Kind, Subject};
use base::{KeyId, Lineage, PartyId, SnapshotId, VolumeId};
use catalog::{Lease, LeaseSalt, StoredVersion, VersionCommit, VersionKey, WrappedKey};
use control::database::{Database, DatabaseError, Job, NewVolume, Principal, Reach};
use serde_json::json;
use world::Millis;

use crate::calls;
use crate::fresh::{self, add_host, number, on_postgres, on_sqlite, report};
use crate::postgres::Postgres;
use crate::principals::{local, snapshot};

pub const NOW: Millis = Millis(1_000_000);

/// A volume, a clone of it, and a clone of that clone. The first two have versions.
pub struct Rows {
    pub database: Database,
    pub principal: Principal,
    key: KeyId,
    /// Three hosts: the first has the clone, the second the clone's clone, the third no volume.
    pub hosts: [PartyId; 3],
    pub volumes: Vec<(VolumeId, Lineage)>,
    /// A snapshot of the first volume.
    pub snapshot: Option<SnapshotId>,
}

impl fresh::Rows for Rows {
    async fn new(database: Database) -> Self {
        let created_cluster =
            database
                .cluster()
                .create(base::ClusterId::from_u128(1), &LeaseCountKey([1; 32]), NOW);
        created_cluster.await.expect("created");
        let principal = local(&database).await;
        let mut hosts = Vec::new();
        for name in ["h1", "h2", "h3"] {
            hosts.push(add_host(&database, &principal, name, NOW).await);
        }
        let key = KeyId::from_u128(number());
        let parameters = json!({"name": "main"});
        let made = database.keys().insert(key, "main", &parameters, NOW);
        made.await.expect("kept");
        let mut rows = Self {
            database,
            principal,
            key,
            hosts: hosts.try_into().expect("three"),
            volumes: Vec::new(),
            snapshot: None,
        };
        let base = rows.write("base", None, rows.hosts[2]).await;
        rows.snapshot = Some(base);
        let clone = rows.write("clone", Some(base), rows.hosts[2]).await;
        rows.insert("second", Some(clone)).await;
        for (volume, host) in [(1, 0), (2, 1)] {
            rows.attach(rows.volumes[volume].0, rows.hosts[host]).await;
        }
        rows
    }
}

impl Rows {
    pub async fn insert(&mut self, name: &str, origin: Option<SnapshotId>) -> (VolumeId, Lineage) {
        let lineage = Lineage::from_u128(number());
        let new = NewVolume {
            lineage,
            origin,
            ..fresh::volume(name, NOW)
        };
        let made = self.database.volumes().insert(&self.principal, &new).await;
        made.expect("made");
        self.volumes.push((new.id, lineage));
        (new.id, lineage)
    }

    async fn attach(&self, volume: VolumeId, host: PartyId) -> control::database::AttachmentRow {
        let new = fresh::attachment(volume, host, Access::ReadWrite, NOW);
        let made = self
            .database
            .attachments()
            .attach(&self.principal, &new)
            .await;
        made.expect("the request is accepted")
    }

    async fn call(&self, host: PartyId, call: impl Into<CatalogCall>) -> serde_json::Value {
        let reach = Reach::new(host, NOW);
        calls::answer(&self.database, &reach, call)
            .await
            .expect("answered")
    }

    /// A volume with one version, written by `host`, and a snapshot of that.
    async fn write(&mut self, name: &str, origin: Option<SnapshotId>, host: PartyId) -> SnapshotId {
        let (volume, lineage) = self.insert(name, origin).await;
        let asked = self.attach(volume, host).await;
        let acquire = calls::Acquire {
            volume,
            salt: LeaseSalt([3; 16]),
            journals: None,
        };
        let lease: Lease = serde_json::from_value(self.call(host, acquire).await).expect("a lease");
        let set = calls::SetKey {
            volume,
            lineage,
            key: self.key,
            wrapped: WrappedKey(vec![4]),
        };
        self.call(host, set).await;
        let parent = lease.head.map(|head| head.key);
        let version = StoredVersion {
            key: VersionKey {
                volume,
                number: parent.map_or(1, |parent| parent.number + 1),
            },
            parent,
            lineage,
            epoch: lease.epoch,
            journal_next: 0,
            created: NOW,
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
        self.call(host, calls::Commit { commit }).await;
        let database = &self.database;
        let ended = database
            .attachments()
            .detach(&self.principal, asked.id, false)
            .await;
        let said = report(&ended.expect("it exists"), AttachmentState::Detached);
        let kept = database
            .attachments()
            .record_report(host, asked.id, &said, NOW);
        assert!(kept.await.expect("heard"));
        let id = SnapshotId::from_u128(number());
        let new = snapshot(id, &format!("of-{name}"), volume);
        let taken = database.snapshots().insert(&self.principal, &new).await;
        taken.expect("a new name");
        id
    }

    async fn mark(&self, name: &str, pinned: Option<bool>) -> Result<(), DatabaseError> {
        let marked = self
            .database
            .images()
            .mark(&self.principal, name, pinned)
            .await;
        marked.map(drop)
    }

    /// For each of the two hosts: the number of its volume's base image, and whether it is pinned.
    async fn images(&self) -> [Option<(usize, bool)>; 2] {
        let mut all = [None; 2];
        for (number, one) in all.iter_mut().enumerate() {
            let host = self.hosts[number];
            let images = self.database.images().on_host(host).await.expect("read");
            let image = images.get(&self.volumes[number + 1].0);
            *one = image.map(|BaseImage { lineage, is_pinned }| {
                let mut volumes = self.volumes.iter();
                let place = volumes.position(|(_, own)| own == lineage);
                (place.expect("one of them"), *is_pinned)
            });
        }
        all
    }

    pub async fn serial(&self, host: usize) -> u64 {
        let wanted = self.database.hosts().counters(self.hosts[host]).await;
        wanted.expect("it exists").assignments
    }

    async fn unpins(&self) -> u64 {
        self.database.images().unpins().await.expect("read")
    }
}

#[test]
fn a_volumes_image_is_the_nearest_one_at_or_above_it() {
    on_sqlite(claims::a_volumes_image_is_the_nearest_one_at_or_above_it);
}

#[test]
fn an_unpinned_or_deleted_image_is_released_by_all_hosts() {
    on_sqlite(claims::an_unpinned_or_deleted_image_is_released_by_all_hosts);
}

#[test]
fn a_host_may_read_an_image_while_its_preload_is_desired() {
    on_sqlite(claims::a_host_may_read_an_image_while_its_preload_is_desired);
}

#[test]
fn preloads_of_an_unresponsive_host_end() {
    on_sqlite(claims::preloads_of_an_unresponsive_host_end);
}

#[test]
fn all_of_this_holds_on_postgresql() {
    let server = Postgres::start();
    on_postgres(
        &server,
        claims::a_volumes_image_is_the_nearest_one_at_or_above_it,
    );
    on_postgres(
        &server,
        claims::an_unpinned_or_deleted_image_is_released_by_all_hosts,
    );
    on_postgres(
        &server,
        claims::a_host_may_read_an_image_while_its_preload_is_desired,
    );
    on_postgres(&server, claims::preloads_of_an_unresponsive_host_end);
}

/// The claims, which hold on both databases.
mod claims {
    use super::*;

    pub async fn a_volumes_image_is_the_nearest_one_at_or_above_it(rows: Rows) {
        assert_eq!(rows.images().await, [None, None]);
        let before = [rows.serial(0).await, rows.serial(1).await];
        let idle = rows.serial(2).await;
        rows.mark("base", None).await.expect("marked");
        assert_eq!(rows.images().await, [Some((0, false)); 2]);
        assert!(rows.serial(0).await > before[0] && rows.serial(1).await > before[1]);
        assert_eq!(rows.serial(2).await, idle, "it has nothing of it");
        let count = rows.database.images().clone_count(rows.volumes[0].0).await;
        assert_eq!(count.expect("read"), 2);

        // A clone may be an image as well. Its own blocks are blocks of an image then.
        rows.mark("clone", None).await.expect("marked");
        assert_eq!(rows.images().await, [Some((1, false)); 2]);
        let before = rows.serial(0).await;
        rows.mark("clone", None).await.expect("it is one already");
        assert_eq!(rows.serial(0).await, before);
        let unmark = async |name| rows.database.images().unmark(&rows.principal, name).await;
        unmark("base").await.expect("unmarked");
        assert_eq!(rows.images().await, [Some((1, false)); 2]);
        unmark("clone").await.expect("unmarked");
        assert_eq!(rows.images().await, [None, None]);
        assert!(matches!(
            unmark("clone").await,
            Err(DatabaseError::Refused { .. })
        ));
        rows.mark("second", None).await.expect("marked");
        assert_eq!(rows.images().await, [None, Some((2, false))]);
    }

    pub async fn an_unpinned_or_deleted_image_is_released_by_all_hosts(rows: Rows) {
        let early = rows.mark("base", Some(false)).await;
        assert!(matches!(early, Err(DatabaseError::Refused { .. })));
        rows.mark("base", Some(true)).await.expect("pinned");
        assert_eq!(rows.images().await, [Some((0, true)); 2]);
        // Marking it again does not change the pin.
        rows.mark("base", None).await.expect("marked");
        assert_eq!(rows.images().await, [Some((0, true)); 2]);
        assert_eq!(rows.unpins().await, 0);
        let before = rows.serial(2).await;
        rows.mark("base", Some(false)).await.expect("unpinned");
        assert_eq!(rows.images().await, [Some((0, false)); 2]);
        assert_eq!(rows.unpins().await, 1);
        assert!(rows.serial(2).await > before, "it may have had it before");
        // Unmarking it now does not count as another unpin.
        let unmarked = rows.database.images().unmark(&rows.principal, "base").await;
        assert_eq!(unmarked.expect("unmarked").image, Some(ImageMark::Marked));
        assert_eq!(rows.unpins().await, 1);
        rows.mark("base", Some(true)).await.expect("pinned");
        let base = rows.volumes[0].0;
        let deleted = rows
            .database
            .volumes()
            .begin_delete(&rows.principal, base, NOW)
            .await;
        deleted.expect("on its way out");
        assert_eq!(rows.unpins().await, 2);
        assert_eq!(rows.images().await, [None, None]);
    }

    pub async fn a_host_may_read_an_image_while_its_preload_is_desired(rows: Rows) {
        let (database, host) = (&rows.database, rows.hosts[0]);
        let (volume, lineage) = rows.volumes[0];
        let begin = async || {
            let hosts = [host];
            let begun = database
                .images()
                .begin_preloads(&rows.principal, "base", &hosts, NOW);
            begun.await.map(drop)
        };
        assert!(matches!(begin().await, Err(DatabaseError::Refused { .. })));
        rows.mark("base", None).await.expect("marked");
        let key = VersionKey { volume, number: 1 };
        // A host that has a clone has the keys, but does not read the current version of the image.
        let reads = async || {
            let reach = Reach::new(host, NOW);
            let version = calls::answer(database, &reach, calls::Version { key }).await;
            let keys = calls::answer(database, &reach, calls::Keys { lineage }).await;
            (version.is_ok(), keys.is_ok())
        };
        // The host that had it last still reports.
        database
            .hosts()
            .record_report(rows.hosts[2], &api::host::Report::default(), NOW)
            .await
            .expect("kept");
        assert_eq!(reads().await, (false, true));
        begin().await.expect("begun");
        assert_eq!(reads().await, (true, true));
        let wanted = database.images().preloads_on(host).await.expect("read");
        assert_eq!((wanted[0].volume, wanted[0].version), (volume, key));
        begin().await.expect("it is under way");
        assert_eq!(
            database.images().preloads_on(host).await.expect("read"),
            wanted
        );

        let say = async |generation, done_bytes, end| {
            let said = PreloadReport {
                generation,
                done_bytes,
                total_bytes: 100,
                end,
                has_no_cache: false,
            };
            let kept = database
                .images()
                .record_preload_report(host, volume, &said, NOW);
            kept.await.expect("heard")
        };
        let shown = async || {
            let all = database.images().preloads_of(std::iter::once(volume)).await;
            let all = all.expect("read").remove(&volume).unwrap_or_default();
            let all = all.into_iter();
            all.map(|one| (one.host_name, one.state, one.done_bytes, one.message))
                .collect::<Vec<_>>()
        };
        let is = |state, done_bytes, reason: Option<&str>| {
            let reason = reason.map(str::to_owned);
            vec![("h1".to_owned(), state, done_bytes, reason)]
        };
        assert_eq!(shown().await, is(PreloadState::Waiting, 0, None));
        let first = wanted[0].generation;
        assert!(say(first, 50, None).await && !say(first + 1, 60, None).await);
        assert_eq!(shown().await, is(PreloadState::Loading, 50, None));
        assert!(say(first, 100, Some(Ok(()))).await);
        assert_eq!(shown().await, is(PreloadState::Done, 100, None));
        assert_eq!(reads().await, (false, true));
        assert!(!say(first, 10, None).await, "that was said late");

        begin().await.expect("once more");
        assert_eq!(shown().await, is(PreloadState::Waiting, 0, None));
        let serial = rows.serial(0).await;
        let ended = database
            .images()
            .end_preloads(&rows.principal, "base", NOW)
            .await;
        ended.expect("canceled");
        assert!(rows.serial(0).await > serial);
        assert_eq!(database.images().preloads_on(host).await.expect("read"), []);
        let called_off = is(PreloadState::Error, 0, Some("it was canceled"));
        assert_eq!(shown().await, called_off);
        // Deleting the volume deletes its preloads.
        begin().await.expect("once more");
        let unmarked = database.images().unmark(&rows.principal, "base").await;
        unmarked.expect("unmarked");
        assert_eq!(database.images().preloads_on(host).await.expect("read"), []);
        assert_eq!(shown().await, vec![]);
    }

    /// Its preload once never ended, and held its version.
    pub async fn preloads_of_an_unresponsive_host_end(rows: Rows) {
        let (database, volume) = (&rows.database, rows.volumes[0].0);
        rows.mark("base", None).await.expect("marked");
        let begin = async |at| {
            let begun =
                database
                    .images()
                    .begin_preloads(&rows.principal, "base", &rows.hosts, Millis(at));
            begun.await.map(drop).expect("begun");
        };
        let shown = async || {
            let all = database.images().preloads_of(std::iter::once(volume)).await;
            let all = all.expect("read").remove(&volume).unwrap_or_default();
            let all = all.into_iter();
            all.map(|one| (one.state, one.message, one.ended.map(|ended| ended.0)))
                .collect::<Vec<_>>()
        };
        let wrong = |why: &str, at| (PreloadState::Error, Some(why.to_owned()), Some(at));
        let waits = (PreloadState::Waiting, None, None);
        let hear = async |host: usize, at| {
            let said = api::host::Report::default();
            let kept = database
                .hosts()
                .record_report(rows.hosts[host], &said, Millis(at));
            kept.await.expect("kept");
        };
        let unresponsive = async |since, now| {
            let ended = database.hosts().end_unresponsive(
                Job::Preload,
                Millis(since),
                "unresponsive",
                Millis(now),
            );
            ended.await.expect("ended")
        };
        hear(0, 2_001_000).await;
        begin(2_001_000).await;
        assert_eq!(unresponsive(2_000_999, 2_002_000).await, 0);
        assert_eq!(shown().await, [&waits; 3].map(Clone::clone));
        hear(0, 2_001_500).await;
        let serial = rows.serial(1).await;
        assert_eq!(unresponsive(2_001_200, 2_002_000).await, 2);
        assert_eq!(unresponsive(2_001_200, 2_002_500).await, 0);
        let gone = wrong("unresponsive", 2_002_000);
        assert_eq!(shown().await, [waits.clone(), gone.clone(), gone]);
        assert!(rows.serial(1).await > serial);
        assert_eq!(
            database
                .images()
                .preloads_on(rows.hosts[1])
                .await
                .expect("read"),
            []
        );

        let subject = |name| Subject::new(Kind::Host, name).expect("a name");
        let disable = async |name, is_disabled| {
            let (principal, subject) = (&rows.principal, subject(name));
            let done = database
                .parties()
                .set_disabled(principal, &subject, is_disabled);
            done.await.expect("done");
        };
        begin(2_003_000).await;
        disable("h1", true).await;
        let forgotten = database
            .parties()
            .forget_keys(&rows.principal, &subject("h2"))
            .await;
        forgotten.expect("done");
        let whys = |shown: Vec<(PreloadState, Option<String>, Option<i64>)>| {
            shown.into_iter().map(|(_, why, _)| why).collect::<Vec<_>>()
        };
        let why = |text: &str| Some(text.to_owned());
        let is_off = "the host is disabled";
        let forgotten = why("the host's keys were forgotten");
        assert_eq!(whys(shown().await), [why(is_off), forgotten, None]);
        // A disabled host does not begin a preload.
        begin(2_004_000).await;
        assert_eq!(whys(shown().await), [why(is_off), None, None]);
        disable("h1", false).await;
        begin(2_005_000).await;
        assert_eq!(whys(shown().await), [None, None, None]);
    }
}
