//! What the API says, as JSON. The command line reads these same types.
//!
//! Fields are only ever added. Sizes are in bytes, times in RFC 3339.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

use crate::described::{BlockSizeSchema, TagsSchema, VmSchema};
use crate::host::{AttachmentState, KeyState};
use crate::words::{
    Health, KeyKind, PartyKind, ProblemCode, RightKind, SealKind, SealShown, SnapshotState,
    VolumeState,
};

/// The most copies that a segment has. The database says so too.
pub const REPLICAS_MAX: u8 = 4;

/// So many read-only attachments a user has on one host at most, those included
/// that are on their way out. Of writable ones there are no more than volumes.
/// Far more than one user's VMs on one host, and few enough for its agent, which
/// has a version open for each.
pub const READ_ONLY_ATTACHMENTS_MAX: u32 = 256;

/// A volume or snapshot has at most so many tags.
pub const TAGS_MAX: usize = 50;

/// The longest key of a tag, in characters.
pub const TAG_KEY_LENGTH_MAX: usize = 128;

/// The longest value of a tag, in characters.
pub const TAG_VALUE_LENGTH_MAX: usize = 256;

/// A part of a list, in the order of ids.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Page<T> {
    /// What is on it.
    pub items: Vec<T>,
    /// What to ask for as `after` to get the next page; null on the last one.
    pub next: Option<String>,
}

/// Words for finding things: up to [`TAGS_MAX`], with keys of 1 to
/// [`TAG_KEY_LENGTH_MAX`] characters and no `=`, and values of up to
/// [`TAG_VALUE_LENGTH_MAX`]; no control characters in either.
pub type Tags = BTreeMap<String, String>;

/// A volume. Of one whose entry in the database is damaged, a list has id, name
/// and reason; its state is `error`, its seal `unknown`, its numbers are 0, and so
/// is its moment (of 1970).
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Volume {
    /// `vol-…`.
    #[schema(pattern = "^vol-[0-9a-f]{17}$", example = "vol-0f3c5b7d9e1a2b4c6")]
    pub id: String,
    /// Its name. An owner has it once.
    pub name: String,
    /// The name of the user whose it is.
    #[serde(default)]
    pub owner: Option<String>,
    /// The name of the project on whose account it is, for its owner and those
    /// who are in that project.
    #[serde(default)]
    pub project: Option<String>,
    /// Its tags.
    #[serde(default)]
    #[schema(value_type = TagsSchema)]
    pub tags: Tags,
    /// Size in bytes.
    pub size: u64,
    /// How it is.
    #[schema(value_type = VolumeState)]
    pub state: String,
    /// Block size in bytes.
    pub block_size: u64,
    /// How its blocks are sealed.
    #[schema(value_type = SealShown)]
    pub seal: String,
    /// Copies of each segment.
    pub replicas: u8,
    /// When it was made.
    #[schema(format = DateTime)]
    pub created: String,
    /// The id of the snapshot it was cloned from, which may be gone.
    #[schema(pattern = "^snap-[0-9a-f]{17}$")]
    pub from: Option<String>,
    /// How it is served, if it is.
    pub export: Option<Export>,
    /// What is wrong, in state `error`.
    pub reason: Option<String>,
    /// What its owner should know, after it was made or grown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notice: Option<String>,
    /// How its engine is doing, while it is attached. Not in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub engine: Option<Engine>,
}

/// An attached volume's engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Engine {
    /// The newest version's number.
    pub version: Option<u64>,
    /// Size of the journal in bytes.
    pub journal_bytes: u64,
    /// How much of it waits to be destaged, in bytes.
    pub journal_used_bytes: u64,
    /// Blocks written since it was attached.
    pub blocks_written: u64,
    /// Blocks destaged since it was attached.
    pub blocks_destaged: u64,
    /// Client connections.
    pub connections: u64,
    /// Why destaging does not get on, if it does not.
    pub destage_error: Option<String>,
}

/// How a volume is served.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Export {
    /// What to give to a client: `nbd+unix:///…`.
    pub uri: String,
    /// Over TCP, if the server listens there: `nbd://…` or `nbds://…`.
    pub tcp_uri: Option<String>,
    /// Writes are refused.
    pub read_only: bool,
}

