//! Asking the controllers: whichever answers, they have one database.
//!
//! [`Controller`] is the engine's [`Catalog`] as well. A commit is asked for
//! until it is known whether it was made: the engine must not guess. The
//! controller knows one that was made already, byte for byte. What an answer gives
//! the right to do on unit daemons, those are shown before the engine has it
//! (`capability_cache`).

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use api::host::{
    Ahead, AskCapabilities, AskCleaning, Assignments, AttachmentReport, AuditReport, Capabilities,
    CatalogAnswer, CatalogCall, Cleaning, Cluster, EncodedPlan, FoundedKey, HostUnit, MarkedUnits,
    PreloadReport, Renewal, Renewed, RepairEnd, RepairProgress, RepairTask, Report, Suspicion,
    TaskAnswer, Want, WrappedRow, WrappingKey,
};
use api::types::{Certificate, Renew};
use api::{Client, ClientError};
use base::{
    AttachmentId, AuditId, CopysetId, JournalFolderId, KeyId, Lineage, SegmentId, SnapshotId,
    UnitId, VolumeId,
};
use catalog::{
    Catalog, CatalogError, Lease, LeaseSalt, LineageKey, Neighbours, PendingFree, StoredVersion,
    VersionCommit, VersionKey, WrappedKey,
};
use serde::de::DeserializeOwned;
use tokio::runtime::Handle;
use world::{Clock, Millis, host};

use crate::capability_cache::CapabilityCache;

/// A controller that is well answers in less.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// A renewal whose answer takes longer is made anew, by another controller if
/// there is one: the lease is short.
const RENEW_WITHIN: Duration = Duration::from_secs(3);

/// The statuses of refusals that are about who asks.
const UNAUTHENTICATED: u16 = 401;
const FORBIDDEN: u16 = 403;

/// What is wanted is waited for so long at a time, in seconds.
const FOLLOW_SECONDS: u64 = 30;

/// What can be given up is asked for so many times.
const ATTEMPTS: u32 = 4;

/// The pauses between attempts: each is twice the one before.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// See the module's head. Cheap to clone.
#[derive(Clone)]
pub struct Controller {
    client: Client,
    runtime: Handle,
    is_ending: Arc<AtomicBool>,
    capability_cache: Arc<CapabilityCache>,
}

/// Pauses that grow.
pub(crate) struct Pauses(Duration);

impl Default for Pauses {
    fn default() -> Self {
        Self(PAUSE_MIN)
    }
}

impl Pauses {
    pub async fn next(&mut self) {
        host::sleep(self.0).await;
        self.0 = (self.0 * 2).min(PAUSE_MAX);
    }
}

impl Controller {
    /// Asks by `client`; the engine's calls wait on `runtime`.
    #[must_use]
    pub fn new(client: Client, runtime: Handle, clock: Arc<dyn Clock>) -> Self {
        Self {
            client,
            runtime,
            is_ending: Arc::default(),
            capability_cache: CapabilityCache::new(clock),
        }
    }

    /// What this host may do on unit daemons.
    pub(crate) fn capability_cache(&self) -> &Arc<CapabilityCache> {
        &self.capability_cache
    }

    /// From now on nothing is asked again that was not answered.
    pub(crate) fn end(&self) {
        self.is_ending.store(true, Ordering::Relaxed);
    }

    /// Tells that nothing is open here; learns what the cluster is.
    pub(crate) async fn begin(&self) -> Result<Cluster, ClientError> {
        self.answered(|| self.client.post("/v1/host/begin", &()))
            .await
    }

    /// What is wanted, once that is not what it was at `after`.
    pub(crate) async fn assignments(&self, after: Option<u64>) -> Result<Assignments, ClientError> {
        let path = match after {
            Some(after) => format!("/v1/host/assignments?after={after}&wait={FOLLOW_SECONDS}"),
            None => "/v1/host/assignments".to_owned(),
        };
        let wait = ANSWER_WITHIN + Duration::from_secs(FOLLOW_SECONDS);
        Client::within(wait, self.client.get(&path)).await
    }

    pub(crate) async fn report(&self, report: &Report) -> Result<(), ClientError> {
        self.once(self.client.put("/v1/host/report", report)).await
    }

