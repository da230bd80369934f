//! [`Layout`]: which member of a copyset has which slot of a segment.
//!
//! ```text
//!  k+m, slot s of a segment               row s / k, which is the slot's number there
//!                                   ┌──────── member s mod k: the slot itself, sealed
//!  member 0  member 1  …  member k−1 │ member k    … member k+m−1
//!  slot 0    slot 1       slot k−1   │ parity 0 of row 0 …
//!  slot k    slot k+1     slot 2k−1  │ parity 0 of row 1 …
//! ```
//!
//! With copies every member has every slot, under its own number. A segment's
//! number is the same on all members.
//!
//! A segment has as many rows as fit into a file of the usual size on each member,
//! less one: the remaining slot holds the masks that say of which slots parity is
//! made, once that is not all of them ([`erasure`](super::erasure)). So the files
//! of a segment with parity are as large as those of one with copies, and as good
//! to write and to reclaim.

use base::Slot;
use catalog::Erasure;

/// How slots are laid out on the members of a copyset: copies, or rows with parity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Layout(Option<Erasure>);

/// Where a slot is within a copyset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemberSlot {
    /// The member's index in the copyset; `None` if every member has the slot.
    pub member_index: Option<u8>,
    /// The slot's number there.
    pub slot: Slot,
}

impl Layout {
    /// The layout of copies, or of `erasure` instead.
    #[must_use]
    pub fn new(erasure: Option<Erasure>) -> Self {
        Self(erasure)
    }

    /// The erasure code, unless segments are copied.
    #[must_use]
    pub fn erasure(self) -> Option<Erasure> {
        self.0
    }

    /// Slots of a segment in one row; 1 with copies.
    #[must_use]
    pub fn row_slots(self) -> u32 {
        self.0.map_or(1, |erasure| u32::from(erasure.data()))
    }

    /// Slots of a full segment, where a member's file has room for `capacity`.
    #[must_use]
    pub fn slots_max(self, capacity: u32) -> u32 {
        match self.0 {
            None => capacity.clamp(1, 1 << 15),
            Some(_) => {
                let rows_max = (1 << 16) / self.row_slots();
                self.row_slots() * capacity.saturating_sub(1).clamp(1, rows_max)
            }
        }
    }

    /// The member that has a slot, and the slot's number there.
    #[inline]
    #[must_use]
    pub fn home(self, slot: Slot) -> MemberSlot {
        match self.0 {
            None => MemberSlot {
                member_index: None,
                slot,
            },
            Some(erasure) => {
                let data = u16::from(erasure.data());
                MemberSlot {
                    member_index: Some((slot.0 % data) as u8),
                    slot: Slot(slot.0 / data),
                }
            }
        }
    }

    /// The slot that the member at `place` has under this number; `None` beyond the
    /// largest segment.
    #[must_use]
    pub fn slot(self, own: u16, place: u8) -> Option<Slot> {
        match self.0 {
            None => Some(Slot(own)),
            Some(erasure) => {
                let row = own.checked_mul(u16::from(erasure.data()))?;
                row.checked_add(u16::from(place)).map(Slot)
            }
        }
    }

    /// Slots that each member has of a segment's first `slots`.
    #[must_use]
    pub fn rows(self, slots: u32) -> u32 {
        slots.div_ceil(self.row_slots())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_slot_has_one_home_and_each_members_slots_are_consecutive() {
        for (data, parity) in [(2, 1), (4, 2), (8, 3)] {
            let layout = Layout::new(Erasure::new(data, parity));
            let slots = layout.slots_max(2048);
            assert_eq!(slots, 2047 * u32::from(data));
            let mut next = vec![0; usize::from(data)];
            for slot in 0..slots {
                let home = layout.home(Slot(slot as u16));
                let next = &mut next[usize::from(home.member_index.expect("one member"))];
                assert_eq!(u32::from(home.slot.0), *next);
                let place = home.member_index.expect("one member");
                assert_eq!(layout.slot(home.slot.0, place), Some(Slot(slot as u16)));
                *next += 1;
                assert_eq!(layout.rows(slot + 1), *next);
            }
            assert!(next.iter().all(|next| *next == 2047));
        }
        let copies = Layout::default();
        let slot = Slot(77);
        assert_eq!(
            copies.home(slot),
            MemberSlot {
                member_index: None,
                slot
            }
        );
        assert_eq!((copies.slots_max(2048), copies.rows(5)), (2048, 5));
    }
}