/// A volume to be made.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateVolume {
    /// Its name.
    #[schema(pattern = "^[a-z0-9][a-z0-9._-]{0,62}$", example = "disk")]
    pub name: String,
    /// On the account of this project (name or id); of the caller's own, if it
    /// is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    /// Its tags.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(value_type = TagsSchema)]
    pub tags: Tags,
    /// Size in bytes. A clone has its snapshot's size if it is left out.
    #[schema(
        minimum = 4096,
        maximum = 70_368_744_177_664_u64,
        multiple_of = 4096,
        example = 1_073_741_824
    )]
    pub size: Option<u64>,
    /// Start from this snapshot (name or id).
    pub from: Option<String>,
    /// Block size in bytes; 4096 unless cloned.
    #[schema(value_type = Option<BlockSizeSchema>)]
    pub block_size: Option<u64>,
    /// How its blocks are sealed; `aes-256-gcm` if nothing is said.
    #[schema(value_type = Option<SealKind>)]
    pub seal: Option<String>,
    /// Copies of each segment: 2 if there are two units, else 1.
    #[schema(minimum = 1, maximum = 4)]
    pub replicas: Option<u8>,
}

/// A new size.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GrowVolume {
    /// Size in bytes, larger than now.
    #[schema(
        minimum = 4096,
        maximum = 70_368_744_177_664_u64,
        multiple_of = 4096,
        example = 2_147_483_648_u64
    )]
    pub size: u64,
}

/// Where to go back to: exactly one of the two.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(max_properties = 1)]
pub struct RestoreVolume {
    /// The newest version not younger than this moment (RFC 3339), which is past.
    #[schema(format = DateTime, nullable = false)]
    #[serde(
        default,
        deserialize_with = "given",
        skip_serializing_if = "Option::is_none"
    )]
    pub time: Option<String>,
    /// This version.
    #[schema(nullable = false, maximum = 9_223_372_036_854_775_807_u64)]
    #[serde(
        default,
        deserialize_with = "given",
        skip_serializing_if = "Option::is_none"
    )]
    pub version: Option<u64>,
}

/// What is there is a value: `null` is neither that nor left out.
fn given<'de, T: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<Option<T>, D::Error> {
    T::deserialize(from).map(Some)
}

/// How to serve a volume.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExportVolume {
    /// On this host (name or id); on the only one that there is for the caller,
    /// if it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Refuse writes.
    #[serde(default)]
    pub read_only: bool,
}

/// A volume's or snapshot's tags.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetTags {
    /// What takes the place of those that it has.
    #[schema(value_type = TagsSchema)]
    pub tags: Tags,
}

/// A volume to be given away.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GiveVolume {
    /// To this user (name).
    #[schema(pattern = "^[a-z0-9][a-z0-9._-]{0,62}$", example = "alice")]
    pub user: String,
    /// On the account of this project of theirs (name or id); of their own, if
    /// it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
}

/// A volume on a host, plugged into a VM or exported.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Attachment {
    /// `att-…`.
    #[schema(pattern = "^att-[0-9a-f]{17}$", example = "att-0f3c5b7d9e1a2b4c6")]
    pub id: String,
    /// The volume's name; its id, if it is gone.
    pub volume: String,
    /// The name of the user whose volume it is; null, if it is gone.
    #[serde(default)]
    pub owner: Option<String>,
    /// The volume's id.
    #[schema(pattern = "^vol-[0-9a-f]{17}$")]
    pub volume_id: String,
    /// The host's name.
    pub host: String,
    /// The VM: `qmp:…` or `libvirt:…`; none for a plain export.
    pub vm: Option<String>,
    /// The serial by which the VM's guest knows the disk, while it is plugged.
    pub device: Option<String>,
    /// Writes are refused.
    pub read_only: bool,
    /// How far it has come.
    #[schema(value_type = AttachmentState)]
    pub state: String,
    /// Why it is so, and what would help.
    pub reason: Option<String>,
    /// What is worth knowing and no error.
    pub note: Option<String>,
    /// What to give to a client on its host.
    pub uri: Option<String>,
    /// The id of the user who asked for it.
    #[serde(default)]
    #[schema(pattern = "^party-[0-9a-f]{17}$")]
    pub asked_by: Option<String>,
    /// When it was asked for.
    #[schema(format = DateTime)]
    pub created: String,
    /// When it was detached.
    #[schema(format = DateTime)]
    pub ended: Option<String>,
    /// The attachment that follows as soon as this one has let go, or that
    /// followed it; none if it is not moved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follower: Option<Follower>,
}

