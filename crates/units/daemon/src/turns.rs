//! On which connection a right to change something counts: where it was shown last.
//!
//! A host whose connection broke does not know what became of what it had asked. It
//! frees, deletes and puts anew, on another one, and what comes late on the first must
//! undo none of that: it has waited in a queue, or on the way. So of each lease, and of
//! each *repair* of a copyset, there is one connection on which it counts: of the newest
//! that were shown, the one that came last. A host has but one connection to a daemon on
//! which it asks ([`unit_remote::TlsLink`]), and shows there first what it may do.
//!
//! Invariant: when a right was shown, nothing is being done by it, or by an older one of
//! the same, on another connection, and nothing begins.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use auth::Fence;
use base::CopysetId;

use crate::running::Running;

/// A right that counts on one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Turn {
    /// To write a volume.
    Lease(Fence),
    /// To change what lies there of a copyset.
    Repair(CopysetId),
}

/// Whose turn it is. Of this life of the daemon: connections are, too.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// How new the newest is, and the number of its connection, which grows.
    newest: HashMap<Turn, (i64, u64)>,
    /// What is being done, by connection.
    running: Running<(Turn, u64)>,
}

/// Something that is being done.
#[derive(Debug)]
pub(crate) struct TurnPassage<'a> {
    turns: &'a Turns,
    by: (Turn, u64),
}

impl Drop for TurnPassage<'_> {
    fn drop(&mut self) {
        let mut state = self.turns.lock();
        if state.running.end(&self.by) {
            self.turns.ended.notify_all();
        }
    }
}

impl State {
    /// Whether something is being done on another connection.
    fn is_other_running(&self, turn: Turn, connection: u64) -> bool {
        self.running.any(|by| by.0 == turn && by.1 != connection)
    }

    /// As [`State::is_other_running`], of any of them.
    fn is_any_running(&self, rights: &[(Turn, i64)], connection: u64) -> bool {
        let mut turns = rights.iter().map(|(turn, _)| *turn);
        turns.any(|turn| self.is_other_running(turn, connection))
    }

    /// Takes all of them. False: of one there is a newer one, and none is taken.
    fn take(&mut self, rights: &[(Turn, i64)], connection: u64) -> bool {
        let is_older = |(turn, newness): &(Turn, i64)| {
            let newest = self.newest.get(turn);
            newest.is_some_and(|newest| *newest > (*newness, connection))
        };
        if rights.iter().any(is_older) {
            return false;
        }
        for (turn, newness) in rights {
            self.newest.insert(*turn, (*newness, connection));
        }
        true
    }
}

impl Turns {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Rights, each of its newness, were shown on a connection. Waits until nothing is
    /// being done by them on others. False: of one a newer one was shown, and none of
    /// them counts here therefore.
    pub fn show(&self, rights: &[(Turn, i64)], connection: u64) -> bool {
        let mut state = self.lock();
        let are_newest = state.take(rights, connection);
        while are_newest && state.is_any_running(rights, connection) {
            state = self
                .ended
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        are_newest
    }

    /// As [`Turns::show`]; `None` if there is something to wait for.
    pub fn show_now(&self, rights: &[(Turn, i64)], connection: u64) -> Option<bool> {
        let mut state = self.lock();
        match state.is_any_running(rights, connection) {
            true => None,
            false => Some(state.take(rights, connection)),
        }
    }

    /// Begins what is done by a right; `None` if it counts on another connection.
    pub fn enter(&self, turn: Turn, connection: u64) -> Option<TurnPassage<'_>> {
        let mut state = self.lock();
        if state.newest.get(&turn)?.1 != connection {
            return None;
        }
        let by = (turn, connection);
        state.running.begin(by);
        Some(TurnPassage { turns: self, by })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    const ONE: Turn = Turn::Lease(Fence(1));

    #[test]
    fn a_right_counts_where_the_newest_was_shown_last() {
        let turns = Turns::default();
        let counts = |connection| turns.enter(ONE, connection).is_some();
        assert!(!counts(1), "none was shown");
        assert!(turns.show(&[(ONE, 10)], 1));
        assert!(turns.show(&[(Turn::Lease(Fence(2)), 20)], 3));
        assert!(counts(1) && !counts(3));
        // The connection broke.
        assert!(turns.show(&[(ONE, 10)], 2));
        assert!(counts(2) && !counts(1));
        assert!(!turns.show(&[(ONE, 10)], 1), "it comes late");
        assert!(!turns.show(&[(ONE, 9)], 4), "it is older");
        assert!(counts(2) && !counts(1) && !counts(4));
        // Another host has it from then on.
        assert!(turns.show(&[(ONE, 11)], 1));
        assert!(counts(1) && !counts(2));
        assert_eq!(turns.show_now(&[(ONE, 12)], 1), Some(true));
    }

    /// A repair of two copysets that was refused for the one ended the other one's, which
    /// then counted nowhere.
    #[test]
    fn of_several_rights_all_count_or_none() {
        let turns = Turns::default();
        let other = Turn::Lease(Fence(2));
        assert!(turns.show(&[(ONE, 10)], 1));
        assert!(turns.show(&[(other, 20)], 2));
        assert!(!turns.show(&[(ONE, 15), (other, 15)], 3));
        assert_eq!(turns.show_now(&[(ONE, 15), (other, 15)], 3), Some(false));
        assert!(turns.enter(ONE, 1).is_some(), "it goes on");
        assert!(turns.show(&[(ONE, 15), (other, 20)], 3));
        assert!(turns.enter(ONE, 1).is_none() && turns.enter(other, 3).is_some());
    }

    #[test]
    fn what_goes_on_elsewhere_ends_before_a_right_counts() {
        let turns = Turns::default();
        assert!(turns.show(&[(ONE, 1)], 1));
        let passage = turns.enter(ONE, 1).expect("it is the newest");
        assert_eq!(turns.show_now(&[(ONE, 1)], 2), None);
        let has_ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let newer = scope.spawn(|| {
                assert!(turns.show(&[(ONE, 1)], 2));
                has_ended.load(Ordering::SeqCst)
            });
            // Nothing begins as soon as the newer is on its way.
            while turns.enter(ONE, 1).is_some() {
                std::thread::yield_now();
            }
            has_ended.store(true, Ordering::SeqCst);
            drop(passage);
            assert!(newer.join().expect("no panic"), "it has waited");
        });
    }
}
