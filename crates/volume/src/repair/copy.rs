//! [`CopyJob`]: restores a segment on a member that is missing some of its slots.

use std::sync::Arc;

use base::Slot;
use catalog::MemberState;
use unit::{Read, Replacement, SlotRun, Tag, UnitError};

use super::compare::{Copy, SlotState, majority};
use super::copy_error::CopyError;
use super::spread::{RUN_SLOTS_MAX, SegmentSpread, number};

/// The restoration of a segment of copies.
pub(super) struct CopyJob<'a> {
    pub on: SegmentSpread<'a>,
    /// The members that keep each slot.
    pub keepers: Vec<Vec<usize>>,
    /// Whether the segment is closed.
    pub is_closed: bool,
}

impl CopyJob<'_> {
    /// Writes what the member is missing, durably. Returns the number of bytes.
    pub fn restore(&mut self) -> Result<u64, CopyError> {
        let copy = self.on.copies[self.on.to].as_ref();
        let can_append = self.on.members[self.on.to].unit.can_append();
        match copy.map_or(0, Copy::len) {
            0 => self.write(0),
            _ if !can_append => self.rewrite(),
            own => self.write(own),
        }
    }

    /// Replaces what the member has by the whole segment: in one step, unless its header
    /// is unreadable. Everything is read before anything there is replaced.
    pub fn rewrite(&mut self) -> Result<u64, CopyError> {
        let target = Arc::clone(&self.on.members[self.on.to].unit);
        let end = self.keepers.len();
        let content = self.gather(0, end)?;
        let Some(own) = &self.on.copies[self.on.to] else {
            target.delete(self.on.segment).map_err(CopyError::Target)?;
            let bytes = self.on.put(0, &content.tags, &content.data)?;
            self.finish(&content.freed)?;
            return Ok(bytes);
        };
        let bytes = content.data.len() as u64;
        self.on.pace.step(bytes)?;
        let by = Replacement {
            expected: Some(own.generation),
            generation: own.generation,
            lineage_tag: self.on.lineage_tag,
            slot_bytes: self.on.slot_bytes,
            tags: &content.tags,
            data: &content.data,
        };
        let replaced = target.replace(self.on.segment, by);
        replaced.map_err(CopyError::Target)?;
        self.finish(&content.freed)?;
        Ok(bytes)
    }

    /// Frees empty slots that only this member keeps and another has freed: an earlier
    /// pass crashed between writing and freeing them.
    pub fn free_empty(&self) -> Result<(), CopyError> {
        let to = self.on.to;
        let copies = || self.on.copies.iter().flatten();
        let Some(own) = &self.on.copies[to] else {
            return Ok(());
        };
        let is_alone = |slot: &usize| {
            own.held(*slot) == SlotState::Kept
                && copies().any(|copy| copy.held(*slot) == SlotState::Freed)
                && copies()
                    .filter(|copy| copy.held(*slot) == SlotState::Kept)
                    .count()
                    == 1
        };
        let mut empty = Vec::new();
        for slot in (0..own.len()).filter(is_alone) {
            let (mut tag, mut content) = ([[0; 16]], vec![0; self.on.slot_bytes as usize]);
            self.on.pace.step(content.len() as u64)?;
            let read = self.read(to, slot, &mut tag, &mut content);
            // No sealed slot is all zeroes.
            if read.is_ok() && tag[0].iter().chain(&content).all(|byte| *byte == 0) {
                empty.push(number(slot));
            }
        }
        if empty.is_empty() {
            return Ok(());
        }
        let target = &self.on.members[to].unit;
        let freed = target.free(self.on.segment, &empty, self.is_closed);
        freed.map_err(CopyError::Target)
    }

    fn write(&mut self, begin: usize) -> Result<u64, CopyError> {
        let end = self.keepers.len();
        let at_once = match self.on.members[self.on.to].unit.can_append() {
            true => self.on.slots_at_once(),
            false => end.max(1),
        };
        let (mut bytes, mut freed) = (0, Vec::new());
        let mut first = begin;
        while first < end {
            let last = end.min(first + at_once);
            let content = self.gather(first, last)?;
            bytes += self.on.put(first, &content.tags, &content.data)?;
            freed.extend(content.freed);
            first = last;
        }
        self.finish(&freed)?;
        Ok(bytes)
    }

    /// Makes the slots durable, and frees those that no member keeps, or that their
    /// sources have freed since they were read.
    fn finish(&self, unkept: &[Slot]) -> Result<(), CopyError> {
        let target = &self.on.members[self.on.to].unit;
        target.sync(&[self.on.segment]).map_err(CopyError::Target)?;
        let free = |slots: &[Slot]| match slots {
            [] => Ok(()),
            slots => target.free(self.on.segment, slots, self.is_closed),
        };
        free(unkept).map_err(CopyError::Target)?;
        let own = self.on.copies[self.on.to].as_ref();
        let now = self.on.list_again();
        // All of it was freed while it was copied.
        let mut others = now.values();
        if own.is_none() && others.all(|copy| copy.as_ref().is_some_and(Copy::is_nothing)) {
            return target.delete(self.on.segment).map_err(CopyError::Target);
        }
        // All sources must agree: a single member cannot have a restored slot freed.
        let is_gone = |slot: usize| {
            let keepers = self.keepers[slot]
                .iter()
                .filter(|member| **member != self.on.to);
            let mut now = keepers.map(|member| now.get(member).and_then(Option::as_ref));
            now.all(|copy| copy.is_some_and(|copy| copy.held(slot) != SlotState::Kept))
        };
        // Slots that were there before are not freed on the word of others.
        let is_new = |slot: &usize| own.is_none_or(|own| own.held(*slot) == SlotState::Never);
        let slots = (0..self.keepers.len()).filter(|slot| !self.keepers[*slot].is_empty());
        let freed: Vec<Slot> = slots
            .filter(|slot| is_new(slot) && is_gone(*slot))
            .map(number)
            .collect();
        free(&freed).map_err(CopyError::Target)
    }

    /// Reads slots, each from a member whose own checksum matches.
    fn gather(&mut self, first: usize, last: usize) -> Result<Content, CopyError> {
        let slot_bytes = self.on.slot_bytes as usize;
        let mut content = Content {
            tags: vec![[0; 16]; last - first],
            data: vec![0; (last - first) * slot_bytes],
            freed: Vec::new(),
        };
        let mut at = first;
        let (mut lost, mut differing) = (0, 0);
        let mut failed = None;
        while at < last {
            let Some(source) = self.source(at, &mut failed)? else {
                if self.keepers[at].is_empty() {
                    content.freed.push(number(at));
                } else {
                    lost += 1;
                }
                at += 1;
                continue;
            };
            let mut end = at + 1;
            let most = last.min(at + RUN_SLOTS_MAX);
            while end < most && self.source(end, &mut failed)? == Some(source) {
                end += 1;
            }
            let tags = &mut content.tags[at - first..end - first];
            let data = &mut content.data[(at - first) * slot_bytes..(end - first) * slot_bytes];
            if let Err(error) = self.read(source, at, tags, data) {
                // Another member may have it; if it was just freed, the next pass finds that.
                self.on.unresponsive.insert(source);
                failed = Some(error);
                continue;
            }
            if source != self.on.to && !self.on.is_left_by(source) {
                differing += self.apply_majority(source, at, tags, data)?;
            }
            at = end;
        }
        match (lost, failed) {
            (0, _) if differing > 0 => Err(CopyError::Differs(differing)),
            (0, _) => Ok(content),
            (_, Some(error)) => Err(CopyError::Source(error)),
            (lost, None) => Err(CopyError::Rotten(lost)),
        }
    }

    fn read(
        &self,
        member: usize,
        first: usize,
        tags: &mut [Tag],
        data: &mut [u8],
    ) -> Result<(), UnitError> {
        let run = SlotRun {
            segment: self.on.segment,
            first: number(first),
            count: u16::try_from(tags.len()).expect("at most RUN_SLOTS_MAX"),
        };
        let unit = &self.on.members[member].unit;
        unit.read(Read {
            run,
            slot_bytes: self.on.slot_bytes,
            tags,
            data,
        })
    }

    /// Replaces slots of `source`, from `first` on, by the content of the majority where
    /// members that are not rebuilding have another one. Returns the number of slots
    /// without a majority.
    fn apply_majority(
        &mut self,
        source: usize,
        first: usize,
        tags: &mut [Tag],
        data: &mut [u8],
    ) -> Result<u64, CopyError> {
        let slot_bytes = self.on.slot_bytes as usize;
        let suspected = self.find_differing(source, first, tags, data)?;
        let mut differing = 0;
        for slot in suspected {
            let content = &mut data[slot * slot_bytes..(slot + 1) * slot_bytes];
            match majority(&self.contents_of(first + slot)?) {
                Some((tag, its)) => {
                    tags[slot] = tag;
                    content.copy_from_slice(&its);
                }
                None => differing += 1,
            }
        }
        Ok(differing)
    }

    /// Compares slots of `source`, from `first` on, with those of members that are not
    /// rebuilding. Returns the slots in which some member differs, counted from `first`.
    fn find_differing(
        &self,
        source: usize,
        first: usize,
        tags: &[Tag],
        data: &[u8],
    ) -> Result<Vec<usize>, CopyError> {
        let slot_bytes = self.on.slot_bytes as usize;
        let mut differing = Vec::new();
        for other in 0..self.on.members.len() {
            let is_compared = other != source
                && other != self.on.to
                && self.on.members[other].state != MemberState::Rebuilding;
            let keeps = |at: &usize| self.keepers[first + at].contains(&other);
            let mut at = 0;
            while is_compared && at < tags.len() {
                if !keeps(&at) {
                    at += 1;
                    continue;
                }
                let end = (at..tags.len()).find(|at| !keeps(at)).unwrap_or(tags.len());
                let mut its_tags = vec![[0; 16]; end - at];
                let mut its_data = vec![0; (end - at) * slot_bytes];
                self.on.pace.step(its_data.len() as u64)?;
                let read = self.read(other, first + at, &mut its_tags, &mut its_data);
                // A member that does not answer does not disagree.
                let its = its_data.chunks(slot_bytes).zip(its_tags);
                for (slot, (content, tag)) in (at..end).zip(its).filter(|_| read.is_ok()) {
                    let own = &data[slot * slot_bytes..(slot + 1) * slot_bytes];
                    if (tag, content) != (tags[slot], own) && !differing.contains(&slot) {
                        differing.push(slot);
                    }
                }
                at = end;
            }
        }
        Ok(differing)
    }

    /// The contents of a slot on members that keep it, are not rebuilding, and whose own
    /// checksum matches.
    fn contents_of(&mut self, slot: usize) -> Result<Vec<(Tag, Vec<u8>)>, CopyError> {
        let mut contents = Vec::new();
        for member in self.keepers[slot].clone() {
            let is_voter =
                member != self.on.to && self.on.members[member].state != MemberState::Rebuilding;
            if !is_voter || !self.is_sound(member, slot, &mut None)? {
                continue;
            }
            let (mut tag, mut content) = ([[0; 16]], vec![0; self.on.slot_bytes as usize]);
            if self.read(member, slot, &mut tag, &mut content).is_ok() {
                contents.push((tag[0], content));
            }
        }
        Ok(contents)
    }

    /// The member to read a slot from, of those that keep it intact: the target itself,
    /// then the draining member at its place, then the first. The error of a member that
    /// does not answer is put in `failed`.
    fn source(
        &mut self,
        slot: usize,
        failed: &mut Option<UnitError>,
    ) -> Result<Option<usize>, CopyError> {
        let mut keepers = self.keepers[slot].clone();
        keepers.sort_by_key(|member| (*member != self.on.to, !self.on.is_left_by(*member)));
        for member in keepers {
            if self.is_sound(member, slot, failed)? {
                return Ok(Some(member));
            }
        }
        Ok(None)
    }

    /// Whether a member has a slot intact, by its own checksum.
    fn is_sound(
        &mut self,
        member: usize,
        slot: usize,
        failed: &mut Option<UnitError>,
    ) -> Result<bool, CopyError> {
        let rotten = self.on.rotten(member, failed)?;
        Ok(rotten.is_some_and(|bad| !bad.contains(&number(slot).0)))
    }
}

struct Content {
    tags: Vec<Tag>,
    data: Vec<u8>,
    /// Slots among them that no member keeps.
    freed: Vec<Slot>,
}
