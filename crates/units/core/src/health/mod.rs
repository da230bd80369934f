//! The health of a unit: which calls may be tried now, and when to probe it again.
//!
//! [`Health`] is a state machine without a clock or I/O: it is given the outcome and the
//! time of each call. [`TrackedUnit`] wraps a unit and feeds it.
//!
//! ```text
//!             a write or a probe succeeds
//!   Healthy ◄──────────────────────────────┐
//!      │                                   │
//!      │ Full ───────────► Full      ──────┤  read only
//!      │ ReadOnly ───────► ReadOnly  ──────┤  read only
//!      │ Io, writing ────► Failing   ──────┤  read, after others
//!      │ Io, reading 3 × ► Failing   ──────┤
//!      │ Missing, Unavailable,             │
//!      │ Foreign, Held,                    │
//!      └ Newer ──────────► Missing   ──────┘  neither
//! ```
//!
//! An error leads to its state from every other state, except that failed reads count only in
//! `Healthy` and `Failing`. `Tampered` counts as `Io`, and a probe that is `NotAllowed` as a failed
//! write.
//!
//! In every state but `Healthy` a probe is due after a quarter of a second, and after each
//! failed probe twice as long, up to ten seconds. An agent looks once a second for units whose
//! probe is due, and probes all units every five seconds.
//!
//! A missing or damaged segment says nothing about the unit, nor does a process that has no
//! file descriptors left. The state is advice: a caller that finds no other replica may
//! still try an unhealthy unit.

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

/// Time from leaving the healthy state to the first probe, in milliseconds.
const PROBE_AFTER_MS_MIN: u64 = 250;

/// Longest time between two probes, in milliseconds.
const PROBE_AFTER_MS_MAX: u64 = 10_000;

/// Reads that must fail without a successful one between them before the unit counts as failing:
/// a bad sector fails the reads of one segment only. Other calls do not interrupt the row: a disk
/// whose reads fail may still accept writes.
const READ_FAILURES_MAX: u32 = 3;

/// The state of a unit, as far as this process knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnitState {
    /// Calls succeed.
    Healthy,
    /// The unit has no room left.
    Full,
    /// The unit accepts no writes.
    ReadOnly,
    /// The unit is not reachable, or another one answers in its place.
    Missing,
    /// The unit is there, and calls on it fail.
    Failing,
}

impl UnitState {
    /// The name of the state, for people: `healthy`, `full`, `read-only`, …
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

    /// Whether writers should put there.
    #[must_use]
    pub fn can_write(self) -> bool {
        self == Self::Healthy
    }

    /// Of several replicas, the one with the lowest rank is read first.
    #[must_use]
    pub fn read_rank(self) -> u8 {
        match self {
            Self::Healthy | Self::Full | Self::ReadOnly => 0,
            Self::Failing => 1,
            Self::Missing => 2,
        }
    }

    /// All states, in order.
    pub const ALL: [Self; 5] = [
        Self::Healthy,
        Self::Full,
        Self::ReadOnly,
        Self::Missing,
        Self::Failing,
    ];
}

/// The class of a call on a unit, for health and metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpClass {
    /// Reading, listing and looking up.
    Read,
    /// Putting and syncing. Success shows that the unit accepts writes.
    Write,
    /// Freeing and deleting. Works on a full unit as well.
    Release,
    /// [`Unit::probe`](crate::Unit::probe).
    Probe,
}

impl OpClass {
    /// All classes, in order.
    pub const ALL: [Self; 4] = [Self::Read, Self::Write, Self::Release, Self::Probe];

    /// The name of the class, in metrics: `read`, `write`, …
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

/// One moment, on both clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// The monotonic clock, for intervals.
    pub monotonic: Duration,
    /// The wall clock, for people.
    pub wall: Millis,
}

/// The health of one unit.
#[derive(Debug, Clone)]
pub struct Health {
    state: UnitState,
    since: Millis,
    /// Whether it was missing since [`Health::take_return`] was last called.
    was_missing: bool,
    last_error: Option<(Millis, Arc<UnitError>)>,
    /// The reads that have failed since the last successful one, or since the unit became healthy.
    read_failures: u32,
    probe_at: Duration,
    probe_after_ms: u64,
}

