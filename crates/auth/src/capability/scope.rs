//! What a capability is good for.

use std::ops::Range;

use aws_lc_rs::digest::{SHA256, digest};
use base::{ClusterId, CopysetId, Lineage, LineageTag, SegmentId, UnitId, VolumeId};

/// What the leases of one volume have in common: 64 bits of a hash of the volume, from
/// which a unit learns nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(pub u64);

/// The tag of a lineage. Never [`LineageTag::NONE`].
#[must_use]
pub fn lineage_tag_of(cluster: ClusterId, lineage: Lineage) -> LineageTag {
    LineageTag(hash("lineage-tag", cluster, lineage.as_u128()))
}

impl Fence {
    /// That of a volume.
    #[must_use]
    pub fn of(cluster: ClusterId, volume: VolumeId) -> Self {
        Self(hash("fence", cluster, volume.as_u128()))
    }
}

/// Never 0.
fn hash(what: &str, cluster: ClusterId, number: u128) -> u64 {
    let mut text = b"scree ".to_vec();
    text.extend(what.as_bytes());
    text.extend(cluster.as_u128().to_le_bytes());
    text.extend(number.to_le_bytes());
    let hash = digest(&SHA256, &text);
    let first = hash.as_ref().first_chunk().expect("SHA-256 has 32 bytes");
    u64::from_le_bytes(*first).max(1)
}

/// What a capability is good for. Each list has at most
/// [`ITEMS_MAX`](crate::capability::ITEMS_MAX) items.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// To write a volume under a lease: to put, sync, free, delete and list
    /// segments by their serials.
    Lease {
        /// What is put belongs to it.
        lineage_tag: LineageTag,
        /// The volume, as leases know it.
        fence: Fence,
        /// The lease's number.
        epoch: u32,
        /// The serials that were reserved under it, and those of segments that
        /// earlier leases left open. None is empty.
        serials: Vec<Range<u64>>,
    },
    /// To read what belongs to any of them.
    Read {
        /// A lineage, and those above it.
        lineage_tags: Vec<LineageTag>,
    },
    /// To free slots in these, or delete them.
    Free {
        /// In order.
        segments: Vec<SegmentId>,
    },
    /// To compare copies, and put what one lacks.
    Repair {
        /// Whose segments.
        copysets: Vec<CopysetId>,
        /// On which units they may be changed; on the others they are read.
        units: Vec<UnitId>,
    },
    /// To record the lease count on units, up to this number.
    Count {
        /// As the database has it.
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