    /// Renews leases.
    pub(crate) async fn renew(&self, renewal: &Renewal) -> Result<Renewed, ClientError> {
        Client::within(RENEW_WITHIN, self.client.post("/v1/host/leases", renewal)).await
    }

    /// Tells how far an attachment has come, until that is heard; `false` if
    /// something else is wanted by now.
    pub(crate) async fn report_attachment(
        &self,
        id: AttachmentId,
        report: &AttachmentReport,
    ) -> Result<bool, ClientError> {
        let path = format!("/v1/host/attachments/{id}");
        self.heard(|| self.client.put(&path, report)).await
    }

    pub(crate) async fn cut_taken(&self, id: SnapshotId) -> Result<(), ClientError> {
        let path = format!("/v1/host/snapshots/{id}/cut");
        self.heard(|| self.client.post(&path, &())).await
    }

    pub(crate) async fn task_done(&self, id: i64, answer: &TaskAnswer) -> Result<(), ClientError> {
        let path = format!("/v1/host/tasks/{id}");
        self.heard(|| self.client.put(&path, answer)).await
    }

    /// Tells how far a preload has come; `false` if something else is wanted by now.
    pub(crate) async fn report_preload(
        &self,
        volume: VolumeId,
        report: &PreloadReport,
    ) -> Result<bool, ClientError> {
        let path = format!("/v1/host/preloads/{volume}");
        self.once(self.client.put(&path, report)).await
    }

    /// The same of its end, until that is heard.
    pub(crate) async fn preload_ended(
        &self,
        volume: VolumeId,
        report: &PreloadReport,
    ) -> Result<bool, ClientError> {
        let path = format!("/v1/host/preloads/{volume}");
        self.heard(|| self.client.put(&path, report)).await
    }

    /// Tells how far an audit has come; `false` if it is not wanted any more.
    pub(crate) async fn report_audit(
        &self,
        id: AuditId,
        report: &AuditReport,
    ) -> Result<bool, ClientError> {
        let path = format!("/v1/host/audits/{id}");
        self.once(self.client.put(&path, report)).await
    }

    /// The same of its end, until that is heard.
    pub(crate) async fn audit_ended(
        &self,
        id: AuditId,
        report: &AuditReport,
    ) -> Result<bool, ClientError> {
        let path = format!("/v1/host/audits/{id}");
        self.heard(|| self.client.put(&path, report)).await
    }

    /// Has a wrapping key kept that was founded here.
    pub(crate) async fn bring_key(&self, key: &FoundedKey) -> Result<WrappingKey, ClientError> {
        self.answered(|| self.client.post("/v1/host/keys", key))
            .await
    }

    pub(crate) async fn wrapped_by(
        &self,
        key: KeyId,
        after: Option<Lineage>,
        count_max: u32,
    ) -> Result<Vec<WrappedRow>, CatalogError> {
        self.call(CatalogCall::WrappedBy {
            key,
            after,
            count_max,
        })
        .await
    }

    pub(crate) async fn rewrap(
        &self,
        lineage: Lineage,
        from: KeyId,
        to: KeyId,
        before: WrappedKey,
        after: WrappedKey,
    ) -> Result<bool, CatalogError> {
        self.call(CatalogCall::Rewrap {
            lineage,
            from,
            to,
            before,
            after,
        })
        .await
    }

    pub(crate) async fn register_units(&self, units: Vec<HostUnit>) -> Result<(), ClientError> {
        let marked = MarkedUnits { units };
        self.answered(|| self.client.post("/v1/host/units", &marked))
            .await
    }

    pub(crate) async fn cleaning(&self, busy: Vec<VolumeId>) -> Result<Cleaning, ClientError> {
        let ask = AskCleaning { busy };
        self.answered(|| self.client.post("/v1/host/cleaning", &ask))
            .await
    }

    pub(crate) async fn finish_delete(&self, volume: VolumeId) -> Result<(), CatalogError> {
        self.call(CatalogCall::FinishDelete { volume }).await
    }

    pub(crate) async fn repair_take(&self) -> Result<Option<RepairTask>, CatalogError> {
        self.call(CatalogCall::RepairTake {}).await
    }

    pub(crate) async fn repair_look(
        &self,
        copyset: CopysetId,
        progress: RepairProgress,
    ) -> Result<Option<RepairTask>, CatalogError> {
        self.call(CatalogCall::RepairLook { copyset, progress })
            .await
    }