/// The attachment that follows one that is moved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Follower {
    /// `att-…`; it can be asked for when this one is detached.
    pub id: String,
    /// The name of its host.
    pub host: String,
    /// The VM that it is plugged into; none for a plain export.
    pub vm: Option<String>,
}

/// Where an attachment is to be moved to.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MoveAttachment {
    /// To this host (name or id).
    pub host: String,
    /// Plugged into this VM there: `qmp:/path/to/its/socket` or `libvirt:NAME`;
    /// a plain export if it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<VmSchema>)]
    pub vm: Option<String>,
}

/// An attachment to be made.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateAttachment {
    /// Of this volume (name or id).
    #[schema(example = "disk")]
    pub volume: String,
    /// On this host (name or id); the controller's own if it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Plugged into this VM there: `qmp:/path/to/its/socket` or `libvirt:NAME`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<VmSchema>)]
    pub vm: Option<String>,
    /// Refuse writes.
    #[serde(default)]
    pub read_only: bool,
}

/// A kept version of a volume.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Version {
    /// Its number.
    pub version: u64,
    /// When it was committed.
    #[schema(format = DateTime)]
    pub created: String,
    /// It is the volume's state (but for what is in the journal).
    pub head: bool,
    /// The snapshots that hold it.
    pub snapshots: Vec<String>,
}

/// A snapshot.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Snapshot {
    /// `snap-…`.
    #[schema(pattern = "^snap-[0-9a-f]{17}$", example = "snap-0f3c5b7d9e1a2b4c6")]
    pub id: String,
    /// Its name. An owner has it once.
    pub name: String,
    /// The name of the user whose it is.
    #[serde(default)]
    pub owner: Option<String>,
    /// Its tags.
    #[serde(default)]
    #[schema(value_type = TagsSchema)]
    pub tags: Tags,
    /// The name its volume had.
    pub volume: String,
    /// The id of its volume, which may be gone.
    #[schema(pattern = "^vol-[0-9a-f]{17}$")]
    pub volume_id: String,
    /// Size in bytes.
    pub size: u64,
    /// How far it has come.
    #[schema(value_type = SnapshotState)]
    pub state: String,
    /// Its moment is over: what is written from now on is not in it. Of a volume
    /// whose host does not answer in time, that comes later.
    #[serde(default)]
    pub taken: bool,
    /// What is wrong, in state `error`.
    pub reason: Option<String>,
    /// When it was asked for.
    #[schema(format = DateTime)]
    pub created: String,
}

/// A snapshot to be taken.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateSnapshot {
    /// Of this volume (name or id).
    #[schema(example = "disk")]
    pub volume: String,
    /// Its name; its id if left out.
    #[schema(pattern = "^[a-z0-9][a-z0-9._-]{0,62}$", example = "before-upgrade")]
    pub name: Option<String>,
    /// Its tags.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(value_type = TagsSchema)]
    pub tags: Tags,
}

/// A storage unit.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Unit {
    /// `unit-…`.
    #[schema(pattern = "^unit-[0-9a-f]{17}$", example = "unit-0f3c5b7d9e1a2b4c6")]
    pub id: String,
    /// Where it is.
    pub url: String,
    /// `healthy`, or what is wrong with it.
    pub state: String,
    /// How many segments it holds, if that can be asked.
    pub segments: Option<u64>,
    /// The room they take, in bytes.
    pub bytes: Option<u64>,
    /// Free room in bytes, where that is known.
    pub free_bytes: Option<u64>,
    /// How many bytes of blocks were read from it since `scree up` began, its
    /// part of the page cache included.
    pub read_bytes: u64,
    /// How many bytes of blocks were written to it since then.
    pub written_bytes: u64,
    /// What was found, if it is not healthy.
    pub reason: Option<String>,
}

/// A unit to be added.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddUnit {
    /// `file:///path`, or an absolute path.
    #[schema(pattern = "^(file://)?/", example = "/srv/unit-9")]
    pub url: String,
    /// As this host (name or id) sees it; the only one that there is, if it is
    /// left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
}

