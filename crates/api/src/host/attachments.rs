//! The desired and the reported state of attachments.

use std::collections::BTreeMap;

use base::{AttachmentId, BlockSize, ChainId, Lineage, SnapshotId, VolumeId};
use catalog::VersionKey;
use serde::{Deserialize, Serialize};

use super::BaseImage;
use crate::message::Message;
use crate::words::{Access, AttachmentState, Encryption};

/// The desired state of an attachment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Assignment {
    /// The id.
    pub id: AttachmentId,
    /// The generation of the desired state: a report for an older one is ignored.
    pub generation: u64,
    /// Whether it should be attached; otherwise it should be detached.
    pub attached: bool,
    /// The last epoch of another host that had the volume, as long as no lease was acquired for
    /// this attachment: a journal that this host has is older.
    pub fenced: Option<u32>,
    /// Whether a lease was acquired for it: its journal may be newer than the head.
    pub leased: bool,
    /// The volume.
    pub volume: VolumeId,
    /// The volume's name.
    pub name: String,
    /// The VM that it is plugged into; `None` for a plain export.
    pub vm: Option<String>,
    /// Whether it is detached even if the VM's guest does not release it.
    pub forced: bool,
    /// Whether it may be written.
    pub access: Access,
    /// The size that the volume should have, in bytes.
    pub size_bytes: u64,
    /// The volume's block size.
    pub block_size: BlockSize,
    /// How it is encrypted, if it has no key yet.
    pub encryption: Encryption,
    /// The lineage that it writes.
    pub lineage: Lineage,
    /// Read-only: the version that is shown; `None` for an empty volume.
    pub version: Option<VersionKey>,
    /// Snapshots whose consistency points should be taken.
    pub snapshots: Vec<SnapshotId>,
    /// The chain that it should be served through, if there is one.
    pub chain: Option<DesiredChain>,
    /// The nearest base image at or above it, if there is one.
    pub image: Option<BaseImage>,
    /// The length of its journal, in bytes; `None` for this host's default.
    pub journal_bytes: Option<u64>,
    /// Its largest share of the cache's active area, in bytes; `None` for a fair share.
    pub cache_max_bytes: Option<u64>,
}

/// The desired chain of filters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DesiredChain {
    /// The chain and its revision.
    pub key: ChainKey,
    /// The owner of the volume, for the events of filters.
    pub tenant: String,
    /// The policy, as its author wrote it.
    pub policy: String,
    /// The volumes that the filters write beside this one, by their names in the policy.
    pub volumes: BTreeMap<String, VolumeId>,
}

/// A revision of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChainKey {
    /// The id.
    pub id: ChainId,
    /// Grows by one with every change.
    pub revision: u64,
}

/// The observed state of an attachment, as its host reports it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachmentReport {
    /// The generation of the desired state that the report is about.
    pub generation: u64,
    /// The state.
    pub state: AttachmentState,
    /// What keeps it from the desired state, or what was lost when it was detached.
    pub problem: Option<Message>,
    /// What the user should know although nothing is wrong. It is kept until the next one.
    pub notice: Option<Message>,
    /// The serial by which the VM knows the disk.
    pub device: Option<String>,
    /// The size that it is served with, in bytes.
    pub size_bytes: Option<u64>,
    /// The chain that it is served through, if there is one.
    pub chain: Option<ChainKey>,
    /// Why it is not served through the desired chain.
    pub chain_problem: Option<String>,
    /// The URI for a client on that host.
    pub uri: Option<String>,
    /// The URI for a client elsewhere.
    pub tcp_uri: Option<String>,
}
