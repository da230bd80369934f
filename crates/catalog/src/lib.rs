//! Floor 2: what the engine asks of a database, and the words in which both
//! speak of leases, versions and what is to be freed.
//!
//! It stands between `volume`, which has keys, and `control`, which must not
//! be able to name one: keys are here only as wrapped bytes.
//!
//! The catalog keeps names and order, never content: which version is a
//! volume's head, who may write next, which segment serials were handed out,
//! which slots wait to be freed. The sealed records it stores are opaque to
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
pub mod copysets;
mod erasure;
mod memory;
mod plan;
pub mod retention;
mod salt;
pub mod wire;

pub use wire::bytes;

pub use erasure::Erasure;
pub use memory::{MemoryCatalog, NewVolume};
pub use plan::{BadPlan, FreePlan, PLAN_BYTES_MAX};
pub use salt::{LeaseSalt, WrappedKey};

use std::ops::Range;

use base::{BlockSize, CopysetId, JournalFolderId, KeyId, Lineage, SnapshotId, UnitId, VolumeId};
use serde::{Deserialize, Serialize};
use world::Millis;

/// Names a version: the volume that committed it, and a number that grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct VersionKey {
    /// Who committed it.
    pub volume: VolumeId,
    /// Its number in that volume, from 1.
    pub number: u64,
}

/// A version as the catalog keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredVersion {
    /// Its name.
    pub key: VersionKey,
    /// The nearest kept version below it.
    pub parent: Option<VersionKey>,
    /// Whose keys open its record.
    pub lineage: Lineage,
    /// The lease it was committed under.
    pub epoch: u32,
    /// The journal record number from which on the journal is newer.
    pub journal_next: u64,
    /// When it was committed.
    pub created: Millis,
    /// The sealed record (docs/format.md, "Version record").
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
    /// Segments that are still being filled, by the slots that this and older
    /// versions use: what lies beyond is nobody's after a crash.
    pub open_segments: Vec<OpenSegment>,
    /// The first serial of the lease's ranges that was not used yet.
    pub serial_next: u64,
    /// Slots that this version is the first to name, and that some member of their
    /// copyset lacks: it is *filling* from this transaction on.
    #[serde(default)]
    pub degraded: Vec<DegradedShare>,
    /// The [`Copyset::joined`] up to which members were put on: whoever became a
    /// member later has missed this version.
    #[serde(default)]
    pub joined: u64,
    /// The same of the newest table that any of it was put by.
    #[serde(default)]
    pub joined_last: u64,
}

/// A segment that is still being filled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenSegment {
    /// The segment.
    pub segment: base::SegmentId,
    /// How many of its slots belong to committed versions.
    pub slots: u32,
}

/// A key and from which epoch on it seals.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LineageKey {
    /// Who writes with it.
    pub lineage: Lineage,
    /// The first epoch sealed with it.
    pub epoch_first: u32,
    /// The key, wrapped, or the word that there is none. A catalog that has
    /// neither has lost it.
    pub wrapped: Option<WrappedKey>,
    /// Which wrapping key did that; `None` where there is one key only.
    #[serde(default)]
    pub wrapped_by: Option<KeyId>,
    /// The salt of each lease, by its epoch, in ascending order.
    pub salts: Vec<(u32, LeaseSalt)>,
}

/// How far a restore moves a volume's log position on, in bytes: beyond
/// anything that a journal of it can hold, on whatever host.
///
/// Recovery tells what an earlier life of a journal left behind by its older
/// sequence. After a restore that does not help: the version gone back to may
/// be older still. So nothing that was written before may lie where the log
/// goes on. Rings are shorter; 2^24 restores fit in 64 bits.
pub const RESTORE_SKIPS_BYTES: u64 = 1 << 40;

/// A smaller journal could not take one large write and its destage, in bytes.
pub const JOURNAL_BYTES_MIN: u64 = 8 << 20;

/// The largest journal, in bytes: a quarter of what the log's positions skip when a volume goes
/// back to an earlier version. What lies in a journal from before must never look like the log
/// from after.
pub const JOURNAL_BYTES_MAX: u64 = RESTORE_SKIPS_BYTES / 4;

