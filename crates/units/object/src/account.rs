//! The account of a unit: the number of its segments and the room they take.
//!
//! A store reveals that only by listing every object, a thousand a request. So listings are rare,
//! and changes of this process update the account in between. Changes of other hosts are seen at
//! the next listing.
//!
//! Cost: 16 to 32 bytes of memory a segment.

use std::collections::HashMap;
use std::time::Duration;

use base::SegmentId;
use parking_lot::Mutex;

/// Maximum age of a listing.
const AGE_MAX: Duration = Duration::from_secs(60);

/// Minimum time between two listings, as a multiple of the duration of the first.
const REST_PER_LISTING: u32 = 20;

#[derive(Default)]
struct State {
    /// The segments and their lengths; `None` before the first listing.
    segments: Option<HashMap<SegmentId, u64>>,
    bytes: u64,
    /// When the next listing is due, by the monotonic clock.
    due: Duration,
    /// Changes since the start of a listing that is running: the length of a segment, or `None`
    /// if it was deleted.
    meanwhile: Option<Vec<(SegmentId, Option<u64>)>>,
}

impl State {
    fn apply(&mut self, segment: SegmentId, length: Option<u64>) {
        let Some(segments) = &mut self.segments else {
            return;
        };
        let before = match length {
            Some(length) => segments.insert(segment, length),
            None => segments.remove(&segment),
        };
        self.bytes = self.bytes + length.unwrap_or(0) - before.unwrap_or(0);
    }
}

/// The account of a unit.
#[derive(Default)]
pub(crate) struct Account {
    state: Mutex<State>,
    /// Held during a listing.
    listing: Mutex<()>,
}

impl Account {
    /// Sets the length of a segment; `None` if it was deleted.
    pub(crate) fn set(&self, segment: SegmentId, length: Option<u64>) {
        let mut state = self.state.lock();
        if let Some(meanwhile) = &mut state.meanwhile {
            meanwhile.push((segment, length));
        }
        state.apply(segment, length);
    }

    /// Clears the account: another unit may be there now.
    pub(crate) fn forget(&self) {
        *self.state.lock() = State::default();
    }

    /// The number of segments and their bytes, after `list` if that is due and no other thread
    /// is listing.
    pub(crate) fn stat<E>(
        &self,
        clock: &dyn world::Clock,
        list: impl FnOnce() -> Result<HashMap<SegmentId, u64>, E>,
    ) -> Result<(u64, u64), E> {
        let now = clock.monotonic();
        if let Some(found) = self.recent(now) {
            return Ok(found);
        }
        let _alone = match self.listing.try_lock() {
            Some(alone) => alone,
            // Another thread is listing: the last result is good enough.
            None => match self.known() {
                Some(found) => return Ok(found),
                None => self.listing.lock(),
            },
        };
        if let Some(found) = self.recent(now) {
            return Ok(found);
        }
        self.state.lock().meanwhile = Some(Vec::new());
        let listed = list();
        let mut state = self.state.lock();
        let meanwhile = state.meanwhile.take().unwrap_or_default();
        let listed = listed?;
        state.bytes = listed.values().sum();
        state.segments = Some(listed);
        for (segment, length) in meanwhile {
            state.apply(segment, length);
        }
        let after = clock.monotonic();
        state.due = after + AGE_MAX.max(after.saturating_sub(now) * REST_PER_LISTING);
        drop(state);
        Ok(self.known().unwrap_or_default())
    }

    fn known(&self) -> Option<(u64, u64)> {
        let state = self.state.lock();
        Some((state.segments.as_ref()?.len() as u64, state.bytes))
    }

    fn recent(&self, now: Duration) -> Option<(u64, u64)> {
        let is_due = self.state.lock().due <= now;
        self.known().filter(|_| !is_due)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use world::Clock;
    use world::simulated::Simulation;

    use super::*;

    fn at(number: u64) -> SegmentId {
        SegmentId::from_bits(number).expect("48 bits")
    }

    fn stat(account: &Account, clock: &dyn Clock, listed: &[(u64, u64)]) -> (u64, u64) {
        let listed = listed.iter().map(|(number, bytes)| (at(*number), *bytes));
        let list = || Ok::<_, Infallible>(listed.collect());
        account.stat(clock, list).expect("listed")
    }

    #[test]
    fn own_changes_count_at_once_and_others_with_the_next_listing() {
        let simulation = Simulation::new(1);
        let clock = simulation.world().clock;
        let account = Account::default();
        account.set(at(9), Some(1));
        assert_eq!(stat(&account, &*clock, &[(1, 10), (2, 20)]), (2, 30));
        account.set(at(3), Some(5));
        account.set(at(3), Some(7));
        account.set(at(1), None);
        account.set(at(4), None);
        assert_eq!(stat(&account, &*clock, &[]), (2, 27), "not due yet");
        simulation.clock.advance(AGE_MAX);
        assert_eq!(stat(&account, &*clock, &[(5, 1)]), (1, 1));
    }

    #[test]
    fn changes_during_a_listing_count() {
        let clock = Simulation::new(1).world().clock;
        let account = Account::default();
        let list = || {
            account.set(at(1), None);
            account.set(at(3), Some(9));
            Ok::<_, Infallible>(HashMap::from([(at(1), 10), (at(2), 20)]))
        };
        assert_eq!(account.stat(&*clock, list), Ok((2, 29)));
        account.forget();
        let failed: Result<_, &str> = account.stat(&*clock, || Err("away"));
        assert_eq!(failed, Err("away"));
        assert_eq!(stat(&account, &*clock, &[(2, 4)]), (1, 4));
    }
}
