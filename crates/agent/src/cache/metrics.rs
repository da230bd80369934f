//! The cache's metrics. The API counts blocks of 4 KiB ([`CACHE_BLOCK_BYTES`]); metrics named
//! `_bytes` convert them.

use api::types::{
    CACHE_BLOCK_BYTES, CacheArea, CacheFile, CacheLookups, HostCache, LookupsByArea, VolumeCache,
};
use base::VolumeId;
use metrics::{Labels, Measures};

use crate::declared_metrics::{
    CACHE_AREA_BYTES, CACHE_AREA_CAPACITY_BYTES, CACHE_DAMAGED_BLOCKS, CACHE_EVICTED_BLOCKS,
    CACHE_FAILURES, CACHE_INSERTED_BLOCKS, CACHE_MEMORY_BYTES, CACHE_PINNED_BYTES,
    CACHE_PROTECTED_BYTES, CACHE_REFUSED_BLOCKS, CACHE_REQUESTED_BLOCKS,
    VOLUME_CACHE_REQUESTED_BLOCKS, VOLUME_READ_AHEAD_BLOCKS,
};

fn areas<T: Copy>(metadata: T, image: T, active: T) -> [(&'static str, T); 3] {
    [("metadata", metadata), ("image", image), ("active", active)]
}

/// Requested blocks of an area, by where they were found.
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
    measures.counter(&CACHE_REQUESTED_BLOCKS, rows(&Vec::new(), &cache.lookups));
    let places = [
        ("used", cache.memory_blocks),
        ("capacity", cache.memory_capacity),
    ];
    measures.gauge(
        &CACHE_MEMORY_BYTES,
        places.map(|(kind, blocks)| (vec![("kind", kind.to_owned())], bytes(blocks))),
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
    measures.gauge(&CACHE_AREA_BYTES, of_bytes(|area| area.blocks));
    measures.gauge(&CACHE_AREA_CAPACITY_BYTES, of_bytes(|area| area.capacity));
    measures.counter(&CACHE_INSERTED_BLOCKS, of(|area| area.inserted));
    measures.counter(&CACHE_EVICTED_BLOCKS, of(|area| area.evicted));
    measures.one(&CACHE_PROTECTED_BYTES, bytes(file.protected));
    measures.one(&CACHE_PINNED_BYTES, bytes(file.pinned));
    measures.count(&CACHE_DAMAGED_BLOCKS, file.damaged);
    measures.count(&CACHE_REFUSED_BLOCKS, file.refused);
    measures.count(&CACHE_FAILURES, file.failures);
}

/// The metrics of the open volumes.
pub(crate) fn measure_volumes<'a>(
    measures: &mut Measures,
    volumes: impl Iterator<Item = (&'a VolumeId, &'a VolumeCache)> + Clone,
) {
    let named = |volume: &VolumeId| vec![("volume", volume.to_string())];
    measures.counter(
        &VOLUME_CACHE_REQUESTED_BLOCKS,
        volumes
            .clone()
            .flat_map(|(volume, cache)| rows(&named(volume), &cache.lookups)),
    );
    let ahead = volumes.flat_map(|(volume, cache)| {
        let counts = [
            ("read", cache.read_ahead_blocks),
            ("used", cache.read_ahead_used),
            ("unread", cache.read_ahead_unread),
        ];
        counts.map(|(kind, count)| {
            let mut labels = named(volume);
            labels.push(("kind", kind.to_owned()));
            (labels, count)
        })
    });
    measures.counter(&VOLUME_READ_AHEAD_BLOCKS, ahead);
}

/// Adds up the counters of a volume that is open more than once.
pub(crate) fn add(sum: &mut VolumeCache, part: &VolumeCache) {
    let pairs = [
        (&mut sum.lookups.metadata, part.lookups.metadata),
        (&mut sum.lookups.image, part.lookups.image),
        (&mut sum.lookups.active, part.lookups.active),
    ];
    for (sum, part) in pairs {
        sum.memory += part.memory;
        sum.file += part.file;
        sum.units += part.units;
    }
    sum.read_ahead_blocks += part.read_ahead_blocks;
    sum.read_ahead_used += part.read_ahead_used;
    sum.read_ahead_unread += part.read_ahead_unread;
}

#[expect(clippy::cast_precision_loss, reason = "a number for a graph")]
fn bytes(blocks: u64) -> f64 {
    (blocks * CACHE_BLOCK_BYTES) as f64
}