/// The right to write a volume, and all that is needed to open it.
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
    /// How many copies of each segment; 1 with `erasure`.
    pub replicas: u8,
    /// How its segments are spread instead, if they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub erasure: Option<Erasure>,
    /// The volume's own key first, then those of the volumes it was cloned
    /// from, nearest first.
    pub keys: Vec<LineageKey>,
    /// The version to start from; `None` for a new, empty volume.
    pub head: Option<StoredVersion>,
    /// The log position from which on the journal is newer than anything this
    /// volume committed: that of its last commit, and 0 before the first. A
    /// restore adds [`RESTORE_SKIPS_BYTES`] to it.
    pub journal_next: u64,
    /// The last journal that was named ([`Catalog::name_journal`]); none, if all
    /// is in versions, or in a journal that its host has for itself.
    #[serde(default)]
    pub journal: Option<NamedJournal>,
    /// The largest version number this volume ever used.
    pub number_last: u64,
    /// What earlier leases of this volume left unfinished.
    pub leftovers: Leftovers,
    /// How often the volume went back to a version. None, if the controller does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restores: Option<u64>,
}

/// A complete journal in a folder that several hosts have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedJournal {
    /// Of which lease it is.
    pub epoch: u32,
    /// Where it lies.
    pub folder: JournalFolderId,
}

/// What a crash may have left on units: see `clean::sweep`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Leftovers {
    /// Segments that were open at the last commit.
    pub open_segments: Vec<OpenSegment>,
    /// Serials handed out whose use was never committed.
    pub serials: Vec<Range<u64>>,
}

/// Slots that were put together on fewer units than they should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DegradedShare {
    /// Their segment.
    pub segment: base::SegmentId,
    /// How many.
    pub slots: u32,
    /// The members that lack them.
    #[serde(default)]
    pub lacking: Vec<UnitId>,
}

/// A set of units that holds segments together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copyset {
    /// Its number.
    pub id: CopysetId,
    /// The units, one for each replica, or those of a row's data and then those of its
    /// parity: what is put is put on these.
    pub members: Vec<UnitId>,
    /// How many of them, the first ones, have a part of the data each; 1: all have
    /// all of it.
    #[serde(default = "all_of_it", skip_serializing_if = "is_all_of_it")]
    pub data: u8,
    /// Those of them that may lack something, and do not count as a copy.
    #[serde(default)]
    pub filling: Vec<UnitId>,
    /// Units that were members and still hold what was put until then.
    #[serde(default)]
    pub leaving: Vec<Leaving>,
    /// Grows in the whole table each time a unit becomes a member of a copyset that
    /// is there already: what it was when the last of these became one.
    #[serde(default)]
    pub joined: u64,
}

fn all_of_it() -> u8 {
    1
}

fn is_all_of_it(data: &u8) -> bool {
    *data == 1
}

/// A unit that is on its way out of a copyset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leaving {
    /// In whose place the new member is: an index of [`Copyset::members`].
    pub place: u8,
    /// The unit.
    pub unit: UnitId,
}

/// How a unit stands in a copyset (docs/units.md, "Repair").
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Default,
)]
#[serde(rename_all = "kebab-case")]
pub enum MemberState {
    /// It has everything that it should have: it counts as a copy.
    #[default]
    Whole,
    /// Nothing more is put on it. It counts until what replaces it is whole.
    Leaving,
    /// It may lack something.
    Filling,
}

impl Copyset {
    /// A copyset whose members each have all of a segment, and all are whole.
    #[must_use]
    pub const fn of_copies(id: CopysetId, members: Vec<UnitId>) -> Self {
        Self {
            id,
            members,
            data: 1,
            filling: Vec::new(),
            leaving: Vec::new(),
            joined: 0,
        }
    }

    /// How its segments are spread; `None` if each member has a copy.
    #[must_use]
    pub fn erasure(&self) -> Option<Erasure> {
        let parity = u8::try_from(self.members.len())
            .ok()?
            .checked_sub(self.data)?;
        Erasure::new(self.data, parity)
    }

