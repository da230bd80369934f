//! [`Maps`]: the metadata area: map pages; those of newest versions are protected (HVSTO §III-C).

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use super::entry::Id;
use crate::policy::{Policy, TwoStage};

/// An attachment that protects map pages. Each attachment in a process has its own, so that the end
/// of one does not affect the next one of the same volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Protector(u64);

impl Protector {
    /// A new protector.
    #[must_use]
    pub fn another() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// The protectors of a page: clones share pages.
enum Protectors {
    One(Protector),
    /// At least two, in no order.
    Several(Vec<Protector>),
}

/// Map pages, with the protection of those of newest versions.
pub struct Maps {
    pub pages: TwoStage<Id>,
    /// The protectors of protected pages.
    newest: HashMap<Id, Protectors, foldhash::fast::FixedState>,
}

impl Maps {
    pub fn new(capacity: usize) -> Self {
        Self {
            pages: TwoStage::new(capacity),
            newest: HashMap::default(),
        }
    }

    fn protect(&mut self, id: Id, newest_of: Option<Protector>) {
        let Some(protector) = newest_of else { return };
        self.pages.protect(id);
        self.newest
            .entry(id)
            .and_modify(|protectors| protectors.add(protector))
            .or_insert(Protectors::One(protector));
    }

    pub fn get(&mut self, id: Id, newest_of: Option<Protector>) {
        if self.pages.get(id) {
            self.protect(id, newest_of);
        }
    }

    pub fn insert(&mut self, id: Id, newest_of: Option<Protector>, evicted: &mut Vec<Id>) {
        let before = evicted.len();
        self.pages.insert(id, evicted);
        for gone in &evicted[before..] {
            self.newest.remove(gone);
        }
        self.protect(id, newest_of);
    }

    pub fn remove(&mut self, id: Id) {
        self.pages.remove(id);
        self.newest.remove(&id);
    }

    /// Ends the protection of a page for `protector`.
    pub fn release(&mut self, protector: Protector, id: Id) {
        let protectors = self.newest.get_mut(&id);
        if protectors.is_some_and(|protectors| protectors.remove(protector)) {
            self.newest.remove(&id);
            self.pages.release(id);
        }
    }

    /// Whether the area is full of protected pages.
    pub fn is_all_protected(&self) -> bool {
        self.pages.protected_len() >= self.pages.capacity()
    }
}

impl Protectors {
    fn add(&mut self, another: Protector) {
        match self {
            Self::One(one) if *one == another => {}
            Self::One(one) => *self = Self::Several(vec![*one, another]),
            Self::Several(all) if all.contains(&another) => {}
            Self::Several(all) => all.push(another),
        }
    }

    /// Removes a protector. Returns whether none is left.
    fn remove(&mut self, protector: Protector) -> bool {
        match self {
            Self::One(one) => *one == protector,
            Self::Several(all) => {
                all.retain(|one| *one != protector);
                if let [one] = **all {
                    *self = Self::One(one);
                }
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::entry::id;
    use super::*;

    /// A checkpoint or the end of a clone once ended the protection of its origin's pages.
    #[test]
    fn a_shared_page_is_protected_until_its_last_protector_releases_it() {
        let [one, two, three] = [(); 3].map(|()| Protector::another());
        let mut maps = Maps::new(2);
        let mut evicted = Vec::new();
        maps.insert(id(1), Some(one), &mut evicted);
        for protector in [two, three, two] {
            maps.get(id(1), Some(protector));
        }
        maps.release(two, id(1));
        maps.release(two, id(1));
        maps.release(one, id(1));
        assert_eq!(maps.pages.protected_len(), 1);
        // It stays although it was read longer ago than the others.
        for number in 2..5 {
            maps.insert(id(number), None, &mut evicted);
        }
        assert_eq!(evicted, [id(2), id(3)]);
        maps.release(three, id(1));
        maps.release(three, id(9));
        assert_eq!(maps.pages.protected_len(), 0);
        assert!(maps.newest.is_empty());
    }
}
