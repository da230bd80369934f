//! The database as the engine sees it ([`Catalog`]), and the types of
//! leases, versions and pending frees that both share.
//!
//! It is between `volume`, which has keys, and `control`, which must not be able to name one: keys
//! appear here only as wrapped bytes.
//!
//! The catalog keeps names and order, never content: which version is a
//! volume's head, which lease may write, which segment serials are reserved,
//! which slots wait to be freed. The sealed records that it stores are opaque to
//! it (invariant 3). All calls may wait and belong on a pool thread.
//!
//! Versions form a tree. A version's parent is the version it was committed
//! on top of; removing one hands its children to its parent. A version is
//! *kept* as long as the catalog has it.
//!
//! ```text
//!   v1 ── v2 ── v3 ── v5 ── v6 ── v7        head of vol-a
//!                │     └ snapshot "monday"
//!                └──── w1 ── w2             head of vol-b, a clone of v3
//! ```

pub mod conformance;
mod copyset;
pub mod copysets;
mod erasure;
mod error;
mod memory;
mod plan;
pub mod retention;
mod salt;
pub mod wire;

pub use wire::bytes;

pub use copyset::{Copyset, DrainingMember, MemberState};
pub use erasure::Erasure;
pub use error::CatalogError;
pub use memory::{MemoryCatalog, NewVolume};
pub use plan::{BadPlan, FreePlan, PLAN_BYTES_MAX};
pub use salt::{LeaseSalt, WrappedKey};

use std::ops::Range;

use base::{BlockSize, JournalFolderId, KeyId, Lineage, SnapshotId, UnitId, VolumeId};
use serde::{Deserialize, Serialize};
use world::Millis;

/// The key of a version: the volume that committed it, and a number that grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct VersionKey {
    /// The volume that committed it.
    pub volume: VolumeId,
    /// Its number in that volume, from 1.
    pub number: u64,
}

/// A version as the catalog keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredVersion {
    /// The version's key.
    pub key: VersionKey,
    /// Its parent: the nearest kept version of which it is a descendant.
    pub parent: Option<VersionKey>,
    /// The lineage whose keys open its record.
    pub lineage: Lineage,
    /// The lease it was committed under.
    pub epoch: u32,
    /// The log position from which on the journal is newer.
    pub journal_next: u64,
    /// When it was committed.
    pub created: Millis,
    /// The sealed record (docs/internals/formats.md, "Version record").
    #[serde(with = "wire::bytes")]
    pub record: Vec<u8>,
}

/// A version to be committed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VersionCommit {
    /// The new version. Its parent is the head that must still be in place.
    pub version: StoredVersion,
    /// Snapshots that this version completes, in the same transaction.
    pub pins: Vec<SnapshotId>,
    /// Segments that are still being filled, with the slots that this and older
    /// versions use: slots beyond are leftovers after a crash.
    pub open_segments: Vec<OpenSegment>,
    /// The first reserved serial that is not used yet.
    pub serial_next: u64,
    /// New slots of this version that some member of their copyset is missing: the
    /// member is *rebuilding* from this transaction on.
    pub degraded: Vec<DegradedShare>,
    /// The [`Copyset::joined`] of the oldest table that its slots were placed by: a
    /// unit that became a member later has missed this version.
    pub joined: u64,
    /// The [`Copyset::joined`] of the newest such table.
    pub joined_last: u64,
}

/// A segment that is still being filled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenSegment {
    /// The segment.
    pub segment: base::SegmentId,
    /// The number of its slots that belong to committed versions.
    pub slots: u32,
}

/// A lineage's data key, wrapped, and the epochs that it seals.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LineageKey {
    /// The lineage that seals with it.
    pub lineage: Lineage,
    /// The first epoch that is sealed with it.
    pub epoch_first: u32,
    /// The wrapped key, or a wrapped statement that there is none. `None` if the
    /// catalog has lost it.
    pub wrapped: Option<WrappedKey>,
    /// The id of the wrapping key; `None` where there is only one.
    pub wrapped_by: Option<KeyId>,
    /// The salt of each lease, by its epoch, in ascending order.
    pub salts: Vec<(u32, LeaseSalt)>,
}

/// How far a restore advances a volume's log position, in bytes: beyond anything that
/// a journal of the volume can hold, on any host.
///
/// Recovery recognizes records of an earlier lap by their older sequence. After a
/// restore that does not help: the restored version may be older still. So no earlier
/// record may lie where the log continues. Rings are shorter than this; 2^24 restores
/// fit in 64 bits.
pub const RESTORE_SKIPS_BYTES: u64 = 1 << 40;