    pub(crate) async fn repair_end(
        &self,
        copyset: CopysetId,
        end: RepairEnd,
    ) -> Result<bool, CatalogError> {
        self.call(CatalogCall::RepairEnd { copyset, end }).await
    }

    pub(crate) async fn suspect_unit(
        &self,
        unit: UnitId,
        suspicion: Suspicion,
    ) -> Result<bool, CatalogError> {
        self.call(CatalogCall::SuspicionUnit { unit, suspicion })
            .await
    }

    pub(crate) async fn note_leases(&self, units: Vec<(UnitId, u64)>) -> Result<(), CatalogError> {
        self.call(CatalogCall::NoteLeases { units }).await
    }

    pub(crate) async fn noted_leases(&self) -> Result<HashMap<UnitId, u64>, CatalogError> {
        let noted: Vec<(UnitId, u64)> = self.call(CatalogCall::NotedLeases {}).await?;
        Ok(noted.into_iter().collect())
    }

    pub(crate) async fn leases(&self) -> Result<u64, CatalogError> {
        self.call(CatalogCall::Leases {}).await
    }

    pub(crate) async fn move_ahead(&self, leases: u64) -> Result<bool, ClientError> {
        let ahead = Ahead { leases };
        self.answered(|| self.client.post("/v1/host/ahead", &ahead))
            .await
    }

    pub(crate) async fn lease(
        &self,
        volume: VolumeId,
        salt: LeaseSalt,
        journals: Option<JournalFolderId>,
    ) -> Result<Lease, CatalogError> {
        let call = CatalogCall::Acquire {
            volume,
            salt,
            journals,
        };
        self.call(call).await
    }

    pub(crate) async fn set_key(
        &self,
        volume: VolumeId,
        lineage: Lineage,
        key: KeyId,
        wrapped: WrappedKey,
    ) -> Result<(), CatalogError> {
        self.call(CatalogCall::SetKey {
            volume,
            lineage,
            key,
            wrapped,
        })
        .await
    }

    /// Has a key signed that this host shows to unit daemons.
    pub(crate) async fn certificate(&self, request_pem: &str) -> Result<Certificate, ClientError> {
        let renew = Renew {
            request: request_pem.to_owned(),
        };
        self.answered(|| self.client.post("/v1/host/certificate", &renew))
            .await
    }

    pub(crate) async fn capabilities(
        &self,
        ask: &AskCapabilities,
    ) -> Result<Capabilities, CatalogError> {
        let answer = self
            .answered(|| self.client.post("/v1/host/capabilities", ask))
            .await;
        answer.map_err(|error| failed(&error))
    }

    async fn once<T>(
        &self,
        ask: impl Future<Output = Result<T, ClientError>>,
    ) -> Result<T, ClientError> {
        Client::within(ANSWER_WITHIN, ask).await
    }

    /// Asks a few times.
    async fn answered<T, F>(&self, ask: impl Fn() -> F) -> Result<T, ClientError>
    where
        F: Future<Output = Result<T, ClientError>>,
    {
        let mut pauses = Pauses::default();
        for _ in 1..ATTEMPTS {
            match self.once(ask()).await {
                Err(error) if error.may_pass() && !self.is_ending() => pauses.next().await,
                done => return done,
            }
        }
        self.once(ask()).await
    }

    /// Asks until there is an answer that stays, or all is ending.
    async fn heard<T, F>(&self, ask: impl Fn() -> F) -> Result<T, ClientError>
    where
        F: Future<Output = Result<T, ClientError>>,
    {
        let mut pauses = Pauses::default();
        loop {
            match self.once(ask()).await {
                Err(error) if error.may_pass() && !self.is_ending() => pauses.next().await,
                done => return done,
            }
        }
    }

    fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Relaxed)
    }

    async fn call<T: DeserializeOwned>(&self, call: CatalogCall) -> Result<T, CatalogError> {
        let answer = self
            .answered(|| async {
                let answer: CatalogAnswer<T> = self.client.post("/v1/host/catalog", &call).await?;
                Ok(answer)
            })
            .await;
        answer.unwrap_or_else(|error| Err(failed(&error)))
    }

    fn wait<T: DeserializeOwned>(&self, call: CatalogCall) -> Result<T, CatalogError> {
        self.runtime.block_on(self.call(call))
    }
}

