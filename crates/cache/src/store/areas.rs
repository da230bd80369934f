//! Three areas, each with a policy of its own (HVSTO §III-C), and shares of the active one.

use std::collections::{BTreeMap, HashMap, HashSet};

use base::VolumeId;

use super::entry::{AreaKind, Id};
use crate::policy::{Lirs, Policy, TwoStage};

/// What a block is read for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Area {
    /// A map page.
    Metadata {
        /// It is of the newest version of this volume, which is attached here: it is protected.
        newest_of: Option<VolumeId>,
    },
    /// Content of a base image.
    Image {
        /// It stays, as far as there is room for what stays.
        pinned: bool,
    },
    /// Any other content, for this volume.
    Active(VolumeId),
}

impl Area {
    /// Which one it is.
    #[must_use]
    pub const fn kind(self) -> AreaKind {
        match self {
            Self::Metadata { .. } => AreaKind::Metadata,
            Self::Image { .. } => AreaKind::Image,
            Self::Active(_) => AreaKind::Active,
        }
    }
}

/// How a cache is divided, in percent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Division {
    /// For map pages.
    pub metadata: u8,
    /// For base images.
    pub image: u8,
    /// For what volumes read.
    pub active: u8,
}

impl Default for Division {
    /// The paper's (§III-C).
    fn default() -> Self {
        Self {
            metadata: 25,
            image: 50,
            active: 25,
        }
    }
}

impl Division {
    /// Whether each area has something, and all is divided.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        let parts = [self.metadata, self.image, self.active];
        let sum: u32 = parts.iter().map(|part| u32::from(*part)).sum();
        sum == 100 && !parts.contains(&0)
    }

    /// How many of `slots` each area has, 1 at least.
    fn of(&self, slots: usize) -> [usize; 3] {
        let share = |percent: u8| (slots * usize::from(percent) / 100).max(1);
        let (metadata, active) = (share(self.metadata), share(self.active));
        let image = slots.saturating_sub(metadata + active).max(1);
        [metadata, image, active]
    }
}

/// Which blocks are kept.
pub struct Areas {
    metadata: Maps,
    image: Images,
    active: Shares,
}

impl Areas {
    /// Of so many slots, 3 at least.
    pub fn new(division: &Division, slots: usize) -> Self {
        let [metadata, image, active] = division.of(slots);
        Self {
            metadata: Maps::new(metadata),
            image: Images::new(image),
            active: Shares::new(active),
        }
    }

    /// A block that is kept as `kind` is asked for, for `area`.
    pub fn get(&mut self, kind: AreaKind, area: Area, id: Id) {
        match (kind, area) {
            (AreaKind::Metadata, Area::Metadata { newest_of }) => self.metadata.get(id, newest_of),
            (AreaKind::Metadata, _) => self.metadata.get(id, None),
            (AreaKind::Image, _) => drop(self.image.others.get(id)),
            (AreaKind::Active, Area::Active(volume)) => self.active.get(Some(volume), id),
            (AreaKind::Active, _) => self.active.get(None, id),
        }
    }

    /// Whether a block that is kept so is to be moved when it is asked for, for `area`: what
    /// is an image's by now, and what is to stay.
    pub fn is_to_move(&self, kind: AreaKind, is_pinned: bool, area: Area) -> bool {
        match (kind, area) {
            (AreaKind::Active, Area::Image { .. }) => true,
            (AreaKind::Image, Area::Image { pinned: true }) => !is_pinned && self.image.can_pin(),
            _ => false,
        }
    }

    /// A block is kept from now on, which was not; others go. Whether it stays.
    pub fn insert(&mut self, area: Area, id: Id, evicted: &mut Vec<Id>) -> bool {
        match area {
            Area::Metadata { newest_of } => self.metadata.insert(id, newest_of, evicted),
            Area::Image { pinned } => return self.image.insert(id, pinned, evicted),
            Area::Active(volume) => self.active.insert(Some(volume), id, evicted),
        }
        false
    }

