//! [`RowReader`]: recovers a slot that its member does not return, or not intact.
//!
//! 1. k others of its row are read, and parity is assumed to be what it nearly
//!    always is: made of the whole row.
//!    A slot that its member reports as freed is one that parity is not made of, or
//!    padding: zeroes. A member may be missing it for other reasons, too; so it is
//!    first treated as unknown, then as zeroes.
//! 2. If the result does not open, all others are read, with the masks of each
//!    parity. Every way to recover the slot is tried that leaves out up to two of the
//!    fragments, for any of them may be falsified: only a result that opens is right.

use std::collections::{BTreeMap, BTreeSet};

use base::{SegmentId, Slot, UnitId};
use catalog::Erasure;
use unit::{Read, SlotRun, Tag, Unit as _, UnitError};
use world::{Pool, parallel};

use super::code::{Mask, add, recipe, whole};
use super::masks::Masks;
use crate::scatter::Member;
use crate::scatter::layout::Layout;

/// The most attempts to recover a slot, of each kind, before it is called damaged:
/// more than the ways to leave out two of 8 + 3.
const ATTEMPTS_MAX: usize = 80;

/// A slot's tag and content.
type Fragment = (Tag, Vec<u8>);

/// A member's answer to the read of a slot.
#[derive(Clone)]
enum Answer {
    There(Fragment),
    /// The member has no such slot.
    NoSlot,
    /// The read failed.
    Nothing,
}

/// How a slot is treated whose member reports that it has none.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NoSlotMeaning {
    Unknown,
    Zeroes,
}

/// The result of recovering a slot.
pub enum Recovered<T> {
    /// The slot opened.
    Open(T),
    /// There were enough fragments, and the result never opened.
    Damaged {
        /// Whether a read failed for a reason that may pass.
        is_transient: bool,
    },
    /// There were not enough fragments.
    Unavailable {
        /// The error of the last read.
        reason: String,
        /// Whether a read failed for a reason that may pass.
        is_transient: bool,
    },
}

/// The rows of one segment, as far as they were read: slots of one row share them.
pub struct RowReader<'a> {
    pool: &'a dyn Pool,
    /// The known members.
    members: Vec<&'a Member>,
    erasure: Erasure,
    segment: SegmentId,
    slot_bytes: u32,
    /// Answers by row and place.
    answers: BTreeMap<(u16, u8), Answer>,
    /// The rows that each unit was queried for.
    queried: BTreeSet<(u16, UnitId)>,
    /// Units that are failing: one that does not respond would time out for each row.
    failing: BTreeSet<UnitId>,
    /// Masks by place; `None` if they could not be read.
    masks: BTreeMap<u8, Option<Masks>>,
    reason: String,
    is_transient: bool,
    /// The last unit that could not be queried, and its error.
    unanswered: Option<(UnitId, String)>,
    /// Units that are queried last.
    exclude: &'a [UnitId],
    supposes_padding: bool,
}

impl<'a> RowReader<'a> {
    /// A reader of a segment's rows on these members only.
    pub fn new(
        pool: &'a dyn Pool,
        members: impl IntoIterator<Item = &'a Member>,
        erasure: Erasure,
        segment: SegmentId,
        slot_bytes: u32,
    ) -> Self {
        Self {
            pool,
            members: members.into_iter().collect(),
            erasure,
            segment,
            slot_bytes,
            answers: BTreeMap::new(),
            queried: BTreeSet::new(),
            failing: BTreeSet::new(),
            masks: BTreeMap::new(),
            reason: "too few units of its copyset are known".to_owned(),
            is_transient: false,
            unanswered: None,
            exclude: &[],
            supposes_padding: false,
        }
    }

    /// Reads from these units only what cannot be recovered without them.
    pub fn excluding(mut self, exclude: &'a [UnitId]) -> Self {
        self.exclude = exclude;
        self
    }

    /// Also tries to treat slots of unknown members as padding, which is right for a row
    /// that is mostly padding.
    pub fn supposing_padding(mut self) -> Self {
        self.supposes_padding = true;
        self
    }

    /// A member that could not be queried, and its last error.
    pub fn unanswered(&self) -> Option<(UnitId, &str)> {
        let away = self.unanswered.as_ref();
        away.map(|(unit, reason)| (*unit, reason.as_str()))
    }

