//! Reading a slot that its member does not give, or not as it was put.
//!
//! 1. k others of its row are read, and the parity taken for what it nearly always
//!    is: made of the whole row.
//!    A slot that its member says was freed is one that parity leaves out, or padding:
//!    zeroes. A member may lack it for other reasons, too; so it is first taken for
//!    unknown, then for zeroes.
//! 2. If that does not open, all others are read, and of which slots each parity is
//!    made is asked. Every way to work the slot out is tried that leaves out up to two
//!    of what was read, for any of it may be false: only what opens is right.

use std::collections::{BTreeMap, BTreeSet};

use base::{SegmentId, Slot, UnitId};
use unit::{Read, SlotRun, Tag, Unit as _, UnitError};
use world::{Pool, parallel};

use super::code::{Mask, add, recipe, whole};
use super::masks::Masks;
use crate::catalog::Erasure;
use crate::scatter::Member;
use crate::scatter::layout::Layout;

/// In how many ways a slot is worked out before it is called damaged, of each kind:
/// more than there are of leaving out two of 8 + 3.
const ATTEMPTS_MAX: usize = 80;

/// A slot's tag and content.
type Fragment = (Tag, Vec<u8>);

/// What a member has said of its slot of a row.
#[derive(Clone)]
enum Answer {
    There(Fragment),
    /// It has none.
    NoSlot,
    /// It said nothing, or something else.
    Nothing,
}

/// What a slot is taken for whose member says that it has none.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NoSlotMeaning {
    Unknown,
    Zeroes,
}

/// What came of working a slot out.
pub enum Recovered<T> {
    /// It opened.
    Open(T),
    /// There was enough to work it out, and it never opened.
    Damaged {
        /// Whether any was not given for a reason that may pass.
        is_transient: bool,
    },
    /// There was not enough.
    Unavailable {
        /// Why that which was asked last was not given.
        reason: String,
        /// Whether any was not given for a reason that may pass.
        is_transient: bool,
    },
}

/// The rows of one segment, as far as they were read: neighbours share them.
pub struct RowReader<'a> {
    pool: &'a dyn Pool,
    /// By place; without those that are not known.
    members: Vec<&'a Member>,
    erasure: Erasure,
    segment: SegmentId,
    slot_bytes: u32,
    /// By row and place.
    answers: BTreeMap<(u16, u8), Answer>,
    /// Whom that came from, and who gave nothing.
    asked: BTreeSet<(u16, UnitId)>,
    /// Who can give nothing now: asked for another row, one that hangs takes its time again.
    away: BTreeSet<UnitId>,
    /// By place.
    masks: BTreeMap<u8, Option<Masks>>,
    reason: String,
    is_transient: bool,
    /// Who gave nothing for a reason that may pass, or can give nothing at all, and why.
    unanswered: Option<(UnitId, String)>,
    /// Whoever is among these is asked last.
    exclude: &'a [UnitId],
    supposes_padding: bool,
}

impl<'a> RowReader<'a> {
    /// The rows of a segment on these members, and no others.
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
            asked: BTreeSet::new(),
            away: BTreeSet::new(),
            masks: BTreeMap::new(),
            reason: "too few units of its copyset are known".to_owned(),
            is_transient: false,
            unanswered: None,
            exclude: &[],
            supposes_padding: false,
        }
    }

    /// Reads from these units only what cannot be worked out without them.
    pub fn excluding(mut self, exclude: &'a [UnitId]) -> Self {
        self.exclude = exclude;
        self
    }

    /// Slots whose members are not among these are taken for padding, too. Whoever has no
    /// others can but try; and of a row that is mostly padding it is so.
    pub fn supposing_padding(mut self) -> Self {
        self.supposes_padding = true;
        self
    }

    /// A member that could not be asked, and what it said last, if there was one.
    pub fn unanswered(&self) -> Option<(UnitId, &str)> {
        let away = self.unanswered.as_ref();
        away.map(|(unit, reason)| (*unit, reason.as_str()))
    }

    /// Works a slot of the segment out of others; `open` says whether it is right.
    pub fn recover<T>(
        &mut self,
        slot: Slot,
        mut open: impl FnMut(&Tag, &[u8]) -> Option<T>,
    ) -> Recovered<T> {
        let home = Layout::new(Some(self.erasure)).home(slot);
        let (row, wanted) = (home.slot.0, home.place.unwrap_or(0));
        self.suppose_padding(row);
        let mut others: Vec<&Member> = self
            .members
            .iter()
            .copied()
            .filter(|member| member.place != wanted)
            .collect();
        others.sort_by_key(|member| {
            let is_excluded = self.exclude.contains(&member.id);
            let rank = member.unit.state().read_rank();
            (is_excluded, rank, member.state, member.place)
        });
        // Of one that leaves and the one that comes in its place, the better one.
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
        self.ask_masks(&others);
        let masks = self.masks.clone();
        let parities = self.parities(row, |place| {
            let masks = masks.get(&place).and_then(Option::as_ref);
            masks.map_or(0, |masks| masks.of(u32::from(row)))
        });
        let mut is_worked_out = false;
        for no_slot in [NoSlotMeaning::Unknown, NoSlotMeaning::Zeroes] {
            let there: Vec<u8> = self.there(row, no_slot).collect();
            for without in ways_to_leave_out(&there).into_iter().take(ATTEMPTS_MAX) {
                let attempt = self.attempt(row, wanted, no_slot, &parities, &without);
                is_worked_out |= attempt.is_some();
                if let Some(opened) = attempt.and_then(|(tag, data)| open(&tag, &data)) {
                    return Recovered::Open(opened);
                }
            }
        }
        match is_worked_out {
            true => Recovered::Damaged {
                is_transient: self.is_transient,
            },
            false => Recovered::Unavailable {
                reason: self.reason.clone(),
                is_transient: self.is_transient,
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

    /// The places whose fragments of a row are here.
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

    /// The parities of a row that are here, and of what each is made.
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

    /// Reads a row's fragments from these members, at once.
    fn fetch(&mut self, row: u16, members: &[&Member]) {
        let is_unknown = |member: &&Member| {
            let answer = self.answers.get(&(row, member.place));
            !matches!(answer, Some(Answer::There(_)))
                && !self.asked.contains(&(row, member.id))
                && !self.away.contains(&member.id)
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
                // Of a segment that had nothing but padding there may be none.
                Err(UnitError::NoSlot { .. } | UnitError::NoSegment { .. }) => Answer::NoSlot,
                Err(_) => Answer::Nothing,
            };
            self.asked.insert((row, member.id));
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
            self.away.insert(member.id);
        }
    }

    fn ask_masks(&mut self, members: &[&Member]) {
        let data = self.erasure.data();
        for member in members.iter().filter(|member| member.place >= data) {
            let is_known = self.masks.get(&member.place).is_some_and(Option::is_some);
            if is_known || self.away.contains(&member.id) {
                continue;
            }
            let parity = member.place - data;
            let asked = Masks::ask(&*member.unit, self.segment, self.erasure, parity);
            if let Err(error) = &asked {
                self.gave_nothing(member, error);
            }
            let masks = asked.ok().map(|(_, masks)| masks);
            self.masks.insert(member.place, masks);
        }
    }
}

/// None of them, each of them, and each two of them.
fn ways_to_leave_out(places: &[u8]) -> Vec<Vec<u8>> {
    let mut ways = vec![Vec::new()];
    ways.extend(places.iter().map(|place| vec![*place]));
    for (at, one) in places.iter().enumerate() {
        ways.extend(places[at + 1..].iter().map(|other| vec![*one, *other]));
    }
    ways
}
