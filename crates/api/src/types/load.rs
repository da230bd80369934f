//! What hosts have to do, and what their caches spare them.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::volumes::Engine;

/// The length of a cache's blocks, in bytes.
pub const CACHE_BLOCK_BYTES: u64 = 4096;

/// How often blocks of 4 KiB were asked for, and where they were. What units of the host
/// itself have at hand is asked of them, and not counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct Asked {
    /// In the cache's memory.
    pub memory: u64,
    /// In its file.
    pub file: u64,
    /// On units.
    pub units: u64,
}

/// The same, of each area of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct AskedByArea {
    /// Pages of maps.
    pub metadata: Asked,
    /// Base images.
    pub image: Asked,
    /// All else.
    pub active: Asked,
}

/// What the cache does for a volume, since it was attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct VolumeCache {
    /// What was asked of it.
    pub asked: AskedByArea,
    /// Blocks of 4 KiB that were read ahead.
    pub ahead_brought: u64,
    /// Of these, those that were asked for.
    pub ahead_used: u64,
    /// And those that went unread.
    pub ahead_unread: u64,
}

/// An area of a cache's file, in blocks of 4 KiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct CacheArea {
    /// There are so many.
    pub blocks: u64,
    /// And may be.
    pub capacity: u64,
    /// So many came, since the host's process began.
    pub brought: u64,
    /// So many went to make room.
    pub evicted: u64,
}

/// A cache's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct CacheFile {
    /// Pages of maps.
    pub metadata: CacheArea,
    /// Base images.
    pub image: CacheArea,
    /// All else.
    pub active: CacheArea,
    /// Pages of maps that are protected.
    pub protected: u64,
    /// Blocks of images that stay.
    #[serde(default)]
    pub pinned: u64,
    /// Blocks that were not what they should be, and were read from units.
    pub damaged: u64,
    /// Blocks that were not kept because too much was being written.
    pub refused: u64,
    /// How often the file has failed.
    pub failures: u64,
}

/// A host's cache, since its process began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct HostCache {
    /// What was asked of it.
    pub asked: AskedByArea,
    /// Blocks of 4 KiB in memory.
    pub memory_blocks: u64,
    /// So many may be.
    pub memory_capacity: u64,
    /// Its file, if one is in use.
    pub file: Option<CacheFile>,
}

/// What a volume has to do on a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VolumeLoad {
    /// Its id.
    pub volume: String,
    /// Its name.
    pub name: String,
    /// Which attachment.
    pub attachment: String,
    /// Its engine, as it last said.
    pub engine: Engine,
}

/// What a host has to do, as it last said.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HostLoad {
    /// Its name.
    pub host: String,
    /// Its cache, if it has told of one.
    pub cache: Option<HostCache>,
    /// What is open there.
    pub volumes: Vec<VolumeLoad>,
}

impl Asked {
    /// How much of it the cache had, of 1; none, if nothing was asked.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a ratio")]
    pub fn hit_ratio(&self) -> Option<f64> {
        let had = self.memory + self.file;
        let all = had + self.units;
        (all > 0).then(|| had as f64 / all as f64)
    }

    /// What was asked since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            memory: self.memory.saturating_sub(earlier.memory),
            file: self.file.saturating_sub(earlier.file),
            units: self.units.saturating_sub(earlier.units),
        }
    }
}

impl AskedByArea {
    /// All areas together.
    #[must_use]
    pub fn all(&self) -> Asked {
        let areas = [self.metadata, self.image, self.active];
        let sum = |of: fn(&Asked) -> u64| areas.iter().map(of).sum();
        Asked {
            memory: sum(|asked| asked.memory),
            file: sum(|asked| asked.file),
            units: sum(|asked| asked.units),
        }
    }
}