    /// Recovers a slot of the segment from others; `open` says whether the result is
    /// right.
    pub fn recover<T>(
        &mut self,
        slot: Slot,
        mut open: impl FnMut(&Tag, &[u8]) -> Option<T>,
    ) -> Recovered<T> {
        let home = Layout::new(Some(self.erasure)).home(slot);
        let (row, wanted) = (home.slot.0, home.member_index.unwrap_or(0));
        self.suppose_padding(row);
        let others = self.others(wanted);
        // Of a draining member and its replacement, the better one.
        let mut quick: Vec<&Member> = Vec::new();
        for member in &others {
            let is_known = quick.iter().any(|known| known.place == member.place);
            if quick.len() < usize::from(self.erasure.data()) && !is_known {
                quick.push(member);
            }
        }
        self.fetch(row, &quick);
        let all = whole(self.erasure);
        let parities: Vec<(usize, Mask)> = self.parities(row, |_| all);
        for no_slot in [NoSlotMeaning::Unknown, NoSlotMeaning::Zeroes] {
            let attempt = self.attempt(row, wanted, no_slot, &parities, &[]);
            if let Some(opened) = attempt.and_then(|(tag, data)| open(&tag, &data)) {
                return Recovered::Open(opened);
            }
        }
        self.fetch(row, &others);
        self.read_masks(&others);
        self.try_all(row, wanted, open)
    }

