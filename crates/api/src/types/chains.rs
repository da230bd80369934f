//! Chains: the filters between volumes and their users.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::described::VmSchema;

/// The chain of filters between a volume and its users.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Chain {
    /// `chain-…`.
    #[schema(pattern = "^chain-[0-9a-f]{17}$", example = "chain-0f3c5b7d9e1a2b4c6")]
    pub id: String,
    /// The volume's name, or its id if it was deleted.
    pub volume: String,
    /// The name of the user who owns the volume.
    pub owner: Option<String>,
    /// The volume's id.
    #[schema(pattern = "^vol-[0-9a-f]{17}$")]
    pub volume_id: String,
    /// The VM it applies to; null: everywhere except in VMs with a chain of their own.
    #[schema(value_type = Option<VmSchema>)]
    pub vm: Option<String>,
    /// Grows by one with each change.
    pub revision: u64,
    /// The filters, the one next to the guest first.
    pub filters: Vec<ChainFilter>,
    /// The policy as it was written.
    pub policy: String,
    /// When it was last changed.
    #[schema(format = DateTime)]
    pub changed: String,
    /// The attachments that it applies to.
    pub attachments: Vec<ChainUse>,
}

/// A filter of a chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ChainFilter {
    /// The filter's name, unique in the chain.
    pub name: String,
    /// The kind of filter.
    pub kind: String,
    /// Where it runs: `inline`, in the agent; `process`, `external` or `remote`.
    pub placement: String,
    /// The program of an external filter, or the address of a remote one.
    pub target: Option<String>,
    /// What happens if a filter that does not run inline fails: `fail-closed` or `bypass`.
    pub on_failure: Option<String>,
}

/// An attachment that a chain applies to, and whether it is active there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ChainUse {
    /// `att-…`.
    #[schema(pattern = "^att-[0-9a-f]{17}$")]
    pub attachment: String,
    /// The VM; null for an export without a VM.
    pub vm: Option<String>,
    /// The revision that is active; null if this chain is not active yet.
    pub revision: Option<u64>,
    /// Why the newest revision is not active; or, if it is, why the guest does not see yet that the
    /// volume has grown.
    pub problem: Option<String>,
}

/// Events of the filters of an attachment.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Events {
    /// The events in order: objects with the fields that docs/reference/policies.md names.
    #[schema(value_type = Vec<Object>)]
    pub items: Vec<serde_json::Value>,
    /// The value of `after` that requests the following events.
    pub next: u64,
    /// Whether events before the first one are no longer kept, except in the host's files.
    pub missed: bool,
}

/// A request to replace the chain of a volume.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ApplyChain {
    /// The policy in TOML: the volume and its filters.
    #[schema(
        max_length = 65536,
        example = "volume = \"disk\"\n[[filter]]\nkind = \"rate\"\niops = 2000\n"
    )]
    pub policy: String,
}
