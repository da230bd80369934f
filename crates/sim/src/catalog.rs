//! A catalog that tells the driver what was committed, and sometimes does not
//! answer.
//!
//! It outlives every process, as a database with synchronous commits does.

use std::ops::Range;
use std::sync::Arc;

use base::{JournalFolderId, Lineage, SegmentId, VolumeId};
use parking_lot::{Mutex, MutexGuard};
use volume::catalog::{
    Catalog, CatalogError, Copyset, Lease, LineageKey, MemoryCatalog, Neighbours, PendingFree,
    StoredVersion, VersionCommit, VersionKey,
};
use volume::repair::SuspectUnit;
use volume::seal::LeaseSalt;
use world::Millis;
use world::simulated::SimulatedRandom;

use crate::members::Members;
use crate::net::capabilities::CapabilityCache;

/// A catalog that is watched.
pub struct WatchedCatalog {
    /// What it watches.
    pub memory: Arc<MemoryCatalog>,
    /// Who is whole.
    pub members: Arc<Members>,
    random: SimulatedRandom,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    commits: Vec<VersionCommit>,
    /// Also those that were refused: they were sealed all the same.
    records: Vec<StoredVersion>,
    unavailable_one_in: u64,
    /// So many commits are refused.
    members_changed: u64,
    /// Where what an answer gives the right to do is put.
    capability_cache: Option<Arc<CapabilityCache>>,
}

impl WatchedCatalog {
    /// An empty catalog that answers.
    #[must_use]
    pub fn new(random: SimulatedRandom, copysets: Vec<Copyset>) -> Self {
        Self {
            memory: Arc::default(),
            members: Arc::new(Members::new(copysets)),
            random,
            state: Mutex::default(),
        }
    }

    /// The same catalog as another host reaches it.
    #[must_use]
    pub fn beside(&self, random: SimulatedRandom) -> Self {
        Self {
            memory: Arc::clone(&self.memory),
            members: Arc::clone(&self.members),
            ..Self::new(random, Vec::new())
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// From now on a process with this capability_cache asks, if any.
    pub fn set_capability_cache(&self, capability_cache: Option<Arc<CapabilityCache>>) {
        self.state().capability_cache = capability_cache;
    }

    fn capability_cache(&self) -> Option<Arc<CapabilityCache>> {
        self.state().capability_cache.clone()
    }

    /// What was committed since this was last asked.
    pub fn take_commits(&self) -> Vec<VersionCommit> {
        std::mem::take(&mut self.state().commits)
    }

    /// The versions that somebody tried to commit since this was last asked.
    pub fn take_records(&self) -> Vec<StoredVersion> {
        std::mem::take(&mut self.state().records)
    }

    /// Lets one in `count` calls fail; none if zero.
    pub fn set_unavailable(&self, one_in: u64) {
        self.state().unavailable_one_in = one_in;
    }

    /// Refuses the next `count` commits, as if members had changed.
    pub fn change_members(&self, count: u64) {
        self.state().members_changed = count;
    }

    /// Whether a commit that was not carried out before is refused.
    fn have_members_changed(&self, commit: &VersionCommit) -> bool {
        let key = commit.version.key;
        if self.memory.head(key.volume) == Some(key) {
            return false;
        }
        let mut state = self.state();
        let is_told = state.members_changed > 0;
        state.members_changed = state.members_changed.saturating_sub(1);
        is_told || self.random.one_in(state.unavailable_one_in)
    }

    /// Fails now and then; half of those calls are carried out all the same.
    fn call<T>(
        &self,
        act: impl FnOnce(&MemoryCatalog) -> Result<T, CatalogError>,
    ) -> Result<T, CatalogError> {
        let one_in = self.state().unavailable_one_in;
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
            capability_cache.leased(volume, lease.epoch);
            lease
                .keys
                .iter()
                .for_each(|key| capability_cache.reads(key.lineage));
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
        self.state().records.push(commit.version.clone());
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
            self.members.note(commit, &SuspectUnit::Serials(serials));
            self.state().commits.push(commit.clone());
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
            capability_cache.leased(volume, epoch);
        }
        Ok(serials)
    }

    fn swept(&self, volume: VolumeId, epoch: u32) -> Result<(), CatalogError> {
        self.call(|memory| memory.swept(volume, epoch))
    }

    fn version(&self, key: VersionKey) -> Result<StoredVersion, CatalogError> {
        self.call(|memory| memory.version(key))
    }

    fn neighbours(&self, key: VersionKey) -> Result<Neighbours, CatalogError> {
        self.call(|memory| memory.neighbours(key))
    }

    fn keys(&self, lineage: Lineage) -> Result<Vec<LineageKey>, CatalogError> {
        let keys = self.call(|memory| memory.keys(lineage))?;
        if let Some(capability_cache) = self.capability_cache() {
            capability_cache.reads(lineage);
        }
        Ok(keys)
    }

    fn remove_version(
        &self,
        key: VersionKey,
        neighbours: &Neighbours,
        not_before: Millis,
        plan: &[u8],
    ) -> Result<(), CatalogError> {
        self.call(|memory| memory.remove_version(key, neighbours, not_before, plan))
    }

    fn due_frees(
        &self,
        now: Millis,
        after: i64,
        count_max: u32,
    ) -> Result<Vec<PendingFree>, CatalogError> {
        self.call(|memory| memory.due_frees(now, after, count_max))
    }

    fn gather_dead(&self, id: i64, segments: &[SegmentId]) -> Result<Vec<u8>, CatalogError> {
        self.call(|memory| memory.gather_dead(id, segments))
    }

    fn forget_dead(&self, id: i64, segments: &[SegmentId]) -> Result<(), CatalogError> {
        self.call(|memory| memory.forget_dead(id, segments))
    }

    fn joined(&self) -> Result<u64, CatalogError> {
        self.call(MemoryCatalog::joined)
    }

    fn freed(&self, id: i64, joined: u64) -> Result<(), CatalogError> {
        self.call(|memory| memory.freed(id, joined))
    }
}
