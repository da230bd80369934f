//! [`Areas`]: the cache's three areas, each with a policy of its own (HVSTO §III-C).

use base::{Lineage, VolumeId};

use super::entry::{AreaKind, Id};
use super::images::Images;
use super::maps::{Maps, Protector};
use super::shares::Shares;
use crate::policy::Policy as _;

/// The area that a block belongs to, for the reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Area {
    /// A map page.
    Metadata {
        /// Protects the page: it belongs to the newest version of an attached volume.
        newest_of: Option<Protector>,
    },
    /// Content of a base image.
    Image {
        /// The image's lineage, if it is known.
        of: Option<Lineage>,
        /// Whether the block is pinned, if there is room.
        pinned: bool,
    },
    /// Any other content of this volume.
    Active(VolumeId),
}

impl Area {
    /// The kind of area.
    #[must_use]
    pub const fn kind(self) -> AreaKind {
        match self {
            Self::Metadata { .. } => AreaKind::Metadata,
            Self::Image { .. } => AreaKind::Image,
            Self::Active(_) => AreaKind::Active,
        }
    }
}

/// An owner of a share of an area.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sharer {
    /// A volume, of the active area.
    Volume(VolumeId),
    /// An image, of the image area.
    Image(Lineage),
}

/// The division of a cache into areas, in percent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Division {
    /// The part for map pages.
    pub metadata: u8,
    /// The part for base images.
    pub image: u8,
    /// The part for other blocks that volumes read.
    pub active: u8,
}

impl Default for Division {
    /// The division of HVSTO (§III-C).
    fn default() -> Self {
        Self {
            metadata: 25,
            image: 50,
            active: 25,
        }
    }
}

impl Division {
    /// Whether each area has at least 1 %, and they add up to 100 %.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        let parts = [self.metadata, self.image, self.active];
        let sum: u32 = parts.iter().map(|part| u32::from(*part)).sum();
        sum == 100 && !parts.contains(&0)
    }

    /// The number of `slots` for each area, at least 1.
    fn of(&self, slots: usize) -> [usize; 3] {
        let share = |percent: u8| (slots * usize::from(percent) / 100).max(1);
        let (metadata, active) = (share(self.metadata), share(self.active));
        let image = slots.saturating_sub(metadata + active).max(1);
        [metadata, image, active]
    }
}

/// The policies of the three areas.
pub struct Areas {
    metadata: Maps,
    image: Images,
    active: Shares<VolumeId>,
}

impl Areas {
    /// The areas of a cache with this many slots, at least 3.
    pub fn new(division: &Division, slots: usize) -> Self {
        let [metadata, image, active] = division.of(slots);
        Self {
            metadata: Maps::new(metadata),
            image: Images::new(image),
            active: Shares::new(active),
        }
    }

    /// Records a read, for `area`, of a block that is kept as `kind`.
    pub fn get(&mut self, kind: AreaKind, area: Area, id: Id) {
        match (kind, area) {
            (AreaKind::Metadata, Area::Metadata { newest_of }) => self.metadata.get(id, newest_of),
            (AreaKind::Metadata, _) => self.metadata.get(id, None),
            (AreaKind::Image, Area::Image { of, .. }) => self.image.get(of, id),
            (AreaKind::Image, _) => self.image.get(None, id),
            (AreaKind::Active, Area::Active(volume)) => self.active.get(Some(volume), id),
            (AreaKind::Active, _) => self.active.get(None, id),
        }
    }

    /// Whether a block has to move when it is read for `area`: it belongs to an image now, or has
    /// to be pinned.
    pub fn needs_move(&self, kind: AreaKind, is_pinned: bool, area: Area) -> bool {
        match (kind, area) {
            (AreaKind::Active, Area::Image { .. }) => true,
            (AreaKind::Image, Area::Image { pinned: true, .. }) => {
                !is_pinned && self.image.can_pin()
            }
            _ => false,
        }
    }

