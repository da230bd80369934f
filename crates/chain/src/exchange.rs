//! Exchanging the filters of a chain under whoever uses it
//! (docs/internals/live-reconfiguration.md).
//!
//! ```text
//!  1. drain     what comes is answered Busy; what is under way ends, filters rest
//!  2. flush     through the old filters
//!  3. open      the new ones, the lowest first; nobody uses the disk before the first filters:
//!               then each comes into use before the next one is opened
//!  4. check     size and verbs
//!  5. exchange  at once
//! ```
//!
//! Invariant: no request runs through some old filters and some new ones.

use std::ops::Range;
use std::time::Duration;

use base::{Capabilities, DeviceGeometry, IoError};

use crate::filter::Filter;

/// What is under way ends, and is flushed, within this; or the old filters go on.
const DRAIN_WITHIN: Duration = Duration::from_secs(10);

/// What a journal has is carried out within this, or it is tried again: each time it goes on
/// where it was.
const CARRIED_OUT_WITHIN: Duration = Duration::from_secs(60);

/// New filters begin within this, if nothing else is said.
pub(crate) const OPEN_WITHIN: Duration = Duration::from_secs(15);

/// Whether the size and the verbs may become others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SizeRule {
    /// Nobody has seen them yet, and nobody asks for anything before this has ended: each filter
    /// comes into use before the one above it is opened, so that what a journal has is below
    /// when that is read.
    First,
    /// Nobody has seen them yet.
    MayChange,
    /// Whoever uses the chain goes on with those that he knows. If the device below has grown,
    /// and the filters in use have not let him see it, the disk grows by as much.
    Keep,
}

/// Is told what came of an exchange, once, in the thread that owns the chain.
pub type Told = Box<dyn FnOnce(Result<(), ExchangeError>)>;

/// What filters are to come in the place of those that there are.
pub struct Exchange {
    /// The uppermost first.
    pub filters: Vec<Box<dyn Filter>>,
    /// What is kept.
    pub rule: SizeRule,
    /// Who is told what came of it.
    pub told: Told,
}

/// Why the old filters go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExchangeError {
    /// The disk is not served any more.
    #[error("the disk is being closed")]
    Stopped,
    /// Another exchange has not ended.
    #[error("the chain is being exchanged already")]
    UnderWay,
    /// It took too long.
    #[error("{waited_for} within {} s", within.as_secs())]
    Late {
        /// What did not happen.
        waited_for: &'static str,
        /// How long it was waited for.
        within: Duration,
    },
    /// An old filter keeps its place.
    #[error("filter {} cannot be left: {reason}", at + 1)]
    Held {
        /// Which, counted from the uppermost, which is 0.
        at: usize,
        /// What it said.
        reason: String,
    },
    /// What the old filters have acknowledged cannot be made durable.
    #[error("what was written before cannot be flushed")]
    Below(#[source] IoError),
    /// A new filter cannot begin.
    #[error("filter {} cannot begin: {reason}", at + 1)]
    Filter {
        /// Which, counted from the uppermost, which is 0.
        at: usize,
        /// What it said.
        reason: String,
    },
    /// The guest knows another size.
    #[error("the disk has {is} bytes, and would have {would_be}")]
    Size {
        /// Now, in bytes.
        is: u64,
        /// Then, in bytes.
        would_be: u64,
    },
    /// The guest may use a verb that would not work.
    #[error("the disk could not do any more what it can now: {0}")]
    Verbs(&'static str),
}

impl Exchange {
    pub(crate) fn tell(self, ended: Result<(), ExchangeError>) {
        (self.told)(ended);
    }
}

/// How far it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Phase {
    Draining,
    Flushing,
    Flushed(Result<(), IoError>),
    /// So many filters may be used, the lowest ones. The next one is in use, and carries out
    /// what it had, if it does.
    Opening {
        ready: usize,
        carries_out: bool,
    },
}

/// An exchange that is under way.
pub(crate) struct Exchanging {
    pub filters: Vec<Box<dyn Filter>>,
    /// Of the new filters.
    pub generation: u8,
    pub phase: Phase,
    /// By the monotonic clock.
    pub deadline: Duration,
    /// How long new filters may take.
    open_within: Duration,
    /// The size of the device below when the new filters began, in bytes.
    pub below_bytes: u64,
    rule: SizeRule,
    told: Option<Told>,
}

impl Drop for Exchanging {
    /// Who waits is told, however it ends.
    fn drop(&mut self) {
        self.tell(Err(ExchangeError::Stopped));
    }
}