    /// All units that may hold something of it, at which place, and how each stands:
    /// those that are put on, in their order, and then those that leave.
    pub fn placed(&self) -> impl Iterator<Item = (u8, UnitId, MemberState)> {
        let members = (0..).zip(&self.members).map(|(place, unit)| {
            let state = match self.filling.contains(unit) {
                true => MemberState::Filling,
                false => MemberState::Whole,
            };
            (place, *unit, state)
        });
        let leaving = self.leaving.iter();
        members.chain(leaving.map(|leaving| (leaving.place, leaving.unit, MemberState::Leaving)))
    }

    /// As [`Copyset::placed`], without their places.
    pub fn standing(&self) -> impl Iterator<Item = (UnitId, MemberState)> {
        self.placed().map(|(_, unit, state)| (unit, state))
    }
}

/// Slots that wait to be freed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingFree {
    /// Names it in the catalog.
    pub id: i64,
    /// Not to be carried out earlier than this: the grace period.
    pub not_before: Millis,
    /// The slots ([`FreePlan`], encoded).
    #[serde(with = "wire::bytes")]
    pub plan: Vec<u8>,
}

/// Why the catalog refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum CatalogError {
    /// Another host holds the volume now, or its head has moved: this owner
    /// must stop (invariant 5).
    #[error("the lease on {volume} was lost: {reason}")]
    Fenced {
        /// The volume.
        volume: VolumeId,
        /// What was found.
        reason: String,
    },
    /// No such volume, version or snapshot.
    #[error("{what} does not exist")]
    NotFound {
        /// What was asked for.
        what: String,
    },
    /// What was flushed last is in a journal that this host does not reach.
    #[error("the journal of {volume} is out of reach: {reason}")]
    JournalAway {
        /// The volume.
        volume: VolumeId,
        /// Where it is.
        reason: String,
    },
    /// The change is refused for a reason that will not go away by itself.
    #[error("{reason}")]
    Refused {
        /// The reason.
        reason: String,
    },
    /// It was done on units that were members of a copyset, and others are now: it is
    /// to be done again, on those.
    #[error("members have changed: {reason}")]
    MembersChanged {
        /// Where, and what was found.
        reason: String,
    },
    /// The database did not answer; trying again may help.
    #[error("the catalog is not available: {reason}")]
    Unavailable {
        /// What it said.
        reason: String,
    },
}

impl CatalogError {
    /// Whether the lease was lost: trying again cannot help.
    #[must_use]
    pub fn is_fenced(&self) -> bool {
        matches!(self, Self::Fenced { .. })
    }
}

/// The database, as the engine sees it.
pub trait Catalog: Send + Sync {
    /// Takes the lease on a volume: a new epoch, whose key `salt` makes,
    /// durable on return. Whoever held it before is fenced.
    ///
    /// The salt is the host's own, fresh from its randomness: whoever sets the
    /// database back makes epochs repeat, but never a key. `journals` is the
    /// folder of journals that it shares with other hosts, if it has one.
    ///
    /// # Errors
    /// [`CatalogError`]; [`CatalogError::JournalAway`] if a journal is named in
    /// another folder, and nobody has given it up.
    fn acquire(
        &self,
        volume: VolumeId,
        salt: LeaseSalt,
        journals: Option<JournalFolderId>,
    ) -> Result<Lease, CatalogError>;

    /// Notes that this lease's journal in `folder` is complete and durable, and
    /// takes the place of the one that was named before; `None`: that no named
    /// one is needed any more. Durable on return.
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
    /// [`CatalogError::MembersChanged`] if it was put by so old a table that too few of
    /// the members that have it are left: it was not committed and never will be, and
    /// what it names is to be put anew.
    fn commit(&self, commit: &VersionCommit) -> Result<(), CatalogError>;

