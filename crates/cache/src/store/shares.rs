//! [`Shares`]: an area in which each owner has a fair share: volumes in the active area, base
//! images in the image area.
//!
//! ```text
//!  there is room                        ──▶ the share grows
//!  another share is not in use          ──▶ it replaces a block of the largest of those
//!  another share has at least two more  ──▶ it replaces a block of the largest share
//!  otherwise                            ──▶ it replaces one of its owner's blocks
//! ```

use std::collections::{BTreeMap, HashMap};

use super::entry::Id;
use crate::policy::{Lirs, Policy};
use crate::uses::Uses;

/// The blocks of one owner. Its policy is always full: its capacity is its size.
struct Share<O> {
    /// `None` for blocks that have not been read since the process began.
    owner: Option<O>,
    blocks: Lirs<Id>,
}

/// An area that owners share. Space that one does not need is used by others, and the largest
/// share shrinks when there is no room: so two owners that need everything have half each, and
/// a scan evicts its own blocks.
pub struct Shares<O> {
    capacity: usize,
    len: usize,
    /// Shares by number; `None` for unused numbers.
    shares: Vec<Option<Share<O>>>,
    numbers: BTreeMap<Option<O>, u32>,
    /// The number of the share that each block is in.
    owners: HashMap<Id, u32, foldhash::fast::FixedState>,
    /// Limits of some owners, at least 1.
    bounds: BTreeMap<O, usize>,
    used: Uses<O>,
}

impl<O: Copy + Ord> Shares<O> {
    pub fn new(capacity: usize) -> Self {
        Self {
            capacity,
            len: 0,
            shares: Vec::new(),
            numbers: BTreeMap::new(),
            owners: HashMap::default(),
            bounds: BTreeMap::new(),
            used: Uses::new(),
        }
    }

    /// The number of blocks.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The capacity in blocks.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Changes the capacity; blocks beyond it are evicted.
    pub fn resize(&mut self, capacity: usize, evicted: &mut Vec<Id>) {
        self.capacity = capacity;
        while self.len > capacity
            && let Some(number) = self.largest_unused(None).or_else(|| self.largest())
        {
            self.evict_one(number, evicted);
        }
    }

    /// Adds a use of `owner`.
    pub fn begin_use(&mut self, owner: O) {
        self.used.begin(owner);
    }

    /// Removes a use of `owner`: unused shares make room for used ones.
    pub fn end_use(&mut self, owner: O) {
        self.used.end(owner);
    }

    fn is_used(&self, owner: Option<O>) -> bool {
        owner.is_some_and(|owner| self.used.has(owner))
    }

    /// Limits `owner`, in blocks; `None` for its fair share. Blocks beyond that stay until
    /// [`Shares::shrink`].
    pub fn bound(&mut self, owner: O, max: Option<usize>) {
        match max {
            Some(max) => self.bounds.insert(owner, max.max(1)),
            None => self.bounds.remove(&owner),
        };
    }

    /// Evicts at most `count` of the blocks that `owner` has beyond its limit.
    pub fn shrink(&mut self, owner: O, count: usize, evicted: &mut Vec<Id>) {
        let max = self.bounds.get(&owner).copied();
        let number = self.numbers.get(&Some(owner)).copied();
        let (Some(max), Some(number)) = (max, number) else {
            return;
        };
        let excess = self.len_of(number).saturating_sub(max);
        for _ in 0..excess.min(count) {
            self.evict_one(number, evicted);
        }
    }

    fn len_of(&self, number: u32) -> usize {
        let share = self.shares.get(number as usize);
        let share = share.and_then(Option::as_ref);
        share.map_or(0, |share| share.blocks.len())
    }

    /// The number of blocks of `owner`.
    fn len_owned(&self, owner: Option<O>) -> usize {
        let number = self.numbers.get(&owner);
        number.map_or(0, |number| self.len_of(*number))
    }

    /// Whether `owner` has reached its limit.
    fn is_at_bound(&self, owner: Option<O>) -> bool {
        let bound = owner.and_then(|owner| self.bounds.get(&owner));
        bound.is_some_and(|max| self.len_owned(owner) >= *max)
    }

    fn largest(&self) -> Option<u32> {
        let numbers = self.numbers.values().copied();
        numbers.max_by_key(|number| self.len_of(*number))
    }

