//! Comparing the members' copies of a segment. Pure: nothing here sends requests to a unit.

use std::collections::BTreeMap;
use std::ops::Range;

use base::{LineageTag, SegmentId, Slot};
use unit::SegmentSlots;
use unit::format::SLOTS_MAX;

/// The slots that no version names yet, as the catalog knew them at one moment.
#[derive(Debug, Clone, Default)]
pub struct Uncommitted {
    open: BTreeMap<SegmentId, u32>,
    serials: Vec<Range<u64>>,
    serial_next: u64,
}

impl Uncommitted {
    /// `open` has the committed slot count of each open segment; segments whose serials
    /// are in `serials`, or are `serial_next` or more, have none.
    pub fn new(
        open: impl IntoIterator<Item = (SegmentId, u32)>,
        serials: Vec<Range<u64>>,
        serial_next: u64,
    ) -> Self {
        Self {
            open: open.into_iter().collect(),
            serials,
            serial_next,
        }
    }

    /// The number of a segment's committed slots; `None` if all are committed.
    pub(super) fn slots_max(&self, segment: SegmentId) -> Option<u32> {
        let serial = segment.serial();
        let is_none = || {
            serial >= self.serial_next || self.serials.iter().any(|range| range.contains(&serial))
        };
        let open = self.open.get(&segment).copied();
        open.or_else(|| is_none().then_some(0))
    }
}

/// The state of a slot on one member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SlotState {
    /// It was never written there.
    Never,
    /// It was written and not freed.
    Kept,
    /// It was freed.
    Freed,
}

/// A segment as one member reports it.
#[derive(Debug, Clone, Default)]
pub(super) struct Copy {
    slots: Vec<SlotState>,
    pub lineage_tag: LineageTag,
    pub slot_bytes: u32,
    pub generation: u16,
}

impl Copy {
    /// The segment that a member has reported.
    pub fn of(report: &SegmentSlots) -> Self {
        let mut slots = vec![SlotState::Kept; (report.stat.slots as usize).min(SLOTS_MAX as usize)];
        for slot in &report.freed {
            if let Some(held) = slots.get_mut(usize::from(slot.0)) {
                *held = SlotState::Freed;
            }
        }
        Self {
            slots,
            lineage_tag: report.lineage_tag,
            slot_bytes: report.stat.slot_bytes,
            generation: report.stat.generation,
        }
    }

    /// The state of a slot.
    pub fn held(&self, slot: usize) -> SlotState {
        self.slots.get(slot).copied().unwrap_or(SlotState::Never)
    }

    /// The number of slots written.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether no slots were written.
    pub fn is_nothing(&self) -> bool {
        self.slots.is_empty()
    }

    /// The slots that are freed now and were not `before`.
    pub fn freed_since(&self, before: &Self) -> Vec<Slot> {
        let is_new = |slot: &usize| {
            self.held(*slot) == SlotState::Freed && before.held(*slot) != SlotState::Freed
        };
        let freed = (0..self.len()).filter(is_new);
        freed
            .filter_map(|slot| u16::try_from(slot).ok().map(Slot))
            .collect()
    }
}

/// The value of the majority; `None` on a tie or if there are no values.
pub(super) fn majority<T: PartialEq + Clone>(values: &[T]) -> Option<T> {
    let votes = |one: &T| values.iter().filter(|other| *other == one).count();
    let most = values.iter().max_by_key(|value| votes(value))?;
    let is_sure = values
        .iter()
        .all(|value| value == most || votes(value) < votes(most));
    is_sure.then(|| most.clone())
}

/// The members that keep each slot of a segment, as indexes into `copies`; `None` holds
/// nothing of it. A slot counts as kept if a member keeps it that is `believed`.
pub(super) fn keepers(
    copies: &[Option<Copy>],
    believed: impl Fn(usize, usize) -> bool,
    slots_max: Option<u32>,
) -> Vec<Vec<usize>> {
    let there = copies.iter().flatten();
    let longest = there.map(Copy::len).max().unwrap_or(0);
    let end = slots_max.map_or(longest, |most| longest.min(most as usize));
    let mut keepers: Vec<Vec<usize>> = (0..end)
        .map(|slot| {
            let copies = copies.iter().enumerate();
            let keeps = copies.filter(|(_, copy)| {
                let copy = copy.as_ref();
                copy.is_some_and(|copy| copy.held(slot) == SlotState::Kept)
            });
            let keeps: Vec<usize> = keeps.map(|(member, _)| member).collect();
            match keeps.iter().any(|member| believed(*member, slot)) {
                true => keeps,
                false => Vec::new(),
            }
        })
        .collect();
    // Nothing has to be written after the last kept slot.
    let needed = keepers.iter().rposition(|keepers| !keepers.is_empty());
    keepers.truncate(needed.map_or(0, |last| last + 1));
    keepers
}

/// The number of slots that `copy` is missing and some other member keeps.
pub(super) fn missing_slots(copy: Option<&Copy>, keepers: &[Vec<usize>]) -> usize {
    let slots = keepers.iter().enumerate();
    let lacks = |(slot, keepers): &(usize, &Vec<usize>)| {
        let held = copy.map_or(SlotState::Never, |copy| copy.held(*slot));
        held == SlotState::Never && !keepers.is_empty()
    };
    slots.filter(lacks).count()
}