    /// The same of one that was kept before this process began: for which volume is not known.
    pub fn find(&mut self, kind: AreaKind, is_pinned: bool, id: Id, evicted: &mut Vec<Id>) -> bool {
        match kind {
            AreaKind::Metadata => self.metadata.insert(id, None, evicted),
            AreaKind::Image => return self.image.insert(id, is_pinned, evicted),
            AreaKind::Active => self.active.insert(None, id, evicted),
        }
        false
    }

    /// A block is kept no more.
    pub fn remove(&mut self, kind: AreaKind, id: Id) {
        match kind {
            AreaKind::Metadata => self.metadata.remove(id),
            AreaKind::Image => self.image.remove(id),
            AreaKind::Active => self.active.remove(id),
        }
    }

    /// A map page is of no newest version any more.
    pub fn release(&mut self, id: Id) {
        self.metadata.release(id);
    }

    /// A volume is not attached any more: none of its map pages is protected for it.
    pub fn release_all(&mut self, volume: VolumeId) {
        let maps = &mut self.metadata;
        let of_volume = maps.newest.iter().filter(|(_, owner)| **owner == volume);
        let released: Vec<Id> = of_volume.map(|(id, _)| *id).collect();
        released.into_iter().for_each(|id| maps.release(id));
    }

    /// Whether all map pages that there is room for are protected.
    pub fn is_all_protected(&self) -> bool {
        let pages = &self.metadata.pages;
        pages.protected_len() >= pages.capacity()
    }

    /// How many map pages are protected and there.
    pub fn protected(&self) -> usize {
        self.metadata.pages.protected_len()
    }

    /// How many blocks of images stay.
    pub fn pinned(&self) -> usize {
        self.image.pinned.len()
    }

    /// How many blocks each area has, and may have.
    pub fn sizes(&self) -> [(usize, usize); 3] {
        [
            (self.metadata.pages.len(), self.metadata.pages.capacity()),
            (self.image.len(), self.image.capacity),
            (self.active.len, self.active.capacity),
        ]
    }
}

/// Map pages, of which those of newest versions are protected.
struct Maps {
    pages: TwoStage<Id>,
    /// Of those that are protected, for whom: of several that share a page who asked last.
    newest: HashMap<Id, VolumeId, foldhash::fast::FixedState>,
}

impl Maps {
    fn new(capacity: usize) -> Self {
        Self {
            pages: TwoStage::new(capacity),
            newest: HashMap::default(),
        }
    }

    fn protect(&mut self, id: Id, newest_of: Option<VolumeId>) {
        if let Some(volume) = newest_of {
            self.pages.protect(id);
            self.newest.insert(id, volume);
        }
    }

    fn get(&mut self, id: Id, newest_of: Option<VolumeId>) {
        if self.pages.get(id) {
            self.protect(id, newest_of);
        }
    }

    fn insert(&mut self, id: Id, newest_of: Option<VolumeId>, evicted: &mut Vec<Id>) {
        let before = evicted.len();
        self.pages.insert(id, evicted);
        for gone in &evicted[before..] {
            self.newest.remove(gone);
        }
        self.protect(id, newest_of);
    }

    fn remove(&mut self, id: Id) {
        self.pages.remove(id);
        self.newest.remove(&id);
    }

    fn release(&mut self, id: Id) {
        if self.newest.remove(&id).is_some() {
            self.pages.release(id);
        }
    }
}

/// Of the image area so much is kept for what does not stay, one block in so many, and one at
/// least.
const UNPINNED_ONE_IN: usize = 10;

/// Base images: blocks that stay, and in the room that they leave the others, by LIRS.
struct Images {
    capacity: usize,
    pinned: HashSet<Id, foldhash::fast::FixedState>,
    others: Lirs<Id>,
}

