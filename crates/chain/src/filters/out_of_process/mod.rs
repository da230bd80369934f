//! [`OutOfProcess`]: a filter whose work a program does, in a process of its own or on another
//! machine (docs/internals/out-of-process-filters.md).
//!
//! ```text
//!   above ── verbs ──▶ program          it is asked as a disk is
//!                         │ asks
//!   below ◀── below.rs ◀─ queue          and asks what lies below in its turn
//! ```
//!
//! ```text
//!              ends, hangs, makes no sense
//!        Up ──────────────────────────────▶ Away ─── pause ───▶ started ─┐
//!        ▲                                   ▲ └── too long ─▶ the rule  │
//!        └──────── it is ready ──────────────┼─────────────────◀─────────┤
//!                                            └──── it is not ────────────┘
//!   the rule: fail-closed   what waits fails, and all that comes, until it is Up
//!             bypass        Bypassed: all goes to the queue; now and then it is started
//! ```
//!
//! Invariants:
//!
//! * What an earlier life of the program has asked below ends before anything is asked there
//!   for the next one: a write that is made once more is never overtaken by its first self.
//! * Until the filter is in use nothing that a program asks changes what is below.
//! * No program is called hung while it waits for what is below.

mod below;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use base::{BlockDevice, Capabilities, Completion, DeviceGeometry, IoError, Request, Started};
use chain_policy::{FilterPolicy, OnFailure};

use crate::{Filter, FilterContext, LinkState, Opening, PendingQueue, Program};
use below::Below;

/// A program that answers nothing for so long, with nothing asked below, hangs.
const HANGS_AFTER: Duration = Duration::from_secs(10);

/// A program that was started is there within this.
const READY_WITHIN: Duration = Duration::from_secs(10);

/// Pauses before it is started anew: the first, and the longest.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// What is asked waits so long for a program that is away; then its rule counts.
const RULE_AFTER: Duration = Duration::from_secs(6);

/// One that was ready for so long has a fresh start when it ends.
const STEADY_AFTER: Duration = Duration::from_secs(10);

/// A bypassed program is tried after such pauses, and requests wait for each trial so long.
const TRIAL_PAUSE_MIN: Duration = Duration::from_secs(10);
const TRIAL_PAUSE_MAX: Duration = Duration::from_secs(300);
const TRIAL_WITHIN: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// It was not opened.
    Idle,
    Up {
        since: Duration,
    },
    Away {
        since: Duration,
        /// When it is started; none: it was, and is to be ready at `deadline`.
        again_at: Option<Duration>,
        deadline: Duration,
        /// The rule counts at this time; none: it does already.
        rule_at: Option<Duration>,
    },
    Bypassed {
        again_at: Duration,
    },
}

/// See the module's head.
pub struct OutOfProcess {
    name: Arc<str>,
    on_failure: OnFailure,
    /// None could be made, and why.
    program: Result<Box<dyn Program>, String>,
    below: Below,
    context: FilterContext,
    phase: Phase,
    pause: Duration,
    trial_pause: Duration,
    /// What the program makes of the disk, once it is known.
    geometry: Option<DeviceGeometry>,
    capabilities: Option<Capabilities>,
    /// So many requests wait for the program.
    unanswered: u64,
    /// When something went on last.
    moved_at: Duration,
    is_stopping: bool,
}

impl OutOfProcess {
    /// A filter of which `of` says how it runs; its program is made, and not started.
    #[must_use]
    pub fn new(of: &FilterPolicy, on_failure: OnFailure, context: FilterContext) -> Self {
        let queue = PendingQueue::default();
        let program = context.host.programs.program(of, &context, queue.clone());
        Self {
            name: of.name.as_str().into(),
            on_failure,
            program,
            below: Below::new(queue),
            context,
            phase: Phase::Idle,
            pause: Duration::ZERO,
            trial_pause: TRIAL_PAUSE_MIN,
            geometry: None,
            capabilities: None,
            unanswered: 0,
            moved_at: Duration::ZERO,
            is_stopping: false,
        }
    }

    fn now(&self) -> Duration {
        self.context.host.clock.monotonic()
    }

    fn note(&self, note: String) {
        self.context.note(&self.name, note);
    }

