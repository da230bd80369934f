//! How many segments a unit holds, and how much room they take.
//!
//! A pool says that only by naming every object, and of each what was freed. So it
//! is looked at seldom, by a thread of the pool of threads, and what is changed here
//! is kept up with. Segments of other hosts are seen at the next look; what others
//! free in segments that are known, after the next start.
//!
//! Cost: 16 to 32 bytes of memory a segment.

use std::collections::HashMap;
use std::time::Duration;

use base::SegmentId;
use parking_lot::{Condvar, Mutex};
use unit::UnitError;

/// How old a look may be.
const AGE_MAX: Duration = Duration::from_secs(60);

/// A look comes again only after so many times what the last one took.
const REST_PER_LOOK: u32 = 20;

#[derive(Default)]
struct State {
    /// What is known, once there was a look.
    segments: Option<HashMap<SegmentId, u64>>,
    bytes: u64,
    free_bytes: Option<u64>,
    /// When the next look is due, by the monotonic clock.
    due: Duration,
    /// Since when somebody looks.
    begun: Option<Duration>,
    /// Why the last look failed, if it did.
    failure: Option<UnitError>,
    /// What was changed since then: a segment's bytes, or none if it is gone.
    meanwhile: Vec<(SegmentId, Option<u64>)>,
}

impl State {
    fn apply(&mut self, segment: SegmentId, bytes: Option<u64>) {
        let Some(segments) = &mut self.segments else {
            return;
        };
        let before = match bytes {
            Some(bytes) => segments.insert(segment, bytes),
            None => segments.remove(&segment),
        };
        self.bytes = self.bytes + bytes.unwrap_or(0) - before.unwrap_or(0);
    }
}

/// What is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) segments: u64,
    pub(crate) bytes: u64,
    pub(crate) free_bytes: Option<u64>,
}

/// See the module's head.
#[derive(Default)]
pub(crate) struct Account {
    state: Mutex<State>,
    /// A look has ended.
    ended: Condvar,
}

impl Account {
    /// A segment takes so many bytes now, or is gone.
    pub(crate) fn set(&self, segment: SegmentId, bytes: Option<u64>) {
        let mut state = self.state.lock();
        if state.begun.is_some() {
            state.meanwhile.push((segment, bytes));
        }
        state.apply(segment, bytes);
    }

    /// A segment takes so many bytes more.
    pub(crate) fn add(&self, segment: SegmentId, more: u64) {
        let known = {
            let state = self.state.lock();
            let known = state.segments.as_ref();
            known.and_then(|known| known.get(&segment).copied())
        };
        self.set(segment, Some(known.unwrap_or(0) + more));
    }

    /// Forgets everything: what is there now may be another unit.
    pub(crate) fn forget(&self) {
        let mut state = self.state.lock();
        let begun = state.begun;
        *state = State {
            begun,
            ..State::default()
        };
    }

    /// What is known.
    pub(crate) fn known(&self) -> Option<Known> {
        let state = self.state.lock();
        Some(Known {
            segments: state.segments.as_ref()?.len() as u64,
            bytes: state.bytes,
            free_bytes: state.free_bytes,
        })
    }

    /// What is known; if that is nothing yet, what the look that is under way finds
    /// within some time.
    ///
    /// # Errors
    /// `None` if there was no look in that time; why it failed, if it did.
    pub(crate) fn wait(&self, within: Duration) -> Result<Known, Option<UnitError>> {
        let mut state = self.state.lock();
        let is_awaited = |state: &mut State| state.segments.is_none() && state.begun.is_some();
        self.ended.wait_while_for(&mut state, is_awaited, within);
        let failure = state.failure.clone();
        drop(state);
        self.known().ok_or(failure)
    }

    /// Whether it is time to look, and nobody does. Whoever is told so looks,
    /// and says so when that has ended.
    pub(crate) fn begins(&self, now: Duration) -> bool {
        let mut state = self.state.lock();
        let begins = state.begun.is_none() && state.due <= now;
        if begins {
            state.begun = Some(now);
            state.failure = None;
            state.meanwhile.clear();
        }
        begins
    }

