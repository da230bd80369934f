//! The catalog calls of hosts. A host gets what it may reach ([`Reach`]); everything else does not
//! exist for it.

use api::host::{Call, CatalogAnswer, CatalogCall, EncodedPlan};
use catalog::CatalogError;

use crate::database::{Database, DatabaseError, Reach};

/// The answer to a host's call, as JSON.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer(Vec<u8>);

impl Answer {
    /// The answer to a call `C`.
    ///
    /// # Panics
    /// If the answer cannot be serialized as JSON, which is possible for no type of answer.
    #[must_use]
    pub fn new<C: Call>(answer: &C::Answer) -> Self {
        Self(serde_json::to_vec(answer).expect("answers can be written as JSON"))
    }

    /// The answer to a call of the catalog that could not be carried out.
    pub(crate) fn unavailable(error: &dyn std::error::Error) -> Self {
        let error = CatalogError::Unavailable {
            reason: error.to_string(),
        };
        let answer: CatalogAnswer<()> = Err(error);
        Self(serde_json::to_vec(&answer).expect("errors can be written as JSON"))
    }

    /// The JSON text.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

/// The answer to a catalog call of type `C`.
fn json<T, C>(_: &C, done: Result<T, DatabaseError>) -> Answer
where
    C: Call<Answer = CatalogAnswer<T>>,
{
    Answer::new::<C>(&done.map_err(CatalogError::from))
}

/// The engine's catalog.
#[derive(Clone, Copy, Debug)]
pub struct Catalog<'a> {
    pub(in crate::database) database: &'a Database,
}

impl Catalog<'_> {
    /// Answers a host's call.
    pub async fn answer(self, reach: &Reach, call: CatalogCall) -> Answer {
        let (host, now) = (reach.host, reach.now());
        let (keys, repair) = (self.database.keys(), self.database.repair());
        match call {
            CatalogCall::Acquire(call) => json(&call, self.acquire(host, &call).await),
            CatalogCall::NameJournal(call) => json(&call, self.name_journal(host, &call).await),
            CatalogCall::SetKey(call) => json(&call, keys.set_lineage_key(host, &call).await),
            CatalogCall::WrappedBy(call) => json(&call, keys.wrapped_by(reach, &call).await),
            CatalogCall::Rewrap(call) => json(&call, keys.rewrap(reach, &call).await),
            CatalogCall::Leases(call) => json(&call, self.lease_count().await),
            CatalogCall::Commit(call) => {
                json(&call, self.commit_version(host, &call.commit, now).await)
            }
            CatalogCall::ReserveSerials(call) => {
                json(&call, self.reserve_serials(host, &call).await)
            }
            CatalogCall::TakeRepair(call) => json(&call, repair.take(host, now).await),
            CatalogCall::ReportRepair(call) => {
                json(&call, repair.report_progress(host, &call, now).await)
            }
            CatalogCall::EndRepair(call) => json(&call, repair.end(host, &call, now).await),
            CatalogCall::SuspectUnit(call) => json(&call, repair.suspect(host, &call, now).await),
            CatalogCall::NoteLeases(call) => json(&call, repair.record_leases(&call.units).await),
            CatalogCall::NotedLeases(call) => json(&call, repair.recorded_leases().await),
            CatalogCall::Swept(call) => json(
                &call,
                self.finish_sweep(host, call.volume, call.epoch).await,
            ),
            CatalogCall::Version(call) => json(&call, self.version(reach, call.key).await),
            CatalogCall::NeighborsOf(call) => json(&call, self.neighbors(reach, call.key).await),
            CatalogCall::Keys(call) => json(&call, keys.of_lineage(reach, call.lineage).await),
            CatalogCall::RemoveVersion(mut call) => {
                let plan = std::mem::take(&mut call.plan.0);
                let (neighbors, not_before) = (&call.neighbors, call.not_before);
                let done = self.remove_version(reach, call.key, neighbors, not_before, plan);
                json(&call, done.await)
            }
            CatalogCall::FinishDelete(call) => {
                let volumes = self.database.volumes();
                json(&call, volumes.finish_delete(reach, call.volume).await)
            }
            CatalogCall::DueFrees(call) => json(&call, self.due_frees(reach, &call).await),
            CatalogCall::Joined(call) => json(&call, repair.joined().await),
            CatalogCall::GatherDead(call) => {
                let done = self.gather_dead_slots(reach, call.id, &call.segments).await;
                json(&call, done.map(EncodedPlan))
            }
            CatalogCall::ForgetDead(call) => json(
                &call,
                self.forget_dead(reach, call.id, &call.segments).await,
            ),
            CatalogCall::Freed(call) => {
                json(&call, self.finish_free(reach, call.id, call.joined).await)
            }
        }
    }
}
