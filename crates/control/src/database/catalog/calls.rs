//! The catalog calls of hosts. A host gets what it may reach ([`Reach`]); everything else does not
//! exist for it.

use api::host::{CatalogCall, EncodedPlan, FREES_MAX, ROWS_MAX};
use catalog::CatalogError;
use serde::Serialize;
use serde_json::Value;

use crate::database::{Database, DatabaseError, Reach};

/// What the engine asks of its catalog.
#[derive(Clone, Copy, Debug)]
pub struct Catalog<'a> {
    pub(in crate::database) database: &'a Database,
}

impl Catalog<'_> {
    /// Answers a host's call.
    ///
    /// # Errors
    /// [`CatalogError`].
    pub async fn answer(self, reach: &Reach, call: CatalogCall) -> Result<Value, CatalogError> {
        let host = reach.host;
        match call {
            CatalogCall::Acquire {
                volume,
                salt,
                journals,
            } => json(self.acquire(volume, salt, journals, host).await),
            CatalogCall::NameJournal {
                volume,
                epoch,
                folder,
            } => json(self.name_journal(host, volume, epoch, folder).await),
            CatalogCall::SetKey {
                volume,
                lineage,
                key,
                wrapped,
            } => json(
                self.database
                    .keys()
                    .set_lineage_key(host, volume, lineage, key, &wrapped)
                    .await,
            ),
            CatalogCall::WrappedBy {
                key,
                after,
                count_max,
            } => json(
                self.database
                    .keys()
                    .wrapped_by(reach, key, after, count_max.min(ROWS_MAX))
                    .await,
            ),
            CatalogCall::Rewrap {
                lineage,
                from,
                to,
                before,
                after,
            } => json(
                self.database
                    .keys()
                    .rewrap(reach, lineage, from, to, &before, &after)
                    .await,
            ),
            CatalogCall::Leases {} => json(self.lease_count().await),
            CatalogCall::Commit { commit } => {
                json(self.commit_version(host, &commit, reach.now()).await)
            }
            CatalogCall::ReserveSerials {
                volume,
                epoch,
                count,
            } => json(self.reserve_serials(host, volume, epoch, count).await),
            CatalogCall::RepairTake {} => {
                json(self.database.repair().take(host, reach.now()).await)
            }
            CatalogCall::RepairLook { copyset, progress } => json(
                self.database
                    .repair()
                    .look(host, copyset, &progress, reach.now())
                    .await,
            ),
            CatalogCall::RepairEnd { copyset, end } => json(
                self.database
                    .repair()
                    .end(host, copyset, &end, reach.now())
                    .await,
            ),
            CatalogCall::SuspicionUnit { unit, suspicion } => json(
                self.database
                    .repair()
                    .suspicion(host, unit, suspicion, reach.now())
                    .await,
            ),
            CatalogCall::NoteLeases { units } => {
                json(self.database.repair().record_leases(&units).await)
            }
            CatalogCall::NotedLeases {} => json(self.database.repair().recorded_leases().await),
            CatalogCall::Swept { volume, epoch } => json(self.swept(host, volume, epoch).await),
            CatalogCall::Version { key } => json(self.version(reach, key).await),
            CatalogCall::Neighbours { key } => json(self.neighbours(reach, key).await),
            CatalogCall::Keys { lineage } => {
                json(self.database.keys().of_lineage(reach, lineage).await)
            }
            CatalogCall::RemoveVersion {
                key,
                neighbours,
                not_before,
                plan,
            } => json(
                self.remove_version(reach, key, &neighbours, not_before, plan.0)
                    .await,
            ),
            CatalogCall::FinishDelete { volume } => {
                json(self.database.volumes().finish_delete(reach, volume).await)
            }
            CatalogCall::DueFrees {
                now,
                after,
                count_max,
            } => json(
                self.due_frees(reach, now, after, count_max.min(FREES_MAX))
                    .await,
            ),
            CatalogCall::GatherDead { id, segments } => json(
                self.gather_dead(reach, id, &segments)
                    .await
                    .map(EncodedPlan),
            ),
            CatalogCall::ForgetDead { id, segments } => {
                json(self.forget_dead(reach, id, &segments).await)
            }
            CatalogCall::Joined {} => json(self.database.repair().joined().await),
            CatalogCall::Freed { id, joined } => json(self.freed(reach, id, joined).await),
        }
    }
}

fn json(done: Result<impl Serialize, DatabaseError>) -> Result<Value, CatalogError> {
    serde_json::to_value(done?).map_err(|error| CatalogError::Unavailable {
        reason: error.to_string(),
    })
}
