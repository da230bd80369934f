//! The tables of a [`MemoryCatalog`](super::MemoryCatalog).

use std::collections::{BTreeMap, BTreeSet, HashMap};

use base::{BlockSize, Lineage, SegmentId, SnapshotId, VolumeId};
use world::Millis;

use crate::{
    CatalogError, Erasure, FreePlan, Leftovers, LineageKey, NamedJournal, Neighbors, PendingFree,
    StoredVersion, VersionKey,
};

#[derive(Debug)]
pub struct VolumeRow {
    pub size_bytes: u64,
    pub block_size: BlockSize,
    pub replicas: u8,
    pub erasure: Option<Erasure>,
    pub lineage: Lineage,
    pub epoch: u32,
    pub head: Option<VersionKey>,
    pub journal_next: u64,
    pub restores: u64,
    pub journal: Option<NamedJournal>,
    /// Whether a host that cannot reach the journal may continue without it.
    pub is_journal_given_up: bool,
    pub number_last: u64,
    pub leftovers: Leftovers,
    /// The current lease's open segments and unused serials.
    pub current: Leftovers,
    pub deleted: bool,
}

/// A lineage: its key, and the one that it inherits from.
#[derive(Debug)]
pub struct LineageRow {
    pub key: LineageKey,
    pub parent: Option<Lineage>,
}

/// All tables.
#[derive(Debug, Default)]
pub struct State {
    pub volumes: HashMap<VolumeId, VolumeRow>,
    pub lineages: HashMap<Lineage, LineageRow>,
    pub versions: BTreeMap<VersionKey, StoredVersion>,
    pub snapshots: HashMap<SnapshotId, VersionKey>,
    pub frees: BTreeMap<i64, PendingFree>,
    pub free_next: i64,
    pub serial_next: u64,
    pub degraded: BTreeMap<SegmentId, u32>,
    pub dead: FreePlan,
    /// Segments with dead slots that were open when the slots were collected.
    pub waiting: BTreeSet<SegmentId>,
    pub joined: u64,
}

impl State {
    /// A kept version.
    pub fn version(&self, key: VersionKey) -> Result<&StoredVersion, CatalogError> {
        self.versions
            .get(&key)
            .ok_or_else(|| not_found(format!("version {} of {}", key.number, key.volume)))
    }

    /// Adds a free of the slots in `plan`.
    pub fn add_free(&mut self, not_before: Millis, plan: Vec<u8>) {
        self.free_next += 1;
        let id = self.free_next;
        let free = PendingFree {
            id,
            not_before,
            plan,
        };
        self.frees.insert(id, free);
    }

    /// Whether some lease has the segment open.
    pub fn is_open(&self, segment: SegmentId) -> bool {
        let lists = self.volumes.values();
        let mut lists = lists.flat_map(|row| [&row.current, &row.leftovers]);
        lists.any(|list| list.open_segments.iter().any(|it| it.segment == segment))
    }

    /// Makes frees of the dead slots of segments that have been closed.
    pub fn free_closed(&mut self) {
        let (waiting, closed): (BTreeSet<_>, BTreeSet<_>) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition(|segment| self.is_open(*segment));
        self.waiting = waiting;
        for segment in closed {
            let plan = self.dead.only(&[segment]);
            self.add_free(Millis(0), plan.encode());
        }
    }

    /// The plan of a pending free.
    pub fn free(&self, id: i64) -> Result<FreePlan, CatalogError> {
        let free = self.frees.get(&id);
        let free = free.ok_or_else(|| not_found(format!("plan {id}")))?;
        FreePlan::decode(&free.plan).map_err(|error| CatalogError::Refused {
            reason: error.to_string(),
        })
    }

    /// The volume, if `epoch` is that of its current lease.
    pub fn leased(&mut self, volume: VolumeId, epoch: u32) -> Result<&mut VolumeRow, CatalogError> {
        let row = self
            .volumes
            .get_mut(&volume)
            .ok_or_else(|| not_found(volume))?;
        if row.epoch == epoch && !row.deleted {
            return Ok(row);
        }
        let reason = format!("epoch {epoch} has been followed by {}", row.epoch);
        Err(CatalogError::Fenced { volume, reason })
    }

    /// The keys of a lineage and of those that it inherits from.
    pub fn keys(&self, lineage: Lineage) -> Result<Vec<LineageKey>, CatalogError> {
        let mut keys = Vec::new();
        let mut next = Some(lineage);
        while let Some(lineage) = next {
            let row = self
                .lineages
                .get(&lineage)
                .ok_or_else(|| not_found(lineage))?;
            keys.push(row.key.clone());
            next = row.parent;
        }
        Ok(keys)
    }

    /// The neighbors of a version.
    pub fn neighbors(&self, key: VersionKey) -> Result<Neighbors, CatalogError> {
        let version = self.version(key)?;
        let parent = version
            .parent
            .map(|parent| self.version(parent).cloned())
            .transpose()?;
        let children = self
            .versions
            .values()
            .filter(|child| child.parent == Some(key))
            .cloned()
            .collect();
        let needed = self.volumes.values().any(|row| row.head == Some(key))
            || self.snapshots.values().any(|pinned| *pinned == key);
        Ok(Neighbors {
            parent,
            children,
            needed,
        })
    }
}

/// The error for something that does not exist.
pub fn not_found(what: impl std::fmt::Display) -> CatalogError {
    CatalogError::NotFound {
        what: what.to_string(),
    }
}
