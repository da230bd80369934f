//! What an open volume reports about itself.

use catalog::VersionKey;

use crate::scatter::CacheCounts;

/// Counts since the volume was attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Blocks admitted to the journal.
    pub blocks_written: u64,
    /// Blocks that destages have placed.
    pub blocks_destaged: u64,
    /// Versions committed.
    pub versions: u64,
    /// Checkpoints that were committed.
    pub checkpoints: u64,
}

/// The status of an attached volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeStatus {
    /// Size in bytes.
    pub size_bytes: u64,
    /// Size of the journal's ring in bytes.
    pub journal_bytes: u64,
    /// Bytes of it that wait to be destaged.
    pub journal_used_bytes: u64,
    /// Blocks and pages that its jobs have written to units so far: shows the
    /// progress of a running destage.
    pub pieces_placed: u64,
    /// Entries of the tail.
    pub tail_entries: usize,
    /// Pages of the tail.
    pub tail_pages: usize,
    /// The newest version.
    pub head: Option<VersionKey>,
    /// Counts since the volume was attached.
    pub counters: Counters,
    /// Whether the lease is expired: reads are answered, everything else waits.
    pub stalled: bool,
    /// Why the last destage failed, if it did.
    pub destage_error: Option<String>,
    /// Why the volume has stopped, if it has.
    pub stopped: Option<String>,
    /// Requests that wait for unavailable units.
    pub reads_waiting: usize,
    /// Why they wait.
    pub read_error: Option<String>,
    /// Its reads through the host's cache, if there is one.
    pub cache: Option<CacheCounts>,
}
