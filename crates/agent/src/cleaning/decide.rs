//! [`decide`]: what cleaning does next. It is a pure function of what is desired and what is
//! observed, so that each case can be tested, and run by a simulator.
//!
//! ```text
//!   work      first pass   after a success   after a failure             a new serial
//!   remove    at once      10 ticks later    30 ticks later              at once
//!   free      at once      1 tick later      1, 2, 4, ... 60 ticks later  changes nothing
//! ```
//!
//! A pass that is due first checks the age of the database: what a database that is older than the
//! data says about units may be wrong, so such a pass is skipped, and counts as a success.

/// Ticks from a pass that removed versions to the next one.
const REMOVE_TICKS: u64 = 10;

/// Ticks from a failed pass that removes versions to the next one.
const REMOVE_RETRY_TICKS: u64 = 30;

/// Ticks from a pass that freed slots to the next one.
const FREE_TICKS: u64 = 1;

/// The most ticks from a failed pass that frees slots to the next one.
const FREE_RETRY_TICKS_MAX: u64 = 60;

/// The two loops of cleaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    /// Remove versions and deleted volumes that nothing needs.
    Remove,
    /// Free the slots of removed versions.
    Free,
}

/// What is desired of a loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Desired {
    pub work: Work,
    /// The controllers change it when something was deleted.
    pub serial: u64,
}

/// What a loop has observed.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Observed {
    /// How often the timer has ticked. It does not tick during a pass.
    pub tick: u64,
    /// The last pass; `None` before the first one.
    pub last: Option<Pass>,
    /// Whether the database is older than the data; `None` if that was not checked since the last
    /// pass or wait.
    pub is_database_older: Option<bool>,
}

/// A pass that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pass {
    /// The tick at which it began.
    pub tick: u64,
    /// The serial when it began.
    pub serial: u64,
    /// How many passes have failed in a row, this one included; 0 after a success.
    pub failures: u32,
}

/// The next action of a loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CleaningAction {
    /// Wait for the timer or a new serial.
    Wait,
    /// Compare the database with the data on the units.
    CheckDatabase,
    /// End the pass without an effect.
    Skip,
    /// Remove what the controllers plan to remove.
    Remove,
    /// Carry out the frees that are due.
    Free,
}

/// Decides what a loop does next.
pub(super) fn decide(desired: &Desired, observed: &Observed) -> CleaningAction {
    if !is_due(desired, observed) {
        return CleaningAction::Wait;
    }
    match (observed.is_database_older, desired.work) {
        (None, _) => CleaningAction::CheckDatabase,
        (Some(true), _) => CleaningAction::Skip,
        (Some(false), Work::Remove) => CleaningAction::Remove,
        (Some(false), Work::Free) => CleaningAction::Free,
    }
}

fn is_due(desired: &Desired, observed: &Observed) -> bool {
    let Some(last) = observed.last else {
        return true;
    };
    let is_new = desired.work == Work::Remove && desired.serial != last.serial;
    is_new || observed.tick >= last.tick + pause(desired.work, last.failures)
}

/// Ticks from one pass to the next.
fn pause(work: Work, failures: u32) -> u64 {
    match (work, failures) {
        (Work::Remove, 0) => REMOVE_TICKS,
        (Work::Remove, _) => REMOVE_RETRY_TICKS,
        (Work::Free, 0) => FREE_TICKS,
        (Work::Free, failures) => 2_u64.saturating_pow(failures - 1).min(FREE_RETRY_TICKS_MAX),
    }
}

