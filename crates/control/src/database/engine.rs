//! The database as the engine sees it: [`Catalog`], for threads that may wait.

use std::ops::Range;

use base::{Lineage, VolumeId};
use catalog::LeaseSalt;
use catalog::{
    Catalog, CatalogError, Lease, LineageKey, Neighbours, PendingFree, StoredVersion, ThinShare,
    VersionCommit, VersionKey,
};
use tokio::runtime::Handle;
use world::Millis;

use super::{Database, DatabaseError};

/// Lets threads outside the runtime call the database.
///
/// Its methods wait; calling one from a task of the runtime would stop that
/// task's thread, and panics instead.
pub struct EngineCatalog {
    database: Database,
    runtime: Handle,
}

impl EngineCatalog {
    /// The engine's face of `database`, whose tasks run on `runtime`.
    #[must_use]
    pub fn new(database: Database, runtime: Handle) -> Self {
        Self { database, runtime }
    }

    fn wait<T>(
        &self,
        call: impl Future<Output = Result<T, DatabaseError>>,
    ) -> Result<T, CatalogError> {
        self.runtime.block_on(call).map_err(CatalogError::from)
    }
}

impl Catalog for EngineCatalog {
    fn acquire(&self, volume: VolumeId, salt: LeaseSalt) -> Result<Lease, CatalogError> {
        self.wait(self.database.acquire(volume, salt))
    }

    fn commit(&self, commit: &VersionCommit) -> Result<(), CatalogError> {
        self.wait(self.database.commit_version(commit))
    }

    fn reserve_serials(
        &self,
        volume: VolumeId,
        epoch: u32,
        count: u32,
    ) -> Result<Range<u64>, CatalogError> {
        self.wait(self.database.reserve_serials(volume, epoch, count))
    }

    fn note_thin(&self, volume: VolumeId, thin: &[ThinShare]) -> Result<(), CatalogError> {
        self.wait(self.database.note_thin(volume, thin))
    }

    fn swept(&self, volume: VolumeId, epoch: u32) -> Result<(), CatalogError> {
        self.wait(self.database.swept(volume, epoch))
    }

    fn version(&self, key: VersionKey) -> Result<StoredVersion, CatalogError> {
        self.wait(self.database.version(key))
    }

    fn neighbours(&self, key: VersionKey) -> Result<Neighbours, CatalogError> {
        self.wait(self.database.neighbours(key))
    }

    fn keys(&self, lineage: Lineage) -> Result<Vec<LineageKey>, CatalogError> {
        self.wait(self.database.keys(lineage))
    }

    fn remove_version(
        &self,
        key: VersionKey,
        neighbours: &Neighbours,
        not_before: Millis,
        plan: &[u8],
    ) -> Result<(), CatalogError> {
        self.wait(
            self.database
                .remove_version(key, neighbours, not_before, plan),
        )
    }

    fn due_frees(
        &self,
        now: Millis,
        after: i64,
        count_max: u32,
    ) -> Result<Vec<PendingFree>, CatalogError> {
        self.wait(self.database.due_frees(now, after, count_max))
    }

    fn freed(&self, id: i64) -> Result<(), CatalogError> {
        self.wait(self.database.freed(id))
    }
}
