//! What an agent asks of a controller, and tells it (docs/service.md): JSON
//! under `/v1/host`, in the name of the host that is asking.
//!
//! ```text
//! POST /v1/host/begin                         nothing is open here (any more);
//!                                             what it has to do with
//! GET  /v1/host/assignments?after=N&wait=S    what is wanted of it
//! PUT  /v1/host/report                        how it is doing
//! POST /v1/host/leases                        it is there, and renews what it has
//! PUT  /v1/host/attachments/{attachment}      how far one has come
//! POST /v1/host/snapshots/{snapshot}/cut      its moment has been taken
//! PUT  /v1/host/tasks/{task}                  what came of one
//! POST /v1/host/keys                          a wrapping key that it founded
//! POST /v1/host/units                         folders that it made units
//! POST /v1/host/cleaning                      what may go
//! POST /v1/host/ahead                         how many leases a unit knows of
//! POST /v1/host/catalog                       a call of the engine's catalog
//! ```
//!
//! Each may be repeated: what was done already is done.

use std::fmt;
use std::str::FromStr;

use base::{
    AttachmentId, BlockSize, ClusterId, DatabaseId, JournalFolderId, KeyId, Lineage, SegmentId,
    SnapshotId, UnitId, VolumeId,
};
use catalog::{
    CatalogError, Copyset, LeaseSalt, Leftovers, Neighbours, ThinShare, VersionCommit, VersionKey,
    WrappedKey,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;
use world::Millis;

/// What is true of the whole cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cluster {
    /// Its id.
    pub id: ClusterId,
    /// As whom hosts use its units.
    pub owner: Owner,
    /// The operator has said that whoever else has the units is gone.
    pub takes_over: bool,
    /// With this, hosts vouch for what they leave on units. It opens nothing.
    pub vouch: WrappedKey,
    /// How long leases hold after a host was last heard of, in milliseconds;
    /// for ever, where there is only one host.
    #[serde(default)]
    pub lease_ms: Option<u64>,
    /// As [`Assignments::keys`]; none in a new cluster.
    pub keys: Vec<WrappingKey>,
}

/// Whose a unit is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// Which copy of the database.
    pub database: DatabaseId,
    /// The second of the operator's last word that the others are gone.
    pub generation: u32,
    /// Where that is, for people.
    pub place: String,
}

/// The name of the wrapping key that a new cluster begins with.
pub const FIRST_KEY: &str = "main";

/// A wrapping key, as all hosts know it. Where it is, each knows for itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrappingKey {
    /// Its id.
    pub id: KeyId,
    /// Its name.
    pub name: String,
    /// How it is had, and known again: the agents' own, and not secret.
    pub parameters: Value,
    /// What is done with it.
    pub state: KeyState,
    /// What takes over what it still wraps, if it is retiring.
    pub replaced_by: Option<KeyId>,
}

/// A wrapping key that a host has founded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoundedKey {
    /// Its name.
    pub name: String,
    /// As [`WrappingKey::parameters`].
    pub parameters: Value,
}

/// What is done with a wrapping key.
///
/// - `active`: it may wrap new data keys
/// - `retiring`: what it wraps is being wrapped by the one that replaces it
/// - `retired`: it wraps nothing any more, and can be deleted
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum KeyState {
    /// It may wrap new data keys.
    Active,
    /// It wraps nothing new, and what it wraps is wrapped by another one.
    Retiring,
    /// It wraps nothing any more.
    Retired,
}

/// A data key, and whose it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrappedRow {
    /// Whose.
    pub lineage: Lineage,
    /// The key.
    pub wrapped: WrappedKey,
}

/// How a volume is attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Access {
    /// Reads and writes.
    ReadWrite,
    /// Reads only.
    ReadOnly,
}

/// How a volume's blocks are sealed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Seal {
    /// AES-256-GCM under a key of the volume.
    #[serde(rename = "aes-256-gcm")]
    Aes256Gcm,
    /// Not at all: a checksum only.
    #[serde(rename = "none")]
    None,
}

