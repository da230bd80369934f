//! [`InFlight`]: matches completed ranges of a device with the requests that they complete.
//!
//! A kernel merges and splits requests between start and completion, so completion is counted in
//! bytes. Tracers lose events under load: where several requests match a range, the newest one is
//! completed, so that a request whose completion was lost rarely costs another one.
//!
//! Invariant: a completion takes time proportional to what it completes, whatever ranges a trace
//! has.

use std::collections::BTreeMap;

/// The most requests that are examined at an offset, before it or in a range. Kernels merge and
/// split fewer.
const EXAMINED_MAX: usize = 256;

/// The offset of a request in bytes, and its number; newer requests have higher numbers.
type RequestKey = (u64, usize);

/// A request that is not completed.
struct OpenRequest {
    /// The offset of its end, in bytes.
    end: u64,
    /// Bytes that are not completed.
    left: u64,
    /// Whether a part of it has failed.
    has_failed: bool,
}

/// Requests that are not completed, by offset. Each lane, a device with a kind of request, has its
/// own, as requests are merged within a lane only.
pub(crate) struct InFlight<L> {
    lanes: BTreeMap<L, BTreeMap<RequestKey, OpenRequest>>,
}

impl<L> Default for InFlight<L> {
    fn default() -> Self {
        let lanes = BTreeMap::new();
        Self { lanes }
    }
}

impl<L: Ord> InFlight<L> {
    /// Adds a request with its offset and length in bytes; newer requests have higher numbers.
    pub(crate) fn begin(&mut self, lane: L, (offset, length): (u64, u64), number: usize) {
        let begun = OpenRequest {
            end: offset + length,
            left: length,
            has_failed: false,
        };
        let lane = self.lanes.entry(lane).or_default();
        lane.insert((offset, number), begun);
    }

    /// Completes a range. Returns the numbers of the requests that are complete now, each with
    /// whether a part of it has failed.
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

/// The requests that a range completes parts of, with the number of bytes of each.
fn parts(
    lane: &BTreeMap<RequestKey, OpenRequest>,
    offset: u64,
    end: u64,
) -> Vec<(RequestKey, u64)> {
    let mut here = begun_at(lane, offset);
    let Some((whole, _)) = here.find(|(_, begun)| begun.end == end) else {
        return walked(lane, offset, end, usize::MAX);
    };
    // The completion of this request may have been lost, and the range be merged of newer ones.
    let others = walked(lane, offset, end, EXAMINED_MAX);
    let are_newer = others.iter().all(|(place, _)| place.1 > whole.1);
    let bytes: u64 = others.iter().map(|(_, bytes)| bytes).sum();
    let are_all = end > offset && bytes == end - offset;
    let are_whole = |(place, bytes): &(RequestKey, u64)| {
        lane.get(place)
            .is_some_and(|begun| begun.end - place.0 == *bytes)
    };
    match are_newer && are_all && others.iter().all(are_whole) {
        true => others,
        false => vec![(whole, end - offset)],
    }
}

/// At most `most` requests that a range covers; at each byte the newest one.
fn walked(
    lane: &BTreeMap<RequestKey, OpenRequest>,
    offset: u64,
    end: u64,
    most: usize,
) -> Vec<(RequestKey, u64)> {
    let (mut at, mut found) = (offset, Vec::new());
    while at < end && found.len() < most {
        // A request that begins here and ends in the range is preferred. Empty requests have no
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
        // The start of what lies before the next request was not traced.
        match lane.range((at, usize::MAX)..(end, 0)).next() {
            Some(((next, _), _)) => at = *next,
            None => break,
        }
    }
    found
}

/// The requests that begin at an offset, newest first.
fn begun_at(
    lane: &BTreeMap<RequestKey, OpenRequest>,
    at: u64,
) -> impl Iterator<Item = (RequestKey, &OpenRequest)> {
    let here = lane.range((at, 0)..=(at, usize::MAX)).rev();
    here.map(|(place, begun)| (*place, begun))
        .take(EXAMINED_MAX)
}

/// The newest request that begins before an offset and covers it.
fn around(lane: &BTreeMap<RequestKey, OpenRequest>, at: u64) -> Option<(RequestKey, &OpenRequest)> {
    let before = lane.range(..(at, 0)).rev().take(EXAMINED_MAX);
    let having = before.filter(|(_, begun)| begun.end > at);
    having
        .max_by_key(|((_, number), _)| *number)
        .map(|(place, begun)| (*place, begun))
}
