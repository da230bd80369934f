//! What can be set about an attached volume.

use std::time::Duration;

/// Sizes and times of one attached volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VolumeConfig {
    /// Size of the journal's ring in bytes. HVSTO gives each active VM 100 MB
    /// (§III-C).
    pub journal_bytes: u64,
    /// How long a write may wait in the journal when the volume is otherwise
    /// idle: how much a lost host SSD may cost.
    pub destage_after: Duration,
    /// How long to wait before a failed destage is tried again.
    pub retry_after: Duration,
    /// A checkpoint is begun when the tail has this many entries. At 48 bytes
    /// of memory each, this bounds an overlay to 12 MiB; replaying it on open
    /// takes well under a second.
    pub tail_entries_max: usize,
    /// Or when it has this many pages (many small destages): bounds the
    /// version record.
    pub tail_pages_max: usize,
    /// Size of a segment in bytes.
    pub segment_bytes: u32,
    /// On how many copysets segments are kept open: what one destage writes is
    /// scattered over that many, as evenly as chance has it.
    pub scatter_width: usize,
}

impl Default for VolumeConfig {
    fn default() -> Self {
        Self {
            journal_bytes: 100 << 20,
            destage_after: Duration::from_secs(5),
            retry_after: Duration::from_secs(1),
            tail_entries_max: 256 << 10,
            tail_pages_max: 2048,
            segment_bytes: 8 << 20,
            scatter_width: 16,
        }
    }
}
