//! [`Controller`]: the client of the host RPC (`api::host`). It uses any controller that answers;
//! all of them share one database.
//!
//! A call that fails for a temporary reason is retried: a few times ([`Controller::call`]), or
//! until there is an answer ([`Controller::call_until_answered`]); during a shutdown no call is
//! retried. Every call may be repeated.
//!
//! It is also the engine's [`Catalog`]. A commit is repeated until its result is known, because the
//! engine must not guess; a controller recognizes a repeated commit byte for byte. Capabilities in
//! an answer are presented to unit daemons before the engine gets the answer (`capabilities`).

mod capabilities;
mod contact;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use api::host::calls::{Begin, FollowAssignments, RenewLeases, SignCapabilities};
use api::host::{
    Assignments, Call, CapabilityRequest, CatalogAnswer, Cluster, EncodedPlan, FOLLOW_SECONDS_MAX,
    Renewal, Renewed, catalog_calls as calls,
};
use api::{Client, ClientError};
use base::{JournalFolderId, Lineage, SegmentId, VolumeId};
use catalog::{
    Catalog, CatalogError, Lease, LeaseSalt, LineageKey, Neighbors, PendingFree, StoredVersion,
    VersionCommit, VersionKey,
};
use tokio::runtime::Handle;
use world::{Clock, Millis, host};

use crate::context::Shutdown;
pub(crate) use capabilities::{CapabilityCache, KeptCapabilities};
pub(crate) use contact::Contact;

/// Timeout of a call; a working controller answers sooner.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// Timeout of a renewal, which is then repeated with another controller if there is one: the lease
/// is short.
const RENEW_WITHIN: Duration = Duration::from_secs(3);

/// HTTP statuses of refusals that concern the caller.
const UNAUTHENTICATED: u16 = 401;
const FORBIDDEN: u16 = 403;

/// The most attempts of a call.
const ATTEMPTS: u32 = 4;

/// The first and the longest pause between attempts; each is twice the one before.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// A client of the controllers. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Controller {
    client: Client,
    runtime: Handle,
    shutdown: Shutdown,
    capability_cache: Arc<CapabilityCache>,
}

/// The growing pauses between attempts.
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
    /// A controller that calls through `client`; the engine's blocking calls use `runtime`.
    pub(crate) fn new(
        client: Client,
        runtime: Handle,
        clock: Arc<dyn Clock>,
        shutdown: Shutdown,
    ) -> Self {
        Self {
            client,
            runtime,
            shutdown,
            capability_cache: CapabilityCache::new(clock),
        }
    }

    /// The capabilities of this host on unit daemons.
    pub(crate) fn capability_cache(&self) -> &Arc<CapabilityCache> {
        &self.capability_cache
    }

    /// Reports that no volume is open here, and fetches the cluster.
    pub(crate) async fn begin(&self) -> Result<Cluster, ClientError> {
        self.call(&Begin {}).await
    }

    /// Waits for the desired state of this host until its serial differs from `after`; does not
    /// wait if that is `None`.
    pub(crate) async fn assignments(&self, after: Option<u64>) -> Result<Assignments, ClientError> {
        let wait_seconds = after.map_or(0, |_| FOLLOW_SECONDS_MAX);
        let follow = FollowAssignments {
            after,
            wait_seconds,
        };
        let wait = ANSWER_WITHIN + Duration::from_secs(wait_seconds);
        Client::within(wait, self.client.call(&follow)).await
    }

    /// Renews leases.
    pub(crate) async fn renew(&self, renewal: Renewal) -> Result<Renewed, ClientError> {
        Client::within(RENEW_WITHIN, self.client.call(&RenewLeases { renewal })).await
    }

    /// Makes a call once.
    pub(crate) async fn call_once<C: Call>(&self, call: &C) -> Result<C::Answer, ClientError> {
        Client::within(ANSWER_WITHIN, self.client.call(call)).await
    }

    /// Makes a call, with a few retries after temporary failures.
    pub(crate) async fn call<C: Call>(&self, call: &C) -> Result<C::Answer, ClientError> {
        self.call_up_to(ATTEMPTS, call).await
    }

    /// Makes a call until there is an answer, or the agent shuts down.
    pub(crate) async fn call_until_answered<C: Call>(
        &self,
        call: &C,
    ) -> Result<C::Answer, ClientError> {
        self.call_up_to(u32::MAX, call).await
    }

    async fn call_up_to<C: Call>(&self, attempts: u32, call: &C) -> Result<C::Answer, ClientError> {
        let mut pauses = Pauses::default();
        for _ in 1..attempts {
            match self.call_once(call).await {
                Err(error) if error.may_pass() && !self.shutdown.has_begun() => pauses.next().await,
                done => return done,
            }
        }
        self.call_once(call).await
    }

    /// Makes a call of the catalog, with a few retries after temporary failures.
    pub(crate) async fn catalog<T, C>(&self, call: C) -> Result<T, CatalogError>
    where
        C: Call<Answer = CatalogAnswer<T>>,
    {
        let answer = self.call(&call).await;
        answer.unwrap_or_else(|error| Err(catalog_error(&error)))
    }

    /// Makes a call of the catalog on a thread that may block.
    fn wait<T, C: Call<Answer = CatalogAnswer<T>>>(&self, call: C) -> Result<T, CatalogError> {
        self.runtime.block_on(self.catalog(call))
    }

    /// Has capabilities for `requests` signed, and presents them to all unit daemons, if there are
    /// any. Daemons will refuse what controllers refuse to this host.
    ///
    /// # Errors
    /// [`CatalogError::Unavailable`] if no controller answers.
    pub(crate) async fn obtain(&self, requests: &[CapabilityRequest]) -> Result<(), CatalogError> {
        let cache = &self.capability_cache;
        let Some(holder) = cache.holder_if_needed() else {
            return Ok(());
        };
        let requested_at = cache.now();
        let requests = requests.to_vec();
        let sign = SignCapabilities { holder, requests };
        let answers = self.call(&sign).await;
        let answers = answers.map_err(|error| catalog_error(&error))?;
        if answers.len() != sign.requests.len() {
            let reason = "the controller did not answer the request".to_owned();
            return Err(CatalogError::Unavailable { reason });
        }
        let capabilities = sign.requests.iter().zip(answers);
        let capabilities = capabilities
            .flat_map(|(request, answer)| cache.store_answer(requested_at, *request, answer));
        let capabilities = capabilities.collect();
        cache.present(capabilities).await;
        Ok(())
    }

    /// Renews the kept capabilities, as long as the agent runs.
    pub(crate) async fn keep_capabilities(&self) {
        let mut ticks = host::ticks(CapabilityCache::RENEW_EVERY);
        loop {
            ticks.tick().await;
            self.renew_capabilities().await;
        }
    }

    /// Renews the kept capabilities that are due.
    pub(crate) async fn renew_capabilities(&self) {
        if self.capability_cache.holder_if_needed().is_none() {
            return;
        }
        self.capability_cache.remove_ended();
        for requests in self.capability_cache.due_requests() {
            if let Err(error) = self.obtain(&requests).await {
                tracing::warn!(%error, "agent could not renew capabilities on unit daemons");
                return;
            }
        }
    }
}