    /// Hands out `count` segment serials that nobody ever had, noted as this
    /// lease's. The first serial of all is 1: location 0 is a hole in the map.
    ///
    /// # Errors
    /// [`CatalogError::Fenced`] if `epoch` is not the volume's epoch.
    fn reserve_serials(
        &self,
        volume: VolumeId,
        epoch: u32,
        count: u32,
    ) -> Result<Range<u64>, CatalogError>;

    /// Forgets the leftovers of earlier leases, after they have been swept.
    ///
    /// # Errors
    /// [`CatalogError::Fenced`] if `epoch` is not the volume's epoch.
    fn swept(&self, volume: VolumeId, epoch: u32) -> Result<(), CatalogError>;

    /// A kept version.
    ///
    /// # Errors
    /// [`CatalogError::NotFound`].
    fn version(&self, key: VersionKey) -> Result<StoredVersion, CatalogError>;

    /// The kept versions whose parent is `key`, and whether a volume's head or
    /// a snapshot needs `key` itself.
    ///
    /// # Errors
    /// [`CatalogError::NotFound`].
    fn neighbours(&self, key: VersionKey) -> Result<Neighbours, CatalogError>;

    /// The keys that open what `lineage` wrote or inherited, its own first.
    ///
    /// # Errors
    /// [`CatalogError::NotFound`].
    fn keys(&self, lineage: Lineage) -> Result<Vec<LineageKey>, CatalogError>;

    /// Removes a version that nothing needs, gives its children to its parent,
    /// and notes which slots are to be freed after `not_before`. All or
    /// nothing. Refused if the version is needed, or its children or parent
    /// are no longer those the plan was made for.
    ///
    /// # Errors
    /// [`CatalogError::Refused`].
    fn remove_version(
        &self,
        key: VersionKey,
        neighbours: &Neighbours,
        not_before: Millis,
        plan: &[u8],
    ) -> Result<(), CatalogError>;

    /// The first frees that are due and whose ids are above `after` (0: from
    /// the first one), by id: one if there is any, `count_max` at most, and
    /// fewer where the catalog gives no more at a time. All of them together
    /// may not fit in memory.
    ///
    /// # Errors
    /// [`CatalogError`].
    fn due_frees(
        &self,
        now: Millis,
        after: i64,
        count_max: u32,
    ) -> Result<Vec<PendingFree>, CatalogError>;

    /// Gathers what free `id` says of `segments` with what was gathered of them
    /// before: slots that are dead and cannot be given back alone, because parity is
    /// made of them. Returns all that is gathered of those of them that are not being
    /// appended to ([`FreePlan`], encoded); durable on return. To gather twice is to
    /// gather once. For the others there is a free of its own as soon as a commit, a
    /// sweep or the end of their volume has closed them.
    ///
    /// # Errors
    /// [`CatalogError::NotFound`] if there is no such free, which was then carried
    /// out by somebody else.
    fn gather_dead(&self, id: i64, segments: &[base::SegmentId]) -> Result<Vec<u8>, CatalogError>;

    /// Forgets what was gathered of those of `segments` that free `id` names: they
    /// are gone.
    ///
    /// # Errors
    /// As [`Catalog::gather_dead`].
    fn forget_dead(&self, id: i64, segments: &[base::SegmentId]) -> Result<(), CatalogError>;

    /// The newest [`Copyset::joined`] of all: whoever knows the members up to that
    /// knows all of them.
    ///
    /// # Errors
    /// [`CatalogError`].
    fn joined(&self) -> Result<u64, CatalogError>;

    /// Forgets a free that has been carried out on the members up to `joined`.
    ///
    /// # Errors
    /// [`CatalogError::MembersChanged`] if another unit has become one since: it may
    /// have what was freed, and the free is to be carried out once more.
    fn freed(&self, id: i64, joined: u64) -> Result<(), CatalogError>;
}

/// The versions around one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Neighbours {
    /// The nearest kept version below.
    pub parent: Option<StoredVersion>,
    /// The nearest kept versions above.
    pub children: Vec<StoredVersion>,
    /// A head or a snapshot needs the version: it must stay.
    pub needed: bool,
}