impl Images {
    fn new(capacity: usize) -> Self {
        Self {
            capacity,
            pinned: HashSet::default(),
            others: Lirs::new(capacity),
        }
    }

    fn len(&self) -> usize {
        self.pinned.len() + self.others.len()
    }

    /// Whether there is room for one more that stays.
    fn can_pin(&self) -> bool {
        let kept = (self.capacity / UNPINNED_ONE_IN).max(1);
        self.pinned.len() + kept < self.capacity
    }

    /// Whether it stays.
    fn insert(&mut self, id: Id, is_pinned: bool, evicted: &mut Vec<Id>) -> bool {
        let stays = is_pinned && self.can_pin();
        match stays {
            true => {
                self.pinned.insert(id);
                self.fit(evicted);
            }
            false => self.others.insert(id, evicted),
        }
        stays
    }

    fn remove(&mut self, id: Id) {
        match self.pinned.remove(&id) {
            true => self.fit(&mut Vec::new()),
            false => drop(self.others.remove(id)),
        }
    }

    /// Those that do not stay have what the others leave.
    fn fit(&mut self, evicted: &mut Vec<Id>) {
        let left = self.capacity - self.pinned.len();
        self.others.resize(left, evicted);
    }
}

/// What volumes read. What one does not use others may; who has most gives something back when
/// there is no room: so of two that want all there is each has half, and a scan pushes out
/// what it has brought itself.
struct Shares {
    capacity: usize,
    len: usize,
    /// None: nobody has asked for these since the process began. Each is full: it may have as
    /// many as it has.
    shares: BTreeMap<Option<VolumeId>, Lirs<Id>>,
    owners: HashMap<Id, Option<VolumeId>, foldhash::fast::FixedState>,
}

impl Shares {
    fn new(capacity: usize) -> Self {
        Self {
            capacity,
            len: 0,
            shares: BTreeMap::new(),
            owners: HashMap::default(),
        }
    }

    fn share(&mut self, volume: Option<VolumeId>) -> &mut Lirs<Id> {
        self.shares.entry(volume).or_insert_with(|| Lirs::new(1))
    }

    fn get(&mut self, volume: Option<VolumeId>, id: Id) {
        let Some(owner) = self.owners.get(&id).copied() else {
            return;
        };
        // Whoever asks for what nobody has is its owner from now on.
        if owner.is_none() && volume.is_some() {
            self.take_out(owner, id);
            self.put(volume, id);
        } else {
            self.share(owner).get(id);
        }
    }

    fn put(&mut self, volume: Option<VolumeId>, id: Id) {
        let share = self.share(volume);
        // It has room for it: nothing goes.
        share.resize(share.len() + 1, &mut Vec::new());
        share.insert(id, &mut Vec::new());
        self.owners.insert(id, volume);
        self.len += 1;
    }

    fn take_out(&mut self, owner: Option<VolumeId>, id: Id) {
        self.share(owner).remove(id);
        self.has_gone(owner, id);
    }

    /// A block has left its share.
    fn has_gone(&mut self, owner: Option<VolumeId>, id: Id) {
        let share = self.share(owner);
        match share.len() {
            0 => drop(self.shares.remove(&owner)),
            len => share.resize(len, &mut Vec::new()),
        }
        self.owners.remove(&id);
        self.len -= 1;
    }

    fn insert(&mut self, volume: Option<VolumeId>, id: Id, evicted: &mut Vec<Id>) {
        if self.len < self.capacity {
            return self.put(volume, id);
        }
        let has = self.shares.get(&volume).map_or(0, |share| share.len());
        let largest = self.shares.iter().max_by_key(|(_, share)| share.len());
        match largest.map(|(owner, share)| (*owner, share.len())) {
            // Who has one more keeps it, or the two would take it from each other for ever.
            Some((owner, most)) if has == 0 || most > has + 1 => {
                let Some(gone) = self.share(owner).let_go() else {
                    return;
                };
                self.has_gone(owner, gone);
                evicted.push(gone);
                self.put(volume, id);
            }
            _ => {
                let before = evicted.len();
                self.share(volume).insert(id, evicted);
                for gone in evicted.iter().skip(before) {
                    self.owners.remove(gone);
                }
                self.owners.insert(id, volume);
            }
        }
    }

