//! The engine's catalog, asked for over HTTP.

use base::{JournalFolderId, KeyId, Lineage, SegmentId, VolumeId};
use catalog::{
    CatalogError, LeaseSalt, Neighbours, ThinShare, VersionCommit, VersionKey, WrappedKey,
};
use serde::{Deserialize, Serialize};
use world::Millis;

/// A host is told of so many plans at a time at most, each of up to 1 MiB
/// ([`CatalogCall::DueFrees`]).
pub const FREES_MAX: u32 = 16;

/// And of so many rows of other kinds ([`CatalogCall::WrappedBy`],
/// [`CatalogCall::ThinSegments`]).
pub const ROWS_MAX: u32 = 1024;

/// A call of the catalog. Its answer is JSON of what [`catalog::Catalog`]'s
/// method of that name returns, or of what is said here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "call", rename_all = "kebab-case")]
#[expect(missing_docs, reason = "the fields are those of the methods")]
pub enum CatalogCall {
    /// [`catalog::Catalog::acquire`].
    Acquire {
        volume: VolumeId,
        salt: LeaseSalt,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        journals: Option<JournalFolderId>,
    },
    /// [`catalog::Catalog::name_journal`].
    NameJournal {
        volume: VolumeId,
        epoch: u32,
        folder: Option<JournalFolderId>,
    },
    /// Keeps the first key of a lineage.
    SetKey {
        volume: VolumeId,
        lineage: Lineage,
        key: KeyId,
        wrapped: WrappedKey,
    },
    /// Data keys that `key` wraps: the first `count_max` of those whose
    /// lineages come after `after`, in their order, [`ROWS_MAX`] at most.
    /// `Vec<WrappedRow>`.
    WrappedBy {
        key: KeyId,
        after: Option<Lineage>,
        count_max: u32,
    },
    /// Puts the same data key, wrapped by `to`, in the place of what `from`
    /// wrapped. `false` if those bytes are no longer there: then it was done,
    /// or is not needed.
    Rewrap {
        lineage: Lineage,
        from: KeyId,
        to: KeyId,
        before: WrappedKey,
        after: WrappedKey,
    },
    /// How many leases were ever given: `u64`.
    Leases {},
    /// [`catalog::Catalog::commit`].
    Commit { commit: VersionCommit },
    /// [`catalog::Catalog::reserve_serials`].
    ReserveSerials {
        volume: VolumeId,
        epoch: u32,
        count: u32,
    },
    /// [`catalog::Catalog::note_thin`].
    NoteThin {
        volume: VolumeId,
        thin: Vec<ThinShare>,
    },
    /// Segments above `after` that were noted so, at most `count_max` and [`ROWS_MAX`].
    ThinSegments { after: u64, count_max: u32 },
    /// Those have gone.
    ForgetThin { segments: Vec<SegmentId> },
    /// [`catalog::Catalog::swept`].
    Swept { volume: VolumeId, epoch: u32 },
    /// [`catalog::Catalog::version`].
    Version { key: VersionKey },
    /// [`catalog::Catalog::neighbours`].
    Neighbours { key: VersionKey },
    /// [`catalog::Catalog::keys`].
    Keys { lineage: Lineage },
    /// [`catalog::Catalog::remove_version`].
    RemoveVersion {
        key: VersionKey,
        neighbours: Box<Neighbours>,
        not_before: Millis,
        plan: EncodedPlan,
    },
    /// What a deleted volume left was swept.
    FinishDelete { volume: VolumeId },
    /// [`catalog::Catalog::due_frees`], of [`FREES_MAX`] at most.
    DueFrees {
        now: Millis,
        after: i64,
        count_max: u32,
    },
    /// [`catalog::Catalog::freed`].
    Freed { id: i64 },
}

/// What the catalog says.
pub type CatalogAnswer<T> = Result<T, CatalogError>;

/// A [`catalog::FreePlan`], encoded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EncodedPlan(#[serde(with = "catalog::bytes")] pub Vec<u8>);
