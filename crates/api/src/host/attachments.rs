//! Attachments, as they are wanted of a host and as it says they are.

use std::collections::BTreeMap;

use base::{AttachmentId, BlockSize, ChainId, Lineage, SnapshotId, VolumeId};
use catalog::VersionKey;
use serde::{Deserialize, Serialize};

use super::ImageOf;
use crate::words::{Access, AttachmentState, Encryption};

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
    pub fenced: Option<u32>,
    /// A lease was taken for it: its journal may be newer than the head.
    pub leased: bool,
    /// Of what.
    pub volume: VolumeId,
    /// The volume's name.
    pub name: String,
    /// The VM that it is plugged into; a plain export without one.
    pub vm: Option<String>,
    /// It ends whether or not the VM's guest lets go of it.
    pub forced: bool,
    /// How.
    pub access: Access,
    /// The size that the volume should have, in bytes.
    pub size_bytes: u64,
    /// Its block size.
    pub block_size: BlockSize,
    /// How it is to be sealed, if it has no key yet.
    pub encryption: Encryption,
    /// Who it writes as.
    pub lineage: Lineage,
    /// Read-only: the version that is shown; none of an empty volume.
    pub version: Option<VersionKey>,
    /// Snapshots whose moment is to be taken.
    pub cuts: Vec<SnapshotId>,
    /// The filters that it is to be served through; none without a chain.
    pub chain: Option<WantedChain>,
    /// The nearest base image at or above it, if there is one.
    pub image: Option<ImageOf>,
    /// How long its journal is, in bytes; none: as this host has it for all.
    pub journal_bytes: Option<u64>,
    /// What it may have of the cache's active area, in bytes; none: its fair share.
    pub cache_max_bytes: Option<u64>,
}

/// A chain, as it is wanted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WantedChain {
    /// Which.
    pub key: ChainKey,
    /// Whose the volume is, for what filters say of it.
    pub tenant: String,
    /// The filters, as their owner wrote them down.
    pub policy: String,
    /// The volumes that they write beside this one, by the names that they have there.
    pub volumes: BTreeMap<String, VolumeId>,
}

/// A chain, as it was at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChainKey {
    /// Its id.
    pub id: ChainId,
    /// Grows by one with every change.
    pub revision: u64,
}

/// What a host says of an attachment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachmentReport {
    /// Which wish this is about.
    pub generation: u64,
    /// How far it has come.
    pub state: AttachmentState,
    /// Why, where that is to be said.
    pub reason: Option<String>,
    /// What is worth knowing and no error.
    pub note: Option<String>,
    /// The serial by which the VM knows it.
    pub device: Option<String>,
    /// The size that it is served with, in bytes.
    pub size_bytes: Option<u64>,
    /// The chain that it is served through, if there is one.
    pub chain: Option<ChainKey>,
    /// Why it is not served through the one that is wanted.
    pub chain_problem: Option<String>,
    /// What to give to a client on that host.
    pub uri: Option<String>,
    /// What to give to one elsewhere.
    pub tcp_uri: Option<String>,
}