    fn remove(&mut self, id: Id) {
        if let Some(owner) = self.owners.get(&id).copied() {
            self.take_out(owner, id);
        }
    }
}

#[cfg(test)]
mod tests {
    use base::Location;

    use super::*;

    fn id(number: u64) -> Id {
        Id {
            location: Location::from_bits(number),
            part: 0,
        }
    }

    #[test]
    fn a_scan_of_one_volume_leaves_another_its_share() {
        let [quiet, scans] = [1, 2].map(VolumeId::from_random);
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
        // And it has what the other one does not use.
        assert_eq!(evicted.len(), 50 + 4000 - 100);
        evicted.clear();
        for number in 50..100 {
            areas.insert(Area::Active(quiet), id(number), &mut evicted);
        }
        let of_quiet = evicted.iter().filter(|gone| gone.location.bits() < 1000);
        assert!(of_quiet.count() <= 50 && areas.sizes()[2].0 == 100);
    }

    /// If they took blocks from each other, each would keep what came last, and have nothing.
    #[test]
    fn volumes_that_want_more_than_there_is_keep_most_of_their_loops() {
        let mut areas = Areas::new(&Division::default(), 404);
        let volumes = [1, 2].map(VolumeId::from_random);
        let mut hits = [0; 2];
        let mut evicted = Vec::new();
        for number in (0..20).flat_map(|_| 0..60) {
            for (of, volume) in volumes.into_iter().enumerate() {
                let area = Area::Active(volume);
                let id = id(1000 * of as u64 + number);
                if areas.active.owners.contains_key(&id) {
                    hits[of] += 1;
                    areas.get(AreaKind::Active, area, id);
                } else {
                    areas.insert(area, id, &mut evicted);
                }
            }
        }
        assert_eq!(areas.sizes()[2], (101, 101));
        assert!(hits.iter().all(|hits| *hits > 19 * 45), "{hits:?}");
    }

    #[test]
    fn areas_do_not_take_from_each_other() {
        let mut areas = Areas::new(&Division::default(), 400);
        let mut evicted = Vec::new();
        for number in 0..100 {
            areas.insert(Area::Metadata { newest_of: None }, id(number), &mut evicted);
        }
        for number in 1000..3000 {
            areas.insert(Area::Image { pinned: false }, id(number), &mut evicted);
            areas.insert(
                Area::Active(VolumeId::from_random(1)),
                id(number + 5000),
                &mut evicted,
            );
        }
        assert!(evicted.iter().all(|gone| gone.location.bits() >= 1000));
        assert_eq!(areas.sizes(), [(100, 100), (200, 200), (100, 100)]);
    }

    #[test]
    fn what_is_pinned_stays_and_leaves_a_tenth_to_the_others() {
        let mut areas = Areas::new(&Division::default(), 400);
        let mut evicted = Vec::new();
        let [pinned, other] = [true, false].map(|pinned| Area::Image { pinned });
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
        // What they leave is the others' again.
        for number in 0..100 {
            areas.remove(AreaKind::Image, id(number));
        }
        evicted.clear();
        for number in 3000..3100 {
            areas.insert(other, id(number), &mut evicted);
        }
        assert_eq!((evicted.len(), areas.sizes()[1]), (0, (200, 200)));
        // Where there is room for one only, nothing stays.
        let mut smallest = Areas::new(&Division::default(), 3);
        assert!(!smallest.insert(pinned, id(1), &mut evicted));
    }

    #[test]
    fn a_division_is_of_all_there_is() {
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
