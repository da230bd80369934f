//! How a unit is doing: which verbs may be tried now, and when to look again.
//!
//! [`Health`] is a state machine without time or I/O of its own: it is told
//! what came of each call and when. [`TrackedUnit`] is a unit that tells it.
//!
//! ```text
//!             a write or a probe succeeds
//!   Healthy ◄──────────────────────────────┐
//!      │                                   │
//!      │ Full ───────────► Full      ──────┤  read; writes pass it over
//!      │ ReadOnly ───────► ReadOnly  ──────┤  read; writes pass it over
//!      │ Io, writing ────► Failing   ──────┤  read, after others
//!      │ Io, reading 3 × ► Failing   ──────┤
//!      │ Missing, Away,                    │
//!      │ Foreign, Held,                    │
//!      └ Newer ──────────► Missing   ──────┘  neither
//! ```
//!
//! In every state but `Healthy` a probe is due after a quarter of a second,
//! and after each that fails twice as long, up to ten seconds. That is advice
//! to whoever probes, who may do so more seldom, as often as it has time to
//! look, or more often: `scree up` looks once a second which units are due,
//! and every five seconds probes all of them.
//!
//! What is wrong with one segment (not there, damaged) says nothing about the
//! unit, nor does a process that has no descriptor left. Asking is advice: who
//! finds no other replica may still try.

#[cfg(test)]
mod tests;
mod timing;
mod tracked;

pub use timing::{Calls, Durations};
pub use tracked::{TrackedUnit, Traffic};

use std::sync::Arc;
use std::time::Duration;

use world::{Millis, is_out_of_files};

use crate::UnitError;

/// The first probe comes after this many milliseconds.
const PROBE_AFTER_MS_MIN: u64 = 250;

/// Probes are never further apart, in milliseconds.
const PROBE_AFTER_MS_MAX: u64 = 10_000;

/// So many reads in a row must fail before the unit is said to: one bad sector
/// fails one segment.
const READ_FAILURES_MAX: u32 = 3;

/// How a unit is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnitState {
    /// It does what it is asked.
    Healthy,
    /// It has no room for more.
    Full,
    /// It takes no writes.
    ReadOnly,
    /// It is not there, or not the one it should be.
    Missing,
    /// It is there, and operations on it fail.
    Failing,
}

impl UnitState {
    /// The state's name, for people: `healthy`, `full`, `read-only`, …
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Full => "full",
            Self::ReadOnly => "read-only",
            Self::Missing => "missing",
            Self::Failing => "failing",
        }
    }

    /// Whether to put there, rather than elsewhere.
    #[must_use]
    pub fn can_write(self) -> bool {
        self == Self::Healthy
    }

    /// Of several copies, that with the lowest rank is read first.
    #[must_use]
    pub fn read_rank(self) -> u8 {
        match self {
            Self::Healthy | Self::Full | Self::ReadOnly => 0,
            Self::Failing => 1,
            Self::Missing => 2,
        }
    }

    /// All states.
    pub const ALL: [Self; 5] = [
        Self::Healthy,
        Self::Full,
        Self::ReadOnly,
        Self::Missing,
        Self::Failing,
    ];
}

/// What was tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// Looking or reading.
    Read,
    /// Putting or syncing: what shows that the unit takes writes.
    Write,
    /// Freeing or deleting: works on a full unit too.
    Release,
    /// A probe.
    Probe,
}

impl Verb {
    /// All verbs, in their order.
    pub const ALL: [Self; 4] = [Self::Read, Self::Write, Self::Release, Self::Probe];

    /// The verb's name, for people: `read`, `write`, …
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Release => "release",
            Self::Probe => "probe",
        }
    }
}

/// A moment, on both clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// For intervals.
    pub monotonic: Duration,
    /// For people.
    pub wall: Millis,
}

/// What is known of a unit's health.
#[derive(Debug, Clone)]
pub struct Health {
    state: UnitState,
    since: Millis,
    /// It was missing since somebody took note of it.
    was_missing: bool,
    last_error: Option<(Millis, Arc<UnitError>)>,
    read_failures: u32,
    probe_at: Duration,
    probe_after_ms: u64,
}