/// A wrapping key.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Key {
    /// `key-…`.
    #[schema(pattern = "^key-[0-9a-f]{17}$", example = "key-0f3c5b7d9e1a2b4c6")]
    pub id: String,
    /// Its name.
    pub name: String,
    /// What holds it.
    #[schema(value_type = KeyKind)]
    pub kind: String,
    /// What is done with it.
    #[schema(value_type = KeyState)]
    pub state: String,
    /// How many lineages' data keys it wraps: each volume has one, and so have
    /// deleted ones that a clone or a snapshot needs.
    pub lineages: u64,
    /// The id of the key that takes these over, if it is retiring.
    #[schema(pattern = "^key-[0-9a-f]{17}$")]
    pub replaced_by: Option<String>,
    /// When it was founded.
    #[schema(format = DateTime)]
    pub created: String,
}

/// A wrapping key to be founded.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddKey {
    /// What the host's `keys.toml` calls it.
    #[schema(pattern = "^[a-z0-9][a-z0-9._-]{0,62}$", example = "second")]
    pub name: String,
    /// On this host (name or id); on the only one that there is, if it is left
    /// out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
}

/// A wrapping key to be replaced.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RotateKey {
    /// The one that takes its place: name or id.
    pub to: String,
}

/// How the whole is doing.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Status {
    /// `ok`, or `degraded` if a unit or a volume is not well.
    #[schema(value_type = Health)]
    pub state: String,
    /// Scree's version.
    pub version: String,
    /// The cluster's id.
    #[schema(pattern = "^cluster-[0-9a-f]{32}$")]
    pub cluster: String,
    /// The folder it is served from.
    pub folder: String,
    /// Process id.
    pub pid: u32,
    /// How many volumes there are.
    pub volumes: u64,
    /// How many of them are served.
    pub exported: u64,
    /// How many snapshots.
    pub snapshots: u64,
    /// How many units.
    pub units: u64,
    /// How many of them are healthy.
    pub units_healthy: u64,
    /// The room that segments take on all units, in bytes.
    pub bytes: u64,
    /// Journal bytes that wait to be destaged.
    pub journal_used_bytes: u64,
    /// Removed versions whose slots wait to be freed.
    pub pending_frees: u64,
    /// Segments with blocks that have fewer copies than they should: units
    /// were away when those were written.
    #[serde(default)]
    pub thin_segments: u64,
    /// How many such blocks there are at most: some may have been freed since.
    #[serde(default)]
    pub thin_blocks: u64,
    /// What needs somebody's attention, one sentence each.
    pub problems: Vec<String>,
}

/// A user or a host.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Party {
    /// `party-…`.
    #[schema(pattern = "^party-[0-9a-f]{17}$", example = "party-0f3c5b7d9e1a2b4c6")]
    pub id: String,
    /// Whether it is a user or a host.
    #[schema(value_type = PartyKind)]
    pub kind: String,
    /// Its name, unique within its kind.
    pub name: String,
    /// It may everything but read volumes.
    pub administrator: bool,
    /// Its requests are refused.
    pub disabled: bool,
    /// When it was made.
    #[schema(format = DateTime)]
    pub created: String,
}

/// A user or host to be made.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddParty {
    /// Its name: 1 to 63 small letters, digits, dots, underscores and hyphens.
    #[schema(pattern = "^[a-z0-9][a-z0-9._-]{0,62}$", example = "bob")]
    pub name: String,
    /// It may everything but read volumes. Users only.
    #[serde(default)]
    pub administrator: bool,
    /// The project (name or id) that it is a member of; a new one of the same
    /// name, if it is left out. Users only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
}

/// How much a project may have; what is left out has no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Quota {
    /// How many volumes.
    #[serde(default)]
    #[schema(maximum = 9_223_372_036_854_775_807_u64)]
    pub volumes: Option<u64>,
    /// How many snapshots.
    #[serde(default)]
    #[schema(maximum = 9_223_372_036_854_775_807_u64)]
    pub snapshots: Option<u64>,
    /// How many bytes its volumes may have together, as their guests see them.
    #[serde(default)]
    #[schema(maximum = 9_223_372_036_854_775_807_u64)]
    pub bytes: Option<u64>,
}

/// A project: what quotas are for.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Project {
    /// `proj-…`.
    #[schema(pattern = "^proj-[0-9a-f]{17}$", example = "proj-0f3c5b7d9e1a2b4c6")]
    pub id: String,
    /// Its name.
    pub name: String,
    /// How much it may have.
    pub quota: Quota,
    /// How many volumes it has.
    pub volumes: u64,
    /// How many snapshots.
    pub snapshots: u64,
    /// How many bytes its volumes have together, as their guests see them.
    pub bytes: u64,
    /// The names of the users who may make volumes on its account.
    pub members: Vec<String>,
    /// When it was made.
    #[schema(format = DateTime)]
    pub created: String,
}

