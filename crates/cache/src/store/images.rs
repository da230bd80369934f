//! [`Images`]: the image area: blocks of base images, some of which are pinned.

use std::collections::HashSet;

use base::Lineage;

use super::entry::Id;
use super::shares::Shares;

/// The part of the image area for blocks that are not pinned: one block in this many, at least
/// one.
const UNPINNED_ONE_IN: usize = 10;

/// Blocks of base images: pinned ones, and the others in the remaining space, where each image
/// has a fair share: a tenant that may mark an image must not evict those of others.
pub struct Images {
    capacity: usize,
    pinned: HashSet<Id, foldhash::fast::FixedState>,
    others: Shares<Lineage>,
}

impl Images {
    pub fn new(capacity: usize) -> Self {
        Self {
            capacity,
            pinned: HashSet::default(),
            others: Shares::new(capacity),
        }
    }

    /// The number of blocks.
    pub fn len(&self) -> usize {
        self.pinned.len() + self.others.len()
    }

    /// The number of pinned blocks.
    pub fn pinned_len(&self) -> usize {
        self.pinned.len()
    }

    /// The capacity in blocks.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Whether one more block can be pinned.
    pub fn can_pin(&self) -> bool {
        let kept = (self.capacity / UNPINNED_ONE_IN).max(1);
        self.pinned.len() + kept < self.capacity
    }

    /// Adds a use of an image.
    pub fn begin_use(&mut self, image: Lineage) {
        self.others.begin_use(image);
    }

    /// Removes a use of an image.
    pub fn end_use(&mut self, image: Lineage) {
        self.others.end_use(image);
    }

    /// Records a read of an image's block.
    pub fn get(&mut self, of: Option<Lineage>, id: Id) {
        self.others.get(of, id);
    }

    /// Adds a block, evicting others. Returns whether it is pinned.
    pub fn insert(
        &mut self,
        of: Option<Lineage>,
        id: Id,
        is_pinned: bool,
        evicted: &mut Vec<Id>,
    ) -> bool {
        let stays = is_pinned && self.can_pin();
        match stays {
            true => {
                self.pinned.insert(id);
                self.fit(evicted);
            }
            false => self.others.insert(of, id, evicted),
        }
        stays
    }

    /// Removes a block.
    pub fn remove(&mut self, id: Id) {
        match self.pinned.remove(&id) {
            true => self.fit(&mut Vec::new()),
            false => self.others.remove(id),
        }
    }

    /// Resizes the space for blocks that are not pinned to what is left.
    fn fit(&mut self, evicted: &mut Vec<Id>) {
        let left = self.capacity - self.pinned.len();
        self.others.resize(left, evicted);
    }
}