    /// Adds a block, evicting others. Returns whether it is pinned.
    pub fn insert(&mut self, area: Area, id: Id, evicted: &mut Vec<Id>) -> bool {
        match area {
            Area::Metadata { newest_of } => self.metadata.insert(id, newest_of, evicted),
            Area::Image { of, pinned } => return self.image.insert(of, id, pinned, evicted),
            Area::Active(volume) => self.active.insert(Some(volume), id, evicted),
        }
        false
    }

    /// Adds a block that was in the file when it was opened. Its volume is unknown.
    pub fn find(&mut self, kind: AreaKind, is_pinned: bool, id: Id, evicted: &mut Vec<Id>) -> bool {
        match kind {
            AreaKind::Metadata => self.metadata.insert(id, None, evicted),
            AreaKind::Image => return self.image.insert(None, id, is_pinned, evicted),
            AreaKind::Active => self.active.insert(None, id, evicted),
        }
        false
    }

    /// Removes a block.
    pub fn remove(&mut self, kind: AreaKind, id: Id) {
        match kind {
            AreaKind::Metadata => self.metadata.remove(id),
            AreaKind::Image => self.image.remove(id),
            AreaKind::Active => self.active.remove(id),
        }
    }

    /// Limits a volume's part of the active area; `None` for its fair share.
    pub fn bound_share(&mut self, volume: VolumeId, blocks_max: Option<usize>) {
        self.active.bound(volume, blocks_max);
    }

    /// Evicts at most `count` of the blocks that a volume has beyond its limit.
    pub fn shrink_share(&mut self, volume: VolumeId, count: usize, evicted: &mut Vec<Id>) {
        self.active.shrink(volume, count, evicted);
    }

    /// Adds a use of `sharer`: blocks that are not in use make room for its blocks.
    pub fn begin_use(&mut self, sharer: Sharer) {
        match sharer {
            Sharer::Volume(volume) => self.active.begin_use(volume),
            Sharer::Image(image) => self.image.begin_use(image),
        }
    }

    /// Removes a use of `sharer`.
    pub fn end_use(&mut self, sharer: Sharer) {
        match sharer {
            Sharer::Volume(volume) => self.active.end_use(volume),
            Sharer::Image(image) => self.image.end_use(image),
        }
    }

    /// Ends the protection of a map page for `protector`.
    pub fn release(&mut self, protector: Protector, id: Id) {
        self.metadata.release(protector, id);
    }

    /// Whether the area for map pages is full of protected ones.
    pub fn is_all_protected(&self) -> bool {
        self.metadata.is_all_protected()
    }

    /// The number of protected map pages.
    pub fn protected(&self) -> usize {
        self.metadata.pages.protected_len()
    }

    /// The number of pinned blocks.
    pub fn pinned(&self) -> usize {
        self.image.pinned_len()
    }