macro_rules! spelt {
    ($type:ident, $what:literal, $($variant:ident = $text:literal),+) => {
        impl $type {
            /// Its spelling.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(self.as_str())
            }
        }

        impl FromStr for $type {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                match text {
                    $($text => Ok(Self::$variant),)+
                    _ => Err(format!("{text:?} is not {}", $what)),
                }
            }
        }
    };
}
spelt!(
    Seal,
    "`aes-256-gcm` or `none`",
    Aes256Gcm = "aes-256-gcm",
    None = "none"
);
spelt!(
    Access,
    "`read-write` or `read-only`",
    ReadWrite = "read-write",
    ReadOnly = "read-only"
);
spelt!(
    KeyState,
    "the state of a wrapping key",
    Active = "active",
    Retiring = "retiring",
    Retired = "retired"
);
spelt!(
    AttachmentState,
    "the state of an attachment",
    Attaching = "attaching",
    Attached = "attached",
    Detaching = "detaching",
    Detached = "detached",
    Busy = "busy",
    Error = "error"
);

/// All that is wanted of a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Assignments {
    /// Ask for what comes after this.
    pub serial: u64,
    /// The attachments that are not detached.
    pub attachments: Vec<Assignment>,
    /// The units there are.
    pub units: Vec<HostUnit>,
    /// The sets of units that hold segments together.
    pub copysets: Vec<Copyset>,
    /// The wrapping keys there are, those first that were founded first.
    pub keys: Vec<WrappingKey>,
    /// What else is to be done.
    pub tasks: Vec<Task>,
    /// A report that says at least this is waited for.
    pub look: u64,
    /// When this is not what it was, there may be something to clean.
    pub clean: u64,
}

/// An attachment, as it is wanted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Assignment {
    /// Its id.
    pub id: AttachmentId,
    /// Which wish this is: a report on an older one changes nothing.
    pub generation: u64,
    /// It is wanted; otherwise it is to be ended.
    pub attached: bool,
    /// No lease was taken for it yet, and another host had the volume last, up
    /// to this epoch: what this one has in a journal of its own is older.
    #[serde(default)]
    pub fenced: Option<u32>,
    /// A lease was taken for it: its journal may be newer than the head.
    pub leased: bool,
    /// Of what.
    pub volume: VolumeId,
    /// The volume's name.
    pub name: String,
    /// The VM that it is plugged into; a plain export without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm: Option<String>,
    /// It ends whether or not the VM's guest lets go of it.
    #[serde(default)]
    pub forced: bool,
    /// How.
    pub access: Access,
    /// The size that the volume should have, in bytes.
    pub size_bytes: u64,
    /// Its block size.
    pub block_size: BlockSize,
    /// How it is to be sealed, if it has no key yet.
    pub seal: Seal,
    /// Who it writes as.
    pub lineage: Lineage,
    /// Read-only: the version that is shown; none of an empty volume.
    pub version: Option<VersionKey>,
    /// Snapshots whose moment is to be taken.
    pub cuts: Vec<SnapshotId>,
}

/// How far an attachment has come, in EC2's words.
///
/// - `attaching`: on its way
/// - `attached`: it can be used
/// - `detaching`: on its way out
/// - `detached`: it has ended
/// - `busy`: it should end and cannot yet: the guest does not let go, or the
///   volume cannot be closed; `reason` says which
/// - `error`: it cannot be used; `reason` says why, and it is tried again
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum AttachmentState {
    /// On its way.
    Attaching,
    /// It can be used.
    Attached,
    /// On its way out.
    Detaching,
    /// It has ended.
    Detached,
    /// It should end, and does not: the reason says why.
    Busy,
    /// It cannot be used: the reason says why. It is tried again.
    Error,
}

/// What a host says of an attachment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachmentReport {
    /// Which wish this is about.
    pub generation: u64,
    /// How far it has come.
    pub state: AttachmentState,
    /// Why, where that is to be said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What is worth knowing and no error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// The serial by which the VM knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// The size that it is served with, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// What to give to a client on that host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uri: Option<String>,
    /// What to give to one elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp_uri: Option<String>,
}

/// A host has no more leases: each is looked up whenever they are renewed.
pub const LEASES_MAX: usize = 16_384;

/// Of so many journals at a time a host asks whether anybody wants them.
pub const JOURNALS_MAX: usize = 256;

