//! [`InFlight`]: which requests end when ranges of a device do.
//!
//! Between a request's beginning and its end it may be merged with others, and split: so what has
//! ended is counted by its bytes. Ends may be lost, as tracers lose events when much happens: of
//! what a range may be of, that is taken which began last, so that a request whose end was lost
//! rarely costs another one.
//!
//! Whoever makes a trace may make ranges of any kind: an end takes no longer than what it ends.

use std::collections::BTreeMap;

/// No more requests are looked at than so many that begin at a place, before it, or in a range:
/// a request is merged of no more, nor split among more that begin in it.
const LOOKED_AT: usize = 256;

/// Where a request begins, in bytes, and its number: of two, the one that began last has the
/// higher one.
type Place = (u64, usize);

/// A request that has not ended.
struct Begun {
    /// Where it ends, in bytes.
    end: u64,
    /// So many bytes of it have not ended.
    left: u64,
    /// A part of it has failed.
    has_failed: bool,
}

/// What has begun and not ended, by where it is; of each lane by itself, which is what requests are
/// merged in: a device, and what is asked of it.
pub(crate) struct InFlight<L> {
    lanes: BTreeMap<L, BTreeMap<Place, Begun>>,
}

impl<L> Default for InFlight<L> {
    fn default() -> Self {
        let lanes = BTreeMap::new();
        Self { lanes }
    }
}

impl<L: Ord> InFlight<L> {
    /// A request begins there, with that many bytes. Later ones have higher numbers.
    pub(crate) fn begin(&mut self, lane: L, (offset, length): (u64, u64), number: usize) {
        let begun = Begun {
            end: offset + length,
            left: length,
            has_failed: false,
        };
        let lane = self.lanes.entry(lane).or_default();
        lane.insert((offset, number), begun);
    }

    /// A range ends, or fails: the numbers of all requests of which this is the last part, and
    /// whether any part of them has failed.
    pub(crate) fn end(
        &mut self,
        lane: L,
        (offset, length): (u64, u64),
        has_failed: bool,
    ) -> Vec<(usize, bool)> {
        let Some(lane) = self.lanes.get_mut(&lane) else {
            return Vec::new();
        };
        let mut ended = Vec::new();
        for (place, bytes) in parts(lane, offset, offset + length) {
            let Some(begun) = lane.get_mut(&place) else {
                continue;
            };
            begun.has_failed |= has_failed;
            begun.left = begun.left.saturating_sub(bytes);
            if begun.left == 0 {
                ended.push((place.1, begun.has_failed));
                lane.remove(&place);
            }
        }
        ended
    }
}

/// What ends when a range does: requests, and how many bytes of each.
fn parts(lane: &BTreeMap<Place, Begun>, offset: u64, end: u64) -> Vec<(Place, u64)> {
    let mut here = begun_at(lane, offset);
    let Some((whole, _)) = here.find(|(_, begun)| begun.end == end) else {
        return walked(lane, offset, end, usize::MAX);
    };
    // It may be one whose end was lost, and what ended now was merged of others since.
    let others = walked(lane, offset, end, LOOKED_AT);
    let are_newer = others.iter().all(|(place, _)| place.1 > whole.1);
    let bytes: u64 = others.iter().map(|(_, bytes)| bytes).sum();
    let are_all = end > offset && bytes == end - offset;
    let are_whole = |(place, bytes): &(Place, u64)| {
        lane.get(place)
            .is_some_and(|begun| begun.end - place.0 == *bytes)
    };
    match are_newer && are_all && others.iter().all(are_whole) {
        true => others,
        false => vec![(whole, end - offset)],
    }
}

/// The requests that a range goes through, so many at most: at each byte the one that began last.
fn walked(lane: &BTreeMap<Place, Begun>, offset: u64, end: u64, most: usize) -> Vec<(Place, u64)> {
    let (mut at, mut found) = (offset, Vec::new());
    while at < end && found.len() < most {
        // If any that begins here ends in the range, it is one of these. Those of nothing have no
        // part of it.
        let here = || begun_at(lane, at).filter(|(_, begun)| begun.end > at);
        let within = here().find(|(_, begun)| begun.end <= end);
        let here = within.or_else(|| here().next());
        if let Some((place, begun)) = here.or_else(|| around(lane, at)) {
            let until = begun.end.min(end);
            found.push((place, until - at));
            at = until;
            continue;
        }
        // Nobody saw the beginning of what is up to the next one.
        match lane.range((at, usize::MAX)..(end, 0)).next() {
            Some(((next, _), _)) => at = *next,
            None => break,
        }
    }
    found
}

/// The requests that begin at a byte, the one that began last first.
fn begun_at(lane: &BTreeMap<Place, Begun>, at: u64) -> impl Iterator<Item = (Place, &Begun)> {
    let here = lane.range((at, 0)..=(at, usize::MAX)).rev();
    here.map(|(place, begun)| (*place, begun)).take(LOOKED_AT)
}

/// The request that begins before a byte, and has it.
fn around(lane: &BTreeMap<Place, Begun>, at: u64) -> Option<(Place, &Begun)> {
    let before = lane.range(..(at, 0)).rev().take(LOOKED_AT);
    let having = before.filter(|(_, begun)| begun.end > at);
    having
        .max_by_key(|((_, number), _)| *number)
        .map(|(place, begun)| (*place, begun))
}
