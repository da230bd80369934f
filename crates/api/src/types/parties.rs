//! Who there is, what they may have and do, and what they did.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::words::{PartyKind, Right};

/// A user, a host or a unit daemon.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Party {
    /// `party-…`; of a unit daemon, the digits are those of its unit.
    #[schema(pattern = "^party-[0-9a-f]{17}$", example = "party-0f3c5b7d9e1a2b4c6")]
    pub id: String,
    /// Which of these it is.
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

/// A user, host or unit daemon to be made.
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
    #[schema(value_type = Right)]
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
    #[schema(value_type = Right)]
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
