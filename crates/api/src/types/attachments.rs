//! Attachments: volumes on hosts, exported or plugged into VMs.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::described::VmSchema;
use crate::message::Message;
use crate::words::AttachmentState;

/// The largest number of read-only attachments of one user on one host, including those that are
/// being detached. (Writable attachments are limited by the number of volumes.) It is far more than
/// one user's VMs on one host, and few enough for its agent, which has a version open for each.
pub const READ_ONLY_ATTACHMENTS_MAX: u32 = 256;

/// A volume on a host, plugged into a VM or exported.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Attachment {
    /// `att-…`.
    #[schema(pattern = "^att-[0-9a-f]{17}$", example = "att-0f3c5b7d9e1a2b4c6")]
    pub id: String,
    /// The volume's name, or its id if it was deleted.
    pub volume: String,
    /// The name of the user who owns the volume; null if it was deleted.
    pub owner: Option<String>,
    /// The volume's id.
    #[schema(pattern = "^vol-[0-9a-f]{17}$")]
    pub volume_id: String,
    /// The host's name.
    pub host: String,
    /// The VM: `qmp:…` or `libvirt:…`; null for an export without a VM.
    pub vm: Option<String>,
    /// The disk's serial number in the VM while it is plugged in.
    pub device: Option<String>,
    /// Whether writes are refused.
    pub read_only: bool,
    /// The attachment's state.
    #[schema(value_type = AttachmentState)]
    pub state: String,
    /// In states `error` and `busy`: why, and what would help. In other states: what else the user
    /// should know.
    pub message: Option<Message>,
    /// The NBD URI for clients on the same host.
    pub uri: Option<String>,
    /// The id of the chain of filters that is active, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^chain-[0-9a-f]{17}$")]
    pub chain: Option<String>,
    /// The revision of the active chain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chain_revision: Option<u64>,
    /// Why the desired chain is not active; or, if it is, why the guest does not see yet that the
    /// volume has grown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chain_problem: Option<String>,
    /// The id of the user who requested it.
    #[schema(pattern = "^party-[0-9a-f]{17}$")]
    pub requested_by: Option<String>,
    /// When it was requested.
    #[schema(format = DateTime)]
    pub created: String,
    /// When it was detached.
    #[schema(format = DateTime)]
    pub ended: Option<String>,
    /// The attachment that replaces this one when it is detached, or that has replaced it; left out
    /// if it is not moved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub successor: Option<Successor>,
}

/// The attachment that replaces one that is moved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Successor {
    /// `att-…`; it exists once the moved attachment is detached.
    pub id: String,
    /// The name of its host.
    pub host: String,
    /// The VM that it is plugged into; null for an export without a VM.
    pub vm: Option<String>,
}

/// A request to move an attachment.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MoveAttachment {
    /// The new host (name or id).
    pub host: String,
    /// The VM there: `qmp:/path/to/its/socket` or `libvirt:NAME`. An export without a VM if it is
    /// left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<VmSchema>)]
    pub vm: Option<String>,
}

/// A request to attach a volume.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateAttachment {
    /// The volume (name or id).
    #[schema(example = "disk")]
    pub volume: String,
    /// The host (name or id); the controller's own by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The VM there: `qmp:/path/to/its/socket` or `libvirt:NAME`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<VmSchema>)]
    pub vm: Option<String>,
    /// Whether writes are refused.
    #[serde(default)]
    pub read_only: bool,
}