/// The smallest journal, in bytes: room for one large write and its destage.
pub const JOURNAL_BYTES_MIN: u64 = 8 << 20;

/// The largest journal, in bytes: a quarter of [`RESTORE_SKIPS_BYTES`], so that records from
/// before a restore never look like the log after it.
pub const JOURNAL_BYTES_MAX: u64 = RESTORE_SKIPS_BYTES / 4;

/// The right to write a volume, with everything needed to open it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// The volume.
    pub volume: VolumeId,
    /// The lease's epoch: larger than every earlier one of this volume, and
    /// stored before this was returned (invariant 7).
    pub epoch: u32,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Block size.
    pub block_size: BlockSize,
    /// The number of copies of each segment; 1 with `erasure`.
    pub replicas: u8,
    /// The erasure code of its segments, if they are not copied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub erasure: Option<Erasure>,
    /// The volume's own key first, then those of the volumes it was cloned
    /// from, nearest first.
    pub keys: Vec<LineageKey>,
    /// The newest version; `None` for a new, empty volume.
    pub head: Option<StoredVersion>,
    /// The log position from which on the journal is newer than every committed
    /// version: that of the last commit, 0 before the first. A restore adds
    /// [`RESTORE_SKIPS_BYTES`] to it.
    pub journal_next: u64,
    /// The last journal that was named ([`Catalog::name_journal`]); `None` if all
    /// writes are in versions or in a host's own journal.
    pub journal: Option<NamedJournal>,
    /// The largest version number this volume ever used.
    pub number_last: u64,
    /// What earlier leases of this volume may have left on units.
    pub leftovers: Leftovers,
    /// How many times the volume was restored; `None` if the controller does not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restores: Option<u64>,
}

/// A complete journal in a folder that several hosts share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedJournal {
    /// The epoch of its lease.
    pub epoch: u32,
    /// The folder that it lies in.
    pub folder: JournalFolderId,
}

/// What a crash may have left on units; `volume::clean::sweep` frees it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Leftovers {
    /// Segments that were open at the last commit.
    pub open_segments: Vec<OpenSegment>,
    /// Reserved serials whose use was never committed.
    pub serials: Vec<Range<u64>>,
}

/// Slots that were written to fewer units than required.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DegradedShare {
    /// The segment of the slots.
    pub segment: base::SegmentId,
    /// The number of slots.
    pub slots: u32,
    /// The members that are missing them.
    pub lacking: Vec<UnitId>,
}

/// Dead slots that wait to be freed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingFree {
    /// Its id in the catalog.
    pub id: i64,
    /// The end of the grace period: slots are not freed before.
    pub not_before: Millis,
    /// The slots, as an encoded [`FreePlan`].
    #[serde(with = "wire::bytes")]
    pub plan: Vec<u8>,
}

/// The database, as the engine sees it.
pub trait Catalog: Send + Sync {
    /// Acquires the lease on a volume: a new epoch, whose key is derived with `salt`.
    /// Durable on return. The previous holder is fenced.
    ///
    /// The salt is the host's own, fresh from its randomness: a database that is
    /// rolled back may repeat epochs, but never a key. `journals` is the folder of
    /// journals that the host shares with others, if it has one.
    ///
    /// # Errors
    /// [`CatalogError`]; [`CatalogError::JournalUnavailable`] if a journal is named in
    /// another folder and has not been given up.
    fn acquire(
        &self,
        volume: VolumeId,
        salt: LeaseSalt,
        journals: Option<JournalFolderId>,
    ) -> Result<Lease, CatalogError>;

    /// Names this lease's journal in `folder`, which is complete and durable, instead
    /// of the one named before; `None` if no named journal is needed any more. Durable
    /// on return.
    ///
    /// # Errors
    /// [`CatalogError::Fenced`] if `epoch` is not the volume's epoch.
    fn name_journal(
        &self,
        volume: VolumeId,
        epoch: u32,
        folder: Option<JournalFolderId>,
    ) -> Result<(), CatalogError>;

