//! [`WatchedCatalog`]: a catalog that records commits for the driver, and sometimes fails.
//!
//! It outlives every process, like a database with synchronous commits.

use std::ops::Range;
use std::sync::Arc;

use base::{JournalFolderId, Lineage, SegmentId, VolumeId};
use catalog::{
    Catalog, CatalogError, Copyset, Lease, LineageKey, MemoryCatalog, Neighbors, PendingFree,
    StoredVersion, VersionCommit, VersionKey,
};
use parking_lot::{Mutex, MutexGuard};
use volume::repair::SuspectUnit;
use volume::seal::LeaseSalt;
use world::Millis;
use world::simulated::SimulatedRandom;

use crate::members::Members;
use crate::net::capabilities::CapabilityCache;

/// A catalog in memory, with faults and a record of commits.
pub struct WatchedCatalog {
    /// The catalog, without faults.
    pub memory: Arc<MemoryCatalog>,
    /// The states of members.
    pub members: Arc<Members>,
    random: SimulatedRandom,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    commits: Vec<VersionCommit>,
    /// The records of all commits, also of refused ones: their nonces were used.
    records: Vec<StoredVersion>,
    unavailable_one_in: u64,
    /// The number of commits to refuse because members have changed.
    members_changed: u64,
    /// The capability cache of the current process: answers grant capabilities.
    capability_cache: Option<Arc<CapabilityCache>>,
}

impl WatchedCatalog {
    /// An empty catalog without faults.
    #[must_use]
    pub fn new(random: SimulatedRandom, copysets: Vec<Copyset>) -> Self {
        Self {
            memory: Arc::default(),
            members: Arc::new(Members::new(copysets)),
            random,
            state: Mutex::default(),
        }
    }

