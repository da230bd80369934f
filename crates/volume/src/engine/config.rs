//! [`VolumeConfig`]: the settings of an attached volume.

use std::time::Duration;

/// Sizes and times of one attached volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VolumeConfig {
    /// Size of the journal's ring in bytes. HVSTO gives each active VM 100 MB
    /// (§III-C).
    pub journal_bytes: u64,
    /// The longest time that a write waits in the journal of an otherwise idle
    /// volume: bounds what the loss of the host's SSD costs.
    pub destage_after: Duration,
    /// The delay before a failed destage is retried.
    pub retry_after: Duration,
    /// A checkpoint starts when the tail has this many entries. At 48 bytes of
    /// memory each, this bounds an overlay to 12 MiB; reading it on open takes
    /// well under a second.
    pub tail_entries_max: usize,
    /// A checkpoint also starts when the tail has this many pages, as after many
    /// small destages: bounds the version record.
    pub tail_pages_max: usize,
    /// Size of a segment in bytes.
    pub segment_bytes: u32,
    /// The greatest number of segments, each on a copyset of its own, over which one
    /// destage scatters its blocks.
    pub destage_width: usize,
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
            destage_width: 16,
        }
    }
}
