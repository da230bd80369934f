//! The cache's metrics. All count blocks of 4 KiB.

use api::types::{
    CACHE_BLOCK_BYTES, CacheArea, CacheFile, CacheLookups, HostCache, LookupsByArea, VolumeCache,
};
use base::VolumeId;
use metrics::{Labels, Measures};

fn areas<T: Copy>(metadata: T, image: T, active: T) -> [(&'static str, T); 3] {
    [("metadata", metadata), ("image", image), ("active", active)]
}

/// How many requested blocks of an area came from each place.
fn rows(first: &Labels, asked: &LookupsByArea) -> Vec<(Labels, u64)> {
    let mut rows = Vec::new();
    for (area, asked) in areas(asked.metadata, asked.image, asked.active) {
        let CacheLookups {
            memory,
            file,
            units,
        } = asked;
        for (place, count) in [("memory", memory), ("file", file), ("units", units)] {
            let mut labels = first.clone();
            labels.push(("area", area.to_owned()));
            labels.push(("from", place.to_owned()));
            rows.push((labels, count));
        }
    }
    rows
}

/// The metrics of the host's cache.
pub(crate) fn measure_host(measures: &mut Measures, cache: &HostCache) {
    measures.counter(
        "scree_cache_asked_blocks",
        "Requested blocks, by where they were found",
        rows(&Vec::new(), &cache.lookups),
    );
    let places = [
        ("used", cache.memory_blocks),
        ("capacity", cache.memory_capacity),
    ];
    measures.gauge(
        "scree_cache_memory_bytes",
        "Memory that the cache uses, and may use",
        places.map(|(what, blocks)| (vec![("what", what.to_owned())], bytes(blocks))),
    );
    if let Some(file) = &cache.file {
        measure_file(measures, file);
    }
}

fn measure_file(measures: &mut Measures, file: &CacheFile) {
    let of = |count: fn(&CacheArea) -> u64| {
        let all = areas(file.metadata, file.image, file.active);
        all.map(|(area, found)| (vec![("area", area.to_owned())], count(&found)))
    };
    let of_bytes = |count| of(count).map(|(labels, blocks)| (labels, bytes(blocks)));
    measures.gauge(
        "scree_cache_area_bytes",
        "Bytes in an area of the cache's file",
        of_bytes(|area| area.blocks),
    );
    measures.gauge(
        "scree_cache_area_capacity_bytes",
        "Bytes that an area of the cache's file may have",
        of_bytes(|area| area.capacity),
    );
    measures.counter(
        "scree_cache_brought_blocks",
        "Blocks that were put into an area",
        of(|area| area.inserted),
    );
    measures.counter(
        "scree_cache_evicted_blocks",
        "Blocks that were evicted from an area",
        of(|area| area.evicted),
    );
    measures.one(
        "scree_cache_protected_bytes",
        "Map pages of the newest versions of attached volumes that are in the cache's file",
        bytes(file.protected),
    );
    measures.one(
        "scree_cache_pinned_bytes",
        "Blocks of pinned images in the cache's file",
        bytes(file.pinned),
    );
    let counts = [
        (
            "scree_cache_damaged_blocks",
            "Blocks of the cache's file that were damaged, and were read from units",
            file.damaged,
        ),
        (
            "scree_cache_refused_blocks",
            "Blocks that were not stored because too many were being written",
            file.rejected,
        ),
        (
            "scree_cache_failures",
            "Failures and timeouts of the cache's file",
            file.io_errors,
        ),
    ];
    for (name, help, count) in counts {
        measures.count(name, help, count);
    }
}

/// The metrics of the open volumes.
pub(crate) fn measure_volumes<'a>(
    measures: &mut Measures,
    volumes: impl Iterator<Item = (&'a VolumeId, &'a VolumeCache)> + Clone,
) {
    let named = |volume: &VolumeId| vec![("volume", volume.to_string())];
    measures.counter(
        "scree_volume_cache_asked_blocks",
        "Requested blocks of an open volume, by where they were found",
        volumes
            .clone()
            .flat_map(|(volume, cache)| rows(&named(volume), &cache.lookups)),
    );
    let ahead = volumes.flat_map(|(volume, cache)| {
        let counts = [
            ("brought", cache.read_ahead_blocks),
            ("used", cache.read_ahead_used),
            ("unread", cache.read_ahead_unused),
        ];
        counts.map(|(what, count)| {
            let mut labels = named(volume);
            labels.push(("what", what.to_owned()));
            (labels, count)
        })
    });
    measures.counter(
        "scree_volume_ahead_blocks",
        "Blocks that were read ahead for an open volume: brought, and of these used, or evicted unread",
        ahead,
    );
}

/// Adds up the counters of a volume that is open several times.
pub(crate) fn add(sum: &mut VolumeCache, one: &VolumeCache) {
    let pairs = [
        (&mut sum.lookups.metadata, one.lookups.metadata),
        (&mut sum.lookups.image, one.lookups.image),
        (&mut sum.lookups.active, one.lookups.active),
    ];
    for (sum, one) in pairs {
        sum.memory += one.memory;
        sum.file += one.file;
        sum.units += one.units;
    }
    sum.read_ahead_blocks += one.read_ahead_blocks;
    sum.read_ahead_used += one.read_ahead_used;
    sum.read_ahead_unused += one.read_ahead_unused;
}

#[expect(clippy::cast_precision_loss, reason = "a number for a graph")]
fn bytes(blocks: u64) -> f64 {
    (blocks * CACHE_BLOCK_BYTES) as f64
}