    /// Commits a version if `version.epoch` is the volume's epoch and
    /// `version.parent` its head; completes the pinned snapshots. All or
    /// nothing, durable on return.
    ///
    /// # Errors
    /// [`CatalogError::Fenced`] if either does not hold.
    /// [`CatalogError::MembersChanged`] if it was placed by so old a table that too few
    /// of the members that have it are left: it will never be committed, and its slots
    /// have to be placed again.
    fn commit(&self, commit: &VersionCommit) -> Result<(), CatalogError>;

    /// Reserves `count` segment serials for this lease, which were never used before.
    /// The first serial of all is 1: location 0 is a hole in the map.
    ///
    /// # Errors
    /// [`CatalogError::Fenced`] if `epoch` is not the volume's epoch.
    fn reserve_serials(
        &self,
        volume: VolumeId,
        epoch: u32,
        count: u32,
    ) -> Result<Range<u64>, CatalogError>;

    /// Deletes the leftovers of earlier leases, which have been swept.
    ///
    /// # Errors
    /// [`CatalogError::Fenced`] if `epoch` is not the volume's epoch.
    fn finish_sweep(&self, volume: VolumeId, epoch: u32) -> Result<(), CatalogError>;

    /// Returns a kept version.
    ///
    /// # Errors
    /// [`CatalogError::NotFound`].
    fn version(&self, key: VersionKey) -> Result<StoredVersion, CatalogError>;

    /// Returns the parent and children of `key`, and whether a volume's head or a
    /// snapshot needs `key` itself.
    ///
    /// # Errors
    /// [`CatalogError::NotFound`].
    fn neighbors(&self, key: VersionKey) -> Result<Neighbors, CatalogError>;

    /// Returns the keys that open what `lineage` wrote or inherited, its own first.
    ///
    /// # Errors
    /// [`CatalogError::NotFound`].
    fn keys(&self, lineage: Lineage) -> Result<Vec<LineageKey>, CatalogError>;

    /// Removes a version that nothing needs, passes its children to its parent, and
    /// records a free of the slots in `plan` after `not_before`. All or nothing.
    /// Refused if the version is needed, or its children or parent are no longer
    /// `neighbors`.
    ///
    /// # Errors
    /// [`CatalogError::Refused`].
    fn remove_version(
        &self,
        key: VersionKey,
        neighbors: &Neighbors,
        not_before: Millis,
        plan: &[u8],
    ) -> Result<(), CatalogError>;

    /// Returns the first frees that are due and whose ids are above `after` (0 for
    /// all), by id: at least one if there is any, at most `count_max`, and fewer if
    /// the catalog limits them. All of them together may not fit in memory.
    ///
    /// # Errors
    /// [`CatalogError`].
    fn due_frees(
        &self,
        now: Millis,
        after: i64,
        count_max: u32,
    ) -> Result<Vec<PendingFree>, CatalogError>;

    /// Collects the slots of `segments` that free `id` names: they are dead and cannot
    /// be freed alone, because parity is made of them. Returns all slots collected so
    /// far in those of the segments that are closed, as an encoded [`FreePlan`];
    /// durable on return and idempotent. Open segments get a free of their own once a
    /// commit, a sweep or the deletion of their volume has closed them.
    ///
    /// # Errors
    /// [`CatalogError::NotFound`] if there is no such free: another host has carried
    /// it out.
    fn gather_dead_slots(
        &self,
        id: i64,
        segments: &[base::SegmentId],
    ) -> Result<Vec<u8>, CatalogError>;

    /// Forgets the collected slots of those of `segments` that free `id` names: the
    /// segments were deleted.
    ///
    /// # Errors
    /// As [`Catalog::gather_dead_slots`].
    fn forget_dead(&self, id: i64, segments: &[base::SegmentId]) -> Result<(), CatalogError>;

    /// Returns the largest [`Copyset::joined`]: a table with that value contains all
    /// members.
    ///
    /// # Errors
    /// [`CatalogError`].
    fn joined(&self) -> Result<u64, CatalogError>;

    /// Forgets a free that was carried out with a table whose value is `joined`.
    ///
    /// # Errors
    /// [`CatalogError::MembersChanged`] if another unit has joined since: it may have
    /// what was freed, and the free has to be repeated.
    fn finish_free(&self, id: i64, joined: u64) -> Result<(), CatalogError>;
}

/// The neighbors of a version in the version tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Neighbors {
    /// The nearest kept version of which it is a descendant.
    pub parent: Option<StoredVersion>,
    /// The kept versions of which it is the parent.
    pub children: Vec<StoredVersion>,
    /// A head or a snapshot needs the version: it must stay.
    pub needed: bool,
}
