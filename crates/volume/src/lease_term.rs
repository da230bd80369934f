//! [`LeaseTerm`]: until when a lease lasts, as far as its holder knows.
//!
//! ```text
//!  holder    renewal sent ────────────────── 8 s │ stalls: acknowledges nothing
//!  catalog        └─► received ────────────────────────── 10 s │ others may acquire
//! ```
//!
//! The holder counts from before it sent the renewal and stops at four fifths
//! of the term. If clocks run at the same rate, it has stopped before another
//! host may acquire the lease. The last fifth covers the time between a check of
//! the clock and the reply's leaving the machine: one turn of the owner's loop.
//!
//! The safety of stored data does not depend on this: commits compare the epoch.
//!
//! It must not know what a volume does when the term is over.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use world::{Clock, Wake};

/// The lease is lost. The largest number: no renewal undoes it.
const LOST: u64 = u64::MAX;
/// The lease never ends by itself. No renewal changes that either.
const UNLIMITED: u64 = u64::MAX - 1;

/// The end of a lease, shared by its renewer and the volume. Cheap to clone.
#[derive(Debug, Clone)]
pub struct LeaseTerm(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// On the monotonic clock, in nanoseconds.
    ends_ns: AtomicU64,
    /// Whether the owner has stalled and the next renewal must wake it. Other
    /// owners need no wake-up every two seconds.
    is_awaited: AtomicBool,
    wake: OnceLock<Wake>,
}

/// The state of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LeaseStatus {
    Held,
    /// Its end has passed; it may still be renewed.
    Expired,
    /// Another host has the volume.
    Lost,
}

impl LeaseTerm {
    /// A lease that ends only by being lost: there is only one host.
    #[must_use]
    pub fn unlimited() -> Self {
        Self::at(UNLIMITED)
    }

    /// A lease that ends when the world's monotonic clock shows `ends`.
    #[must_use]
    pub fn until(ends: Duration) -> Self {
        Self::at(nanos(ends))
    }

    /// Whether the lease ends only by being lost: only one host ever has the volume.
    #[must_use]
    pub(crate) fn is_unlimited(&self) -> bool {
        self.0.ends_ns.load(Ordering::SeqCst) == UNLIMITED
    }

    fn at(ends_ns: u64) -> Self {
        Self(Arc::new(Shared {
            ends_ns: AtomicU64::new(ends_ns),
            is_awaited: AtomicBool::new(false),
            wake: OnceLock::new(),
        }))
    }

    /// Renews the lease until `ends`. Never moves the end back. Wakes a volume that
    /// has stalled.
    pub fn renew(&self, ends: Duration) {
        self.0.ends_ns.fetch_max(nanos(ends), Ordering::SeqCst);
        if self.0.is_awaited.swap(false, Ordering::SeqCst) {
            self.wake();
        }
    }

    /// Marks the lease as lost and wakes the volume, which stops.
    pub fn lose(&self) {
        self.0.ends_ns.store(LOST, Ordering::SeqCst);
        self.wake();
    }

    fn wake(&self) {
        if let Some(wake) = self.0.wake.get() {
            wake.wake();
        }
    }

    /// Sets the waker. The first one counts: a term belongs to one volume.
    pub(crate) fn set_wake(&self, wake: Wake) {
        let is_first = self.0.wake.set(wake).is_ok();
        debug_assert!(is_first, "a term belongs to one volume");
    }

    /// Asks for a wake-up by the next renewal. The owner checks the term once more
    /// before it sleeps: a renewal may have come in between.
    pub(crate) fn await_renewal(&self) {
        self.0.is_awaited.store(true, Ordering::SeqCst);
    }

    /// Whether requests may be acknowledged now.
    #[must_use]
    pub fn holds(&self, clock: &dyn Clock) -> bool {
        self.status(clock) == LeaseStatus::Held
    }

    /// The state of the lease. Reads the clock only if the lease can expire.
    #[inline]
    pub(crate) fn status(&self, clock: &dyn Clock) -> LeaseStatus {
        match self.0.ends_ns.load(Ordering::SeqCst) {
            UNLIMITED => LeaseStatus::Held,
            LOST => LeaseStatus::Lost,
            ends_ns if nanos(clock.monotonic()) < ends_ns => LeaseStatus::Held,
            _ => LeaseStatus::Expired,
        }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).map_or(UNLIMITED - 1, |nanos| nanos.min(UNLIMITED - 1))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use world::simulated::SimulatedClock;

    use super::*;

    fn standing(term: &LeaseTerm, clock: &SimulatedClock) -> LeaseStatus {
        term.status(clock)
    }

    #[test]
    fn a_term_is_over_at_its_end_and_not_before() {
        let clock = SimulatedClock::default();
        let ends = clock.monotonic() + Duration::from_secs(8);
        let term = LeaseTerm::until(ends);
        clock.advance(Duration::from_secs(8) - Duration::from_nanos(1));
        assert_eq!(standing(&term, &clock), LeaseStatus::Held);
        clock.advance(Duration::from_nanos(1));
        assert_eq!(standing(&term, &clock), LeaseStatus::Expired);
        term.renew(ends + Duration::from_secs(2));
        assert_eq!(standing(&term, &clock), LeaseStatus::Held);
    }

    #[test]
    fn a_delayed_renewal_does_not_shorten_a_term() {
        let clock = SimulatedClock::default();
        let term = LeaseTerm::until(clock.monotonic() + Duration::from_secs(8));
        term.renew(clock.monotonic());
        assert_eq!(standing(&term, &clock), LeaseStatus::Held);
    }

    #[test]
    fn a_lost_lease_is_not_renewed_and_an_unlimited_one_can_be_lost() {
        let clock = SimulatedClock::default();
        let term = LeaseTerm::unlimited();
        term.renew(Duration::ZERO);
        clock.advance(Duration::from_secs(1 << 30));
        assert_eq!(standing(&term, &clock), LeaseStatus::Held);
        term.lose();
        term.renew(Duration::MAX);
        assert_eq!(standing(&term, &clock), LeaseStatus::Lost);
    }

    #[test]
    fn only_an_owner_that_has_stalled_is_woken_by_a_renewal() {
        let woken = Arc::new(AtomicU32::new(0));
        let term = LeaseTerm::until(Duration::from_secs(1));
        let count = Arc::clone(&woken);
        term.set_wake(Wake::new(move || {
            count.fetch_add(1, Ordering::Relaxed);
        }));
        term.renew(Duration::from_secs(2));
        assert_eq!(woken.load(Ordering::Relaxed), 0);
        term.await_renewal();
        term.renew(Duration::from_secs(3));
        term.renew(Duration::from_secs(4));
        assert_eq!(woken.load(Ordering::Relaxed), 1);
        term.lose();
        assert_eq!(woken.load(Ordering::Relaxed), 2);
    }
}
