//! Attachments: volumes on hosts, and in VMs there.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::described::VmSchema;
use crate::words::AttachmentState;

/// So many read-only attachments a user has on one host at most, those included
/// that are on their way out. Of writable ones there are no more than volumes.
/// Far more than one user's VMs on one host, and few enough for its agent, which
/// has a version open for each.
pub const READ_ONLY_ATTACHMENTS_MAX: u32 = 256;

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
    /// The id of the chain of filters that it is served through, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^chain-[0-9a-f]{17}$")]
    pub chain: Option<String>,
    /// That chain's revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chain_revision: Option<u64>,
    /// Why it is not served through the chain that is wanted; or, if it is, why its guest does
    /// not see yet that the volume has grown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chain_problem: Option<String>,
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
