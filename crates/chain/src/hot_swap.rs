//! [`HotSwap`]: replacing the filters of a chain while it is in use
//! (docs/internals/live-reconfiguration.md).
//!
//! ```text
//!  1. drain     new requests are answered Busy; pending ones end, and the old filters quiesce
//!  2. flush     through the old filters
//!  3. open      the new filters, the lowest first. Before the first filters no one uses the disk,
//!               so each of those comes into use before the next one is opened
//!  4. check     size and capabilities
//!  5. swap      all filters at once
//! ```
//!
//! Invariant: no request runs through some old filters and some new ones.

use std::ops::Range;
use std::time::Duration;

use base::{Capabilities, DeviceGeometry, IoError};

use crate::filter::{Filter, FilterError};

/// The longest time for draining and flushing; after that the old filters stay in use.
const DRAIN_WITHIN: Duration = Duration::from_secs(10);

/// The longest time for replaying a journal before the hot swap fails. The next attempt continues
/// where this one ended.
const REPLAY_WITHIN: Duration = Duration::from_secs(60);

/// The longest time in which a new filter opens, by default.
pub(crate) const OPEN_WITHIN: Duration = Duration::from_secs(15);

/// Whether a hot swap may change the disk's size and capabilities.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SizeRule {
    /// The chain has no user yet, and gets none before this hot swap has ended. Each filter comes
    /// into use before the one above it is opened, so that the filter above reads a disk on which
    /// the journal has been replayed.
    First,
    /// The chain has no user yet that knows its size.
    MayChange,
    /// The user of the chain keeps the size and capabilities that it knows. Only growth of the
    /// device below that the old filters did not show may be added to the size.
    Keep,
}

/// Called once with the result of a hot swap, in the thread that owns the chain.
pub type OnSwapped = Box<dyn FnOnce(Result<(), HotSwapError>)>;

/// A request to replace the filters of a chain.
pub struct HotSwap {
    /// The new filters, the uppermost first.
    pub filters: Vec<Box<dyn Filter>>,
    /// Whether size and capabilities may change.
    pub rule: SizeRule,
    /// Receives the result.
    pub on_swapped: OnSwapped,
}

/// The reason why a hot swap failed and the old filters stay in use.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HotSwapError {
    /// The disk is being closed.
    #[error("the disk is being closed")]
    Stopped,
    /// Another hot swap of the chain has not ended.
    #[error("a hot swap of this chain has not ended")]
    InProgress,
    /// A step took too long.
    #[error("{waited_for} within {} s", within.as_secs())]
    TimedOut {
        /// What did not happen in time.
        waited_for: &'static str,
        /// The time that it had.
        within: Duration,
    },
    /// An old filter may not be removed.
    #[error("filter {} cannot be removed: {reason}", at + 1)]
    NotRemovable {
        /// The filter's position, from 0 for the uppermost.
        at: usize,
        /// The filter's reason.
        reason: String,
    },
    /// Writes that the old filters have acknowledged cannot be made durable.
    #[error("acknowledged writes cannot be flushed")]
    Flush(#[source] IoError),
    /// A new filter cannot be opened.
    #[error("filter {} cannot be opened: {reason}", at + 1)]
    Open {
        /// The filter's position, from 0 for the uppermost.
        at: usize,
        /// The filter's reason.
        reason: FilterError,
    },
    /// The size would change in a way that the user of the chain cannot follow.
    #[error("the size of the disk would change from {is} to {would_be} bytes")]
    Size {
        /// The size now, in bytes.
        is: u64,
        /// The size after the hot swap, in bytes.
        would_be: u64,
    },
    /// The user of the chain would lose this operation.
    #[error("the disk would lose an operation: {0}")]
    Capability(&'static str),
}

impl HotSwap {
    /// Reports the result of a hot swap that was not begun.
    pub(crate) fn report(self, result: Result<(), HotSwapError>) {
        (self.on_swapped)(result);
    }
}

/// The step that a hot swap is in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Phase {
    Draining,
    Flushing,
    Flushed(Result<(), IoError>),
    Opening {
        /// How many of the new filters, from the lowest, are open.
        ready: usize,
        /// The next filter is open and in use, and still replays its journal.
        is_replaying: bool,
    },
}

/// What the user of a chain sees of its disk.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DiskShape {
    pub geometry: DeviceGeometry,
    pub capabilities: Capabilities,
}

/// A hot swap that has begun.
pub(crate) struct HotSwapProgress {
    pub filters: Vec<Box<dyn Filter>>,
    /// The generation of the new filters.
    pub generation: u8,
    pub phase: Phase,
    /// When the current step must have ended, by the monotonic clock.
    pub deadline: Duration,
    /// The longest time in which the new filters open.
    open_within: Duration,
    /// The size in bytes of the device below when the new filters were opened.
    pub below_bytes: u64,
    rule: SizeRule,
    on_swapped: Option<OnSwapped>,
}

