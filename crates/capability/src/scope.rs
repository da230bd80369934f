//! What a capability is good for.

use std::ops::Range;

use aws_lc_rs::digest::{SHA256, digest};
use base::{ClusterId, CopysetId, Lineage, SegmentId, VolumeId};

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
/// [`ITEMS_MAX`](crate::ITEMS_MAX) items.
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
    Mend {
        /// Whose segments.
        copysets: Vec<CopysetId>,
    },
}

/// Leases of one volume, of which only the newest counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Epochs {
    /// The volume.
    pub fence: Fence,
    /// The lease.
    pub epoch: u32,
}

/// What a host wants to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Put into a segment, or sync it.
    Put(SegmentId),
    /// Read slots of a segment that belongs to somebody, or ask how many there
    /// are.
    Read(SegmentId, Line),
    /// Free slots of a segment, or delete it.
    Free(SegmentId),
    /// List segments with these serials.
    List(Range<u64>),
}

impl Scope {
    /// Whether it is good for `action`.
    #[must_use]
    pub fn allows(&self, action: &Action) -> bool {
        match self {
            Self::Lease { line, serials, .. } => {
                let has = |segment: &SegmentId| holds(serials, segment);
                match action {
                    Action::Put(segment) | Action::Free(segment) => has(segment),
                    Action::Read(segment, of) => of == line || has(segment),
                    Action::List(range) => {
                        let is_in =
                            |own: &Range<u64>| own.start <= range.start && range.end <= own.end;
                        range.is_empty() || serials.iter().any(is_in)
                    }
                }
            }
            Self::Read { lines } => match action {
                Action::Read(_, of) => *of == Line::NONE || lines.contains(of),
                _ => false,
            },
            Self::Free { segments } => match action {
                Action::Free(segment) => segments.binary_search(segment).is_ok(),
                _ => false,
            },
            Self::Mend { copysets } => match action {
                Action::Put(segment) | Action::Read(segment, _) => {
                    copysets.contains(&segment.copyset())
                }
                Action::Free(_) | Action::List(_) => false,
            },
        }
    }

    /// To whom what is put under it belongs; `None` if nothing can be, or if it
    /// is another's.
    #[must_use]
    pub fn line(&self) -> Option<Line> {
        match self {
            Self::Lease { line, .. } => Some(*line),
            _ => None,
        }
    }

    /// Of which leases only the newest counts.
    #[must_use]
    pub fn epochs(&self) -> Option<Epochs> {
        match self {
            Self::Lease { fence, epoch, .. } => Some(Epochs {
                fence: *fence,
                epoch: *epoch,
            }),
            _ => None,
        }
    }
}

fn holds(serials: &[Range<u64>], segment: &SegmentId) -> bool {
    serials
        .iter()
        .any(|range| range.contains(&segment.serial()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(copyset: u16, serial: u64) -> SegmentId {
        let copyset = CopysetId::new(copyset).expect("under 4096");
        SegmentId::new(copyset, serial).expect("under 2^36")
    }

    const OWN: Line = Line(7);
    const OTHER: Line = Line(8);

    /// All actions on a segment, whoever owns it.
    fn actions(segment: SegmentId, line: Line) -> [Action; 4] {
        let serial = segment.serial();
        [
            Action::Put(segment),
            Action::Read(segment, line),
            Action::Free(segment),
            Action::List(serial..serial + 1),
        ]
    }

    fn allowed(scope: &Scope, segment: SegmentId, line: Line) -> [bool; 4] {
        actions(segment, line).map(|action| scope.allows(&action))
    }

    #[test]
    fn each_scope_allows_its_own_and_nothing_else() {
        let lease = Scope::Lease {
            line: OWN,
            fence: Fence(1),
            epoch: 3,
            serials: vec![10..20, 40..41],
        };
        assert_eq!(allowed(&lease, segment(5, 10), OTHER), [true; 4]);
        assert_eq!(allowed(&lease, segment(0, 40), OTHER), [true; 4]);
        let read_only = [false, true, false, false];
        assert_eq!(allowed(&lease, segment(5, 20), OWN), read_only);
        assert_eq!(allowed(&lease, segment(5, 9), OTHER), [false; 4]);
        assert!(lease.allows(&Action::List(10..20)));
        for beyond in [9..20, 10..21, 15..41, 0..u64::MAX] {
            assert!(!lease.allows(&Action::List(beyond)));
        }

        let read = Scope::Read {
            lines: vec![OWN, Line(9)],
        };
        assert_eq!(allowed(&read, segment(5, 10), OWN), read_only);
        assert_eq!(allowed(&read, segment(5, 10), Line::NONE), read_only);
        assert_eq!(allowed(&read, segment(5, 10), OTHER), [false; 4]);

        let free = Scope::Free {
            segments: vec![segment(1, 10), segment(1, 12), segment(2, 3)],
        };
        let free_only = [false, false, true, false];
        assert_eq!(allowed(&free, segment(1, 12), OWN), free_only);
        assert_eq!(allowed(&free, segment(2, 12), OWN), [false; 4]);

        let mend = Scope::Mend {
            copysets: vec![CopysetId::new(4).expect("one")],
        };
        let put_and_read = [true, true, false, false];
        assert_eq!(allowed(&mend, segment(4, 10), OTHER), put_and_read);
        assert_eq!(allowed(&mend, segment(5, 10), OTHER), [false; 4]);
    }

    #[test]
    fn lines_and_fences_differ_between_clusters_and_from_each_other() {
        let clusters = [1, 2].map(ClusterId::from_random);
        let (lineage, volume) = (Lineage::from_random(3), VolumeId::from_random(3));
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