    /// What runs ends, and the program is started.
    fn start_program(&mut self, deadline: Duration, since: Duration, rule_at: Option<Duration>) {
        self.below.next_life();
        if let Ok(program) = &mut self.program {
            program.launch();
        }
        self.phase = Phase::Away {
            since,
            again_at: None,
            deadline,
            rule_at,
        };
    }

    /// The program is away, from now on.
    fn lose(&mut self, why: &str) {
        let now = self.now();
        if matches!(self.phase, Phase::Up { since } if since + STEADY_AFTER <= now) {
            self.pause = Duration::ZERO;
        }
        self.note(format!("the filter has ended and is started anew: {why}"));
        self.pause_from(now, Some(self.rule_at(now)));
    }

    /// When the rule counts, of a program that is away from now on.
    fn rule_at(&self, now: Duration) -> Duration {
        match self.is_stopping {
            true => now,
            false => now + RULE_AFTER,
        }
    }

    fn pause_from(&mut self, since: Duration, rule_at: Option<Duration>) {
        self.pause = (self.pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
        self.phase = Phase::Away {
            since,
            again_at: Some(self.now() + self.pause),
            deadline: Duration::MAX,
            rule_at,
        };
    }

    /// It was away for too long.
    fn follow_rule(&mut self) {
        let Phase::Away {
            since, again_at, ..
        } = self.phase
        else {
            return;
        };
        match self.on_failure {
            OnFailure::FailClosed => {
                self.note("the filter is away: the disk answers with errors".to_owned());
                let words = format!("the filter {} does not answer", self.name);
                self.below.next_life();
                if let Ok(program) = &mut self.program {
                    program.give_up(&words);
                }
                self.phase = Phase::Away {
                    since,
                    again_at: again_at.or(Some(self.now() + PAUSE_MAX)),
                    deadline: Duration::MAX,
                    rule_at: None,
                };
            }
            OnFailure::Bypass => {
                self.note("the filter is away: the disk goes on without it".to_owned());
                self.go_round();
            }
        }
    }

    fn go_round(&mut self) {
        self.below.next_life();
        if let Ok(program) = &mut self.program {
            program.bypass();
        }
        self.phase = Phase::Bypassed {
            again_at: self.now() + self.trial_pause,
        };
        self.trial_pause = (self.trial_pause * 2).min(TRIAL_PAUSE_MAX);
    }

    /// Looks after the program.
    fn supervise(&mut self) {
        let (Ok(program), now) = (&self.program, self.now()) else {
            return;
        };
        if self.geometry.is_none() {
            // It is being opened, and nothing is tried twice then.
            return;
        }
        let link = program.link_state();
        match self.phase {
            Phase::Idle => {}
            Phase::Up { .. } => match link {
                LinkState::Broken(why) => self.lose(&why),
                _ if self.hangs_at().is_some_and(|at| at <= now) => {
                    let within = HANGS_AFTER.as_secs();
                    self.note(format!(
                        "the filter is started anew: it has answered nothing for {within} s"
                    ));
                    self.start_program(now + READY_WITHIN, now, Some(self.rule_at(now)));
                }
                _ => {}
            },
            Phase::Away {
                rule_at: Some(at), ..
            } if at <= now => self.follow_rule(),
            Phase::Away {
                since,
                again_at: Some(at),
                rule_at,
                ..
            } if at <= now => self.start_program(now + READY_WITHIN, since, rule_at),
            Phase::Away {
                since,
                again_at: None,
                deadline,
                rule_at,
            } => match link {
                LinkState::Ready => {
                    let seconds = (now - since).as_secs_f64();
                    self.note(format!("the filter is back after {seconds:.1} s"));
                    self.phase = Phase::Up { since: now };
                    self.trial_pause = TRIAL_PAUSE_MIN;
                    self.moved_at = now;
                }
                LinkState::Broken(why) => {
                    tracing::debug!(name = %self.name, why, "a filter's program has not begun");
                    self.pause_from(since, rule_at);
                }
                LinkState::Connecting if deadline <= now => self.pause_from(since, rule_at),
                LinkState::Connecting => {}
            },
            Phase::Away { .. } => {}
            Phase::Bypassed { again_at } if again_at <= now => {
                self.start_program(now + TRIAL_WITHIN, now, Some(now + TRIAL_WITHIN));
            }
            Phase::Bypassed { again_at } => {
                if let LinkState::Broken(why) = link {
                    // Nothing can be left out: it is of another size, say.
                    self.note(format!("the disk cannot go on without the filter: {why}"));
                    self.on_failure = OnFailure::FailClosed;
                    self.phase = Phase::Away {
                        since: now,
                        again_at: Some(again_at),
                        deadline: Duration::MAX,
                        rule_at: Some(now),
                    };
                    self.follow_rule();
                }
            }
        }
    }

    /// When the program counts as hung, if nothing goes on.
    fn hangs_at(&self) -> Option<Duration> {
        let waits = self.unanswered > 0 && self.below.is_idle();
        waits.then(|| self.moved_at + HANGS_AFTER)
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
        match (&self.program, self.phase) {
            (Err(why), _) => Opening::Failed(why.clone()),
            (Ok(_), Phase::Idle) => {
                self.below.describe(below);
                self.start_program(now + READY_WITHIN, now, None);
                Opening::Pending
            }
            (Ok(program), _) => match program.link_state() {
                LinkState::Connecting => Opening::Pending,
                LinkState::Broken(why) => Opening::Failed(why),
                LinkState::Ready => {
                    let (is, there) = (program.geometry(), below.geometry());
                    if is.size_bytes > there.size_bytes {
                        return Opening::Failed(format!(
                            "it says that its disk has {} bytes; there are {}",
                            is.size_bytes, there.size_bytes
                        ));
                    }
                    if below.capabilities().can_flush && !program.capabilities().can_flush {
                        let why = "it cannot flush, and what is below can".to_owned();
                        return Opening::Failed(why);
                    }
                    self.geometry = Some(is);
                    self.capabilities = Some(program.capabilities());
                    self.phase = Phase::Up { since: now };
                    Opening::Ready
                }
            },
        }
    }

    /// Starts the request on the program, unless the disk answers with errors.
    fn start(&mut self, _: &mut dyn BlockDevice, request: Request<'_>) -> Started {
        let is_failing = matches!(self.phase, Phase::Away { rule_at: None, .. });
        let name = &self.name;
        let program = match &mut self.program {
            Ok(program) if !is_failing => &mut **program,
            _ => {
                let words = format!("the filter {name} does not answer");
                return Started::Failed(IoError::Unavailable(words));
            }
        };
        let started = program.start(request);
        if started == Started::Pending {
            if self.unanswered == 0 {
                self.moved_at = self.context.host.clock.monotonic();
            }
            self.unanswered += 1;
        }
        started
    }

    fn commit(&mut self, below: &mut dyn BlockDevice) -> Result<(), IoError> {
        if let Ok(program) = &mut self.program {
            program.commit()?;
        }
        below.commit()
    }

    fn poll(&mut self, below: &mut dyn BlockDevice, completions: &mut Vec<Completion>) {
        let before = completions.len();
        if let Ok(program) = &mut self.program {
            program.poll(completions);
        }
        let answered = self.below.serve(below);
        if answered && let Ok(program) = &mut self.program {
            program.poll(completions);
        }
        let came = completions.len() - before;
        self.unanswered = self.unanswered.saturating_sub(came as u64);
        if came > 0 || answered || !self.below.is_idle() {
            self.moved_at = self.now();
        }
        self.supervise();
    }

    fn stop_waiting(&mut self, below: &mut dyn BlockDevice) {
        self.is_stopping = true;
        let now = self.now();
        if let Phase::Away {
            rule_at: Some(at), ..
        } = &mut self.phase
        {
            // With the next poll.
            *at = now;
        }
        below.stop_waiting();
    }

    fn next_timer(&self) -> Option<Duration> {
        let program = self.program.as_ref().ok()?;
        let now = self.now();
        let own = match self.phase {
            Phase::Idle => None,
            Phase::Up { .. } => self.hangs_at(),
            Phase::Away {
                again_at,
                deadline,
                rule_at,
                ..
            } => [Some(again_at.unwrap_or(deadline)), rule_at]
                .into_iter()
                .flatten()
                .min(),
            Phase::Bypassed { again_at } => Some(again_at),
        };
        let own = own.map(|at| at.saturating_sub(now));
        let timers = own.into_iter().chain(program.next_timer());
        timers.chain(self.below.next_timer()).min()
    }

    fn quiesce(&mut self) -> bool {
        self.below.is_idle()
    }

    fn resume(&mut self) {
        self.below.may_change();
    }
}