    /// The same catalog for another host, with faults of its own.
    #[must_use]
    pub fn for_another_host(&self, random: SimulatedRandom) -> Self {
        Self {
            memory: Arc::clone(&self.memory),
            members: Arc::clone(&self.members),
            ..Self::new(random, Vec::new())
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Sets the capability cache of the current process.
    pub fn set_capability_cache(&self, capability_cache: Option<Arc<CapabilityCache>>) {
        self.lock().capability_cache = capability_cache;
    }

    fn capability_cache(&self) -> Option<Arc<CapabilityCache>> {
        self.lock().capability_cache.clone()
    }

    /// Takes the commits since the last call.
    pub fn take_commits(&self) -> Vec<VersionCommit> {
        std::mem::take(&mut self.lock().commits)
    }

    /// Takes the version records of all attempted commits since the last call.
    pub fn take_records(&self) -> Vec<StoredVersion> {
        std::mem::take(&mut self.lock().records)
    }

    /// Makes one of `one_in` calls fail; none if zero.
    pub fn set_unavailable(&self, one_in: u64) {
        self.lock().unavailable_one_in = one_in;
    }

    /// Refuses the next `count` commits, as if members had changed.
    pub fn change_members(&self, count: u64) {
        self.lock().members_changed = count;
    }

    /// Whether to refuse a commit, unless it was carried out before.
    fn have_members_changed(&self, commit: &VersionCommit) -> bool {
        let key = commit.version.key;
        if self.memory.head(key.volume) == Some(key) {
            return false;
        }
        let mut state = self.lock();
        let is_requested = state.members_changed > 0;
        state.members_changed = state.members_changed.saturating_sub(1);
        is_requested || self.random.one_in(state.unavailable_one_in)
    }

    /// Makes a call, which sometimes fails; half of the failed calls are carried out all the
    /// same.
    fn call<T>(
        &self,
        act: impl FnOnce(&MemoryCatalog) -> Result<T, CatalogError>,
    ) -> Result<T, CatalogError> {
        let one_in = self.lock().unavailable_one_in;
        if !self.random.one_in(one_in) {
            return act(&self.memory);
        }
        if self.random.below(2) == 0 {
            act(&self.memory)?;
        }
        Err(CatalogError::Unavailable {
            reason: "simulated".to_owned(),
        })
    }
}

impl Catalog for WatchedCatalog {
    fn acquire(
        &self,
        volume: VolumeId,
        salt: LeaseSalt,
        journals: Option<JournalFolderId>,
    ) -> Result<Lease, CatalogError> {
        let lease = self.call(|memory| memory.acquire(volume, salt, journals))?;
        if let Some(capability_cache) = self.capability_cache() {
            capability_cache.request_lease(volume, lease.epoch);
            lease
                .keys
                .iter()
                .for_each(|key| capability_cache.request_read(key.lineage));
        }
        Ok(lease)
    }

    fn name_journal(
        &self,
        volume: VolumeId,
        epoch: u32,
        folder: Option<JournalFolderId>,
    ) -> Result<(), CatalogError> {
        self.call(|memory| memory.name_journal(volume, epoch, folder))
    }

    fn commit(&self, commit: &VersionCommit) -> Result<(), CatalogError> {
        self.lock().records.push(commit.version.clone());
        if self.have_members_changed(commit) {
            return Err(CatalogError::MembersChanged {
                reason: "simulated".to_owned(),
            });
        }
        self.call(|memory| {
            let (open, mut serials, serial_next) = memory.uncommitted();
            serials.extend(open.iter().map(|open| {
                let serial = open.segment.serial();
                serial..serial + 1
            }));
            serials.push(serial_next..u64::MAX);
            memory.commit(commit)?;
            self.members
                .record_commit(commit, &SuspectUnit::Serials(serials));
            self.lock().commits.push(commit.clone());
            Ok(())
        })
    }

    fn reserve_serials(
        &self,
        volume: VolumeId,
        epoch: u32,
        count: u32,
    ) -> Result<Range<u64>, CatalogError> {
        let serials = self.call(|memory| memory.reserve_serials(volume, epoch, count))?;
        if let Some(capability_cache) = self.capability_cache() {
            capability_cache.request_lease(volume, epoch);
        }
        Ok(serials)
    }

    fn finish_sweep(&self, volume: VolumeId, epoch: u32) -> Result<(), CatalogError> {
        self.call(|memory| memory.finish_sweep(volume, epoch))
    }

    fn version(&self, key: VersionKey) -> Result<StoredVersion, CatalogError> {
        self.call(|memory| memory.version(key))
    }

    fn neighbors(&self, key: VersionKey) -> Result<Neighbors, CatalogError> {
        self.call(|memory| memory.neighbors(key))
    }

    fn keys(&self, lineage: Lineage) -> Result<Vec<LineageKey>, CatalogError> {
        let keys = self.call(|memory| memory.keys(lineage))?;
        if let Some(capability_cache) = self.capability_cache() {
            capability_cache.request_read(lineage);
        }
        Ok(keys)
    }

    fn remove_version(
        &self,
        key: VersionKey,
        neighbors: &Neighbors,
        not_before: Millis,
        plan: &[u8],
    ) -> Result<(), CatalogError> {
        self.call(|memory| memory.remove_version(key, neighbors, not_before, plan))
    }

    fn due_frees(
        &self,
        now: Millis,
        after: i64,
        count_max: u32,
    ) -> Result<Vec<PendingFree>, CatalogError> {
        self.call(|memory| memory.due_frees(now, after, count_max))
    }

    fn gather_dead_slots(&self, id: i64, segments: &[SegmentId]) -> Result<Vec<u8>, CatalogError> {
        self.call(|memory| memory.gather_dead_slots(id, segments))
    }

    fn forget_dead(&self, id: i64, segments: &[SegmentId]) -> Result<(), CatalogError> {
        self.call(|memory| memory.forget_dead(id, segments))
    }

    fn joined(&self) -> Result<u64, CatalogError> {
        self.call(MemoryCatalog::joined)
    }

    fn finish_free(&self, id: i64, joined: u64) -> Result<(), CatalogError> {
        self.call(|memory| memory.finish_free(id, joined))
    }
}
