//! Chains: the filters between volumes and whoever uses them.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::described::VmSchema;

/// The filters between a volume and whoever uses it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Chain {
    /// `chain-…`.
    #[schema(pattern = "^chain-[0-9a-f]{17}$", example = "chain-0f3c5b7d9e1a2b4c6")]
    pub id: String,
    /// The volume's name; its id, if it is gone.
    pub volume: String,
    /// The name of the user whose volume it is.
    #[serde(default)]
    pub owner: Option<String>,
    /// The volume's id.
    #[schema(pattern = "^vol-[0-9a-f]{17}$")]
    pub volume_id: String,
    /// Only in this VM; none: wherever no other chain of the volume is for.
    #[schema(value_type = Option<VmSchema>)]
    pub vm: Option<String>,
    /// Grows by one with every change.
    pub revision: u64,
    /// The filters, the uppermost first.
    pub filters: Vec<ChainFilter>,
    /// The policy, as it was written.
    pub policy: String,
    /// When it was changed last.
    #[schema(format = DateTime)]
    pub changed: String,
    /// The attachments that are to be served through it.
    pub attachments: Vec<ChainUse>,
}

/// A filter of a chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ChainFilter {
    /// Whose name no other filter of the chain has.
    pub name: String,
    /// What it is.
    pub kind: String,
    /// Where it runs: `inline`, in the agent; `process`, `external` or `remote`.
    #[serde(default)]
    pub runs: String,
    /// The program of an external filter, or the address of a remote one.
    #[serde(default)]
    pub at: Option<String>,
    /// What the disk does without it, if it does not run inline: `fail-closed` or `bypass`.
    #[serde(default)]
    pub on_failure: Option<String>,
}

/// How far a chain has come with one attachment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ChainUse {
    /// `att-…`.
    #[schema(pattern = "^att-[0-9a-f]{17}$")]
    pub attachment: String,
    /// The VM; none of a plain export.
    pub vm: Option<String>,
    /// The revision through which it is served; none yet, or another chain's.
    pub revision: Option<u64>,
    /// Why it is not served through the newest one; or, if it is, why its guest does not see
    /// yet that the volume has grown.
    pub problem: Option<String>,
}

/// What the filters of an attachment have told.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Events {
    /// In order: objects, with the fields that docs/chains.md names.
    #[schema(value_type = Vec<Object>)]
    pub items: Vec<serde_json::Value>,
    /// What to ask for as `after` to get those that follow.
    pub next: u64,
    /// Some that came before the first one are not kept any more, but for the host's files.
    pub missed: bool,
}

/// A chain to be put in the place of the one that there is.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ApplyChain {
    /// The filters, in TOML, with the volume that they are for.
    #[schema(
        max_length = 65536,
        example = "volume = \"disk\"\n[[filter]]\nkind = \"rate\"\niops = 2000\n"
    )]
    pub policy: String,
}
