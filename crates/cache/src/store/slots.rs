//! [`Slots`]: what lies in which slot, and which are free.
//!
//! ```text
//!  free ──▶ written ──▶ ready ──▶ free
//!              │  it goes meanwhile
//!              └──▶ doomed ── the write has ended ──▶ free
//! ```

use std::collections::HashMap;

use base::VolumeId;

use super::areas::{Area, Areas, Division};
use super::entry::{AreaKind, ENTRY_BYTES, Entry, Id};
use super::head::{PAGE_ENTRIES, SLOT_BYTES};
use super::maps::Protector;
use super::writes::WRITES_MAX;

/// Of so many slots one is spare.
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
    /// None of one that is free, or doomed.
    entry: Option<Entry>,
}

/// See the module's head.
pub struct Slots {
    slots: Vec<Slot>,
    index: HashMap<Id, u32, foldhash::fast::FixedState>,
    free: Vec<u32>,
    pub areas: Areas,
    /// By page of the directory.
    dirty: Vec<bool>,
    /// Where the first one may be.
    dirty_from: usize,
    evicted: Vec<Id>,
    /// How many blocks came to each area so far, and went to make room.
    pub brought: [u64; 3],
    pub pushed_out: [u64; 3],
}

/// So many slots are no area's: what comes has one also while those of what went are being
/// written.
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
            brought: [0; 3],
            pushed_out: [0; 3],
        }
    }

    /// Takes in pages of a directory that was there, from the slot `first` on.
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

    /// All of it was taken in.
    pub fn found(&mut self) {
        let slots = (0..).zip(&self.slots);
        let free = slots.filter(|(_, slot)| slot.state == State::Free);
        self.free = free.map(|(number, _)| number).collect();
        self.free.reverse();
    }

    pub fn has(&self, id: Id) -> bool {
        self.index.contains_key(&id)
    }

    /// Where a block lies that is asked for, and what of it is said; and whether it was moved
    /// by that, of which the directory is to tell.
    pub fn get(&mut self, area: Area, id: Id) -> Option<(u32, Entry, bool)> {
        let slot = *self.index.get(&id)?;
        let Slot { state, entry } = self.slots[slot as usize];
        let entry = entry.filter(|_| state == State::Ready)?;
        if self.areas.is_to_move(entry.area, entry.is_pinned, area) {
            return Some((slot, self.move_to(area, slot, entry), true));
        }
        self.areas.get(entry.area, area, id);
        Some((slot, entry, false))
    }

    /// Keeps what lies in a slot as what it was asked for.
    fn move_to(&mut self, area: Area, slot: u32, entry: Entry) -> Entry {
        self.areas.remove(entry.area, entry.id);
        let stays = self.make_room(area, entry.id);
        let moved = entry.kept_as(area.kind(), stays);
        self.slots[slot as usize].entry = Some(moved);
        self.mark_dirty(slot);
        if moved.area != entry.area {
            self.pushed_out[entry.area as usize] += 1;
            self.brought[moved.area as usize] += 1;
        }
        moved
    }

    /// Of what a volume has of the active area beyond its bound, at most `count` go. How many
    /// did.
    pub fn shrink_share(&mut self, volume: VolumeId, count: usize) -> usize {
        let mut evicted = Vec::new();
        self.areas.shrink_share(volume, count, &mut evicted);
        for id in &evicted {
            if let Some(kind) = self.free_slot_of(*id) {
                self.pushed_out[kind as usize] += 1;
            }
        }
        evicted.len()
    }

    /// A block is an area's from now on. Whether it stays there.
    fn make_room(&mut self, area: Area, id: Id) -> bool {
        let mut evicted = std::mem::take(&mut self.evicted);
        let stays = self.areas.insert(area, id, &mut evicted);
        for id in evicted.drain(..) {
            if let Some(kind) = self.free_slot_of(id) {
                self.pushed_out[kind as usize] += 1;
            }
        }
        self.evicted = evicted;
        stays
    }

    /// Keeps a block that is not there: in which slot it is to be written, unless there is
    /// none.
    pub fn insert(&mut self, area: Area, entry: Entry) -> Option<u32> {
        let entry = match self.make_room(area, entry.id) {
            true => entry.kept_as(entry.area, true),
            false => entry,
        };
        let Some(slot) = self.free.pop() else {
            // All that went are being written still.
            self.areas.remove(entry.area, entry.id);
            return None;
        };
        self.slots[slot as usize] = Slot {
            state: State::Written,
            entry: Some(entry),
        };
        self.index.insert(entry.id, slot);
        self.mark_dirty(slot);
        self.brought[entry.area as usize] += 1;
        Some(slot)
    }

    /// Of so many slots from `first` on, what stays is kept as others are from now on. How
    /// many slots there are from there on.
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

    /// Map pages in these slots are not protected for `protector` any more. How many slots
    /// there are from the first one on.
    pub fn release_protected(&mut self, protector: Protector, first: usize, count: usize) -> usize {
        let slots = self.slots.iter().skip(first);
        let entries = slots.take(count).filter_map(|slot| slot.entry);
        for entry in entries.filter(|entry| entry.area == AreaKind::Metadata) {
            self.areas.release(protector, entry.id);
        }
        self.slots.len().saturating_sub(first)
    }

    /// A block's slot is nobody's. Of which area it was.
    fn free_slot_of(&mut self, id: Id) -> Option<AreaKind> {
        let slot = self.index.remove(&id)?;
        let place = &mut self.slots[slot as usize];
        let kind = place.entry.take().map(|entry| entry.area);
        place.state = match place.state {
            State::Written => State::Doomed,
            _ => {
                self.free.push(slot);
                State::Free
            }
        };
        self.mark_dirty(slot);
        kind
    }

    /// The write of a slot has ended.
    pub fn end_write(&mut self, slot: u32, is_done: bool) {
        let place = &mut self.slots[slot as usize];
        match (place.state, place.entry) {
            (State::Written, Some(entry)) => {
                place.state = State::Ready;
                self.mark_dirty(slot);
                if !is_done {
                    self.drop_if(slot, &entry);
                }
            }
            _ => {
                place.state = State::Free;
                self.free.push(slot);
            }
        }
    }

    /// Forgets what lies in a slot, if that is this. Whether it was.
    pub fn drop_if(&mut self, slot: u32, entry: &Entry) -> bool {
        let there = self.slots[slot as usize].entry;
        // It may be kept otherwise by now.
        let there = there.filter(|there| there.is_same(entry));
        if let Some(there) = there {
            self.areas.remove(there.area, there.id);
            self.free_slot_of(there.id);
        }
        there.is_some()
    }

    /// Forgets a block. Whether it was there.
    pub fn forget(&mut self, id: Id) -> bool {
        let slot = self.index.get(&id).copied();
        let entry = slot.and_then(|slot| Some((slot, self.slots[slot as usize].entry?)));
        entry.is_some_and(|(slot, entry)| self.drop_if(slot, &entry))
    }

    /// The directory's page of a slot is to be written.
    fn mark_dirty(&mut self, slot: u32) {
        let page = slot as usize / PAGE_ENTRIES;
        self.dirty[page] = true;
        self.dirty_from = self.dirty_from.min(page);
    }

    /// Pages of the directory are not in the file as they are here.
    pub fn mark_unwritten(&mut self, first: usize, count: usize) {
        self.dirty[first..first + count].fill(true);
        self.dirty_from = self.dirty_from.min(first);
    }

    /// Pages of the directory that have changed and lie one after another, at most so many:
    /// the number of the first one, and what is to be written there.
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