    /// The look that was begun has ended, whatever came of it.
    pub(crate) fn end(&self) {
        let mut state = self.state.lock();
        state.begun = None;
        state.meanwhile.clear();
        self.ended.notify_all();
    }

    /// Those of `segments` whose bytes are not known.
    pub(crate) fn unknown(&self, segments: &[SegmentId]) -> Vec<SegmentId> {
        let state = self.state.lock();
        let is_known = |segment: &SegmentId| {
            let known = state.segments.as_ref();
            known.is_some_and(|known| known.contains_key(segment))
        };
        segments
            .iter()
            .copied()
            .filter(|found| !is_known(found))
            .collect()
    }

    /// A look has ended: with these segments, the bytes of those that were not
    /// known, and the room left.
    pub(crate) fn found(
        &self,
        segments: &[SegmentId],
        measured: &HashMap<SegmentId, u64>,
        free_bytes: Option<u64>,
        now: Duration,
    ) {
        let mut state = self.state.lock();
        let known = state.segments.take().unwrap_or_default();
        let bytes_of = |segment: &SegmentId| measured.get(segment).or_else(|| known.get(segment));
        let found: HashMap<SegmentId, u64> = segments
            .iter()
            .map(|segment| (*segment, bytes_of(segment).copied().unwrap_or(0)))
            .collect();
        state.bytes = found.values().sum();
        state.segments = Some(found);
        state.free_bytes = free_bytes;
        for (segment, bytes) in std::mem::take(&mut state.meanwhile) {
            state.apply(segment, bytes);
        }
        let begun = state.begun.unwrap_or(now);
        state.due = now + AGE_MAX.max(now.saturating_sub(begun) * REST_PER_LOOK);
    }

    /// A look has failed.
    pub(crate) fn failed(&self, why: UnitError) {
        self.state.lock().failure = Some(why);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(number: u64) -> SegmentId {
        SegmentId::from_bits(number).expect("48 bits")
    }

    fn totals(account: &Account) -> Option<(u64, u64)> {
        account.known().map(|known| (known.segments, known.bytes))
    }

    #[test]
    fn what_is_changed_during_a_look_and_after_it_counts() {
        let account = Account::default();
        let now = Duration::from_secs(9);
        assert_eq!(totals(&account), None);
        account.set(at(9), Some(1));
        assert!(account.begins(now));
        assert!(!account.begins(now), "one at a time");
        account.set(at(1), None);
        account.set(at(3), Some(9));
        let segments = [at(1), at(2)];
        assert_eq!(account.unknown(&segments), segments);
        let measured = HashMap::from([(at(1), 10), (at(2), 20)]);
        account.found(&segments, &measured, Some(5), now);
        account.end();
        assert_eq!(totals(&account), Some((2, 29)));
        account.add(at(3), 1);
        assert_eq!(totals(&account), Some((2, 30)));
        assert!(!account.begins(now + Duration::from_secs(59)), "not due");
        assert!(account.begins(now + AGE_MAX));
        assert_eq!(account.unknown(&[at(2), at(4)]), [at(4)]);
        account.found(&[at(2), at(4)], &HashMap::from([(at(4), 7)]), None, now);
        assert_eq!(totals(&account), Some((2, 27)));
        account.end();
        account.forget();
        assert!(account.begins(Duration::ZERO));
        account.failed(UnitError::Full { url: String::new() });
        account.end();
        let failed = account.wait(Duration::from_secs(60));
        assert!(
            matches!(failed, Err(Some(UnitError::Full { .. }))),
            "{failed:?}"
        );
        assert!(account.begins(Duration::ZERO));
        let unknown = account.wait(Duration::ZERO);
        assert!(matches!(unknown, Err(None)), "{unknown:?}");
    }
}
