//! [`OutOfProcess`]: a filter whose work a backend does, in a process of its own or on another
//! machine (docs/internals/out-of-process-filters.md).
//!
//! ```text
//!   above ── requests ──▶ backend                 the backend is a disk for the filter,
//!                            │ requests
//!   below ◀── below.rs ◀── pending queue           and a client of the disk below
//! ```
//!
//! ```text
//!          ends, hangs, violates the protocol
//!      Up ─────────────────────────────▶ Unavailable ── pause ──▶ launched ─┐
//!      ▲                                   ▲     └── too long ──▶ the rule  │
//!      └───────────── ready ───────────────┼────────────────────◀───────────┤
//!                                          └───────── not ready ────────────┘
//!   the rule: fail-closed   pending and new requests fail until the backend is Up
//!             bypass        Bypassed: requests go to the queue; the backend is tried now and then
//! ```
//!
//! Invariants:
//!
//! * The requests that one life of the backend started below end before any request of its next life
//!   is started there, so a replayed write is never overtaken by its first attempt.
//! * Until the filter is in use, the backend cannot change the disk below.
//! * A backend does not count as hung while it waits for the disk below.

mod below;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use base::{BlockDevice, Capabilities, Completion, DeviceGeometry, IoError, Request, Started};
use chain_policy::{FilterPolicy, OnFailure};

use crate::{Filter, FilterBackend, FilterContext, LinkState, Opening, PendingQueue};
use below::Below;

/// A backend hangs if it completes no request for this time while it has none pending below.
const HANGS_AFTER: Duration = Duration::from_secs(10);

/// The longest time from the launch of a backend until it is ready.
const READY_WITHIN: Duration = Duration::from_secs(10);

/// The first pause before a restart.
const PAUSE_MIN: Duration = Duration::from_millis(100);

/// The longest pause before a restart.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Requests wait this long for an unavailable backend; then the policy's rule applies.
const RULE_AFTER: Duration = Duration::from_secs(6);

/// A backend that was ready for this time restarts with the shortest pause.
const STEADY_AFTER: Duration = Duration::from_secs(10);

/// The first pause before a bypassed backend is tried again.
const TRIAL_PAUSE_MIN: Duration = Duration::from_secs(10);

/// The longest pause before a bypassed backend is tried again.
const TRIAL_PAUSE_MAX: Duration = Duration::from_secs(300);

/// Requests wait this long for a bypassed backend that is tried.
const TRIAL_WITHIN: Duration = Duration::from_secs(2);

/// The state of the backend. All times are by the monotonic clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The filter was not opened.
    Idle,
    /// The backend answers.
    Up { since: Duration },
    Unavailable {
        since: Duration,
        /// The time of the next launch; `None`: it was launched, and must be ready at `deadline`.
        restart_at: Option<Duration>,
        deadline: Duration,
        /// The time from which the rule applies; `None`: it applies already.
        rule_at: Option<Duration>,
    },
    /// Requests go past the backend, which is tried again at `restart_at`.
    Bypassed { restart_at: Duration },
}

/// A filter whose work a backend does.
pub struct OutOfProcess {
    name: Arc<str>,
    on_failure: OnFailure,
    /// The backend, or the reason why it could not be made.
    backend: Result<Box<dyn FilterBackend>, String>,
    below: Below,
    context: FilterContext,
    phase: Phase,
    pause: Duration,
    trial_pause: Duration,
    /// The geometry above the backend, once it is known.
    geometry: Option<DeviceGeometry>,
    capabilities: Option<Capabilities>,
    /// The number of requests that are pending in the backend.
    pending: u64,
    /// The time of the last progress of any request.
    progress_at: Duration,
    /// The disk is being closed: requests no longer wait for the backend.
    is_stopping: bool,
}

impl OutOfProcess {
    /// A filter that runs as `of` says. Its backend is made and not launched.
    #[must_use]
    pub fn new(of: &FilterPolicy, on_failure: OnFailure, context: FilterContext) -> Self {
        let queue = PendingQueue::default();
        let backend = context.host.backends.make(of, &context, queue.clone());
        Self {
            name: of.name.as_str().into(),
            on_failure,
            backend,
            below: Below::new(queue),
            context,
            phase: Phase::Idle,
            pause: Duration::ZERO,
            trial_pause: TRIAL_PAUSE_MIN,
            geometry: None,
            capabilities: None,
            pending: 0,
            progress_at: Duration::ZERO,
            is_stopping: false,
        }
    }

    fn now(&self) -> Duration {
        self.context.host.clock.monotonic()
    }

    fn report(&self, message: String) {
        self.context.report(&self.name, message);
    }

