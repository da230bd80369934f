//! Writing recovered rows to the member.

use base::Slot;
use unit::Replacement;

use super::compare::Copy;
use super::copy_error::CopyError;
use super::row_content::Content;
use super::rows::Rows;

impl Rows<'_> {
    /// Replaces what the member has, if anything, by `content`.
    pub(super) fn replace(&self, content: &mut Content) -> Result<(), CopyError> {
        let to = self.on.to;
        let own = self.on.copies[to].as_ref().map(|copy| copy.generation);
        if let (Some(own), Some(masks)) = (own, &content.masks) {
            let is_same = self
                .masks
                .get(&to)
                .is_some_and(|(_, current)| current == masks);
            let least = own.saturating_add(u16::from(!is_same));
            content.generation = content.generation.max(least);
        } else {
            content.generation = content.generation.max(own.unwrap_or(0));
        }
        let slot_bytes = self.on.slot_bytes;
        if let Some(masks) = content.masks.as_ref().filter(|_| content.generation > 0) {
            let parity = self.on.members[to].place - self.erasure.data();
            let encoded = masks.encode(self.on.segment, self.erasure, parity, slot_bytes);
            content.tags.push([0; 16]);
            content.data.extend(encoded);
        }
        self.on.pace.step(content.data.len() as u64)?;
        let by = Replacement {
            expected: own,
            generation: content.generation,
            lineage_tag: self.on.lineage_tag,
            slot_bytes,
            tags: &content.tags,
            data: &content.data,
        };
        let replaced = self.on.members[to].unit.replace(self.on.segment, by);
        replaced.map_err(CopyError::Target)
    }

    /// Makes the content durable, and frees slots that hold nothing or that the draining
    /// member has freed since.
    pub(super) fn finish(&self, content: &Content) -> Result<(), CopyError> {
        let target = &self.on.members[self.on.to];
        let unit = &target.unit;
        unit.sync(&[self.on.segment]).map_err(CopyError::Target)?;
        // The record of freed slots stays until the segment is deleted: it marks padding.
        let free = |slots: &[Slot]| match slots {
            [] => Ok(()),
            slots => unit.free(self.on.segment, slots, false),
        };
        free(&content.freed).map_err(CopyError::Target)?;
        let was_there = self.on.copies[self.on.to].is_some();
        let now = self.on.list_again();
        // All of it was freed while it was copied.
        let mut others = now.values();
        if !was_there && others.all(|copy| copy.as_ref().is_some_and(Copy::is_nothing)) {
            return unit.delete(self.on.segment).map_err(CopyError::Target);
        }
        for (index, now) in &now {
            let (member, before) = (&self.on.members[*index], &self.on.copies[*index]);
            let (Some(before), Some(now)) = (before, now) else {
                return Err(CopyError::Changed);
            };
            let is_parity = self.is_parity(target.place);
            let freed = now.freed_since(before);
            let is_used = is_parity && !self.is_parity(member.place) && !freed.is_empty();
            let is_there = !now.is_nothing();
            if is_there && (now.generation != before.generation || is_used) {
                // The slots that it was made of may have been freed: it is made again.
                if !was_there {
                    unit.delete(self.on.segment).map_err(CopyError::Target)?;
                }
                return Err(CopyError::Changed);
            }
            if member.place == target.place && !is_parity {
                // Only slots that no parity is made of may be freed.
                let counts = |slot: &Slot| {
                    let masks = self.masks.values();
                    let mut masks = masks.map(|(_, masks)| masks.of(slot.0.into()));
                    masks.any(|mask| mask >> target.place & 1 == 1)
                };
                let freed: Vec<Slot> = freed.into_iter().filter(|slot| !counts(slot)).collect();
                free(&freed).map_err(CopyError::Target)?;
            }
        }
        Ok(())
    }
}
