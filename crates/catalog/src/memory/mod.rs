//! [`MemoryCatalog`]: a catalog in memory, for tests and the simulator.
//!
//! It keeps every promise of [`Catalog`] except one: it lasts only as long as the
//! process. The simulator keeps it across crashes, like a database with
//! synchronous commits.

mod state;

use std::collections::BTreeMap;
use std::ops::{Bound, Range};

use base::{BlockSize, CopysetId, JournalFolderId, Lineage, SegmentId, SnapshotId, VolumeId};
use parking_lot::{Mutex, MutexGuard};
use world::Millis;

use self::state::{LineageRow, State, VolumeRow, not_found};
use crate::{
    Catalog, CatalogError, Erasure, FreePlan, Lease, LeaseSalt, Leftovers, LineageKey,
    NamedJournal, Neighbors, OpenSegment, PendingFree, RESTORE_SKIPS_BYTES, StoredVersion,
    VersionCommit, VersionKey,
};

/// The parameters of a new volume.
#[derive(Debug, Clone)]
pub struct NewVolume {
    /// The volume's id.
    pub volume: VolumeId,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Block size.
    pub block_size: BlockSize,
    /// The number of copies of each segment.
    pub replicas: u8,
    /// The erasure code of its segments, if they are not copied.
    pub erasure: Option<Erasure>,
    /// Its key. The first epoch is replaced by the first one that is free.
    pub key: LineageKey,
    /// The version that it is a clone of.
    pub from: Option<VersionKey>,
}

/// A catalog in memory.
#[derive(Debug, Default)]
pub struct MemoryCatalog {
    state: Mutex<State>,
}

impl MemoryCatalog {
    /// Creates a volume.
    ///
    /// # Errors
    /// [`CatalogError::NotFound`] if the version to begin with is not kept.
    pub fn create_volume(&self, new: NewVolume) -> Result<(), CatalogError> {
        let mut state = self.lock();
        let from = match new.from {
            Some(key) => Some(state.version(key)?.clone()),
            None => None,
        };
        // A clone's epochs begin above those of what it inherits.
        let epoch_first = from.as_ref().map_or(1, |version| version.epoch + 1);
        let lineage = new.key.lineage;
        let key = LineageKey {
            epoch_first,
            ..new.key
        };
        let parent = from.as_ref().map(|version| version.lineage);
        state.lineages.insert(lineage, LineageRow { key, parent });
        let row = VolumeRow {
            size_bytes: new.size_bytes,
            block_size: new.block_size,
            replicas: new.replicas,
            erasure: new.erasure,
            lineage,
            epoch: epoch_first - 1,
            head: new.from,
            journal_next: 0,
            restores: 0,
            journal: None,
            is_journal_given_up: false,
            number_last: 0,
            leftovers: Leftovers::default(),
            current: Leftovers::default(),
            deleted: false,
        };
        state.volumes.insert(new.volume, row);
        Ok(())
    }

    /// Deletes a volume. Its versions are no longer needed by it.
    pub fn delete_volume(&self, volume: VolumeId) {
        let mut state = self.lock();
        if let Some(row) = state.volumes.get_mut(&volume) {
            row.deleted = true;
            row.head = None;
            (row.current, row.leftovers) = Default::default();
        }
        state.free_closed();
    }

    /// Restores a volume to a kept version. It must be detached; writes in
    /// its journal are lost.
    ///
    /// # Errors
    /// [`CatalogError::NotFound`].
    pub fn restore(&self, volume: VolumeId, to: VersionKey) -> Result<(), CatalogError> {
        let mut state = self.lock();
        state.version(to)?;
        let row = state
            .volumes
            .get_mut(&volume)
            .ok_or_else(|| not_found(volume))?;
        row.head = Some(to);
        row.epoch += 1;
        row.journal = None;
        row.journal_next += RESTORE_SKIPS_BYTES;
        row.restores += 1;
        Ok(())
    }

    /// Takes the volume from its host by force: a host that cannot reach its
    /// journal may continue without it.
    ///
    /// # Errors
    /// [`CatalogError::NotFound`].
    pub fn detach_by_force(&self, volume: VolumeId) -> Result<(), CatalogError> {
        let mut state = self.lock();
        let row = state
            .volumes
            .get_mut(&volume)
            .ok_or_else(|| not_found(volume))?;
        row.epoch += 1;
        row.is_journal_given_up = true;
        Ok(())
    }

    /// Grows the volume.
    ///
    /// # Errors
    /// [`CatalogError::NotFound`].
    pub fn grow(&self, volume: VolumeId, size_bytes: u64) -> Result<(), CatalogError> {
        let mut state = self.lock();
        let row = state
            .volumes
            .get_mut(&volume)
            .ok_or_else(|| not_found(volume))?;
        row.size_bytes = row.size_bytes.max(size_bytes);
        Ok(())
    }

