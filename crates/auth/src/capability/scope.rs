//! The scope of a capability.

use std::ops::Range;

use aws_lc_rs::digest::{SHA256, digest};
use base::{ClusterId, CopysetId, Lineage, LineageTag, SegmentId, UnitId, VolumeId};

/// The number by which a unit tells leases of one volume from those of others: 64 bits of a hash of
/// the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(pub u64);

/// The tag of a lineage. Never [`LineageTag::NONE`].
#[must_use]
pub fn lineage_tag_of(cluster: ClusterId, lineage: Lineage) -> LineageTag {
    LineageTag(hash("lineage-tag", cluster, lineage.as_u128()))
}

impl Fence {
    /// The fence of a volume.
    #[must_use]
    pub fn of(cluster: ClusterId, volume: VolumeId) -> Self {
        Self(hash("fence", cluster, volume.as_u128()))
    }
}

/// A hash of 64 bits that is never 0.
fn hash(what: &str, cluster: ClusterId, number: u128) -> u64 {
    let mut text = b"scree ".to_vec();
    text.extend(what.as_bytes());
    text.extend(cluster.as_u128().to_le_bytes());
    text.extend(number.to_le_bytes());
    let hash = digest(&SHA256, &text);
    let first = hash.as_ref().first_chunk().expect("SHA-256 has 32 bytes");
    u64::from_le_bytes(*first).max(1)
}

/// The operations that a capability allows. Each list has at most
/// [`ITEMS_MAX`](crate::capability::ITEMS_MAX) items.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// Write a volume under a lease: put, sync, free, delete and list segments by their serials.
    Lease {
        /// The lineage tag of the segments that are put.
        lineage_tag: LineageTag,
        /// The fence of the volume.
        fence: Fence,
        /// The lease's epoch.
        epoch: u32,
        /// The serials that were reserved under it, and those of segments that earlier leases left
        /// open. No range is empty.
        serials: Vec<Range<u64>>,
    },
    /// Read segments of these lineages.
    Read {
        /// The tags of a lineage and of all lineages above it.
        lineage_tags: Vec<LineageTag>,
    },
    /// Free slots in segments, or delete the segments.
    Free {
        /// The segments, in order.
        segments: Vec<SegmentId>,
    },
    /// Compare copies, and put what a copy is missing.
    Repair {
        /// The copysets of the segments.
        copysets: Vec<CopysetId>,
        /// The units on which segments may be changed. On other units they are read.
        units: Vec<UnitId>,
    },
    /// Record the lease count on units, up to this number.
    Count {
        /// The lease count of the database.
        leases: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lineage_tags_and_fences_differ_between_clusters_and_from_each_other() {
        let clusters = [1, 2].map(ClusterId::from_u128);
        let (lineage, volume) = (Lineage::from_u128(3), VolumeId::from_u128(3));
        let mut all: Vec<u64> = Vec::new();
        for cluster in clusters {
            all.push(lineage_tag_of(cluster, lineage).0);
            all.push(Fence::of(cluster, volume).0);
        }
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 4);
    }
}
