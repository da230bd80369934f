//! Base images, and their preloads into the caches of hosts.

use base::{BlockSize, Lineage, VolumeId};
use catalog::VersionKey;
use serde::{Deserialize, Serialize};

/// The base image that a volume is, or was cloned from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BaseImage {
    /// The lineage that writes it: blocks of this lineage, and of those above it, are the image's.
    pub lineage: Lineage,
    /// Whether its blocks stay in the cache.
    pub is_pinned: bool,
}

/// An image that a host should read into its cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DesiredPreload {
    /// The image.
    pub volume: VolumeId,
    /// The generation of the desired state: a report for an older one is ignored.
    pub generation: u64,
    /// The version that is read.
    pub version: VersionKey,
    /// The size of the version, in bytes.
    pub size_bytes: u64,
    /// Its block size.
    pub block_size: BlockSize,
    /// Whether its blocks stay in the cache.
    pub is_pinned: bool,
}

/// The progress of a preload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreloadReport {
    /// The generation of the desired state that the report is about.
    pub generation: u64,
    /// How much was read, in bytes.
    pub done_bytes: u64,
    /// How much there is to read, in bytes.
    pub total_bytes: u64,
    /// The outcome; `None` while it runs.
    pub end: Option<PreloadOutcome>,
    /// Whether it has failed because the host's cache has no file.
    pub has_no_cache: bool,
}

/// The outcome of a preload: all of it was read, or why not.
pub type PreloadOutcome = Result<(), String>;
