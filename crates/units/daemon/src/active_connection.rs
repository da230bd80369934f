//! The active connection of each lease and each repair: the one on which the newest capability
//! was presented last.
//!
//! After a connection breaks, its host does not know the outcome of its requests. It frees,
//! deletes and puts again on a new connection, and a delayed request of the old one, from a
//! queue or from the network, must not undo that. So a right to change something is valid on
//! one connection only. A host sends requests on one connection to a daemon at a time
//! ([`unit_remote::TlsLink`]), and presents its capabilities there first.
//!
//! Invariant: once a right is presented on a connection, no request under this right or an
//! older one of the same kind runs or begins on another connection.

use std::collections::HashMap;

use auth::Fence;
use base::CopysetId;
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::running::Running;

/// A right that is valid on one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum ExclusiveRight {
    /// To write a volume under a lease.
    Lease(Fence),
    /// To change the segments of a copyset during a repair.
    Repair(CopysetId),
}

/// The active connections. They do not outlive the process, as connections do not.
#[derive(Debug, Default)]
pub(crate) struct ActiveConnections {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The epoch or signing time of the newest right, of which a newer one is larger, and the
    /// number of its connection, which grows.
    newest: HashMap<ExclusiveRight, (i64, u64)>,
    /// Requests under way, by right and connection.
    running: Running<(ExclusiveRight, u64)>,
}

/// A request under way; ends when it is dropped.
#[derive(Debug)]
pub(crate) struct RightPassage<'a> {
    active: &'a ActiveConnections,
    by: (ExclusiveRight, u64),
}

impl Drop for RightPassage<'_> {
    fn drop(&mut self) {
        let mut state = self.active.lock();
        if state.running.end(&self.by) {
            self.active.ended.notify_all();
        }
    }
}

impl State {
    /// Whether a request runs under the right on another connection.
    fn is_other_running(&self, right: ExclusiveRight, connection: u64) -> bool {
        self.running.any(|by| by.0 == right && by.1 != connection)
    }

    /// As [`State::is_other_running`], for any of the rights.
    fn is_any_running(&self, rights: &[(ExclusiveRight, i64)], connection: u64) -> bool {
        let mut rights = rights.iter().map(|(right, _)| *right);
        rights.any(|right| self.is_other_running(right, connection))
    }

    /// Makes `connection` active for all rights. Returns `false`, and changes nothing, if any
    /// of them has a newer one.
    fn take(&mut self, rights: &[(ExclusiveRight, i64)], connection: u64) -> bool {
        let is_older = |(right, age): &(ExclusiveRight, i64)| {
            let newest = self.newest.get(right);
            newest.is_some_and(|newest| *newest > (*age, connection))
        };
        if rights.iter().any(is_older) {
            return false;
        }
        for (right, age) in rights {
            self.newest.insert(*right, (*age, connection));
        }
        true
    }
}

impl ActiveConnections {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Makes `connection` active for rights, each with its epoch or signing time, and waits until
    /// no request runs under them on others. Returns `false`, and changes nothing, if any has a
    /// newer one.
    pub fn activate(&self, rights: &[(ExclusiveRight, i64)], connection: u64) -> bool {
        let mut state = self.lock();
        let are_newest = state.take(rights, connection);
        while are_newest && state.is_any_running(rights, connection) {
            self.ended.wait(&mut state);
        }
        are_newest
    }

    /// As [`ActiveConnections::activate`] without waiting; `None` if it would have to wait.
    pub fn try_activate(&self, rights: &[(ExclusiveRight, i64)], connection: u64) -> Option<bool> {
        let mut state = self.lock();
        match state.is_any_running(rights, connection) {
            true => None,
            false => Some(state.take(rights, connection)),
        }
    }

    /// Begins a request; `None` if the right is active on another connection.
    pub fn enter(&self, right: ExclusiveRight, connection: u64) -> Option<RightPassage<'_>> {
        let mut state = self.lock();
        if state.newest.get(&right)?.1 != connection {
            return None;
        }
        let by = (right, connection);
        state.running.begin(by);
        Some(RightPassage { active: self, by })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    const ONE: ExclusiveRight = ExclusiveRight::Lease(Fence(1));

    #[test]
    fn a_right_is_valid_on_the_connection_that_presented_it_last() {
        let active = ActiveConnections::default();
        let counts = |connection| active.enter(ONE, connection).is_some();
        assert!(!counts(1), "no right was presented");
        assert!(active.activate(&[(ONE, 10)], 1));
        assert!(active.activate(&[(ExclusiveRight::Lease(Fence(2)), 20)], 3));
        assert!(counts(1) && !counts(3));
        // The connection broke.
        assert!(active.activate(&[(ONE, 10)], 2));
        assert!(counts(2) && !counts(1));
        assert!(!active.activate(&[(ONE, 10)], 1), "it is delayed");
        assert!(!active.activate(&[(ONE, 9)], 4), "it is older");
        assert!(counts(2) && !counts(1) && !counts(4));
        // Another host has it from then on.
        assert!(active.activate(&[(ONE, 11)], 1));
        assert!(counts(1) && !counts(2));
        assert_eq!(active.try_activate(&[(ONE, 12)], 1), Some(true));
    }

    /// A repair of two copysets that was refused for one of them ended the repair of the
    /// other, which then was active nowhere.
    #[test]
    fn of_several_rights_all_become_active_or_none() {
        let active = ActiveConnections::default();
        let other = ExclusiveRight::Lease(Fence(2));
        assert!(active.activate(&[(ONE, 10)], 1));
        assert!(active.activate(&[(other, 20)], 2));
        assert!(!active.activate(&[(ONE, 15), (other, 15)], 3));
        assert_eq!(
            active.try_activate(&[(ONE, 15), (other, 15)], 3),
            Some(false)
        );
        assert!(active.enter(ONE, 1).is_some(), "it stays active");
        assert!(active.activate(&[(ONE, 15), (other, 20)], 3));
        assert!(active.enter(ONE, 1).is_none() && active.enter(other, 3).is_some());
    }

    #[test]
    fn requests_on_other_connections_end_before_a_right_becomes_active() {
        let active = ActiveConnections::default();
        assert!(active.activate(&[(ONE, 1)], 1));
        let passage = active.enter(ONE, 1).expect("it is the newest");
        assert_eq!(active.try_activate(&[(ONE, 1)], 2), None);
        let has_ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let newer = scope.spawn(|| {
                assert!(active.activate(&[(ONE, 1)], 2));
                has_ended.load(Ordering::SeqCst)
            });
            // Nothing begins as soon as the newer is on its way.
            while active.enter(ONE, 1).is_some() {
                std::thread::yield_now();
            }
            has_ended.store(true, Ordering::SeqCst);
            drop(passage);
            assert!(newer.join().expect("no panic"), "it has waited");
        });
    }
}
