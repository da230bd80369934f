//! The scene of the repair tests: one copyset, its units, and hosts that repair it.

use std::collections::HashSet;

use api::host::{
    Access, CatalogCall, LeaseCountKey, RepairJob, RepairOutcome, RepairProgress, Suspicion,
};
use base::{ClusterId, CopysetId, PartyId, SegmentId, UnitId};
use catalog::{
    CatalogError, Copyset, DegradedShare, LeaseSalt, MemberState, StoredVersion, VersionCommit,
    VersionKey,
};
use control::database::{Database, NewVolume, Principal, Reach, UnitRow};
use serde_json::Value;
use world::Millis;

use crate::calls;
use crate::fresh::{Rows, add_host, attachment, volume};
use crate::principals::local;

pub const NOW: Millis = Millis(1_000_000_000_000);
/// When a host that stopped reporting does not have its copyset any more.
pub const LATER: Millis = Millis(NOW.0 + 61_000);

pub fn unit(number: u128) -> UnitId {
    UnitId::from_u128(number)
}

pub fn copyset() -> CopysetId {
    CopysetId::new(0).expect("the first")
}

/// Three hosts and four units, the first two of which form a copyset.
pub struct Scene {
    pub database: Database,
    pub principal: Principal,
    pub hosts: [PartyId; 3],
    /// A volume that may have data on the copyset.
    pub disk: NewVolume,
}

impl Rows for Scene {
    async fn new(database: Database) -> Self {
        let created_cluster =
            database
                .cluster()
                .create(ClusterId::from_u128(1), &LeaseCountKey([1; 32]), NOW);
        created_cluster.await.expect("created");
        let principal = local(&database).await;
        let hosts = [
            add_host(&database, &principal, "one", NOW).await,
            add_host(&database, &principal, "other", NOW).await,
            add_host(&database, &principal, "third", NOW).await,
        ];
        let units: Vec<UnitRow> = (0..4)
            .map(|number| UnitRow::new(unit(number), format!("file:///{number}")))
            .collect();
        let plan = |_: &[UnitRow], _: &[Copyset]| {
            vec![Copyset::of_copies(copyset(), vec![unit(0), unit(1)])]
        };
        let added = database.units().plan(&units, plan, NOW);
        added.await.expect("added");
        // From now on the copyset may hold data.
        let disk = NewVolume {
            replicas: 2,
            ..volume("disk", NOW)
        };
        database
            .volumes()
            .insert(&principal, &disk)
            .await
            .expect("made");
        let scene = Self {
            database,
            principal,
            hosts,
            disk,
        };
        // A copyset that was never scrubbed comes first.
        let job = scene.take(0, NOW).await.expect("to be read");
        assert!(job.is_scrub && job.is_comparison);
        let end = RepairOutcome {
            compared: true,
            scrubbed: true,
            copied_to: Some(Vec::new()),
            ..RepairOutcome::default()
        };
        assert!(scene.end(0, NOW, end).await);
        assert_eq!(scene.take(0, NOW).await, None);
        scene
    }
}

impl Scene {
    pub async fn call(
        &self,
        host: usize,
        now: Millis,
        call: impl Into<CatalogCall>,
    ) -> Result<Value, CatalogError> {
        let reach = Reach::new(self.hosts[host], now);
        calls::answer(&self.database, &reach, call).await
    }

    pub async fn take(&self, host: usize, now: Millis) -> Option<RepairJob> {
        let taken = self.call(host, now, calls::TakeRepair {}).await;
        serde_json::from_value(taken.expect("answered")).expect("a job")
    }

    pub async fn report_progress(&self, host: usize, now: Millis) -> Option<RepairJob> {
        let call = calls::ReportRepair {
            copyset: copyset(),
            progress: RepairProgress { done: 1, all: 2 },
        };
        let looked = self.call(host, now, call).await;
        serde_json::from_value(looked.expect("answered")).expect("a job")
    }

    pub async fn end(&self, host: usize, now: Millis, end: RepairOutcome) -> bool {
        let call = calls::EndRepair {
            copyset: copyset(),
            end,
        };
        self.call(host, now, call).await.expect("answered") == Value::Bool(true)
    }

