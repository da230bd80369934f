//! Bringing a segment to a member that lacks some of it.

use base::Slot;
use unit::{Replacement, SlotRun, Tag, UnitError};

use super::compare::{Copy, Held};
use super::pass::Stopped;
use super::spread::Spread;

/// Why a segment was not brought.
#[derive(Debug)]
pub(super) enum CopyError {
    /// No member has a copy of these slots that is as it was put.
    Rotten(u64),
    /// A member that was asked does not answer as it should.
    Source(UnitError),
    /// The member itself.
    Target(UnitError),
    /// What it was made of was changed meanwhile.
    Changed,
    /// It is not gone on with.
    Stopped,
}

impl From<Stopped> for CopyError {
    fn from(_: Stopped) -> Self {
        Self::Stopped
    }
}

/// A segment of copies.
pub(super) struct Bringing<'a> {
    pub on: Spread<'a>,
    /// Who keeps each slot.
    pub keepers: &'a [Vec<usize>],
    /// Nothing is appended to it any more.
    pub is_closed: bool,
}

impl Bringing<'_> {
    /// Puts what member `to` lacks of the segment there, durably. Returns how many
    /// bytes that were.
    pub fn bring(&mut self, to: usize) -> Result<u64, CopyError> {
        let copy = self.on.copies[to].as_ref();
        self.write(to, copy.map_or(0, Copy::len))
    }

    /// Puts the whole segment anew in the place of what member `to` has: in one step,
    /// but of one whose header cannot be read. All of it was read before anything
    /// there is given up.
    pub fn bring_anew(&mut self, to: usize) -> Result<u64, CopyError> {
        let target = &self.on.members[to].unit;
        let end = self.keepers.len();
        let content = self.gather(0, end)?;
        let Some(own) = &self.on.copies[to] else {
            target.delete(self.on.segment).map_err(CopyError::Target)?;
            let bytes = self.on.put(to, 0, &content.tags, &content.data)?;
            self.finish(to, &content.freed)?;
            return Ok(bytes);
        };
        let bytes = content.data.len() as u64;
        self.on.pace.step(bytes)?;
        let by = Replacement {
            expected: Some(own.generation),
            generation: own.generation,
            line: self.on.line(),
            slot_bytes: self.on.slot_bytes(),
            tags: &content.tags,
            data: &content.data,
        };
        let replaced = target.replace(self.on.segment, by);
        replaced.map_err(CopyError::Target)?;
        self.finish(to, &content.freed)?;
        Ok(bytes)
    }

    fn write(&mut self, to: usize, begin: usize) -> Result<u64, CopyError> {
        let end = self.keepers.len();
        let at_once = match self.on.members[to].unit.can_append() {
            true => self.on.slots_at_once(),
            false => end.max(1),
        };
        let (mut bytes, mut freed) = (0, Vec::new());
        let mut first = begin;
        while first < end {
            let last = end.min(first + at_once);
            let content = self.gather(first, last)?;
            bytes += self.on.put(to, first, &content.tags, &content.data)?;
            freed.extend(content.freed);
            first = last;
        }
        self.finish(to, &freed)?;
        Ok(bytes)
    }

    /// Makes it durable, and frees the slots that nobody keeps and those that were
    /// freed since they were read.
    fn finish(&self, to: usize, unkept: &[Slot]) -> Result<(), CopyError> {
        let target = &self.on.members[to].unit;
        target.sync(&[self.on.segment]).map_err(CopyError::Target)?;
        let free = |slots: &[Slot]| match slots {
            [] => Ok(()),
            slots => target.free(self.on.segment, slots, self.is_closed),
        };
        free(unkept).map_err(CopyError::Target)?;
        let was_there = self.on.copies.get(to).is_some_and(Option::is_some);
        for (member, copy) in self.on.members.iter().zip(self.on.copies) {
            let Some(before) = copy else { continue };
            match member.unit.slots_of(self.on.segment) {
                Ok(told) => {
                    let own = self.on.copies.get(to).and_then(Option::as_ref);
                    let mut freed = Copy::of(&told).freed_since(before);
                    // Of what was there before, others do not say.
                    freed.retain(|slot| {
                        let held = own.map(|own| own.held(usize::from(slot.0)));
                        held.is_none_or(|held| held == Held::Never)
                    });
                    free(&freed).map_err(CopyError::Target)?;
                }
                // All of it was freed while it was copied.
                Err(UnitError::NoSegment { .. }) if !was_there => {
                    return target.delete(self.on.segment).map_err(CopyError::Target);
                }
                Err(UnitError::NoSegment { .. }) => {}
                Err(error) => return Err(CopyError::Source(error)),
            }
        }
        Ok(())
    }

    /// The content of slots, each from a member whose own checksum is right.
    fn gather(&mut self, first: usize, last: usize) -> Result<Content, CopyError> {
        let slot_bytes = self.on.slot_bytes() as usize;
        let mut content = Content {
            tags: vec![[0; 16]; last - first],
            data: vec![0; (last - first) * slot_bytes],
            freed: Vec::new(),
        };
        let mut at = first;
        let mut lost = 0;
        let mut failed = None;
        while at < last {
            let Some(source) = self.source(at, &mut failed)? else {
                if self.keepers[at].is_empty() {
                    let slot = u16::try_from(at).unwrap_or(u16::MAX);
                    content.freed.push(Slot(slot));
                } else {
                    lost += 1;
                }
                at += 1;
                continue;
            };
            let mut end = at + 1;
            while end < last && self.source(end, &mut failed)? == Some(source) {
                end += 1;
            }
            let run = SlotRun {
                segment: self.on.segment,
                first: Slot(u16::try_from(at).unwrap_or(u16::MAX)),
                count: u16::try_from(end - at).unwrap_or(u16::MAX),
            };
            let tags = &mut content.tags[at - first..end - first];
            let data = &mut content.data[(at - first) * slot_bytes..(end - first) * slot_bytes];
            let read = self.on.members[source]
                .unit
                .read(run, slot_bytes as u32, tags, data);
            // One that was freed just now is seen by the next pass.
            read.map_err(CopyError::Source)?;
            at = end;
        }
        match (lost, failed) {
            (0, _) => Ok(content),
            (_, Some(error)) => Err(CopyError::Source(error)),
            (lost, None) => Err(CopyError::Rotten(lost)),
        }
    }

    /// The member to read a slot from: the first that keeps it as it was put. What is
    /// wrong with one that cannot say is left in `failed`.
    fn source(
        &mut self,
        slot: usize,
        failed: &mut Option<UnitError>,
    ) -> Result<Option<usize>, CopyError> {
        let number = u16::try_from(slot).unwrap_or(u16::MAX);
        for member in &self.keepers[slot] {
            let rotten = self.on.rotten(*member, failed)?;
            if rotten.is_some_and(|bad| !bad.contains(&number)) {
                return Ok(Some(*member));
            }
        }
        Ok(None)
    }
}

struct Content {
    tags: Vec<Tag>,
    data: Vec<u8>,
    /// Slots among them that nobody keeps.
    freed: Vec<Slot>,
}