/// The catalog error for a call that no controller answered.
fn catalog_error(error: &ClientError) -> CatalogError {
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
        self.wait(calls::Acquire {
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
        self.wait(calls::NameJournal {
            volume,
            epoch,
            folder,
        })
    }

    fn commit(&self, commit: &VersionCommit) -> Result<(), CatalogError> {
        let volume = commit.version.key.volume;
        let call = calls::Commit {
            commit: commit.clone(),
        };
        self.runtime.block_on(async {
            let mut pauses = Pauses::default();
            let mut is_logged = false;
            loop {
                let answer = self.call(&call).await;
                match answer.unwrap_or_else(|error| Err(catalog_error(&error))) {
                    Err(CatalogError::Unavailable { reason }) if !self.shutdown.has_begun() => {
                        if !is_logged {
                            tracing::warn!(%volume, error = reason, "agent retries commit of version");
                        }
                        is_logged = true;
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
            let reserve = calls::ReserveSerials {
                volume,
                epoch,
                count,
            };
            let serials = self.catalog(reserve).await?;
            self.obtain(&[CapabilityRequest::Lease { volume, epoch }])
                .await?;
            Ok(serials)
        })
    }

    fn finish_sweep(&self, volume: VolumeId, epoch: u32) -> Result<(), CatalogError> {
        self.wait(calls::Swept { volume, epoch })
    }

    fn version(&self, key: VersionKey) -> Result<StoredVersion, CatalogError> {
        self.wait(calls::Version { key })
    }

    fn neighbors(&self, key: VersionKey) -> Result<Neighbors, CatalogError> {
        self.wait(calls::NeighborsOf { key })
    }

    fn keys(&self, lineage: Lineage) -> Result<Vec<LineageKey>, CatalogError> {
        self.runtime.block_on(async {
            let keys = self.catalog(calls::Keys { lineage }).await?;
            // The caller reads blocks that these keys open.
            self.obtain(&[CapabilityRequest::Read { lineage }]).await?;
            Ok(keys)
        })
    }

    fn remove_version(
        &self,
        key: VersionKey,
        neighbors: &Neighbors,
        not_before: Millis,
        plan: &[u8],
    ) -> Result<(), CatalogError> {
        self.wait(calls::RemoveVersion {
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
        self.wait(calls::DueFrees {
            now,
            after,
            count_max,
        })
    }

    fn gather_dead_slots(&self, id: i64, segments: &[SegmentId]) -> Result<Vec<u8>, CatalogError> {
        let segments = segments.to_vec();
        let gathered = self.wait(calls::GatherDead { id, segments })?;
        Ok(gathered.0)
    }

    fn forget_dead(&self, id: i64, segments: &[SegmentId]) -> Result<(), CatalogError> {
        let segments = segments.to_vec();
        self.wait(calls::ForgetDead { id, segments })
    }

    fn joined(&self) -> Result<u64, CatalogError> {
        self.wait(calls::Joined {})
    }

    fn finish_free(&self, id: i64, joined: u64) -> Result<(), CatalogError> {
        self.wait(calls::Freed { id, joined })
    }
}
