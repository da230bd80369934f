//! The calls of the host RPC that the engine's catalog answers. Unless its sentence says otherwise,
//! a call and its answer are those of the method of [`catalog::Catalog`] that has its name.

#![expect(
    missing_docs,
    reason = "a field is a parameter of the method, or named by the sentence"
)]

use std::ops::Range;

use base::{CopysetId, JournalFolderId, KeyId, Lineage, SegmentId, UnitId, VolumeId};
use catalog::{
    Lease, LeaseSalt, LineageKey, Neighbors, PendingFree, StoredVersion, VersionCommit, VersionKey,
    WrappedKey,
};
use serde::{Deserialize, Serialize};
use world::Millis;

use super::rpc::calls;
use super::{CatalogAnswer, RepairJob, RepairOutcome, RepairProgress, Suspicion, WrappedRow};

/// The largest number of units in one [`NoteLeases`]; no cluster has as many.
pub const NOTED_MAX: usize = 4096;

/// The largest number of plans in the answer to [`DueFrees`]. Each has up to 1 MiB.
pub const FREES_MAX: u32 = 16;

/// The largest number of rows in the answer to [`WrappedBy`].
pub const ROWS_MAX: u32 = 1024;

/// The longest call, in bytes. The longest part is the free plan of a removed version: up to a
/// bit for each slot of its segments, and a third more in base64. This is enough for 6 TiB
/// that are scattered as badly as possible, and for far more otherwise.
const PLAN_BYTES_MAX: usize = 256 << 20;

calls! {
    /// A call of the engine's catalog.
    enum CatalogCall;

    Acquire = "acquire" {
        volume: VolumeId,
        salt: LeaseSalt,
        journals: Option<JournalFolderId>,
    } -> CatalogAnswer<Lease>;
    NameJournal = "name-journal" {
        volume: VolumeId,
        epoch: u32,
        folder: Option<JournalFolderId>,
    } -> CatalogAnswer<()>;
    /// Stores the first key of a lineage.
    SetKey = "set-key" {
        volume: VolumeId,
        lineage: Lineage,
        key: KeyId,
        wrapped: WrappedKey,
    } -> CatalogAnswer<()>;
    /// Lists the data keys that `key` wraps, in the order of their lineages: the first `count_max`
    /// of those that come after `after`, [`ROWS_MAX`] at most.
    WrappedBy = "wrapped-by" {
        key: KeyId,
        after: Option<Lineage>,
        count_max: u32,
    } -> CatalogAnswer<Vec<WrappedRow>>;
    /// Replaces a data key that `from` wraps by the same one, wrapped by `to`. The answer is
    /// `false` if the bytes `before` are not there any more: it was done already, or is not needed.
    Rewrap = "rewrap" {
        lineage: Lineage,
        from: KeyId,
        to: KeyId,
        before: WrappedKey,
        after: WrappedKey,
    } -> CatalogAnswer<bool>;
    /// Counts the leases that were ever granted.
    Leases = "leases" {} -> CatalogAnswer<u64>;
    Commit = "commit" { commit: VersionCommit } -> CatalogAnswer<()>
        [BODY_BYTES_MAX: usize = PLAN_BYTES_MAX];
    ReserveSerials = "reserve-serials" {
        volume: VolumeId,
        epoch: u32,
        count: u32,
    } -> CatalogAnswer<Range<u64>>;
    /// Takes a copyset that needs repair, if there is one. This host keeps it for
    /// [`REPAIR_TERM_MS`](super::REPAIR_TERM_MS).
    TakeRepair = "repair-take" {} -> CatalogAnswer<Option<RepairJob>>;
    /// Reports the progress of a repair. Returns its state, or `None` if another host has the
    /// copyset. This host keeps it for another [`REPAIR_TERM_MS`](super::REPAIR_TERM_MS).
    ReportRepair = "repair-report" {
        copyset: CopysetId,
        progress: RepairProgress,
    } -> CatalogAnswer<Option<RepairJob>>;
    /// Releases a copyset with the outcome of its repair. The answer is `false` if another host had
    /// it.
    EndRepair = "repair-end" { copyset: CopysetId, end: RepairOutcome } -> CatalogAnswer<bool>;
    /// Reports a rejoined unit. The answer is `false` if this host has reported it before and some
    /// copyset of the unit is not in sync since: then it has to be reported again.
    SuspectUnit = "suspect-unit" {
        unit: UnitId,
        suspicion: Suspicion,
    } -> CatalogAnswer<bool>;
    /// Reports the lease counts that this host has durably recorded on units, at most
    /// [`NOTED_MAX`].
    NoteLeases = "note-leases" { units: Vec<(UnitId, u64)> } -> CatalogAnswer<()>;
    /// Lists the lease counts that hosts have recorded on units.
    NotedLeases = "noted-leases" {} -> CatalogAnswer<Vec<(UnitId, u64)>>;
    Swept = "swept" { volume: VolumeId, epoch: u32 } -> CatalogAnswer<()>;
    Version = "version" { key: VersionKey } -> CatalogAnswer<StoredVersion>;
    NeighborsOf = "neighbors" { key: VersionKey } -> CatalogAnswer<Neighbors>;
    Keys = "keys" { lineage: Lineage } -> CatalogAnswer<Vec<LineageKey>>;
    RemoveVersion = "remove-version" {
        key: VersionKey,
        neighbors: Neighbors,
        not_before: Millis,
        plan: EncodedPlan,
    } -> CatalogAnswer<()> [BODY_BYTES_MAX: usize = PLAN_BYTES_MAX];
    /// Reports that the leftovers of a deleted volume were swept.
    FinishDelete = "finish-delete" { volume: VolumeId } -> CatalogAnswer<()>;
    /// The answer has [`FREES_MAX`] plans at most.
    DueFrees = "due-frees" {
        now: Millis,
        after: i64,
        count_max: u32,
    } -> CatalogAnswer<Vec<PendingFree>>;
    Joined = "joined" {} -> CatalogAnswer<u64>;
    GatherDead = "gather-dead" { id: i64, segments: Vec<SegmentId> } -> CatalogAnswer<EncodedPlan>
        [BODY_BYTES_MAX: usize = PLAN_BYTES_MAX];
    ForgetDead = "forget-dead" { id: i64, segments: Vec<SegmentId> } -> CatalogAnswer<()>
        [BODY_BYTES_MAX: usize = PLAN_BYTES_MAX];
    Freed = "freed" { id: i64, joined: u64 } -> CatalogAnswer<()>;
}