/// The health of a unit, as status shows it.
#[derive(Debug, Clone)]
pub struct HealthReport {
    /// The current state.
    pub state: UnitState,
    /// When the unit entered it.
    pub since: Millis,
    /// The last error that led to a state or confirmed it, and when it occurred: not a failed read
    /// of which there were too few. Kept after the unit is healthy again.
    pub last_error: Option<(Millis, Arc<UnitError>)>,
}

impl Health {
    /// The health of a unit that has not failed yet.
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

    /// The current state.
    #[must_use]
    pub fn state(&self) -> UnitState {
        self.state
    }

    /// Whether it is time to probe the unit.
    #[must_use]
    pub fn is_probe_due(&self, now: Moment) -> bool {
        self.state != UnitState::Healthy && now.monotonic >= self.probe_at
    }

    /// Records the outcome of a call.
    pub fn record(&mut self, class: OpClass, result: Result<(), &UnitError>, now: Moment) {
        let Err(error) = result else {
            let shows_health = matches!(class, OpClass::Write | OpClass::Probe);
            let is_recovery = shows_health && self.state != UnitState::Healthy;
            if class == OpClass::Read || is_recovery {
                self.read_failures = 0;
            }
            if shows_health {
                self.enter(UnitState::Healthy, now);
                self.probe_after_ms = PROBE_AFTER_MS_MIN;
            }
            return;
        };
        let Some(found) = self.count_error(class, error) else {
            return;
        };
        self.last_error = Some((now.wall, Arc::new(error.clone())));
        let was_healthy = self.state == UnitState::Healthy;
        self.enter(found, now);
        if class == OpClass::Probe || was_healthy {
            self.probe_at = now.monotonic + Duration::from_millis(self.probe_after_ms);
            self.probe_after_ms = (self.probe_after_ms * 2).min(PROBE_AFTER_MS_MAX);
        }
    }

    /// Counts an error, and returns the state that it shows; `None` if it does not show that the
    /// unit is at fault.
    fn count_error(&mut self, class: OpClass, error: &UnitError) -> Option<UnitState> {
        match error {
            UnitError::Missing { .. }
            | UnitError::Unavailable { .. }
            | UnitError::Foreign { .. }
            | UnitError::Held { .. }
            | UnitError::Newer { .. } => Some(UnitState::Missing),
            UnitError::Full { .. } => Some(UnitState::Full),
            UnitError::ReadOnly { .. } => Some(UnitState::ReadOnly),
            // The process has too many open files. Using more units would open more.
            UnitError::Io { source, .. } if is_out_of_files(source) => None,
            // The next puts are as good as any.
            UnitError::Restarted { .. } => None,
            UnitError::Io { .. } | UnitError::Tampered { .. } if class == OpClass::Read => {
                self.read_failures = self.read_failures.saturating_add(1);
                // What is known of a full, a read-only or a missing unit is worse, or explains
                // more.
                let counts = matches!(self.state, UnitState::Healthy | UnitState::Failing);
                (counts && self.read_failures >= READ_FAILURES_MAX).then_some(UnitState::Failing)
            }
            UnitError::Io { .. } | UnitError::Tampered { .. } => Some(UnitState::Failing),
            // A probe needs no capability, so this host cannot use the unit at all.
            UnitError::NotAllowed { .. } if class == OpClass::Probe => Some(UnitState::Failing),
            // The fault lies with this host's capabilities.
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

    /// Whether the unit was missing since this was last called, and is back.
    pub fn take_return(&mut self) -> bool {
        self.state != UnitState::Missing && std::mem::take(&mut self.was_missing)
    }

    /// The health, for status.
    #[must_use]
    pub fn report(&self) -> HealthReport {
        HealthReport {
            state: self.state,
            since: self.since,
            last_error: self.last_error.clone(),
        }
    }
}
