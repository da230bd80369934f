//! [`Content`]: rows of a segment with parity, as they are written to a member.

use base::Slot;
use unit::Tag;

use super::spread::number;
use crate::scatter::erasure::{Masks, SlotContent};

/// The content that a member is to hold, from some row on.
#[derive(Default)]
pub(super) struct Content {
    pub tags: Vec<Tag>,
    pub data: Vec<u8>,
    /// Rows that hold nothing.
    pub freed: Vec<Slot>,
    /// On a parity member: the masks of each row.
    pub masks: Option<Masks>,
    pub generation: u16,
}

impl Content {
    /// Appends a slot.
    pub fn add(&mut self, row: usize, slot: SlotContent, slot_bytes: u32) {
        match slot {
            SlotContent::Present(tag, content) => {
                self.tags.push(tag);
                self.data.extend(content);
            }
            SlotContent::Freed | SlotContent::Lost => {
                self.tags.push([0; 16]);
                self.data.resize(self.data.len() + slot_bytes as usize, 0);
                self.freed.push(number(row));
            }
        }
    }

    /// Appends the masks of the last row.
    pub fn apply_masks(&mut self, masks: &Masks) {
        if let Some(all) = &mut self.masks {
            all.extend(masks);
        }
    }
}