/// A [`catalog::FreePlan`], encoded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EncodedPlan(#[serde(with = "catalog::bytes")] pub Vec<u8>);

#[cfg(test)]
mod tests {
    use super::super::{Call, ControllerCall, HostCall};
    use super::*;

    #[test]
    fn calls_are_read_as_they_are_written() {
        let lineage = Lineage::from_u128(7);
        for (call, json) in [
            (CatalogCall::from(Leases {}), "{}".to_owned()),
            (
                Freed { id: 7, joined: 3 }.into(),
                r#"{"id":7,"joined":3}"#.to_owned(),
            ),
            (
                Keys { lineage }.into(),
                format!(r#"{{"lineage":"{lineage}"}}"#),
            ),
        ] {
            assert_eq!(serde_json::to_string(&call).expect("JSON"), json);
            let read = HostCall::read(call.name(), json.as_bytes());
            let read = read.expect("a call").expect("its fields");
            assert_eq!(read, HostCall::Catalog(call));
        }
        assert!(CatalogCall::read("freed", b"{}").is_some_and(|read| read.is_err()));
        let wrong = br#"{"id":"7","joined":3}"#;
        assert!(CatalogCall::read("freed", wrong).is_some_and(|read| read.is_err()));
        assert!(CatalogCall::read("free", b"{}").is_none());
    }

    #[test]
    fn each_call_has_a_unique_name_and_a_size_limit() {
        let names = ControllerCall::NAMES.iter().chain(CatalogCall::NAMES);
        let mut seen = std::collections::HashSet::new();
        for name in names {
            assert!(seen.insert(name), "{name}");
            assert_eq!(HostCall::known_name(name), Some(*name));
            assert!(HostCall::body_bytes_max(name).is_some(), "{name}");
        }
        assert_eq!(HostCall::known_name("free"), None);
        assert_eq!(HostCall::body_bytes_max(Freed::NAME), Some(2 << 20));
        assert_eq!(HostCall::body_bytes_max(Commit::NAME), Some(256 << 20));
    }

    /// A call of 256 MiB was once read into memory as a tree of values.
    #[test]
    fn unknown_fields_of_a_call_are_ignored() {
        // A number that no type holds: only parsing it would fail.
        let json = br#"{"x":[[0],[1e999]],"id":7,"joined":0}"#;
        let call = CatalogCall::read("freed", json)
            .expect("a call")
            .expect("its fields");
        assert_eq!(call, Freed { id: 7, joined: 0 }.into());
    }
}