    /// The largest unused share, other than that of `owner`.
    fn largest_unused(&self, owner: Option<O>) -> Option<u32> {
        let others = self.numbers.iter().filter(|(other, _)| **other != owner);
        let unused = others.filter(|(other, _)| !self.is_used(**other));
        let numbers = unused.map(|(_, number)| *number);
        numbers.max_by_key(|number| self.len_of(*number))
    }

    /// The number of an owner's share, which is created if there is none.
    fn ensure_share(&mut self, owner: Option<O>) -> u32 {
        if let Some(number) = self.numbers.get(&owner) {
            return *number;
        }
        let share = Some(Share {
            owner,
            blocks: Lirs::new(1),
        });
        let number = match self.shares.iter().position(Option::is_none) {
            Some(free) => {
                self.shares[free] = share;
                free
            }
            None => {
                self.shares.push(share);
                self.shares.len() - 1
            }
        };
        self.numbers.insert(owner, number as u32);
        number as u32
    }

    /// Records a read of a block for `owner`.
    pub fn get(&mut self, owner: Option<O>, id: Id) {
        let Some(number) = self.owners.get(&id).copied() else {
            return;
        };
        let Some(share) = &self.shares[number as usize] else {
            return;
        };
        // The reader of a block that is not in use becomes its owner.
        let of = share.owner;
        let is_free = of.is_none() || (!self.is_used(of) && self.is_used(owner));
        let is_new = owner.is_some() && of != owner && is_free;
        if is_new && !self.is_at_bound(owner) {
            self.remove(id);
            self.put(owner, id);
        } else if let Some(share) = &mut self.shares[number as usize] {
            share.blocks.get(id);
        }
    }

    /// Grows the share of `owner` by a block.
    fn put(&mut self, owner: Option<O>, id: Id) {
        let number = self.ensure_share(owner);
        let Some(share) = &mut self.shares[number as usize] else {
            return;
        };
        // The policy has room for it, so nothing is evicted.
        share.blocks.resize(share.blocks.len() + 1, &mut Vec::new());
        share.blocks.insert(id, &mut Vec::new());
        self.owners.insert(id, number);
        self.len += 1;
    }

    /// Evicts one of a share's blocks.
    fn evict_one(&mut self, number: u32, evicted: &mut Vec<Id>) {
        let share = self.shares[number as usize].as_mut();
        if let Some(evicted_id) = share.and_then(|share| share.blocks.evict_one()) {
            self.record_removal(number, evicted_id);
            evicted.push(evicted_id);
        }
    }

    /// Records that a block has left its share.
    fn record_removal(&mut self, number: u32, id: Id) {
        self.owners.remove(&id);
        self.len -= 1;
        let slot = &mut self.shares[number as usize];
        let Some(share) = slot else { return };
        match share.blocks.len() {
            0 => {
                self.numbers.remove(&share.owner);
                *slot = None;
            }
            len => share.blocks.resize(len, &mut Vec::new()),
        }
    }

    /// Adds a block for `owner`; another one may be evicted.
    pub fn insert(&mut self, owner: Option<O>, id: Id, evicted: &mut Vec<Id>) {
        let is_bound = self.is_at_bound(owner);
        if self.len < self.capacity && !is_bound {
            return self.put(owner, id);
        }
        let unused = match !is_bound && self.is_used(owner) {
            true => self.largest_unused(owner),
            false => None,
        };
        if let Some(number) = unused {
            self.evict_one(number, evicted);
            return self.put(owner, id);
        }
        let has = self.len_owned(owner);
        let largest = self.largest().map(|number| (number, self.len_of(number)));
        match largest {
            // A share with one more block keeps it; otherwise the two would exchange it forever.
            Some((number, most)) if !is_bound && (has == 0 || most > has + 1) => {
                self.evict_one(number, evicted);
                self.put(owner, id);
            }
            _ => {
                let number = self.ensure_share(owner);
                let before = evicted.len();
                if let Some(share) = &mut self.shares[number as usize] {
                    share.blocks.insert(id, evicted);
                }
                for gone in evicted.iter().skip(before) {
                    self.owners.remove(gone);
                }
                self.owners.insert(id, number);
            }
        }
    }

    /// Removes a block.
    pub fn remove(&mut self, id: Id) {
        let Some(number) = self.owners.get(&id).copied() else {
            return;
        };
        if let Some(share) = &mut self.shares[number as usize] {
            share.blocks.remove(id);
        }
        self.record_removal(number, id);
    }
}
