//! What of a segment lies where. Nothing here asks a unit.

use std::collections::BTreeMap;
use std::ops::Range;

use base::{LineageTag, SegmentId, Slot};
use unit::SegmentSlots;
use unit::format::SLOTS_MAX;

/// What no version names yet, as it was known at one moment.
#[derive(Debug, Clone, Default)]
pub struct Uncommitted {
    open: BTreeMap<SegmentId, u32>,
    serials: Vec<Range<u64>>,
    serial_next: u64,
}

impl Uncommitted {
    /// Of the segments in `open` so many slots are committed; of those whose serials
    /// are in `serials`, or are `serial_next` or more, none.
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

    /// How many slots of a segment belong to versions, if not all do.
    pub(super) fn slots_max(&self, segment: SegmentId) -> Option<u32> {
        let serial = segment.serial();
        let is_none = || {
            serial >= self.serial_next || self.serials.iter().any(|range| range.contains(&serial))
        };
        let open = self.open.get(&segment).copied();
        open.or_else(|| is_none().then_some(0))
    }
}

/// How a slot is on one member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Held {
    /// It was never put there.
    Never,
    /// It holds what was put.
    Kept,
    /// It was freed.
    Freed,
}

/// How one member holds a segment.
#[derive(Debug, Clone, Default)]
pub(super) struct Copy {
    slots: Vec<Held>,
    pub lineage_tag: LineageTag,
    pub slot_bytes: u32,
    pub generation: u16,
}

impl Copy {
    /// One that a member has said this of.
    pub fn of(told: &SegmentSlots) -> Self {
        let mut slots = vec![Held::Kept; (told.stat.slots as usize).min(SLOTS_MAX as usize)];
        for slot in &told.freed {
            if let Some(held) = slots.get_mut(usize::from(slot.0)) {
                *held = Held::Freed;
            }
        }
        Self {
            slots,
            lineage_tag: told.lineage_tag,
            slot_bytes: told.stat.slot_bytes,
            generation: told.stat.generation,
        }
    }

    /// How it holds a slot.
    pub fn held(&self, slot: usize) -> Held {
        self.slots.get(slot).copied().unwrap_or(Held::Never)
    }

    /// How many slots were put.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether nothing was put.
    pub fn is_nothing(&self) -> bool {
        self.slots.is_empty()
    }

    /// The slots that it has freed, and `before` did not.
    pub fn freed_since(&self, before: &Self) -> Vec<Slot> {
        let is_new =
            |slot: &usize| self.held(*slot) == Held::Freed && before.held(*slot) != Held::Freed;
        let freed = (0..self.len()).filter(is_new);
        freed
            .filter_map(|slot| u16::try_from(slot).ok().map(Slot))
            .collect()
    }
}

/// What most say; `None` if as many say something else, or nobody says anything.
pub(super) fn most<T: PartialEq + Clone>(said: &[T]) -> Option<T> {
    let votes = |one: &T| said.iter().filter(|other| *other == one).count();
    let most = said.iter().max_by_key(|one| votes(one))?;
    let is_sure = said
        .iter()
        .all(|one| one == most || votes(one) < votes(most));
    is_sure.then(|| most.clone())
}

/// The members that keep each of the first slots of a segment: indexes into
/// `copies`, of which those that are `None` hold nothing of it. A slot counts as kept if
/// one does that is `believed` of it.
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
                copy.is_some_and(|copy| copy.held(slot) == Held::Kept)
            });
            let keeps: Vec<usize> = keeps.map(|(member, _)| member).collect();
            match keeps.iter().any(|member| believed(*member, slot)) {
                true => keeps,
                false => Vec::new(),
            }
        })
        .collect();
    // Behind the last one that anybody keeps nothing has to be put.
    let needed = keepers.iter().rposition(|keepers| !keepers.is_empty());
    keepers.truncate(needed.map_or(0, |last| last + 1));
    keepers
}

/// How many slots a member that holds a segment as `copy` lacks that some other keeps.
pub(super) fn lacking(copy: Option<&Copy>, keepers: &[Vec<usize>]) -> usize {
    let slots = keepers.iter().enumerate();
    let lacks = |(slot, keepers): &(usize, &Vec<usize>)| {
        let held = copy.map_or(Held::Never, |copy| copy.held(*slot));
        held == Held::Never && !keepers.is_empty()
    };
    slots.filter(lacks).count()
}