/// What a call means to the engine that no controller has answered.
fn failed(error: &ClientError) -> CatalogError {
    let reason = error.to_string();
    match error {
        // A host may be enabled again, and its certificate renewed.
        ClientError::Refused(problem)
            if !error.may_pass() && !matches!(problem.status, UNAUTHENTICATED | FORBIDDEN) =>
        {
            CatalogError::Refused { reason }
        }
        _ => CatalogError::Unavailable { reason },
    }
}

impl Catalog for Controller {
    fn acquire(
        &self,
        volume: VolumeId,
        salt: LeaseSalt,
        journals: Option<JournalFolderId>,
    ) -> Result<Lease, CatalogError> {
        self.runtime.block_on(self.lease(volume, salt, journals))
    }

    fn name_journal(
        &self,
        volume: VolumeId,
        epoch: u32,
        folder: Option<JournalFolderId>,
    ) -> Result<(), CatalogError> {
        self.wait(CatalogCall::NameJournal {
            volume,
            epoch,
            folder,
        })
    }

    fn commit(&self, commit: &VersionCommit) -> Result<(), CatalogError> {
        let call = CatalogCall::Commit {
            commit: commit.clone(),
        };
        self.runtime.block_on(async {
            let mut pauses = Pauses::default();
            let mut is_told = false;
            loop {
                match self.call(call.clone()).await {
                    Err(CatalogError::Unavailable { reason }) if !self.is_ending() => {
                        if !is_told {
                            let volume = commit.version.key.volume;
                            tracing::warn!(%volume, reason, "its version waits to be committed");
                        }
                        is_told = true;
                        pauses.next().await;
                    }
                    done => return done,
                }
            }
        })
    }

    fn reserve_serials(
        &self,
        volume: VolumeId,
        epoch: u32,
        count: u32,
    ) -> Result<Range<u64>, CatalogError> {
        self.runtime.block_on(async {
            let reserve = CatalogCall::ReserveSerials {
                volume,
                epoch,
                count,
            };
            let serials = self.call(reserve).await?;
            self.obtain(&[Want::Lease { volume, epoch }]).await?;
            Ok(serials)
        })
    }

    fn swept(&self, volume: VolumeId, epoch: u32) -> Result<(), CatalogError> {
        self.wait(CatalogCall::Swept { volume, epoch })
    }

    fn version(&self, key: VersionKey) -> Result<StoredVersion, CatalogError> {
        self.wait(CatalogCall::Version { key })
    }

    fn neighbours(&self, key: VersionKey) -> Result<Neighbours, CatalogError> {
        self.wait(CatalogCall::Neighbours { key })
    }

    fn keys(&self, lineage: Lineage) -> Result<Vec<LineageKey>, CatalogError> {
        self.runtime.block_on(async {
            let keys = self.call(CatalogCall::Keys { lineage }).await?;
            // They are of use to whoever reads what they open.
            self.obtain(&[Want::Read { lineage }]).await?;
            Ok(keys)
        })
    }

    fn remove_version(
        &self,
        key: VersionKey,
        neighbours: &Neighbours,
        not_before: Millis,
        plan: &[u8],
    ) -> Result<(), CatalogError> {
        self.wait(CatalogCall::RemoveVersion {
            key,
            neighbours: Box::new(neighbours.clone()),
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
        self.wait(CatalogCall::DueFrees {
            now,
            after,
            count_max,
        })
    }

    fn gather_dead(&self, id: i64, segments: &[SegmentId]) -> Result<Vec<u8>, CatalogError> {
        let segments = segments.to_vec();
        let gathered: EncodedPlan = self.wait(CatalogCall::GatherDead { id, segments })?;
        Ok(gathered.0)
    }

    fn forget_dead(&self, id: i64, segments: &[SegmentId]) -> Result<(), CatalogError> {
        let segments = segments.to_vec();
        self.wait(CatalogCall::ForgetDead { id, segments })
    }

    fn joined(&self) -> Result<u64, CatalogError> {
        self.wait(CatalogCall::Joined {})
    }

    fn freed(&self, id: i64, joined: u64) -> Result<(), CatalogError> {
        self.wait(CatalogCall::Freed { id, joined })
    }
}