    /// The version that a snapshot pins, once it is complete.
    #[must_use]
    pub fn snapshot(&self, snapshot: SnapshotId) -> Option<VersionKey> {
        self.lock().snapshots.get(&snapshot).copied()
    }

    /// Forgets a snapshot.
    pub fn delete_snapshot(&self, snapshot: SnapshotId) {
        self.lock().snapshots.remove(&snapshot);
    }

    /// All kept versions.
    #[must_use]
    pub fn versions(&self) -> Vec<StoredVersion> {
        self.lock().versions.values().cloned().collect()
    }

    /// A volume's head.
    #[must_use]
    pub fn head(&self, volume: VolumeId) -> Option<VersionKey> {
        self.lock().volumes.get(&volume)?.head
    }

    /// The collected dead slots.
    #[must_use]
    pub fn dead(&self) -> FreePlan {
        self.lock().dead.clone()
    }

    /// Sets the largest [`Copyset::joined`](crate::Copyset::joined).
    pub fn set_joined(&self, joined: u64) {
        self.lock().joined = joined;
    }

    /// The number of degraded slots, by segment.
    #[must_use]
    pub fn degraded(&self) -> BTreeMap<SegmentId, u32> {
        self.lock().degraded.clone()
    }

    /// Forgets the degraded slots of a copyset: all its members are in sync.
    pub fn forget_degraded(&self, copyset: CopysetId) {
        let mut state = self.lock();
        state
            .degraded
            .retain(|segment, _| segment.copyset() != copyset);
    }

    /// Segments and serials that no version names yet: open segments with their committed slots;
    /// reserved serials that no commit used; and the first serial that is not reserved.
    #[must_use]
    pub fn uncommitted(&self) -> (Vec<OpenSegment>, Vec<Range<u64>>, u64) {
        let state = self.lock();
        let lists = state.volumes.values();
        let lists = lists.flat_map(|row| [&row.current, &row.leftovers]);
        let (mut open, mut serials) = (Vec::new(), Vec::new());
        for list in lists {
            open.extend_from_slice(&list.open_segments);
            serials.extend_from_slice(&list.serials);
        }
        (open, serials, state.serial_next)
    }

