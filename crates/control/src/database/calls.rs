//! The calls of the engine's catalog, as hosts make them.

use api::host::CatalogCall;
use base::PartyId;
use catalog::CatalogError;
use serde::Serialize;
use serde_json::Value;

use super::{Database, DatabaseError};

impl Database {
    /// Answers a call that `host` makes.
    ///
    /// # Errors
    /// [`CatalogError`].
    pub async fn answer(&self, host: PartyId, call: CatalogCall) -> Result<Value, CatalogError> {
        match call {
            CatalogCall::Acquire { volume, salt } => json(self.acquire(volume, salt, host).await),
            CatalogCall::SetKey {
                volume,
                lineage,
                key,
                wrapped,
            } => json(
                self.set_lineage_key(host, volume, lineage, key, &wrapped)
                    .await,
            ),
            CatalogCall::WrappedBy {
                key,
                after,
                count_max,
            } => json(self.wrapped_by(key, after, count_max).await),
            CatalogCall::Rewrap {
                lineage,
                from,
                to,
                before,
                after,
            } => json(self.rewrap(lineage, from, to, &before, &after).await),
            CatalogCall::Leases {} => json(self.leases().await),
            CatalogCall::Commit { commit } => json(self.commit_version(&commit).await),
            CatalogCall::ReserveSerials {
                volume,
                epoch,
                count,
            } => json(self.reserve_serials(volume, epoch, count).await),
            CatalogCall::NoteThin { volume, thin } => json(self.note_thin(volume, &thin).await),
            CatalogCall::ThinSegments { after, count_max } => {
                json(self.thin_segments(after, count_max).await)
            }
            CatalogCall::ForgetThin { segments } => json(self.forget_thin(&segments).await),
            CatalogCall::Swept { volume, epoch } => json(self.swept(volume, epoch).await),
            CatalogCall::Version { key } => json(self.version(key).await),
            CatalogCall::Neighbours { key } => json(self.neighbours(key).await),
            CatalogCall::Keys { lineage } => json(self.keys(lineage).await),
            CatalogCall::RemoveVersion {
                key,
                neighbours,
                not_before,
                plan,
            } => json(
                self.remove_version(key, &neighbours, not_before, &plan.0)
                    .await,
            ),
            CatalogCall::FinishDelete { volume } => json(self.finish_delete(volume).await),
            CatalogCall::DueFrees {
                now,
                after,
                count_max,
            } => json(self.due_frees(now, after, count_max).await),
            CatalogCall::Freed { id } => json(self.freed(id).await),
        }
    }
}

fn json(done: Result<impl Serialize, DatabaseError>) -> Result<Value, CatalogError> {
    serde_json::to_value(done?).map_err(|error| CatalogError::Unavailable {
        reason: error.to_string(),
    })
}
