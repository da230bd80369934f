//! The load of hosts, and the statistics of their caches.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::volumes::Engine;

/// Length of a cache block in bytes.
pub const CACHE_BLOCK_BYTES: u64 = 4096;

/// Lookups of 4 KiB blocks, by where the block was found. Reads that a unit on the host itself
/// answers are not counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct CacheLookups {
    /// Found in the cache's memory.
    pub memory: u64,
    /// Found in the cache's file.
    pub file: u64,
    /// Read from units.
    pub units: u64,
}

/// Lookups by area of the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct LookupsByArea {
    /// Pages of maps.
    pub metadata: CacheLookups,
    /// Base images.
    pub image: CacheLookups,
    /// Everything else.
    pub active: CacheLookups,
}

/// Cache statistics of a volume since it was attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct VolumeCache {
    /// Lookups.
    pub lookups: LookupsByArea,
    /// 4 KiB blocks that were read ahead.
    pub read_ahead_blocks: u64,
    /// Blocks that were read ahead and then used.
    pub read_ahead_used: u64,
    /// Blocks that were read ahead and evicted unread.
    pub read_ahead_unread: u64,
}

/// An area of a cache's file, in 4 KiB blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct CacheArea {
    /// Blocks that are cached.
    pub blocks: u64,
    /// The largest number of cached blocks.
    pub capacity: u64,
    /// Blocks inserted since the host's process started.
    pub inserted: u64,
    /// Blocks evicted since the host's process started.
    pub evicted: u64,
}

/// A cache's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct CacheFile {
    /// Pages of maps.
    pub metadata: CacheArea,
    /// Base images.
    pub image: CacheArea,
    /// Everything else.
    pub active: CacheArea,
    /// Pages of maps in the protected segment.
    pub protected: u64,
    /// Blocks of pinned images.
    pub pinned: u64,
    /// Blocks that failed verification and were read from units.
    pub damaged: u64,
    /// Blocks that were not inserted because too many writes were pending.
    pub refused: u64,
    /// Failures and timeouts of the file.
    pub failures: u64,
}

/// A host's cache since its process started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct HostCache {
    /// Lookups.
    pub lookups: LookupsByArea,
    /// 4 KiB blocks in memory.
    pub memory_blocks: u64,
    /// The largest number of blocks in memory.
    pub memory_capacity: u64,
    /// The cache's file, if one is in use.
    pub file: Option<CacheFile>,
}

/// The load of a volume on a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VolumeLoad {
    /// The volume's id.
    pub volume: String,
    /// The volume's name.
    pub name: String,
    /// The attachment's id.
    pub attachment: String,
    /// The state of its engine, as last reported.
    pub engine: Engine,
}

/// The load of a host, as last reported.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HostLoad {
    /// The host's name.
    pub host: String,
    /// The host's cache, if it reported one.
    pub cache: Option<HostCache>,
    /// The volumes that are open there.
    pub volumes: Vec<VolumeLoad>,
}

impl CacheLookups {
    /// The share of lookups that the cache answered, from 0 to 1; `None` if there were none.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a ratio")]
    pub fn hit_ratio(&self) -> Option<f64> {
        let hits = self.memory + self.file;
        let all = hits + self.units;
        (all > 0).then(|| hits as f64 / all as f64)
    }

    /// The lookups since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            memory: self.memory.saturating_sub(earlier.memory),
            file: self.file.saturating_sub(earlier.file),
            units: self.units.saturating_sub(earlier.units),
        }
    }
}

impl LookupsByArea {
    /// All areas together.
    #[must_use]
    pub fn all(&self) -> CacheLookups {
        let areas = [self.metadata, self.image, self.active];
        let sum = |of: fn(&CacheLookups) -> u64| areas.iter().map(of).sum();
        CacheLookups {
            memory: sum(|lookups| lookups.memory),
            file: sum(|lookups| lookups.file),
            units: sum(|lookups| lookups.units),
        }
    }
}