    /// The third host reports that a unit has restarted, or is older.
    pub async fn suspicion(&self, number: u128, is_older: bool) -> bool {
        self.suspect_as(2, number, is_older).await
    }

    pub async fn suspect_as(&self, host: usize, number: u128, is_older: bool) -> bool {
        let call = calls::SuspectUnit {
            unit: unit(number),
            suspicion: match is_older {
                true => Suspicion::Older,
                false => Suspicion::Restarted,
            },
        };
        let taken = self.call(host, NOW, call).await.expect("answered");
        taken == Value::Bool(true)
    }

    pub async fn member_states(&self) -> Vec<(UnitId, MemberState)> {
        let copysets = self.database.units().copysets().await.expect("read");
        copysets[0].member_states().collect()
    }

    pub async fn states(&self) -> Vec<MemberState> {
        let standing = self.member_states().await.into_iter();
        standing.map(|(_, state)| state).collect()
    }

    /// Ends the repair with success: all members of the job are in sync.
    pub async fn ends_well(&self, host: usize, job: &RepairJob) {
        let end = RepairOutcome {
            in_sync: job.missed.clone(),
            compared: job.is_comparison,
            scrubbed: job.is_scrub,
            ..RepairOutcome::default()
        };
        assert!(self.end(host, NOW, end).await);
    }

    /// Attaches the volume to the second host. Returns a segment that is reserved for it.
    pub async fn attach(&self) -> SegmentId {
        let volume = self.disk.id;
        let new = attachment(volume, self.hosts[1], Access::ReadWrite, NOW);
        let attached = self
            .database
            .attachments()
            .attach(&self.principal, &new)
            .await;
        attached.expect("the request is accepted");
        let salt = LeaseSalt([3; 16]);
        let acquire = calls::Acquire {
            volume,
            salt,
            journals: None,
        };
        self.call(1, NOW, acquire).await.expect("a lease");
        let reserve = calls::ReserveSerials {
            volume,
            epoch: 1,
            count: 64,
        };
        self.call(1, NOW, reserve).await.expect("some");
        SegmentId::new(copyset(), 1).expect("the first")
    }

    /// Commits a version that was put by copyset tables from `joined` to `joined_last`. The units
    /// in `degraded` are missing slots of its segment.
    pub async fn commit(
        &self,
        number: u64,
        joined: (u64, u64),
        degraded: Option<(SegmentId, &[u128])>,
    ) -> Result<(), CatalogError> {
        self.commit_using(number, joined, degraded, 1).await
    }

    /// As [`Scene::commit`], when all serials below `serial_next` are used.
    pub async fn commit_using(
        &self,
        number: u64,
        (joined, joined_last): (u64, u64),
        degraded: Option<(SegmentId, &[u128])>,
        serial_next: u64,
    ) -> Result<(), CatalogError> {
        let key = |number| VersionKey {
            volume: self.disk.id,
            number,
        };
        let head = self
            .database
            .volumes()
            .get(self.disk.id)
            .await
            .expect("read")
            .head;
        let share = |(segment, lacking): (SegmentId, &[u128])| DegradedShare {
            segment,
            slots: 1,
            lacking: lacking.iter().copied().map(unit).collect(),
        };
        let commit = VersionCommit {
            version: StoredVersion {
                key: key(number),
                parent: head,
                lineage: self.disk.lineage,
                epoch: 1,
                journal_next: 0,
                created: NOW,
                record: vec![1],
            },
            pins: vec![],
            open_segments: vec![],
            serial_next,
            degraded: degraded.into_iter().map(share).collect(),
            joined,
            joined_last,
        };
        let call = calls::Commit { commit };
        self.call(1, NOW, call).await.map(drop)
    }

    pub async fn drain(&self, number: u128, usable: &HashSet<UnitId>) {
        let units = [unit(number)];
        let drained = self
            .database
            .units()
            .drain(&self.principal, &units, usable)
            .await;
        drained.expect("there are others");
    }

    /// The first host takes a copyset and repairs it with success.
    pub async fn is_repaired(&self) {
        let job = self
            .take(0, NOW)
            .await
            .expect("something is to be repaired");
        self.ends_well(0, &job).await;
    }

    pub fn others(numbers: &[u128]) -> HashSet<UnitId> {
        numbers.iter().copied().map(unit).collect()
    }
}