/// A host is there, and renews what it has. Apart from its report: that waits
/// for its volumes and units.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Renewal {
    /// The leases it has, [`LEASES_MAX`] at most.
    pub leases: Vec<HeldLease>,
    /// Volumes of which it has a journal, and nothing is wanted as it knows: some
    /// of them, [`JOURNALS_MAX`] at most.
    pub journals: Vec<VolumeId>,
}

/// A lease, as its holder knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldLease {
    /// For which attachment.
    pub attachment: AttachmentId,
    /// Its epoch.
    pub epoch: u32,
}

/// What came of a renewal.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Renewed {
    /// Leases that the host has no more. It has all others.
    pub lost: Vec<HeldLease>,
    /// Journals whose volumes were taken from the host.
    pub fenced: Vec<Fenced>,
}

/// A volume that was taken from a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fenced {
    /// Which.
    pub volume: VolumeId,
    /// What is of this epoch or an earlier one is over.
    pub epoch: u32,
}

/// A unit, as hosts find it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostUnit {
    /// Its id.
    pub id: UnitId,
    /// Where it is.
    pub url: String,
}

/// Folders that a host has made units.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MarkedUnits {
    /// Which.
    pub units: Vec<HostUnit>,
}

/// Something to be done once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    /// Its number.
    pub id: i64,
    /// What.
    pub what: TaskKind,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "task", rename_all = "kebab-case")]
pub enum TaskKind {
    /// To make a folder a unit.
    AddUnit {
        /// Where it is, as somebody wrote it.
        url: String,
    },
    /// To found the wrapping key that the host's `keys.toml` has under a name.
    AddKey {
        /// The name.
        name: String,
    },
}

/// What came of a task, or why it is not done.
pub type TaskAnswer = Result<TaskDone, Refusal>;

/// What came of a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "done", rename_all = "kebab-case")]
pub enum TaskDone {
    /// A unit.
    Unit(HostUnit),
    /// A wrapping key, which the controllers know by now.
    Key(WrappingKey),
}

/// Why something is not done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// What was asked makes no sense, and this field of it is meant.
    pub field: Option<String>,
    /// Why, and what to do.
    pub reason: String,
}

/// How a host is doing.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`Assignments::look`], as it was when this was found out.
    pub look: u64,
    /// The units, as this host finds them.
    pub units: Vec<UnitReport>,
    /// What is open.
    pub volumes: Vec<VolumeReport>,
    /// Free room on the units' file systems, each counted once, in bytes.
    pub free_bytes: Option<u64>,
    /// What is wrong, one sentence each.
    pub problems: Vec<String>,
}

/// A unit, as one host finds it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitReport {
    /// Which.
    pub id: UnitId,
    /// `healthy`, or what is wrong with it.
    pub state: String,
    /// What was found, if it is not healthy.
    pub reason: Option<String>,
    /// How many segments it holds, if that can be asked.
    pub segments: Option<u64>,
    /// The room they take, in bytes.
    pub bytes: Option<u64>,
    /// Free room in bytes, where that is known.
    pub free_bytes: Option<u64>,
    /// How many bytes of blocks this host has read from it.
    pub read_bytes: u64,
    /// How many it has written.
    pub written_bytes: u64,
}

/// An open volume's engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeReport {
    /// Of which attachment.
    pub attachment: AttachmentId,
    /// Of which volume.
    pub volume: VolumeId,
    /// How it is doing.
    pub engine: crate::types::Engine,
}

/// Asks what may go.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AskCleaning {
    /// Volumes that were written to just now, and can wait.
    pub busy: Vec<VolumeId>,
}

/// Some unit knows of more leases than the database.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ahead {
    /// How many.
    pub leases: u64,
}

/// Which versions may go, and what volumes left.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cleaning {
    /// Versions that nothing needs, in the order in which they should go.
    pub remove: Vec<VersionKey>,
    /// Their slots are not to be freed before.
    pub not_before: Option<Millis>,
    /// Deleted volumes whose last leases have left something.
    pub deleted: Vec<Deleted>,
}

/// A volume on its way out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deleted {
    /// Which.
    pub volume: VolumeId,
    /// What is to be swept before it is forgotten.
    pub leftovers: Leftovers,
}

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
    /// lineages come after `after`, in their order. `Vec<WrappedRow>`.
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
    /// Segments above `after` that were noted so, at most `count_max`.
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
    /// [`catalog::Catalog::due_frees`].
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
