//! Users, hosts and unit daemons; projects, grants, and the audit log.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::words::{PartyKind, Right};

/// A user, a host or a unit daemon.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Party {
    /// `party-…`; of a unit daemon, the digits are those of its unit.
    #[schema(pattern = "^party-[0-9a-f]{17}$", example = "party-0f3c5b7d9e1a2b4c6")]
    pub id: String,
    /// The kind of party.
    #[schema(value_type = PartyKind)]
    pub kind: String,
    /// The party's name, unique within its kind.
    pub name: String,
    /// Whether it may do everything except read volumes.
    pub administrator: bool,
    /// Whether its requests are refused.
    pub disabled: bool,
    /// When it was created.
    #[schema(format = DateTime)]
    pub created: String,
}

/// A request to create a user, host or unit daemon.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddParty {
    /// The name: 1 to 63 lowercase letters, digits, dots, underscores and hyphens.
    #[schema(pattern = "^[a-z0-9][a-z0-9._-]{0,62}$", example = "bob")]
    pub name: String,
    /// Whether it may do everything except read volumes. Users only.
    #[serde(default)]
    pub administrator: bool,
    /// The project (name or id) that it becomes a member of; a new one of the same name by default.
    /// Users only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
}

/// The limits of a project. A limit that is left out does not apply.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Quota {
    /// The largest number of volumes.
    #[schema(maximum = 9_223_372_036_854_775_807_u64)]
    pub volumes: Option<u64>,
    /// The largest number of snapshots.
    #[schema(maximum = 9_223_372_036_854_775_807_u64)]
    pub snapshots: Option<u64>,
    /// The largest total size of its volumes in bytes, as their guests see them.
    #[schema(maximum = 9_223_372_036_854_775_807_u64)]
    pub bytes: Option<u64>,
}

/// A project, to which volumes and snapshots are charged.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Project {
    /// `proj-…`.
    #[schema(pattern = "^proj-[0-9a-f]{17}$", example = "proj-0f3c5b7d9e1a2b4c6")]
    pub id: String,
    /// The project's name.
    pub name: String,
    /// The project's limits.
    pub quota: Quota,
    /// The number of its volumes.
    pub volumes: u64,
    /// The number of its snapshots.
    pub snapshots: u64,
    /// The total size of its volumes in bytes, as their guests see them.
    pub bytes: u64,
    /// The names of the users who may charge volumes to it.
    pub members: Vec<String>,
    /// When it was created.
    #[schema(format = DateTime)]
    pub created: String,
}

/// A request to create a project.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddProject {
    /// The project's name.
    #[schema(pattern = "^[a-z0-9][a-z0-9._-]{0,62}$", example = "web")]
    pub name: String,
    /// The project's limits.
    #[serde(default)]
    pub quota: Quota,
}

/// A right of a user on an object that another user owns.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Grant {
    /// `grant-…`.
    #[schema(pattern = "^grant-[0-9a-f]{17}$", example = "grant-0f3c5b7d9e1a2b4c6")]
    pub id: String,
    /// The id of the volume, snapshot or host.
    pub object: String,
    /// The object's name, if it still exists.
    pub name: Option<String>,
    /// The name of the user who owns the volume or snapshot.
    pub owner: Option<String>,
    /// The name of the user who has the right.
    pub user: String,
    /// `read`, `use`, `snapshot` or `administer`.
    #[schema(value_type = Right)]
    pub right: String,
    /// On a host: only for VMs whose address starts with this.
    pub vm: Option<String>,
    /// When it was granted.
    #[schema(format = DateTime)]
    pub created: String,
}

/// A request to grant a right on exactly one of volume, snapshot and host.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddGrant {
    /// The name of the user who gets the right.
    #[schema(pattern = "^[a-z0-9][a-z0-9._-]{0,62}$", example = "alice")]
    pub user: String,
    /// `read` (attach read-only, clone), `use` (attach), `snapshot` (take snapshots) or
    /// `administer` (everything except transfer). On a snapshot only `read`, on a host only `use`.
    #[schema(value_type = Right)]
    pub right: String,
    /// The volume (name or id). The right covers its snapshots.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume: Option<String>,
    /// The snapshot (name or id).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
    /// The host (name or id). Administrators only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// On a host: only for VMs whose address starts with this.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 256, pattern = r"^[^\u0000-\u001f\u007f-\u009f]*$")]
    pub vm: Option<String>,
}

/// An entry of the audit log.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct AuditEntry {
    /// The entry's number. Numbers grow.
    pub id: i64,
    /// When the change was made.
    #[schema(format = DateTime)]
    pub time: String,
    /// The party: `scree://user/…`, or the origin of an unauthenticated request.
    pub principal: String,
    /// The fingerprint of the party's key.
    pub key: Option<String>,
    /// The address that the request came from.
    pub address: Option<String>,
    /// The action.
    pub action: String,
    /// The object of the action.
    pub target: String,
}