/// A unit's health, as status shows it.
#[derive(Debug, Clone)]
pub struct HealthReport {
    /// How it is doing.
    pub state: UnitState,
    /// Since when.
    pub since: Millis,
    /// The last thing that went wrong with it, and when: kept after it is
    /// well again.
    pub last_error: Option<(Millis, Arc<UnitError>)>,
}

impl Health {
    /// A unit of which nothing bad is known.
    #[must_use]
    pub fn new(now: Moment) -> Self {
        Self {
            state: UnitState::Healthy,
            since: now.wall,
            was_missing: false,
            last_error: None,
            read_failures: 0,
            probe_at: now.monotonic,
            probe_after_ms: PROBE_AFTER_MS_MIN,
        }
    }

    /// How it is doing.
    #[must_use]
    pub fn state(&self) -> UnitState {
        self.state
    }

    /// Whether it is time to look how it is doing now.
    #[must_use]
    pub fn is_probe_due(&self, now: Moment) -> bool {
        self.state != UnitState::Healthy && now.monotonic >= self.probe_at
    }

    /// Takes note of what came of a call.
    pub fn record(&mut self, verb: Verb, result: Result<(), &UnitError>, now: Moment) {
        let Err(error) = result else {
            self.read_failures = 0;
            if matches!(verb, Verb::Write | Verb::Probe) {
                self.enter(UnitState::Healthy, now);
                self.probe_after_ms = PROBE_AFTER_MS_MIN;
            }
            return;
        };
        let Some(found) = self.state_after(verb, error) else {
            return;
        };
        self.last_error = Some((now.wall, Arc::new(error.clone())));
        let was_healthy = self.state == UnitState::Healthy;
        self.enter(found, now);
        if verb == Verb::Probe || was_healthy {
            self.probe_at = now.monotonic + Duration::from_millis(self.probe_after_ms);
            self.probe_after_ms = (self.probe_after_ms * 2).min(PROBE_AFTER_MS_MAX);
        }
    }

    /// The state that an error shows; `None` if it is no fault of the unit's,
    /// or not yet taken for one.
    fn state_after(&mut self, verb: Verb, error: &UnitError) -> Option<UnitState> {
        match error {
            UnitError::Missing { .. }
            | UnitError::Away { .. }
            | UnitError::Foreign { .. }
            | UnitError::Held { .. }
            | UnitError::Newer { .. } => Some(UnitState::Missing),
            UnitError::Full { .. } => Some(UnitState::Full),
            UnitError::ReadOnly { .. } => Some(UnitState::ReadOnly),
            // The process's trouble, which changing to other units only adds to.
            UnitError::Io { source, .. } if is_out_of_files(source) => None,
            // Its next puts are as good as any.
            UnitError::Restarted { .. } => None,
            UnitError::Io { .. } | UnitError::Tampered { .. } if verb == Verb::Read => {
                self.read_failures += 1;
                (self.read_failures >= READ_FAILURES_MAX).then_some(match self.state {
                    UnitState::Healthy => UnitState::Failing,
                    known => known,
                })
            }
            UnitError::Io { .. } | UnitError::Tampered { .. } => Some(UnitState::Failing),
            // A host needs nothing but its own name for that: it has no way in at all.
            UnitError::NotAllowed { .. } if verb == Verb::Probe => Some(UnitState::Failing),
            // It says something about this host, and what it has shown.
            UnitError::NotAllowed { .. } => None,
            UnitError::NoSegment { .. }
            | UnitError::NoSlot { .. }
            | UnitError::Misplaced { .. }
            | UnitError::Replaced { .. }
            | UnitError::Damaged { .. } => None,
        }
    }

    fn enter(&mut self, state: UnitState, now: Moment) {
        if self.state != state {
            self.state = state;
            self.since = now.wall;
        }
        self.was_missing |= state == UnitState::Missing;
    }

    /// Whether it was missing since this was last asked, and is back: whoever's call has
    /// found that.
    pub fn take_return(&mut self) -> bool {
        self.state != UnitState::Missing && std::mem::take(&mut self.was_missing)
    }

    /// For status.
    #[must_use]
    pub fn report(&self) -> HealthReport {
        HealthReport {
            state: self.state,
            since: self.since,
            last_error: self.last_error.clone(),
        }
    }
}