    /// What lease `epoch` of a volume may write and sweep: its lineage, and the segments
    /// that it and earlier leases have reserved or left open.
    ///
    /// # Errors
    /// [`CatalogError::Fenced`] if there is a newer lease, and [`CatalogError::NotFound`].
    pub fn lease_rights(
        &self,
        volume: VolumeId,
        epoch: u32,
    ) -> Result<(Lineage, Leftovers), CatalogError> {
        let mut state = self.lock();
        let row = state.leased(volume, epoch)?;
        let mut left = row.leftovers.clone();
        left.open_segments.extend(&row.current.open_segments);
        left.serials.extend_from_slice(&row.current.serials);
        Ok((row.lineage, left))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl Catalog for MemoryCatalog {
    fn acquire(
        &self,
        volume: VolumeId,
        salt: LeaseSalt,
        journals: Option<JournalFolderId>,
    ) -> Result<Lease, CatalogError> {
        let mut state = self.lock();
        let row = state
            .volumes
            .get_mut(&volume)
            .ok_or_else(|| not_found(volume))?;
        if row.deleted {
            return Err(not_found(volume));
        }
        if let Some(named) = row.journal
            && Some(named.folder) != journals
            && !row.is_journal_given_up
        {
            let reason = format!("it is in {}", named.folder);
            return Err(CatalogError::JournalUnavailable { volume, reason });
        }
        row.epoch += 1;
        let current = std::mem::take(&mut row.current);
        row.leftovers.open_segments.extend(current.open_segments);
        row.leftovers.serials.extend(
            current
                .serials
                .into_iter()
                .filter(|range| !range.is_empty()),
        );
        let mut lease = Lease {
            volume,
            epoch: row.epoch,
            size_bytes: row.size_bytes,
            block_size: row.block_size,
            replicas: row.replicas,
            erasure: row.erasure,
            keys: Vec::new(),
            head: None,
            journal_next: row.journal_next,
            journal: row.journal,
            number_last: row.number_last,
            leftovers: row.leftovers.clone(),
            restores: Some(row.restores),
        };
        let (lineage, head, epoch) = (row.lineage, row.head, row.epoch);
        if let Some(row) = state.lineages.get_mut(&lineage) {
            row.key.salts.push((epoch, salt));
        }
        lease.keys = state.keys(lineage)?;
        lease.head = head.map(|key| state.version(key).cloned()).transpose()?;
        Ok(lease)
    }

    fn name_journal(
        &self,
        volume: VolumeId,
        epoch: u32,
        folder: Option<JournalFolderId>,
    ) -> Result<(), CatalogError> {
        let mut state = self.lock();
        let row = state.leased(volume, epoch)?;
        row.journal = folder.map(|folder| NamedJournal { epoch, folder });
        row.is_journal_given_up = false;
        Ok(())
    }

    fn commit(&self, commit: &VersionCommit) -> Result<(), CatalogError> {
        let mut state = self.lock();
        let version = &commit.version;
        let volume = version.key.volume;
        let row = state.leased(volume, version.epoch)?;
        if row.head != version.parent {
            let reason = format!("the head is {:?}, not {:?}", row.head, version.parent);
            return Err(CatalogError::Fenced { volume, reason });
        }
        row.head = Some(version.key);
        row.journal_next = version.journal_next;
        row.number_last = row.number_last.max(version.key.number);
        row.current.open_segments.clone_from(&commit.open_segments);
        for range in &mut row.current.serials {
            *range = range.start.max(commit.serial_next.min(range.end))..range.end;
        }
        state.versions.insert(version.key, version.clone());
        for snapshot in &commit.pins {
            state.snapshots.insert(*snapshot, version.key);
        }
        for share in &commit.degraded {
            *state.degraded.entry(share.segment).or_default() += share.slots;
        }
        state.free_closed();
        Ok(())
    }

    fn reserve_serials(
        &self,
        volume: VolumeId,
        epoch: u32,
        count: u32,
    ) -> Result<Range<u64>, CatalogError> {
        let mut state = self.lock();
        state.leased(volume, epoch)?;
        // Serial 0 is never handed out: an all-zero map entry is a hole.
        let first = state.serial_next.max(1);
        let range = first..first + u64::from(count);
        state.serial_next = range.end;
        state
            .leased(volume, epoch)?
            .current
            .serials
            .push(range.clone());
        Ok(range)
    }

    fn finish_sweep(&self, volume: VolumeId, epoch: u32) -> Result<(), CatalogError> {
        let mut state = self.lock();
        state.leased(volume, epoch)?.leftovers = Leftovers::default();
        state.free_closed();
        Ok(())
    }

    fn version(&self, key: VersionKey) -> Result<StoredVersion, CatalogError> {
        self.lock().version(key).cloned()
    }

    fn neighbors(&self, key: VersionKey) -> Result<Neighbors, CatalogError> {
        self.lock().neighbors(key)
    }

    fn keys(&self, lineage: Lineage) -> Result<Vec<LineageKey>, CatalogError> {
        self.lock().keys(lineage)
    }

    fn remove_version(
        &self,
        key: VersionKey,
        neighbors: &Neighbors,
        not_before: Millis,
        plan: &[u8],
    ) -> Result<(), CatalogError> {
        let mut state = self.lock();
        if state.neighbors(key)? != *neighbors || neighbors.needed {
            let reason = "the versions around it have changed".to_owned();
            return Err(CatalogError::Refused { reason });
        }
        let parent = state.version(key)?.parent;
        state.versions.remove(&key);
        for version in state.versions.values_mut() {
            if version.parent == Some(key) {
                version.parent = parent;
            }
        }
        state.add_free(not_before, plan.to_vec());
        Ok(())
    }

    fn due_frees(
        &self,
        now: Millis,
        after: i64,
        count_max: u32,
    ) -> Result<Vec<PendingFree>, CatalogError> {
        let state = self.lock();
        Ok(state
            .frees
            .range((Bound::Excluded(after), Bound::Unbounded))
            .map(|(_, free)| free)
            .filter(|free| free.not_before <= now)
            .take(count_max as usize)
            .cloned()
            .collect())
    }

    fn gather_dead_slots(&self, id: i64, segments: &[SegmentId]) -> Result<Vec<u8>, CatalogError> {
        let mut state = self.lock();
        let plan = state.free(id)?.only(segments);
        state.dead.extend(&plan);
        // Slots that this free does not name are gathered by another one.
        let named: Vec<SegmentId> = plan.segments().map(|(segment, _)| segment).collect();
        let mut gathered = state.dead.only(&named);
        for segment in named {
            if state.is_open(segment) {
                gathered.remove(segment);
                state.waiting.insert(segment);
            }
        }
        Ok(gathered.encode())
    }

    fn forget_dead(&self, id: i64, segments: &[SegmentId]) -> Result<(), CatalogError> {
        let mut state = self.lock();
        let named = state.free(id)?.only(segments);
        for (segment, _) in named.segments() {
            state.dead.remove(segment);
            state.waiting.remove(&segment);
        }
        Ok(())
    }

    fn joined(&self) -> Result<u64, CatalogError> {
        Ok(self.lock().joined)
    }

    fn finish_free(&self, id: i64, joined: u64) -> Result<(), CatalogError> {
        let mut state = self.lock();
        if state.joined > joined {
            let reason = "a unit has become a member since".to_owned();
            return Err(CatalogError::MembersChanged { reason });
        }
        state.frees.remove(&id);
        Ok(())
    }
}
