//! [`Slots`]: the block in each slot, and the free slots.
//!
//! ```text
//!  free ──▶ written ──▶ ready ──▶ free
//!              │  evicted meanwhile
//!              └──▶ doomed ── the write ends ──▶ free
//! ```

use std::collections::HashMap;

use base::VolumeId;

use super::areas::{Area, Areas, Division};
use super::entry::{AreaKind, ENTRY_BYTES, Entry, Id};
use super::head::{PAGE_ENTRIES, SLOT_BYTES};
use super::maps::Protector;
use super::writes::WRITES_MAX;

/// One slot in this many is spare.
const SPARE_ONE_IN: usize = 32;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Free,
    Written,
    Ready,
    Doomed,
}

#[derive(Debug, Clone, Copy)]
struct Slot {
    state: State,
    /// `None` for a free or doomed slot.
    entry: Option<Entry>,
}

/// The slots of a cache's file.
pub struct Slots {
    slots: Vec<Slot>,
    index: HashMap<Id, u32, foldhash::fast::FixedState>,
    free: Vec<u32>,
    pub areas: Areas,
    /// Whether each page of the directory is out of date in the file.
    dirty: Vec<bool>,
    /// No page before this one is out of date.
    dirty_from: usize,
    evicted: Vec<Id>,
    /// The number of blocks inserted into each area so far.
    pub inserted: [u64; 3],
    /// The number of blocks evicted from each area so far, to make room.
    pub evicted_to_make_room: [u64; 3],
}

/// The number of spare slots, which belong to no area: a new block gets one while the slots of
/// evicted blocks are still being written.
fn spare(count: u32) -> usize {
    (count as usize / SPARE_ONE_IN).min(WRITES_MAX)
}

impl Slots {
    pub fn new(count: u32, division: &Division) -> Self {
        let free = Slot {
            state: State::Free,
            entry: None,
        };
        let pages = (count as usize).div_ceil(PAGE_ENTRIES);
        Self {
            slots: vec![free; count as usize],
            index: HashMap::default(),
            // The lowest ones are taken first.
            free: (0..count).rev().collect(),
            areas: Areas::new(division, count as usize - spare(count)),
            dirty: vec![false; pages],
            dirty_from: pages,
            evicted: Vec::new(),
            inserted: [0; 3],
            evicted_to_make_room: [0; 3],
        }
    }

    /// Loads pages of an existing directory, from the slot `first` on.
    pub fn find(&mut self, first: usize, pages: &[u8]) {
        let entries = pages.chunks_exact(ENTRY_BYTES).map(Entry::decode);
        for (slot, entry) in (first..self.slots.len()).zip(entries) {
            let Some(entry) = entry.filter(|entry| !self.index.contains_key(&entry.id)) else {
                continue;
            };
            let mut evicted = Vec::new();
            let (area, id) = (entry.area, entry.id);
            let stays = self.areas.find(area, entry.is_pinned, id, &mut evicted);
            let entry = match stays == entry.is_pinned {
                true => entry,
                false => entry.kept_as(area, stays),
            };
            self.slots[slot] = Slot {
                state: State::Ready,
                entry: Some(entry),
            };
            self.index.insert(id, slot as u32);
            for id in evicted {
                self.free_slot_of(id);
            }
        }
    }

    /// Ends the loading of a directory.
    pub fn found(&mut self) {
        let slots = (0..).zip(&self.slots);
        let free = slots.filter(|(_, slot)| slot.state == State::Free);
        self.free = free.map(|(number, _)| number).collect();
        self.free.reverse();
    }

    pub fn has(&self, id: Id) -> bool {
        self.index.contains_key(&id)
    }

    /// The slot and entry of a block that is read; and whether the read moved it to another
    /// area, which changes the directory.
    pub fn get(&mut self, area: Area, id: Id) -> Option<(u32, Entry, bool)> {
        let slot = *self.index.get(&id)?;
        let Slot { state, entry } = self.slots[slot as usize];
        let entry = entry.filter(|_| state == State::Ready)?;
        if self.areas.needs_move(entry.area, entry.is_pinned, area) {
            return Some((slot, self.move_to(area, slot, entry), true));
        }
        self.areas.get(entry.area, area, id);
        Some((slot, entry, false))
    }

    /// Moves a slot's block to the area that it was read for.
    fn move_to(&mut self, area: Area, slot: u32, entry: Entry) -> Entry {
        self.areas.remove(entry.area, entry.id);
        let stays = self.make_room(area, entry.id);
        let moved = entry.kept_as(area.kind(), stays);
        self.slots[slot as usize].entry = Some(moved);
        self.mark_dirty(slot);
        if moved.area != entry.area {
            self.evicted_to_make_room[entry.area as usize] += 1;
            self.inserted[moved.area as usize] += 1;
        }
        moved
    }

    /// Evicts at most `count` of the blocks that a volume has in the active area beyond its
    /// limit. Returns their number.
    pub fn shrink_share(&mut self, volume: VolumeId, count: usize) -> usize {
        let mut evicted = Vec::new();
        self.areas.shrink_share(volume, count, &mut evicted);
        for id in &evicted {
            if let Some(kind) = self.free_slot_of(*id) {
                self.evicted_to_make_room[kind as usize] += 1;
            }
        }
        evicted.len()
    }

    /// Adds a block to an area. Returns whether it is pinned.
    fn make_room(&mut self, area: Area, id: Id) -> bool {
        let mut evicted = std::mem::take(&mut self.evicted);
        let stays = self.areas.insert(area, id, &mut evicted);
        for id in evicted.drain(..) {
            if let Some(kind) = self.free_slot_of(id) {
                self.evicted_to_make_room[kind as usize] += 1;
            }
        }
        self.evicted = evicted;
        stays
    }