    /// The number of blocks in each area, and its capacity.
    pub fn sizes(&self) -> [(usize, usize); 3] {
        [
            (self.metadata.pages.len(), self.metadata.pages.capacity()),
            (self.image.len(), self.image.capacity()),
            (self.active.len(), self.active.capacity()),
        ]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::super::entry::id;
    use super::*;

    #[test]
    fn a_scan_of_one_volume_leaves_another_its_share() {
        let [quiet, scans] = [1, 2].map(VolumeId::from_u128);
        let mut areas = Areas::new(&Division::default(), 400);
        let mut evicted = Vec::new();
        for number in 0..50 {
            areas.insert(Area::Active(quiet), id(number), &mut evicted);
        }
        for number in 1000..5000 {
            areas.insert(Area::Active(scans), id(number), &mut evicted);
        }
        assert!(evicted.iter().all(|gone| gone.location.bits() >= 1000));
        assert_eq!(areas.sizes()[2], (100, 100));
        // It also uses what the other one does not need.
        assert_eq!(evicted.len(), 50 + 4000 - 100);
        evicted.clear();
        for number in 50..100 {
            areas.insert(Area::Active(quiet), id(number), &mut evicted);
        }
        let of_quiet = evicted.iter().filter(|gone| gone.location.bits() < 1000);
        assert!(of_quiet.count() <= 50 && areas.sizes()[2].0 == 100);
    }

    /// If they evicted each other's blocks, neither would have a hit.
    #[test]
    fn volumes_that_loop_over_more_than_the_area_keep_most_of_their_loops() {
        let mut areas = Areas::new(&Division::default(), 404);
        let volumes = [1, 2].map(VolumeId::from_u128);
        let mut hits = [0; 2];
        let (mut evicted, mut there) = (Vec::new(), HashSet::new());
        for number in (0..20).flat_map(|_| 0..60) {
            for (of, volume) in volumes.into_iter().enumerate() {
                let area = Area::Active(volume);
                let id = id(1000 * of as u64 + number);
                if there.insert(id) {
                    areas.insert(area, id, &mut evicted);
                    evicted.drain(..).for_each(|gone| {
                        there.remove(&gone);
                    });
                } else {
                    hits[of] += 1;
                    areas.get(AreaKind::Active, area, id);
                }
            }
        }
        assert_eq!(areas.sizes()[2], (101, 101));
        assert!(hits.iter().all(|hits| *hits > 19 * 45), "{hits:?}");
    }

    #[test]
    fn a_volume_at_its_limit_evicts_its_own_blocks() {
        let [bound, other] = [1, 2].map(VolumeId::from_u128);
        let mut areas = Areas::new(&Division::default(), 400);
        let mut evicted = Vec::new();
        areas.bound_share(bound, Some(20));
        for number in 0..50 {
            areas.insert(Area::Active(other), id(1000 + number), &mut evicted);
            areas.insert(Area::Active(bound), id(number), &mut evicted);
        }
        assert!(evicted.iter().all(|gone| gone.location.bits() < 1000));
        assert_eq!((evicted.len(), areas.sizes()[2]), (30, (70, 100)));
        evicted.clear();
        areas.bound_share(bound, Some(5));
        areas.shrink_share(bound, 10, &mut evicted);
        assert_eq!((evicted.len(), areas.sizes()[2].0), (10, 60));
        areas.shrink_share(bound, 10, &mut evicted);
        areas.shrink_share(other, 10, &mut evicted);
        assert_eq!((evicted.len(), areas.sizes()[2].0), (15, 55));
        // Without a limit it uses what others do not need.
        areas.bound_share(bound, None);
        evicted.clear();
        for number in 100..145 {
            areas.insert(Area::Active(bound), id(number), &mut evicted);
        }
        assert_eq!((evicted.len(), areas.sizes()[2].0), (0, 100));
    }

    fn image(number: u128) -> Area {
        Area::Image {
            of: Some(Lineage::from_u128(number)),
            pinned: false,
        }
    }

    /// A tenant once marked a volume without clones as an image and read it, which evicted all
    /// other images.
    #[test]
    fn an_image_does_not_evict_the_share_of_another() {
        let mut areas = Areas::new(&Division::default(), 400);
        let mut evicted = Vec::new();
        for number in 0..150 {
            areas.insert(image(1), id(number), &mut evicted);
        }
        for number in 1000..3000 {
            areas.insert(image(2), id(number), &mut evicted);
        }
        let of_first = evicted.iter().filter(|gone| gone.location.bits() < 1000);
        assert_eq!((of_first.count(), areas.sizes()[1]), (50, (200, 200)));
        // Pinned blocks evict those of the largest share.
        let pinned = Area::Image {
            of: Some(Lineage::from_u128(3)),
            pinned: true,
        };
        evicted.clear();
        for number in 5000..5100 {
            assert!(areas.insert(pinned, id(number), &mut evicted));
        }
        let of_first = evicted.iter().filter(|gone| gone.location.bits() < 1000);
        assert_eq!((of_first.count(), evicted.len()), (50, 100));
        assert_eq!((areas.pinned(), areas.sizes()[1]), (100, (200, 200)));
    }

    /// Volumes that were detached once kept their share forever.
    #[test]
    fn unused_blocks_make_room_for_used_ones() {
        let volumes = [1, 2, 3].map(VolumeId::from_u128);
        let mut areas = Areas::new(&Division::default(), 400);
        let fill = |areas: &mut Areas, of: usize, count: u64| {
            let mut gone = [0; 3];
            areas.begin_use(Sharer::Volume(volumes[of]));
            for number in 0..count {
                let id = id(1000 * of as u64 + number);
                let mut evicted = Vec::new();
                areas.insert(Area::Active(volumes[of]), id, &mut evicted);
                let places = evicted.iter().map(|gone| gone.location.bits() / 1000);
                places.for_each(|of| gone[of as usize] += 1);
            }
            (gone, areas.sizes()[2])
        };
        fill(&mut areas, 0, 50);
        assert_eq!(fill(&mut areas, 1, 50), ([0, 0, 0], (100, 100)));
        areas.end_use(Sharer::Volume(volumes[0]));
        // The first volume is not in use, so the third evicts its blocks, and none of the second.
        assert_eq!(fill(&mut areas, 2, 50), ([50, 0, 0], (100, 100)));
        // A block of a detached volume belongs to the next volume that reads it.
        areas.end_use(Sharer::Volume(volumes[1]));
        for number in 0..50 {
            let area = Area::Active(volumes[2]);
            areas.get(AreaKind::Active, area, id(1000 + number));
        }
        // So the third volume owns all blocks, and shares with the next one. It keeps the blocks
        // that it has read last.
        let next = fill(&mut areas, 0, 60);
        assert_eq!(next, ([10, 0, 50], (100, 100)));
    }

    #[test]
    fn areas_do_not_evict_blocks_of_each_other() {
        let mut areas = Areas::new(&Division::default(), 400);
        let mut evicted = Vec::new();
        for number in 0..100 {
            areas.insert(Area::Metadata { newest_of: None }, id(number), &mut evicted);
        }
        for number in 1000..3000 {
            areas.insert(image(1), id(number), &mut evicted);
            areas.insert(
                Area::Active(VolumeId::from_u128(1)),
                id(number + 5000),
                &mut evicted,
            );
        }
        assert!(evicted.iter().all(|gone| gone.location.bits() >= 1000));
        assert_eq!(areas.sizes(), [(100, 100), (200, 200), (100, 100)]);
    }

    #[test]
    fn pinned_blocks_stay_and_leave_a_tenth_for_other_blocks() {
        let mut areas = Areas::new(&Division::default(), 400);
        let mut evicted = Vec::new();
        let [pinned, other] = [true, false].map(|pinned| Area::Image { of: None, pinned });
        let mut stay = 0;
        for number in 0..300 {
            stay += usize::from(areas.insert(pinned, id(number), &mut evicted));
        }
        assert_eq!(
            (stay, areas.pinned(), areas.sizes()[1]),
            (180, 180, (200, 200))
        );
        for number in 1000..2000 {
            areas.insert(other, id(number), &mut evicted);
        }
        assert!(evicted.iter().all(|gone| gone.location.bits() >= 180));
        assert_eq!((areas.pinned(), areas.sizes()[1]), (180, (200, 200)));
        // Other blocks use the space that they leave.
        for number in 0..100 {
            areas.remove(AreaKind::Image, id(number));
        }
        evicted.clear();
        for number in 3000..3100 {
            areas.insert(other, id(number), &mut evicted);
        }
        assert_eq!((evicted.len(), areas.sizes()[1]), (0, (200, 200)));
        // An area of one block has no pinned one.
        let mut smallest = Areas::new(&Division::default(), 3);
        assert!(!smallest.insert(pinned, id(1), &mut evicted));
    }

    #[test]
    fn a_division_must_add_up_to_the_whole() {
        assert!(Division::default().is_whole());
        for (metadata, image, active) in [(0, 50, 50), (50, 50, 1), (30, 30, 30)] {
            let division = Division {
                metadata,
                image,
                active,
            };
            assert!(!division.is_whole());
        }
        assert_eq!(Division::default().of(3), [1, 1, 1]);
    }
}