impl Observed {
    /// Notes the end of a pass that began with `serial`.
    pub fn end_pass(&mut self, serial: u64, has_failed: bool) {
        let failures = self.last.map_or(0, |last| last.failures);
        self.last = Some(Pass {
            tick: self.tick,
            serial,
            failures: match has_failed {
                true => failures.saturating_add(1),
                false => 0,
            },
        });
        self.is_database_older = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERIAL: u64 = 7;

    fn desired(work: Work) -> Desired {
        Desired {
            work,
            serial: SERIAL,
        }
    }

    /// A loop whose last pass began at tick 100.
    fn after_pass(failures: u32) -> Observed {
        Observed {
            tick: 100,
            last: Some(Pass {
                tick: 100,
                serial: SERIAL,
                failures,
            }),
            is_database_older: None,
        }
    }

    /// Ticks for which the loop waits.
    fn wait(work: Work, observed: &Observed) -> u64 {
        let mut observed = observed.clone();
        let begin = observed.tick;
        while decide(&desired(work), &observed) == CleaningAction::Wait {
            observed.tick += 1;
        }
        observed.tick - begin
    }

    #[test]
    fn the_first_pass_is_due_at_once() {
        for work in [Work::Remove, Work::Free] {
            let action = decide(&desired(work), &Observed::default());
            assert_eq!(action, CleaningAction::CheckDatabase);
        }
    }

    #[test]
    fn a_pass_checks_the_database_before_it_removes_or_frees() {
        let observed = Observed {
            is_database_older: Some(false),
            ..Observed::default()
        };
        assert_eq!(
            decide(&desired(Work::Remove), &observed),
            CleaningAction::Remove
        );
        assert_eq!(
            decide(&desired(Work::Free), &observed),
            CleaningAction::Free
        );
    }

    #[test]
    fn with_an_older_database_a_pass_is_skipped() {
        let observed = Observed {
            is_database_older: Some(true),
            ..Observed::default()
        };
        for work in [Work::Remove, Work::Free] {
            assert_eq!(decide(&desired(work), &observed), CleaningAction::Skip);
        }
    }

    #[test]
    fn the_age_of_the_database_is_checked_again_in_each_pass() {
        let mut observed = Observed {
            is_database_older: Some(false),
            ..Observed::default()
        };
        observed.end_pass(SERIAL, false);
        observed.tick += REMOVE_TICKS;
        let action = decide(&desired(Work::Remove), &observed);
        assert_eq!(action, CleaningAction::CheckDatabase);
    }

    #[test]
    fn a_removal_is_repeated_later_after_a_failure_than_after_a_success() {
        assert_eq!(wait(Work::Remove, &after_pass(0)), REMOVE_TICKS);
        for failures in 1..10 {
            assert_eq!(
                wait(Work::Remove, &after_pass(failures)),
                REMOVE_RETRY_TICKS
            );
        }
    }

    #[test]
    fn a_new_serial_makes_a_removal_due_at_once_even_after_a_failure() {
        let deleted = Desired {
            work: Work::Remove,
            serial: SERIAL + 1,
        };
        for failures in [0, 3] {
            let action = decide(&deleted, &after_pass(failures));
            assert_eq!(action, CleaningAction::CheckDatabase);
        }
    }

    #[test]
    fn a_serial_that_changed_during_a_pass_makes_the_next_one_due_at_once() {
        let mut observed = Observed::default();
        observed.end_pass(SERIAL - 1, false);
        let action = decide(&desired(Work::Remove), &observed);
        assert_eq!(action, CleaningAction::CheckDatabase);
    }

    #[test]
    fn a_new_serial_does_not_make_frees_due() {
        let deleted = Desired {
            work: Work::Free,
            serial: SERIAL + 1,
        };
        assert_eq!(decide(&deleted, &after_pass(3)), CleaningAction::Wait);
    }

    /// A failed free postponed retention, again and again, and was itself tried every second.
    #[test]
    fn a_failing_free_is_tried_less_and_less_often_and_a_success_resets_that() {
        let mut observed = Observed::default();
        let mut waits = Vec::new();
        for _ in 0..8 {
            observed.end_pass(SERIAL, true);
            let wait = wait(Work::Free, &observed);
            waits.push(wait);
            observed.tick += wait;
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60]);
        observed.end_pass(SERIAL, false);
        assert_eq!(wait(Work::Free, &observed), FREE_TICKS);
    }

    #[test]
    fn the_pause_after_countless_failures_does_not_overflow() {
        let mut observed = after_pass(u32::MAX);
        observed.end_pass(SERIAL, true);
        assert_eq!(wait(Work::Free, &observed), FREE_RETRY_TICKS_MAX);
    }
}