    /// Launches the backend, after it stopped the running one.
    fn launch_backend(&mut self, deadline: Duration, since: Duration, rule_at: Option<Duration>) {
        self.below.next_life();
        if let Ok(backend) = &mut self.backend {
            backend.launch();
        }
        self.phase = Phase::Unavailable {
            since,
            restart_at: None,
            deadline,
            rule_at,
        };
    }

    /// Restarts a backend that has ended.
    fn restart(&mut self, why: &str) {
        let now = self.now();
        if matches!(self.phase, Phase::Up { since } if since + STEADY_AFTER <= now) {
            self.pause = Duration::ZERO;
        }
        self.report(format!(
            "the filter's program has ended and is restarted: {why}"
        ));
        self.pause_from(now, Some(self.rule_at(now)));
    }

    /// The time from which the rule applies to a backend that becomes unavailable now.
    fn rule_at(&self, now: Duration) -> Duration {
        match self.is_stopping {
            true => now,
            false => now + RULE_AFTER,
        }
    }

    fn pause_from(&mut self, since: Duration, rule_at: Option<Duration>) {
        self.pause = (self.pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
        self.phase = Phase::Unavailable {
            since,
            restart_at: Some(self.now() + self.pause),
            deadline: Duration::MAX,
            rule_at,
        };
    }

    /// Applies the policy's rule to a backend that was unavailable for too long.
    fn apply_rule(&mut self) {
        let Phase::Unavailable {
            since, restart_at, ..
        } = self.phase
        else {
            return;
        };
        match self.on_failure {
            OnFailure::FailClosed => {
                self.report(
                    "the filter's program is unavailable: the disk answers with errors".to_owned(),
                );
                let message = format!("the filter {} does not answer", self.name);
                self.below.next_life();
                if let Ok(backend) = &mut self.backend {
                    backend.give_up(&message);
                }
                self.phase = Phase::Unavailable {
                    since,
                    restart_at: restart_at.or(Some(self.now() + PAUSE_MAX)),
                    deadline: Duration::MAX,
                    rule_at: None,
                };
            }
            OnFailure::Bypass => {
                self.report(
                    "the filter's program is unavailable: the disk is served without it".to_owned(),
                );
                self.bypass();
            }
        }
    }

    fn bypass(&mut self) {
        self.below.next_life();
        if let Ok(backend) = &mut self.backend {
            backend.bypass();
        }
        self.phase = Phase::Bypassed {
            restart_at: self.now() + self.trial_pause,
        };
        self.trial_pause = (self.trial_pause * 2).min(TRIAL_PAUSE_MAX);
    }

    /// Takes the next step in the life of the backend.
    fn supervise(&mut self) {
        let (Ok(backend), now) = (&self.backend, self.now()) else {
            return;
        };
        if self.geometry.is_none() {
            // The filter is being opened, and a launch that fails then is not repeated.
            return;
        }
        let link = backend.link_state();
        match self.phase {
            Phase::Idle => {}
            Phase::Up { .. } => match link {
                LinkState::Broken(why) => self.restart(&why),
                _ if self.hangs_at().is_some_and(|at| at <= now) => {
                    let within = HANGS_AFTER.as_secs();
                    self.report(format!(
                        "the filter's program is restarted: it has completed no request for \
                         {within} s"
                    ));
                    self.launch_backend(now + READY_WITHIN, now, Some(self.rule_at(now)));
                }
                _ => {}
            },
            Phase::Unavailable {
                rule_at: Some(at), ..
            } if at <= now => self.apply_rule(),
            Phase::Unavailable {
                since,
                restart_at: Some(at),
                rule_at,
                ..
            } if at <= now => self.launch_backend(now + READY_WITHIN, since, rule_at),
            Phase::Unavailable {
                since,
                restart_at: None,
                deadline,
                rule_at,
            } => match link {
                LinkState::Ready => {
                    let seconds = (now - since).as_secs_f64();
                    self.report(format!(
                        "the filter's program answers again after {seconds:.1} s"
                    ));
                    self.phase = Phase::Up { since: now };
                    self.trial_pause = TRIAL_PAUSE_MIN;
                    self.progress_at = now;
                }
                LinkState::Broken(why) => {
                    tracing::debug!(name = %self.name, error = why, "filter process is not ready");
                    self.pause_from(since, rule_at);
                }
                LinkState::Connecting if deadline <= now => self.pause_from(since, rule_at),
                LinkState::Connecting => {}
            },
            Phase::Unavailable { .. } => {}
            Phase::Bypassed { restart_at } if restart_at <= now => {
                self.launch_backend(now + TRIAL_WITHIN, now, Some(now + TRIAL_WITHIN));
            }
            Phase::Bypassed { restart_at } => {
                if let LinkState::Broken(why) = link {
                    // The filter cannot be bypassed: for example, its size differs.
                    self.report(format!(
                        "the disk cannot be served without the filter: {why}"
                    ));
                    self.on_failure = OnFailure::FailClosed;
                    self.phase = Phase::Unavailable {
                        since: now,
                        restart_at: Some(restart_at),
                        deadline: Duration::MAX,
                        rule_at: Some(now),
                    };
                    self.apply_rule();
                }
            }
        }
    }

    /// The time at which the backend counts as hung unless a request progresses.
    fn hangs_at(&self) -> Option<Duration> {
        let waits = self.pending > 0 && self.below.is_idle();
        waits.then(|| self.progress_at + HANGS_AFTER)
    }
}

impl Filter for OutOfProcess {
    fn geometry(&self, below: DeviceGeometry) -> DeviceGeometry {
        self.geometry.unwrap_or(below)
    }