    /// The members at other places, best first.
    fn others(&self, wanted: u8) -> Vec<&'a Member> {
        let members = self.members.iter().copied();
        let mut others: Vec<&Member> = members.filter(|member| member.place != wanted).collect();
        others.sort_by_key(|member| {
            let is_excluded = self.exclude.contains(&member.id);
            let rank = member.unit.state().read_rank();
            (is_excluded, rank, member.state, member.place)
        });
        others
    }

    /// Tries every way to recover a slot from the fragments and masks that were read.
    fn try_all<T>(
        &self,
        row: u16,
        wanted: u8,
        mut open: impl FnMut(&Tag, &[u8]) -> Option<T>,
    ) -> Recovered<T> {
        let parities = self.parities(row, |place| {
            let masks = self.masks.get(&place).and_then(Option::as_ref);
            masks.map_or(0, |masks| masks.of(u32::from(row)))
        });
        let mut is_recovered = false;
        for no_slot in [NoSlotMeaning::Unknown, NoSlotMeaning::Zeroes] {
            let there: Vec<u8> = self.there(row, no_slot).collect();
            for without in ways_to_leave_out(&there).into_iter().take(ATTEMPTS_MAX) {
                let attempt = self.attempt(row, wanted, no_slot, &parities, &without);
                is_recovered |= attempt.is_some();
                if let Some(opened) = attempt.and_then(|(tag, data)| open(&tag, &data)) {
                    return Recovered::Open(opened);
                }
            }
        }
        let is_transient = self.is_transient;
        match is_recovered {
            true => Recovered::Damaged { is_transient },
            false => Recovered::Unavailable {
                reason: self.reason.clone(),
                is_transient,
            },
        }
    }

    fn suppose_padding(&mut self, row: u16) {
        if !self.supposes_padding {
            return;
        }
        for place in 0..self.erasure.data() {
            if !self.members.iter().any(|member| member.place == place) {
                self.answers.insert((row, place), Answer::NoSlot);
            }
        }
    }

    /// The places whose fragments of a row are known.
    fn there(&self, row: u16, no_slot: NoSlotMeaning) -> impl Iterator<Item = u8> + '_ {
        let data = self.erasure.data();
        let is_there = move |place: u8, answer: &Answer| match answer {
            Answer::There(_) => true,
            Answer::NoSlot => place < data && no_slot == NoSlotMeaning::Zeroes,
            Answer::Nothing => false,
        };
        let of_row = self.answers.range((row, 0)..=(row, u8::MAX));
        let there = of_row.filter(move |((_, place), answer)| is_there(*place, answer));
        there.map(|((_, place), _)| *place)
    }

    /// The known parities of a row, with their masks.
    fn parities(&self, row: u16, mask: impl Fn(u8) -> Mask) -> Vec<(usize, Mask)> {
        let data = self.erasure.data();
        let parities = self
            .there(row, NoSlotMeaning::Unknown)
            .filter(|place| *place >= data);
        let made = parities.map(|place| (usize::from(place - data), mask(place)));
        made.filter(|(_, mask)| *mask != 0).collect()
    }

    fn attempt(
        &self,
        row: u16,
        wanted: u8,
        no_slot: NoSlotMeaning,
        parities: &[(usize, Mask)],
        without: &[u8],
    ) -> Option<Fragment> {
        let data = self.erasure.data();
        let is_used = |place: u8| !without.contains(&place);
        let there = self
            .there(row, no_slot)
            .filter(|place| *place < data && is_used(*place));
        let there = there.fold(0, |all: Mask, place| all | 1 << place);
        let parities: Vec<(usize, Mask)> = parities
            .iter()
            .copied()
            .filter(|(parity, _)| is_used(data + *parity as u8))
            .collect();
        let recipe = recipe(usize::from(wanted), there & !(1 << wanted), &parities)?;
        let mut tag = [0; 16];
        let mut content = vec![0; self.slot_bytes as usize];
        let parities = recipe.parities.iter();
        let parities = parities.map(|(parity, times)| (usize::from(data) + parity, times));
        let slots = recipe.data.iter().map(|(slot, times)| (*slot, times));
        for (place, times) in slots.chain(parities) {
            if let Answer::There((of_tag, of_content)) = self.answers.get(&(row, place as u8))? {
                add(&mut tag, *times, of_tag);
                add(&mut content, *times, of_content);
            }
        }
        Some((tag, content))
    }

    /// Reads a row's fragments from these members, in parallel.
    fn fetch(&mut self, row: u16, members: &[&Member]) {
        let is_unknown = |member: &&Member| {
            let answer = self.answers.get(&(row, member.place));
            !matches!(answer, Some(Answer::There(_)))
                && !self.queried.contains(&(row, member.id))
                && !self.failing.contains(&member.id)
        };
        let missing: Vec<&Member> = members.iter().copied().filter(is_unknown).collect();
        let run = SlotRun {
            segment: self.segment,
            first: Slot(row),
            count: 1,
        };
        let slot_bytes = self.slot_bytes;
        let tasks = missing.iter().map(|member| {
            let unit = std::sync::Arc::clone(&member.unit);
            let task = move || {
                let (mut tags, mut data) = ([[0; 16]], vec![0; slot_bytes as usize]);
                let read = unit.read(Read {
                    run,
                    slot_bytes,
                    tags: &mut tags,
                    data: &mut data,
                });
                read.map(|()| (tags[0], data))
            };
            Box::new(task) as Box<dyn FnOnce() -> _ + Send>
        });
        let results: Vec<Result<Fragment, UnitError>> =
            parallel(self.pool, missing.len().max(1), tasks.collect());
        for (member, result) in missing.into_iter().zip(results) {
            if let Err(error) = &result {
                self.gave_nothing(member, error);
            }
            let answer = match result {
                Ok(fragment) => Answer::There(fragment),
                // A member may have no segment if all its slots were padding.
                Err(UnitError::NoSlot { .. } | UnitError::NoSegment { .. }) => Answer::NoSlot,
                Err(_) => Answer::Nothing,
            };
            self.queried.insert((row, member.id));
            let known = self.answers.entry((row, member.place));
            let known = known.or_insert(Answer::Nothing);
            if !matches!(
                (&*known, &answer),
                (Answer::There(_), _) | (_, Answer::Nothing)
            ) {
                *known = answer;
            }
        }
    }

    fn gave_nothing(&mut self, member: &Member, error: &UnitError) {
        self.reason = base::with_causes(error);
        self.is_transient |= error.is_transient();
        if error.is_transient() || error.affects_whole_unit() {
            self.unanswered = Some((member.id, self.reason.clone()));
        }
        if error.affects_whole_unit() {
            self.failing.insert(member.id);
        }
    }

    fn read_masks(&mut self, members: &[&Member]) {
        let data = self.erasure.data();
        for member in members.iter().filter(|member| member.place >= data) {
            let is_known = self.masks.get(&member.place).is_some_and(Option::is_some);
            if is_known || self.failing.contains(&member.id) {
                continue;
            }
            let parity = member.place - data;
            let read = Masks::read(&*member.unit, self.segment, self.erasure, parity);
            if let Err(error) = &read {
                self.gave_nothing(member, error);
            }
            let masks = read.ok().map(|(_, masks)| masks);
            self.masks.insert(member.place, masks);
        }
    }
}

/// The sets of at most two of these places.
fn ways_to_leave_out(places: &[u8]) -> Vec<Vec<u8>> {
    let mut ways = vec![Vec::new()];
    ways.extend(places.iter().map(|place| vec![*place]));
    for (at, one) in places.iter().enumerate() {
        ways.extend(places[at + 1..].iter().map(|other| vec![*one, *other]));
    }
    ways
}