/// A project to be made.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddProject {
    /// Its name.
    #[schema(pattern = "^[a-z0-9][a-z0-9._-]{0,62}$", example = "web")]
    pub name: String,
    /// How much it may have.
    #[serde(default)]
    pub quota: Quota,
}

/// A right that a user has on something of somebody else's.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Grant {
    /// `grant-…`.
    #[schema(pattern = "^grant-[0-9a-f]{17}$", example = "grant-0f3c5b7d9e1a2b4c6")]
    pub id: String,
    /// The id of what it is on: a volume, a snapshot or a host.
    pub on: String,
    /// What that is called, if it is still there.
    pub name: Option<String>,
    /// The name of the user whose volume or snapshot it is on.
    #[serde(default)]
    pub owner: Option<String>,
    /// The name of the user who has it.
    pub user: String,
    /// `read`, `use`, `snapshot` or `administer`.
    #[schema(value_type = RightKind)]
    pub right: String,
    /// On a host: only for VMs whose address begins so.
    pub vm: Option<String>,
    /// Since when.
    #[schema(format = DateTime)]
    pub created: String,
}

/// A right to be given: on exactly one of volume, snapshot and host.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddGrant {
    /// To this user (name).
    #[schema(pattern = "^[a-z0-9][a-z0-9._-]{0,62}$", example = "alice")]
    pub user: String,
    /// `read` (attach read-only, clone), `use` (attach), `snapshot` (take
    /// snapshots) or `administer` (everything but giving it away). On a
    /// snapshot only `read`, on a host only `use`.
    #[schema(value_type = RightKind)]
    pub right: String,
    /// On this volume (name or id), and its snapshots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<String>,
    /// On this snapshot (name or id).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
    /// On this host (name or id); administrators only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// On a host: only for VMs whose address begins so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 256, pattern = r"^[^\u0000-\u001f\u007f-\u009f]*$")]
    pub vm: Option<String>,
}

/// What somebody enrols with. It is shown once.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Token {
    /// Good for one certificate.
    pub token: String,
    /// Until then.
    #[schema(format = DateTime)]
    pub expires: String,
    /// The authority's fingerprint, by which whoever enrols knows the
    /// controllers: `sha256:…`.
    pub authority: String,
}

/// To become somebody.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Enrol {
    /// The token that an administrator handed out.
    pub token: String,
    /// A signing request (PKCS #10 in PEM) for one's own key.
    pub request: String,
}

/// To stay somebody.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Renew {
    /// A signing request (PKCS #10 in PEM), for the same key or a new one.
    pub request: String,
}

/// A certificate.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Certificate {
    /// Whose: `scree://user/…` or `scree://host/…`.
    pub subject: String,
    /// In PEM.
    pub certificate: String,
    /// That of the authority that signed it, in PEM.
    pub authority: String,
    /// When it ends.
    #[schema(format = DateTime)]
    pub expires: String,
}

/// The authority that signs users, hosts and controllers.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct AuthorityView {
    /// Its certificate, in PEM.
    pub certificate: String,
}

/// A line of the log of who changed what.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct AuditEntry {
    /// Its number; they grow.
    pub id: i64,
    /// When.
    #[schema(format = DateTime)]
    pub time: String,
    /// Who: `scree://user/…`, or where somebody without a name came from.
    pub who: String,
    /// The fingerprint of the key that was shown.
    pub key: Option<String>,
    /// Where the request came from.
    pub address: Option<String>,
    /// What was done.
    pub action: String,
    /// To what.
    pub target: String,
}

/// Why a request failed (RFC 9457).
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// A URI for the kind of problem.
    #[serde(rename = "type")]
    #[schema(
        pattern = "^urn:scree:problem:[a-z-]+$",
        example = "urn:scree:problem:not-found"
    )]
    pub kind: String,
    /// The kind in words.
    pub title: String,
    /// The HTTP status.
    #[schema(minimum = 400, maximum = 599, example = 404)]
    pub status: u16,
    /// What happened this time, and what to do.
    pub detail: String,
    /// The kind, for programs.
    #[schema(value_type = ProblemCode)]
    pub code: String,
    /// Which field of the request is meant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
}
