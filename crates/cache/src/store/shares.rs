//! The active area: each volume's share of what volumes read.

use std::collections::{BTreeMap, HashMap};

use base::VolumeId;

use super::entry::Id;
use crate::policy::{Lirs, Policy};

/// What volumes read. What one does not use others may; who has most gives something back when
/// there is no room: so of two that want all there is each has half, and a scan pushes out
/// what it has brought itself.
pub struct Shares {
    pub capacity: usize,
    pub len: usize,
    /// None: nobody has asked for these since the process began. Each is full: it may have as
    /// many as it has.
    shares: BTreeMap<Option<VolumeId>, Lirs<Id>>,
    pub owners: HashMap<Id, Option<VolumeId>, foldhash::fast::FixedState>,
    /// What some may have at most, 1 at least.
    bounds: BTreeMap<VolumeId, usize>,
}

impl Shares {
    pub fn new(capacity: usize) -> Self {
        Self {
            capacity,
            len: 0,
            shares: BTreeMap::new(),
            owners: HashMap::default(),
            bounds: BTreeMap::new(),
        }
    }

    /// What `volume` may have from now on, in blocks; none: its fair share. What it has beyond
    /// that stays until [`Shares::shrink`].
    pub fn bound(&mut self, volume: VolumeId, max: Option<usize>) {
        match max {
            Some(max) => self.bounds.insert(volume, max.max(1)),
            None => self.bounds.remove(&volume),
        };
    }

    /// Of what `volume` has beyond its bound, at most `count` go.
    pub fn shrink(&mut self, volume: VolumeId, count: usize, evicted: &mut Vec<Id>) {
        let Some(max) = self.bounds.get(&volume).copied() else {
            return;
        };
        let volume = Some(volume);
        let excess = self.len_of(volume).saturating_sub(max);
        for _ in 0..excess.min(count) {
            let Some(gone) = self.share(volume).let_go() else {
                return;
            };
            self.has_gone(volume, gone);
            evicted.push(gone);
        }
    }

    fn len_of(&self, volume: Option<VolumeId>) -> usize {
        self.shares.get(&volume).map_or(0, |share| share.len())
    }

    /// Whether a volume has as much as it may.
    fn is_at_bound(&self, volume: Option<VolumeId>) -> bool {
        let bound = volume.and_then(|volume| self.bounds.get(&volume));
        bound.is_some_and(|max| self.len_of(volume) >= *max)
    }

    fn share(&mut self, volume: Option<VolumeId>) -> &mut Lirs<Id> {
        self.shares.entry(volume).or_insert_with(|| Lirs::new(1))
    }

    /// A block is asked for, for `volume`.
    pub fn get(&mut self, volume: Option<VolumeId>, id: Id) {
        let Some(owner) = self.owners.get(&id).copied() else {
            return;
        };
        // Whoever asks for what nobody has is its owner from now on.
        if owner.is_none() && volume.is_some() && !self.is_at_bound(volume) {
            self.take_out(owner, id);
            self.put(volume, id);
        } else {
            self.share(owner).get(id);
        }
    }

    /// Gives `volume` one more.
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

    /// A block is kept from now on, which was not, for `volume`; another one may go.
    pub fn insert(&mut self, volume: Option<VolumeId>, id: Id, evicted: &mut Vec<Id>) {
        let is_bound = self.is_at_bound(volume);
        if self.len < self.capacity && !is_bound {
            return self.put(volume, id);
        }
        let has = self.len_of(volume);
        let largest = self.shares.iter().max_by_key(|(_, share)| share.len());
        match largest.map(|(owner, share)| (*owner, share.len())) {
            // Who has one more keeps it, or the two would take it from each other for ever.
            Some((owner, most)) if !is_bound && (has == 0 || most > has + 1) => {
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

    /// A block is kept no more.
    pub fn remove(&mut self, id: Id) {
        if let Some(owner) = self.owners.get(&id).copied() {
            self.take_out(owner, id);
        }
    }
}
