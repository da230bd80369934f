//! What a capability is good for.

use std::ops::Range;

use aws_lc_rs::digest::{SHA256, digest};
use base::{ClusterId, CopysetId, Lineage, SegmentId, UnitId, VolumeId};

/// What segments have in common that were written under one lineage: 64 bits
/// of a hash, from which a unit learns no more than that. 0 is that of
/// segments from before there were lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Line(pub u64);

/// What leases of one volume have in common: likewise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(pub u64);

impl Line {
    /// That of segments which were put before their unit had lines.
    pub const NONE: Self = Self(0);

    /// That of a lineage.
    #[must_use]
    pub fn of(cluster: ClusterId, lineage: Lineage) -> Self {
        Self(hash("line", cluster, lineage.as_u128()))
    }
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
        line: Line,
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
        lines: Vec<Line>,
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
    /// To note on units how many leases were given: so many, and no more.
    Count {
        /// As the database has it.
        leases: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_fences_differ_between_clusters_and_from_each_other() {
        let clusters = [1, 2].map(ClusterId::from_u128);
        let (lineage, volume) = (Lineage::from_u128(3), VolumeId::from_u128(3));
        let mut all: Vec<u64> = Vec::new();
        for cluster in clusters {
            all.push(Line::of(cluster, lineage).0);
            all.push(Fence::of(cluster, volume).0);
        }
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 4);
    }
}
