//! The cache's counters, as reports and metrics show them.

use api::types::{Asked, AskedByArea, CacheArea, CacheFile, HostCache as CacheReport, VolumeCache};
use cache::host::{AreaCounts, HostCache};
use cache::store::{AreaKind, AreaStatistics, Statistics};
use volume::scatter::CacheCounts;

fn asked(areas: &[AreaCounts; 3]) -> AskedByArea {
    let of = |kind: AreaKind| {
        let area = areas[kind as usize];
        Asked {
            memory: area.memory,
            file: area.file,
            units: area.misses,
        }
    };
    AskedByArea {
        metadata: of(AreaKind::Metadata),
        image: of(AreaKind::Image),
        active: of(AreaKind::Active),
    }
}

/// The counters of a volume.
pub(crate) fn of_volume(counts: &CacheCounts) -> VolumeCache {
    VolumeCache {
        asked: asked(&counts.areas),
        ahead_brought: counts.ahead.brought,
        ahead_used: counts.ahead.used,
        ahead_unread: counts.ahead.unread,
    }
}

/// The counters of a host.
pub(crate) fn of_host(cache: &HostCache) -> CacheReport {
    let (blocks, capacity) = cache.memory_sizes();
    CacheReport {
        asked: asked(&cache.counts()),
        memory_blocks: blocks as u64,
        memory_capacity: capacity as u64,
        file: cache.file().map(|file| of_file(&file.statistics())),
    }
}

fn of_file(statistics: &Statistics) -> CacheFile {
    let of = |kind: AreaKind| {
        let AreaStatistics {
            brought,
            evicted,
            blocks,
            capacity,
        } = statistics.areas[kind as usize];
        CacheArea {
            blocks: blocks as u64,
            capacity: capacity as u64,
            brought,
            evicted,
        }
    };
    CacheFile {
        metadata: of(AreaKind::Metadata),
        image: of(AreaKind::Image),
        active: of(AreaKind::Active),
        protected: statistics.protected as u64,
        pinned: statistics.pinned as u64,
        damaged: statistics.damaged,
        refused: statistics.refused,
        failures: statistics.failures + statistics.hangs,
    }
}