    /// Adds a block that is not there. Returns the slot to write it to; `None` if no slot is
    /// free.
    pub fn insert(&mut self, area: Area, entry: Entry) -> Option<u32> {
        let entry = match self.make_room(area, entry.id) {
            true => entry.kept_as(entry.area, true),
            false => entry,
        };
        let Some(slot) = self.free.pop() else {
            // The slots of all evicted blocks are still being written.
            self.areas.remove(entry.area, entry.id);
            return None;
        };
        self.slots[slot as usize] = Slot {
            state: State::Written,
            entry: Some(entry),
        };
        self.index.insert(entry.id, slot);
        self.mark_dirty(slot);
        self.inserted[entry.area as usize] += 1;
        Some(slot)
    }

    /// Unpins the blocks of `count` slots from `first` on. Returns the number of slots from
    /// there on.
    pub fn unpin(&mut self, first: usize, count: usize) -> usize {
        let left = self.slots.len().saturating_sub(first);
        for slot in (first..).take(count.min(left)) {
            let pinned = self.slots[slot].entry.filter(|entry| entry.is_pinned);
            let Some(entry) = pinned else { continue };
            self.areas.remove(entry.area, entry.id);
            let unpinned = Area::Image {
                of: None,
                pinned: false,
            };
            self.make_room(unpinned, entry.id);
            self.slots[slot].entry = Some(entry.kept_as(entry.area, false));
            self.mark_dirty(slot as u32);
        }
        left
    }

    /// Ends the protection for `protector` of map pages in `count` slots from `first` on.
    /// Returns the number of slots from there on.
    pub fn release_protected(&mut self, protector: Protector, first: usize, count: usize) -> usize {
        let slots = self.slots.iter().skip(first);
        let entries = slots.take(count).filter_map(|slot| slot.entry);
        for entry in entries.filter(|entry| entry.area == AreaKind::Metadata) {
            self.areas.release(protector, entry.id);
        }
        self.slots.len().saturating_sub(first)
    }

    /// Frees a block's slot. Returns the block's area.
    fn free_slot_of(&mut self, id: Id) -> Option<AreaKind> {
        let slot = self.index.remove(&id)?;
        let record = &mut self.slots[slot as usize];
        let kind = record.entry.take().map(|entry| entry.area);
        record.state = match record.state {
            State::Written => State::Doomed,
            _ => {
                self.free.push(slot);
                State::Free
            }
        };
        self.mark_dirty(slot);
        kind
    }

    /// Records the end of a slot's write.
    pub fn end_write(&mut self, slot: u32, is_done: bool) {
        let record = &mut self.slots[slot as usize];
        match (record.state, record.entry) {
            (State::Written, Some(entry)) => {
                record.state = State::Ready;
                self.mark_dirty(slot);
                if !is_done {
                    self.drop_if(slot, &entry);
                }
            }
            _ => {
                record.state = State::Free;
                self.free.push(slot);
            }
        }
    }

    /// Forgets a slot's block if it has this entry. Returns whether it had.
    pub fn drop_if(&mut self, slot: u32, entry: &Entry) -> bool {
        let there = self.slots[slot as usize].entry;
        // It may have been moved to another area.
        let there = there.filter(|there| there.is_same(entry));
        if let Some(there) = there {
            self.areas.remove(there.area, there.id);
            self.free_slot_of(there.id);
        }
        there.is_some()
    }

    /// Forgets a block. Returns whether it was there.
    pub fn forget(&mut self, id: Id) -> bool {
        let slot = self.index.get(&id).copied();
        let entry = slot.and_then(|slot| Some((slot, self.slots[slot as usize].entry?)));
        entry.is_some_and(|(slot, entry)| self.drop_if(slot, &entry))
    }

    /// Marks the directory page of a slot as out of date.
    fn mark_dirty(&mut self, slot: u32) {
        let page = slot as usize / PAGE_ENTRIES;
        self.dirty[page] = true;
        self.dirty_from = self.dirty_from.min(page);
    }

    /// Marks directory pages as out of date.
    pub fn mark_unwritten(&mut self, first: usize, count: usize) {
        self.dirty[first..first + count].fill(true);
        self.dirty_from = self.dirty_from.min(first);
    }

    /// Takes consecutive directory pages that are out of date, at most `pages_max`: the first
    /// one's number, and their content.
    pub fn take_dirty(&mut self, pages_max: usize) -> Option<(usize, Vec<u8>)> {
        let from = self.dirty_from;
        let first = from + self.dirty[from..].iter().position(|is| *is)?;
        let run = self.dirty[first..].iter().take(pages_max);
        let count = run.take_while(|is| **is).count();
        let mut bytes = Vec::with_capacity(count * SLOT_BYTES);
        for page in first..first + count {
            self.dirty[page] = false;
            let slots = self
                .slots
                .iter()
                .skip(page * PAGE_ENTRIES)
                .take(PAGE_ENTRIES);
            for slot in slots {
                match slot.entry.filter(|_| slot.state == State::Ready) {
                    Some(entry) => bytes.extend(entry.encode()),
                    None => bytes.extend([0; ENTRY_BYTES]),
                }
            }
            bytes.resize((page - first + 1) * SLOT_BYTES, 0);
        }
        self.dirty_from = first + count;
        Some((first, bytes))
    }
}
