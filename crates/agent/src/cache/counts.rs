//! The cache's counters, for reports and metrics.

use api::types::{
    CacheArea, CacheFile, CacheLookups, HostCache as CacheReport, LookupsByArea, VolumeCache,
};
use cache::host::{AreaCounts, HostCache};
use cache::store::{AreaKind, AreaStatistics, Statistics};
use volume::scatter::CacheCounts;

fn lookups(areas: &[AreaCounts; 3]) -> LookupsByArea {
    let of = |kind: AreaKind| {
        let area = areas[kind as usize];
        CacheLookups {
            memory: area.memory,
            file: area.file,
            units: area.units,
        }
    };
    LookupsByArea {
        metadata: of(AreaKind::Metadata),
        image: of(AreaKind::Image),
        active: of(AreaKind::Active),
    }
}

/// The counters of one volume.
pub(crate) fn of_volume(counts: &CacheCounts) -> VolumeCache {
    VolumeCache {
        lookups: lookups(&counts.areas),
        read_ahead_blocks: counts.ahead.read_ahead,
        read_ahead_used: counts.ahead.used,
        read_ahead_unread: counts.ahead.unread,
    }
}

/// The counters of the host.
pub(crate) fn of_host(cache: &HostCache) -> CacheReport {
    let (blocks, capacity) = cache.memory_sizes();
    CacheReport {
        lookups: lookups(&cache.counts()),
        memory_blocks: blocks as u64,
        memory_capacity: capacity as u64,
        file: cache.file().map(|file| of_file(&file.statistics())),
    }
}

fn of_file(statistics: &Statistics) -> CacheFile {
    let of = |kind: AreaKind| {
        let AreaStatistics {
            inserted,
            evicted,
            blocks,
            capacity,
        } = statistics.areas[kind as usize];
        CacheArea {
            blocks: blocks as u64,
            capacity: capacity as u64,
            inserted,
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
