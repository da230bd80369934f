//! The image area: blocks of base images, of which some stay.

use std::collections::HashSet;

use base::Lineage;

use super::entry::Id;
use super::shares::Shares;

/// Of the image area so much is kept for what does not stay, one block in so many, and one at
/// least.
const UNPINNED_ONE_IN: usize = 10;

/// Base images: blocks that stay, and in the room that they leave the others, each image's in a
/// fair share: whoever may mark an image is not to push out those of others.
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

    /// How many blocks there are.
    pub fn len(&self) -> usize {
        self.pinned.len() + self.others.len()
    }

    /// Of these, how many stay.
    pub fn pinned_len(&self) -> usize {
        self.pinned.len()
    }

    /// And may be.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Whether there is room for one more that stays.
    pub fn can_pin(&self) -> bool {
        let kept = (self.capacity / UNPINNED_ONE_IN).max(1);
        self.pinned.len() + kept < self.capacity
    }

    /// An image is used from now on, once more.
    pub fn begin_use(&mut self, image: Lineage) {
        self.others.begin_use(image);
    }

    /// And once less.
    pub fn end_use(&mut self, image: Lineage) {
        self.others.end_use(image);
    }

    /// A block is asked for, of an image.
    pub fn get(&mut self, of: Option<Lineage>, id: Id) {
        self.others.get(of, id);
    }

    /// Keeps a block that was not there; others may go. Whether it stays.
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

    /// A block is kept no more.
    pub fn remove(&mut self, id: Id) {
        match self.pinned.remove(&id) {
            true => self.fit(&mut Vec::new()),
            false => self.others.remove(id),
        }
    }

    /// Those that do not stay have what the others leave.
    fn fit(&mut self, evicted: &mut Vec<Id>) {
        let left = self.capacity - self.pinned.len();
        self.others.resize(left, evicted);
    }
}
