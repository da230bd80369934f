//! The metadata area: map pages, of which those of newest versions are protected (HVSTO §III-C).

use std::collections::HashMap;

use base::VolumeId;

use super::entry::Id;
use crate::policy::{Policy, TwoStage};

/// Map pages, of which those of newest versions are protected.
pub struct Maps {
    pub pages: TwoStage<Id>,
    /// Of those that are protected, for whom: of several that share a page who asked last.
    newest: HashMap<Id, VolumeId, foldhash::fast::FixedState>,
}

impl Maps {
    pub fn new(capacity: usize) -> Self {
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

    pub fn get(&mut self, id: Id, newest_of: Option<VolumeId>) {
        if self.pages.get(id) {
            self.protect(id, newest_of);
        }
    }

    pub fn insert(&mut self, id: Id, newest_of: Option<VolumeId>, evicted: &mut Vec<Id>) {
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

    pub fn release(&mut self, id: Id) {
        if self.newest.remove(&id).is_some() {
            self.pages.release(id);
        }
    }

    /// A volume is not attached any more.
    pub fn release_all(&mut self, volume: VolumeId) {
        let of_volume = self.newest.iter().filter(|(_, owner)| **owner == volume);
        let released: Vec<Id> = of_volume.map(|(id, _)| *id).collect();
        released.into_iter().for_each(|id| self.release(id));
    }

    /// Whether all that there is room for are protected.
    pub fn is_all_protected(&self) -> bool {
        self.pages.protected_len() >= self.pages.capacity()
    }
}