    fn capabilities(&self, below: Capabilities) -> Capabilities {
        self.capabilities.unwrap_or(below)
    }

    fn open(&mut self, below: &mut dyn BlockDevice) -> Opening {
        let now = self.now();
        match (&self.backend, self.phase) {
            (Err(why), _) => Opening::Failed(why.clone().into()),
            (Ok(_), Phase::Idle) => {
                self.below.describe(below);
                self.launch_backend(now + READY_WITHIN, now, None);
                Opening::Pending
            }
            (Ok(backend), _) => match backend.link_state() {
                LinkState::Connecting => Opening::Pending,
                LinkState::Broken(why) => Opening::Failed(why.into()),
                LinkState::Ready => {
                    let (own, there) = (backend.geometry(), below.geometry());
                    if own.size_bytes > there.size_bytes {
                        let why = format!(
                            "its disk has {} bytes, more than the {} bytes below",
                            own.size_bytes, there.size_bytes
                        );
                        return Opening::Failed(why.into());
                    }
                    if below.capabilities().can_flush && !backend.capabilities().can_flush {
                        let why = "it cannot flush, and the disk below can".to_owned();
                        return Opening::Failed(why.into());
                    }
                    self.geometry = Some(own);
                    self.capabilities = Some(backend.capabilities());
                    self.phase = Phase::Up { since: now };
                    Opening::Ready
                }
            },
        }
    }

    /// Starts the request on the backend, unless the disk answers with errors.
    fn start(&mut self, _: &mut dyn BlockDevice, request: Request<'_>) -> Started {
        let is_failing = matches!(self.phase, Phase::Unavailable { rule_at: None, .. });
        let name = &self.name;
        let backend = match &mut self.backend {
            Ok(backend) if !is_failing => &mut **backend,
            _ => {
                let message = format!("the filter {name} does not answer");
                return Started::Failed(IoError::Unavailable(message));
            }
        };
        let started = backend.start(request);
        if started == Started::Pending {
            if self.pending == 0 {
                self.progress_at = self.context.host.clock.monotonic();
            }
            self.pending += 1;
        }
        started
    }

    fn end_batch(&mut self, below: &mut dyn BlockDevice) -> Result<(), IoError> {
        if let Ok(backend) = &mut self.backend {
            backend.end_batch()?;
        }
        below.end_batch()
    }

    fn poll(&mut self, below: &mut dyn BlockDevice, completions: &mut Vec<Completion>) {
        let before = completions.len();
        if let Ok(backend) = &mut self.backend {
            backend.poll(completions);
        }
        let answered = self.below.serve(below);
        if answered && let Ok(backend) = &mut self.backend {
            backend.poll(completions);
        }
        let completed = completions.len() - before;
        self.pending = self.pending.saturating_sub(completed as u64);
        if completed > 0 || answered || !self.below.is_idle() {
            self.progress_at = self.now();
        }
        self.supervise();
    }

    fn stop_waiting(&mut self, below: &mut dyn BlockDevice) {
        self.is_stopping = true;
        let now = self.now();
        if let Phase::Unavailable {
            rule_at: Some(at), ..
        } = &mut self.phase
        {
            // The next poll applies the rule.
            *at = now;
        }
        below.stop_waiting();
    }

    fn next_timer(&self) -> Option<Duration> {
        let backend = self.backend.as_ref().ok()?;
        let now = self.now();
        let own = match self.phase {
            Phase::Idle => None,
            Phase::Up { .. } => self.hangs_at(),
            Phase::Unavailable {
                restart_at,
                deadline,
                rule_at,
                ..
            } => [Some(restart_at.unwrap_or(deadline)), rule_at]
                .into_iter()
                .flatten()
                .min(),
            Phase::Bypassed { restart_at } => Some(restart_at),
        };
        let own = own.map(|at| at.saturating_sub(now));
        let timers = own.into_iter().chain(backend.next_timer());
        timers.chain(self.below.next_timer()).min()
    }

    fn quiesce(&mut self) -> bool {
        self.below.is_idle()
    }

    fn resume(&mut self) {
        self.below.may_change();
    }
}
