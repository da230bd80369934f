//! The engine's catalog, asked for over HTTP.

use base::{CopysetId, JournalFolderId, KeyId, Lineage, SegmentId, UnitId, VolumeId};
use catalog::{CatalogError, LeaseSalt, Neighbours, VersionCommit, VersionKey, WrappedKey};
use serde::de::Error as _;
use serde::{Deserialize, Serialize};
use world::Millis;

use super::repair::{RepairEnd, RepairProgress, Suspicion};

/// A host says of no more units at once how many leases it has noted there: no cluster has
/// as many.
pub const NOTED_MAX: usize = 4096;

/// A host is told of so many plans at a time at most, each of up to 1 MiB
/// ([`CatalogCall::DueFrees`]).
pub const FREES_MAX: u32 = 16;

/// And of so many rows of other kinds ([`CatalogCall::WrappedBy`]).
pub const ROWS_MAX: u32 = 1024;

/// The calls, each with the word that names it and its fields.
///
/// In JSON they are one object, `{"call": WORD, …}`, as serde writes an internally
/// tagged enum. Reading such a one it keeps the whole object as a tree before it
/// knows what is wanted of it, many times as long as its bytes. So each is read
/// from its bytes here, once its word is known, and what it does not have is
/// passed over.
macro_rules! calls {
    ($($(#[$doc:meta])* $call:ident = $word:literal {
        $($(#[$how:meta])* $field:ident: $type:ty),* $(,)?
    },)+) => {
        /// A call of the catalog. Its answer is JSON of what [`catalog::Catalog`]'s
        /// method of that name returns, or of what is said here.
        #[derive(Debug, Clone, PartialEq, Eq, Serialize)]
        #[serde(tag = "call")]
        #[expect(missing_docs, reason = "the fields are those of the methods")]
        pub enum CatalogCall {
            $($(#[$doc])* #[serde(rename = $word)] $call { $($(#[$how])* $field: $type),* },)+
        }

        impl CatalogCall {
            /// The call that `word` names, of an object that says so (`call`). Fields
            /// that it does not have are passed over.
            ///
            /// # Errors
            /// If there is none of that name, or `json` is not an object with its
            /// fields.
            pub fn read(word: &str, json: &[u8]) -> serde_json::Result<Self> {
                match word {
                    $($word => {
                        #[derive(Deserialize)]
                        struct Fields { $($(#[$how])* $field: $type),* }

                        let Fields { $($field),* } = serde_json::from_slice(json)?;
                        Ok(Self::$call { $($field),* })
                    })+
                    other => {
                        // It may be of any length, and is told.
                        let begin: String = other.chars().take(32).collect();
                        Err(serde_json::Error::unknown_variant(&begin, &[$($word),+]))
                    }
                }
            }
        }
    };
}

calls! {
    /// [`catalog::Catalog::acquire`].
    Acquire = "acquire" {
        volume: VolumeId,
        salt: LeaseSalt,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        journals: Option<JournalFolderId>,
    },
    /// [`catalog::Catalog::name_journal`].
    NameJournal = "name-journal" {
        volume: VolumeId,
        epoch: u32,
        folder: Option<JournalFolderId>,
    },
    /// Keeps the first key of a lineage.
    SetKey = "set-key" {
        volume: VolumeId,
        lineage: Lineage,
        key: KeyId,
        wrapped: WrappedKey,
    },
    /// Data keys that `key` wraps: the first `count_max` of those whose
    /// lineages come after `after`, in their order, [`ROWS_MAX`] at most.
    /// `Vec<WrappedRow>`.
    WrappedBy = "wrapped-by" {
        key: KeyId,
        after: Option<Lineage>,
        count_max: u32,
    },
    /// Puts the same data key, wrapped by `to`, in the place of what `from`
    /// wrapped. `false` if those bytes are no longer there: then it was done,
    /// or is not needed.
    Rewrap = "rewrap" {
        lineage: Lineage,
        from: KeyId,
        to: KeyId,
        before: WrappedKey,
        after: WrappedKey,
    },
    /// How many leases were ever given: `u64`.
    Leases = "leases" {},
    /// [`catalog::Catalog::commit`].
    Commit = "commit" { commit: VersionCommit },
    /// [`catalog::Catalog::reserve_serials`].
    ReserveSerials = "reserve-serials" {
        volume: VolumeId,
        epoch: u32,
        count: u32,
    },
    /// Takes a copyset that is to be repaired, if there is one: `Option<RepairTask>`. It
    /// is this host's for [`REPAIR_TERM_MS`](super::REPAIR_TERM_MS).
    RepairTake = "repair-take" {},
    /// How it is now, `Option<RepairTask>`; it stays this host's for another
    /// [`REPAIR_TERM_MS`](super::REPAIR_TERM_MS). `None` if it is another's.
    RepairLook = "repair-look" {
        copyset: CopysetId,
        progress: RepairProgress,
    },
    /// It is nobody's any more: what came of it.
    RepairEnd = "repair-end" { copyset: CopysetId, end: RepairEnd },
    /// A unit has come back. `false` if this host has said so before, and some copyset of
    /// the unit is not whole since: then it is to be said again.
    SuspicionUnit = "suspicion-unit" { unit: UnitId, suspicion: Suspicion },
    /// This host has made units know of so many leases, durably: of [`NOTED_MAX`] at most.
    NoteLeases = "note-leases" { units: Vec<(UnitId, u64)> },
    /// How many leases were noted on each unit, as hosts have said:
    /// `Vec<(UnitId, u64)>`.
    NotedLeases = "noted-leases" {},
    /// [`catalog::Catalog::swept`].
    Swept = "swept" { volume: VolumeId, epoch: u32 },
    /// [`catalog::Catalog::version`].
    Version = "version" { key: VersionKey },
    /// [`catalog::Catalog::neighbours`].
    Neighbours = "neighbours" { key: VersionKey },
    /// [`catalog::Catalog::keys`].
    Keys = "keys" { lineage: Lineage },
    /// [`catalog::Catalog::remove_version`].
    RemoveVersion = "remove-version" {
        key: VersionKey,
        neighbours: Box<Neighbours>,
        not_before: Millis,
        plan: EncodedPlan,
    },
    /// What a deleted volume left was swept.
    FinishDelete = "finish-delete" { volume: VolumeId },
    /// [`catalog::Catalog::due_frees`], of [`FREES_MAX`] at most.
    DueFrees = "due-frees" {
        now: Millis,
        after: i64,
        count_max: u32,
    },
    /// [`catalog::Catalog::joined`].
    Joined = "joined" {},
    /// [`catalog::Catalog::gather_dead`]: [`EncodedPlan`].
    GatherDead = "gather-dead" { id: i64, segments: Vec<SegmentId> },
    /// [`catalog::Catalog::forget_dead`].
    ForgetDead = "forget-dead" { id: i64, segments: Vec<SegmentId> },
    /// [`catalog::Catalog::freed`].
    Freed = "freed" {
        id: i64,
        #[serde(default)]
        joined: u64,
    },
}

/// What the catalog says.
pub type CatalogAnswer<T> = Result<T, CatalogError>;

/// A [`catalog::FreePlan`], encoded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EncodedPlan(#[serde(with = "catalog::bytes")] pub Vec<u8>);

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> serde_json::Result<CatalogCall> {
        let call: serde_json::Value = serde_json::from_str(json).expect("JSON");
        CatalogCall::read(call["call"].as_str().expect("a word"), json.as_bytes())
    }

    #[test]
    fn calls_are_read_as_they_are_written() {
        let lineage = Lineage::from_u128(7);
        for (call, json) in [
            (CatalogCall::Leases {}, r#"{"call":"leases"}"#.to_owned()),
            (
                CatalogCall::Freed { id: 7, joined: 3 },
                r#"{"call":"freed","id":7,"joined":3}"#.to_owned(),
            ),
            (
                CatalogCall::Keys { lineage },
                format!(r#"{{"call":"keys","lineage":"{lineage}"}}"#),
            ),
        ] {
            assert_eq!(serde_json::to_string(&call).expect("JSON"), json);
            assert_eq!(read(&json).expect("the call"), call);
        }
        assert!(read(r#"{"call":"freed"}"#).is_err());
        assert!(read(r#"{"call":"freed","id":"7"}"#).is_err());
        let none = read(r#"{"call":"free","id":7}"#).expect_err("none is named so");
        let said = none.to_string();
        assert!(
            said.contains("`free`") && said.contains("`freed`"),
            "{said}"
        );
    }

    /// It was read into memory as a tree, of 256 MiB by whoever sent that.
    #[test]
    fn what_a_call_does_not_have_is_passed_over() {
        // No number that there is: whoever keeps it finds that out.
        let json = br#"{"x":[[0],[1e999]],"call":"freed","id":7}"#;
        let call = CatalogCall::read("freed", json).expect("passed over");
        assert_eq!(call, CatalogCall::Freed { id: 7, joined: 0 });
    }
}
