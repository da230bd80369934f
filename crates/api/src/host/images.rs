//! Base images, as hosts are told of them, and what they say of preloads.

use base::{BlockSize, Lineage, VolumeId};
use catalog::VersionKey;
use serde::{Deserialize, Serialize};

/// The base image that a volume is, or was cloned from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageOf {
    /// Who writes it: what was written under this lineage, and under those above it, is the
    /// image's.
    pub lineage: Lineage,
    /// It stays.
    pub is_pinned: bool,
}

/// An image that a host is to read into its cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WantedPreload {
    /// Which.
    pub volume: VolumeId,
    /// Which wish this is: a report on an older one changes nothing.
    pub generation: u64,
    /// What of it.
    pub version: VersionKey,
    /// How large it is, in bytes.
    pub size_bytes: u64,
    /// Its block size.
    pub block_size: BlockSize,
    /// It stays.
    pub is_pinned: bool,
}

/// How far a preload has come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreloadReport {
    /// Which wish this is about.
    pub generation: u64,
    /// How much was read, in bytes.
    pub done_bytes: u64,
    /// How much there is to be read, in bytes.
    pub all_bytes: u64,
    /// It has ended so; otherwise it goes on.
    pub end: Option<PreloadEnd>,
    /// It has ended since the host has no cache in a file.
    pub has_no_cache: bool,
}

/// How a preload has ended: all of it was read, or why not.
pub type PreloadEnd = Result<(), String>;