impl Drop for HotSwapProgress {
    /// Reports a result in any case.
    fn drop(&mut self) {
        self.report(Err(HotSwapError::Stopped));
    }
}

impl HotSwapProgress {
    pub fn new(swap: HotSwap, generation: u8, now: Duration) -> Self {
        Self {
            filters: swap.filters,
            generation,
            phase: Phase::Draining,
            deadline: now + DRAIN_WITHIN,
            open_within: OPEN_WITHIN,
            below_bytes: 0,
            rule: swap.rule,
            on_swapped: Some(swap.on_swapped),
        }
    }

    /// Reports the result, once.
    pub fn report(&mut self, result: Result<(), HotSwapError>) {
        if let Some(on_swapped) = self.on_swapped.take() {
            on_swapped(result);
        }
    }

    pub fn is_opening(&self) -> bool {
        matches!(self.phase, Phase::Opening { .. })
    }

    /// Begins to open the new filters over a device of `below_bytes`, each within `within`.
    pub fn begin_opening(&mut self, below_bytes: u64, now: Duration, within: Duration) {
        self.below_bytes = below_bytes;
        self.open_within = within;
        self.continue_opening(0, now);
    }

    /// Notes that `ready` filters are open.
    pub fn opened(&mut self, ready: usize) {
        self.phase = Phase::Opening {
            ready,
            is_replaying: false,
        };
    }

    /// Notes that `ready` filters are open, and gives the next one the full time to open: the
    /// disk has no user yet that waits for it.
    pub fn continue_opening(&mut self, ready: usize, now: Duration) {
        self.opened(ready);
        self.deadline = now + self.open_within;
    }

    /// The positions of the new filters that are open or being opened.
    pub fn begun(&self) -> Range<usize> {
        let ready = match self.phase {
            Phase::Opening { ready, .. } => ready + 1,
            _ => 0,
        };
        self.filters.len().saturating_sub(ready)..self.filters.len()
    }

    /// Notes that the next filter is in use and replays its journal before the filters above it are
    /// opened.
    pub fn replay(&mut self, ready: usize, now: Duration) {
        self.phase = Phase::Opening {
            ready,
            is_replaying: true,
        };
        self.deadline = now + self.open_within.max(REPLAY_WITHIN);
    }

    /// Whether each filter comes into use before the next one is opened.
    pub fn is_first(&self) -> bool {
        self.rule == SizeRule::First
    }

    /// The error of a step that took too long.
    pub fn timed_out(&self) -> HotSwapError {
        let (waited_for, within) = match self.phase {
            Phase::Draining => ("the pending requests have not completed", DRAIN_WITHIN),
            Phase::Flushing | Phase::Flushed(_) => ("the flush has not completed", DRAIN_WITHIN),
            Phase::Opening {
                is_replaying: false,
                ..
            } => ("a filter was not opened", self.open_within),
            Phase::Opening {
                is_replaying: true, ..
            } => (
                "a journal was not replayed",
                self.open_within.max(REPLAY_WITHIN),
            ),
        };
        HotSwapError::TimedOut { waited_for, within }
    }

    /// Checks that the user of the chain can continue with the new filters. `unseen_bytes` is the
    /// growth of the device below that the old filters do not show.
    ///
    /// # Errors
    /// [`HotSwapError::Size`], [`HotSwapError::Capability`].
    pub fn check(
        &self,
        old: DiskShape,
        new: DiskShape,
        unseen_bytes: u64,
    ) -> Result<(), HotSwapError> {
        if self.rule != SizeRule::Keep {
            return Ok(());
        }
        // Any other growth means that a filter with a header, such as `encrypt`, is gone: the guest
        // would not read what it wrote.
        let (is, would_be) = (old.geometry.size_bytes, new.geometry.size_bytes);
        let growth = would_be.checked_sub(is);
        if growth.is_none_or(|bytes| bytes != 0 && bytes != unseen_bytes) {
            return Err(HotSwapError::Size { is, would_be });
        }
        let (can, could) = (old.capabilities, new.capabilities);
        let operations = [
            (!can.read_only, !could.read_only, "write"),
            (can.can_flush, could.can_flush, "flush"),
            (can.can_trim, could.can_trim, "trim"),
            (can.can_write_zeroes, could.can_write_zeroes, "write zeroes"),
            (can.can_extents, could.can_extents, "report holes"),
            (
                can.can_multi_conn,
                could.can_multi_conn,
                "serve several connections",
            ),
        ];
        match operations.iter().find(|(is, would_be, _)| *is && !would_be) {
            Some((.., operation)) => Err(HotSwapError::Capability(operation)),
            None => Ok(()),
        }
    }
}