impl Exchanging {
    pub fn new(exchange: Exchange, generation: u8, now: Duration) -> Self {
        Self {
            filters: exchange.filters,
            generation,
            phase: Phase::Draining,
            deadline: now + DRAIN_WITHIN,
            open_within: OPEN_WITHIN,
            below_bytes: 0,
            rule: exchange.rule,
            told: Some(exchange.told),
        }
    }

    /// Says what came of it, once.
    pub fn tell(&mut self, ended: Result<(), ExchangeError>) {
        if let Some(told) = self.told.take() {
            told(ended);
        }
    }

    pub fn is_opening(&self) -> bool {
        matches!(self.phase, Phase::Opening { .. })
    }

    /// The filters may begin, over a device of `below_bytes`, and have so long.
    pub fn begin_opening(&mut self, below_bytes: u64, now: Duration, within: Duration) {
        self.below_bytes = below_bytes;
        self.open_within = within;
        self.go_on_opening(0, now);
    }

    /// So many filters may be used.
    pub fn opened(&mut self, ready: usize) {
        self.phase = Phase::Opening {
            ready,
            carries_out: false,
        };
    }

    /// So many filters may be used; the next one has as long as the first one, as nobody waits
    /// for the disk that had it before.
    pub fn go_on_opening(&mut self, ready: usize, now: Duration) {
        self.opened(ready);
        self.deadline = now + self.open_within;
    }

    /// Which of the new filters have begun: those that are open, and the one that is being
    /// opened.
    pub fn begun(&self) -> Range<usize> {
        let ready = match self.phase {
            Phase::Opening { ready, .. } => ready + 1,
            _ => 0,
        };
        self.filters.len().saturating_sub(ready)..self.filters.len()
    }

    /// A filter comes into use while others are not opened yet.
    pub fn carry_out(&mut self, ready: usize, now: Duration) {
        self.phase = Phase::Opening {
            ready,
            carries_out: true,
        };
        self.deadline = now + self.open_within.max(CARRIED_OUT_WITHIN);
    }

    /// Whether filters come into use one after the other.
    pub fn is_first(&self) -> bool {
        self.rule == SizeRule::First
    }

    /// What took too long.
    pub fn late(&self) -> ExchangeError {
        let (waited_for, within) = match self.phase {
            Phase::Draining => ("requests have not ended", DRAIN_WITHIN),
            Phase::Flushing | Phase::Flushed(_) => {
                ("what was written has not been flushed", DRAIN_WITHIN)
            }
            Phase::Opening {
                carries_out: false, ..
            } => ("a filter has not begun", self.open_within),
            Phase::Opening {
                carries_out: true, ..
            } => (
                "what a journal has was not carried out",
                self.open_within.max(CARRIED_OUT_WITHIN),
            ),
        };
        ExchangeError::Late { waited_for, within }
    }

    /// Whether whoever uses the chain may go on with the new filters. The device below has grown
    /// by `unseen` bytes more than what those in use show of it.
    ///
    /// # Errors
    /// [`ExchangeError::Size`], [`ExchangeError::Verbs`].
    pub fn check(
        &self,
        (is, can): (DeviceGeometry, Capabilities),
        (will_be, could): (DeviceGeometry, Capabilities),
        unseen: u64,
    ) -> Result<(), ExchangeError> {
        if self.rule != SizeRule::Keep {
            return Ok(());
        }
        // Any other growth is a filter that is there no more, as `encrypt` with its header: what
        // the guest would read then is not what it wrote.
        let more = will_be.size_bytes.checked_sub(is.size_bytes);
        if more.is_none_or(|more| more != 0 && more != unseen) {
            return Err(ExchangeError::Size {
                is: is.size_bytes,
                would_be: will_be.size_bytes,
            });
        }
        let verbs = [
            (!can.read_only, !could.read_only, "write"),
            (can.can_flush, could.can_flush, "flush"),
            (can.can_trim, could.can_trim, "trim"),
            (can.can_write_zeroes, could.can_write_zeroes, "write zeroes"),
            (can.can_extents, could.can_extents, "tell what is a hole"),
            (
                can.can_multi_conn,
                could.can_multi_conn,
                "serve several connections",
            ),
        ];
        match verbs.iter().find(|(is, would_be, _)| *is && !would_be) {
            Some((.., verb)) => Err(ExchangeError::Verbs(verb)),
            None => Ok(()),
        }
    }
}
