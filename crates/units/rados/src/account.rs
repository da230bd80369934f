//! The account of a unit: the number of its segments and the room they take.
//!
//! A pool reveals that only by listing every object and reading its attributes. So scans are
//! rare and run on the thread pool, and changes of this process update the account in between.
//! Segments of other hosts are seen at the next scan; what others free in known segments, after
//! the next start.
//!
//! Cost: 16 to 32 bytes of memory a segment.

use std::collections::HashMap;
use std::time::Duration;

use base::SegmentId;
use parking_lot::{Condvar, Mutex};
use unit::UnitError;

/// Maximum age of a scan.
const AGE_MAX: Duration = Duration::from_secs(60);

/// Minimum time between two scans, as a multiple of the duration of the first.
const REST_PER_SCAN: u32 = 20;

#[derive(Default)]
struct State {
    /// The segments and their bytes; `None` before the first scan.
    segments: Option<HashMap<SegmentId, u64>>,
    bytes: u64,
    free_bytes: Option<u64>,
    /// When the next scan is due, by the monotonic clock.
    due: Duration,
    /// When the scan that is running began.
    begun: Option<Duration>,
    /// The error of the last scan, if it failed.
    failure: Option<UnitError>,
    /// Changes since `begun`: the bytes of a segment, or `None` if it was removed.
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

/// The totals of a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) segments: u64,
    pub(crate) bytes: u64,
    pub(crate) free_bytes: Option<u64>,
}

/// The account of a unit.
#[derive(Default)]
pub(crate) struct Account {
    state: Mutex<State>,
    /// Notified when a scan has ended.
    ended: Condvar,
}

impl Account {
    /// Sets the bytes of a segment; `None` if it was removed.
    pub(crate) fn set(&self, segment: SegmentId, bytes: Option<u64>) {
        let mut state = self.state.lock();
        if state.begun.is_some() {
            state.meanwhile.push((segment, bytes));
        }
        state.apply(segment, bytes);
    }

    /// Adds to the bytes of a segment.
    pub(crate) fn add(&self, segment: SegmentId, more: u64) {
        let known = {
            let state = self.state.lock();
            let known = state.segments.as_ref();
            known.and_then(|known| known.get(&segment).copied())
        };
        self.set(segment, Some(known.unwrap_or(0) + more));
    }

    /// Clears the account: another unit may be there now.
    pub(crate) fn forget(&self) {
        let mut state = self.state.lock();
        let begun = state.begun;
        *state = State {
            begun,
            ..State::default()
        };
    }

    /// The totals, once there was a scan.
    pub(crate) fn known(&self) -> Option<Totals> {
        let state = self.state.lock();
        Some(Totals {
            segments: state.segments.as_ref()?.len() as u64,
            bytes: state.bytes,
            free_bytes: state.free_bytes,
        })
    }

    /// The totals; before the first scan, waits for the running one.
    ///
    /// # Errors
    /// `None` if no scan ended within the time; the error if it failed.
    pub(crate) fn wait(&self, within: Duration) -> Result<Totals, Option<UnitError>> {
        let mut state = self.state.lock();
        let is_awaited = |state: &mut State| state.segments.is_none() && state.begun.is_some();
        self.ended.wait_while_for(&mut state, is_awaited, within);
        let failure = state.failure.clone();
        drop(state);
        self.known().ok_or(failure)
    }

    /// Begins a scan if one is due and none is running. The caller must scan and call
    /// [`Account::end`].
    pub(crate) fn try_begin(&self, now: Duration) -> bool {
        let mut state = self.state.lock();
        let begin = state.begun.is_none() && state.due <= now;
        if begin {
            state.begun = Some(now);
            state.failure = None;
            state.meanwhile.clear();
        }
        begin
    }

    /// Records that the scan has ended, successfully or not.
    pub(crate) fn end(&self) {
        let mut state = self.state.lock();
        state.begun = None;
        state.meanwhile.clear();
        self.ended.notify_all();
    }

    /// Those of `segments` whose bytes are unknown.
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

    /// Records the result of a scan: the segments, the bytes of those that were unknown, and the
    /// free room.
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
        state.due = now + AGE_MAX.max(now.saturating_sub(begun) * REST_PER_SCAN);
    }

    /// Records that a scan failed.
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
    fn changes_during_a_scan_and_after_it_count() {
        let account = Account::default();
        let now = Duration::from_secs(9);
        assert_eq!(totals(&account), None);
        account.set(at(9), Some(1));
        assert!(account.try_begin(now));
        assert!(!account.try_begin(now), "one at a time");
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
        assert!(!account.try_begin(now + Duration::from_secs(59)), "not due");
        assert!(account.try_begin(now + AGE_MAX));
        assert_eq!(account.unknown(&[at(2), at(4)]), [at(4)]);
        account.found(&[at(2), at(4)], &HashMap::from([(at(4), 7)]), None, now);
        assert_eq!(totals(&account), Some((2, 27)));
        account.end();
        account.forget();
        assert!(account.try_begin(Duration::ZERO));
        account.failed(UnitError::Full { url: String::new() });
        account.end();
        let failed = account.wait(Duration::from_secs(60));
        assert!(
            matches!(failed, Err(Some(UnitError::Full { .. }))),
            "{failed:?}"
        );
        assert!(account.try_begin(Duration::ZERO));
        let unknown = account.wait(Duration::ZERO);
        assert!(matches!(unknown, Err(None)), "{unknown:?}");
    }
}
