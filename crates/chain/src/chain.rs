//! [`Chain`]: filters over a device, which together are a device.

use std::sync::Arc;
use std::time::Duration;

use base::{
    BlockDevice, Capabilities, Completion, DeviceGeometry, IoError, Request, Started, TOKEN_MAX,
    Token,
};
use world::{Clock, Wake};

use crate::below::{Below, capabilities_of, geometry_of, timer_of};
use crate::bottom::Bottom;
use crate::filter::{Filter, Opening};
use crate::hot_swap::{DiskShape, HotSwap, HotSwapError, HotSwapProgress, OPEN_WITHIN, Phase};

/// The first generation of filters. Requests that bypass the chain ([`Chain::bottom`]) have 0.
const FIRST_GENERATION: u8 = 1;

fn next_generation(generation: u8) -> u8 {
    generation.checked_add(1).unwrap_or(FIRST_GENERATION)
}

/// How often a step of a hot swap is retried when nothing wakes the chain at its end.
const RETRY_EVERY: Duration = Duration::from_millis(1);

/// The token of the flush of a hot swap. Users of the chain never choose it.
const FLUSH: Token = TOKEN_MAX;

/// Filters over a device, used as one device (docs/internals/live-reconfiguration.md).
/// [`Chain::hot_swap`] replaces the filters while requests come in.
pub struct Chain<D> {
    /// The uppermost first.
    filters: Vec<Box<dyn Filter>>,
    sizes: SizesAtOpening,
    bottom: D,
    /// The generation of the filters in use ([`Bottom`]).
    generation: u8,
    /// The generation of the filters that were tried last.
    last_generation: u8,
    /// The number of pending requests.
    pending: u64,
    /// The number of pending flushes of hot swaps that failed.
    late_flushes: u64,
    swapping: Option<HotSwapProgress>,
    /// A request was answered `Busy` because filters are being swapped.
    has_refused: bool,
    /// A hot swap has begun, or has ended after a request was refused: the chain must be polled
    /// soon, and nothing else may wake its owner.
    needs_poll: bool,
    /// Requests fail instead of waiting for what is unavailable.
    is_stopping: bool,
    /// The longest time in which a new filter opens.
    open_within: Duration,
    clock: Arc<dyn Clock>,
    wake: Wake,
}

/// Sizes in bytes when the filters in use were opened.
struct SizesAtOpening {
    /// The device below the filters.
    below_bytes: u64,
    /// The disk above them.
    size_bytes: u64,
}

impl<D: BlockDevice> Chain<D> {
    /// A chain of no filters yet; `wake` has it polled.
    #[must_use]
    pub fn new(bottom: D, clock: Arc<dyn Clock>, wake: Wake) -> Self {
        let size_bytes = bottom.geometry().size_bytes;
        Self {
            filters: Vec::new(),
            sizes: SizesAtOpening {
                below_bytes: size_bytes,
                size_bytes,
            },
            bottom,
            generation: FIRST_GENERATION,
            last_generation: FIRST_GENERATION,
            pending: 0,
            late_flushes: 0,
            swapping: None,
            has_refused: false,
            needs_poll: false,
            is_stopping: false,
            open_within: OPEN_WITHIN,
            clock,
            wake,
        }
    }

    /// Sets the longest time in which a new filter opens; 15 s by default. Callers that can wait
    /// set more, since a journal may have much to carry out.
    pub fn set_open_within(&mut self, within: Duration) {
        self.open_within = within;
    }

    /// The device below all filters. Completions of requests started there directly are dropped.
    pub fn bottom(&mut self) -> &mut D {
        &mut self.bottom
    }

    /// Makes the chain's owner poll it: for filters whose work ends in another thread.
    #[must_use]
    pub fn wake(&self) -> Wake {
        self.wake.clone()
    }

    /// The device, without the filters.
    #[must_use]
    pub fn into_bottom(self) -> D {
        self.bottom
    }

    /// Checks that the disk below may be used without its filters from now on, because it has
    /// everything that was written through them.
    ///
    /// # Errors
    /// The reason of the uppermost filter that may not be removed, for people.
    pub fn check_removable(&self) -> Result<(), String> {
        self.filters
            .iter()
            .try_for_each(|filter| filter.check_removable())
    }

    /// Whether the device below has grown by more than the filters in use show. A filter that
    /// keeps the size it was opened with, such as `replicate`, shows the growth after a hot swap.
    #[must_use]
    pub fn hides_growth(&self) -> bool {
        self.unseen_growth(self.bottom.geometry().size_bytes) > 0
    }

    /// Replaces the filters without losing a request. The hot swap proceeds with the polls that
    /// follow and reports its result when it ends; until then every request is answered
    /// [`Started::Busy`].
    pub fn hot_swap(&mut self, swap: HotSwap) {
        if self.is_stopping {
            return swap.report(Err(HotSwapError::Stopped));
        }
        if self.swapping.is_some() {
            return swap.report(Err(HotSwapError::InProgress));
        }
        self.needs_poll = true;
        let mut generation = next_generation(self.last_generation);
        if generation == self.generation {
            generation = next_generation(generation);
        }
        let now = self.clock.monotonic();
        self.swapping = Some(HotSwapProgress::new(swap, generation, now));
    }

    /// The generation of the filters that were tried last.
    #[cfg(test)]
    pub(crate) fn last_generation(&self) -> u8 {
        self.last_generation
    }

    fn top(&mut self) -> Below<'_, D> {
        Below {
            filters: &mut self.filters,
            bottom: Bottom {
                device: &mut self.bottom,
                generation: self.generation,
            },
        }
    }

    /// Polls the filters in use, or, while new ones are opened, those: no others have requests
    /// pending then. Filters above the one that is being opened have not begun and are not polled.
    fn collect(&mut self, completions: &mut Vec<Completion>) {
        let before = completions.len();
        if let Some(swapping) = self.swapping.as_mut().filter(|swap| swap.is_opening()) {
            let begun = swapping.begun();
            let mut below = Below {
                filters: &mut swapping.filters[begun],
                bottom: Bottom {
                    device: &mut self.bottom,
                    generation: swapping.generation,
                },
            };
            below.poll(completions);
            debug_assert_eq!(
                completions.len(),
                before,
                "no one has started requests on them"
            );
            return;
        }
        self.top().poll(completions);
        let mut at = before;
        while at < completions.len() {
            if completions[at].token == FLUSH {
                let flushed = completions.remove(at).result;
                self.is_flushed(flushed.map(|_| ()));
            } else {
                self.pending -= 1;
                at += 1;
            }
        }
    }

    /// Takes the result of a flush that the chain started itself.
    fn is_flushed(&mut self, flushed: Result<(), IoError>) {
        match self.swapping.as_mut() {
            Some(swapping) if swapping.phase == Phase::Flushing => {
                swapping.phase = Phase::Flushed(flushed);
            }
            _ => self.late_flushes -= 1,
        }
    }

    /// Proceeds with a hot swap until something has to be waited for.
    fn proceed(&mut self, mut swapping: HotSwapProgress) {
        loop {
            let ended = match self.step(&mut swapping) {
                Step::Again => continue,
                Step::Ended(ended) => ended,
                Step::Wait if self.clock.monotonic() < swapping.deadline => {
                    self.swapping = Some(swapping);
                    return;
                }
                Step::Wait => {
                    self.late_flushes += u64::from(swapping.phase == Phase::Flushing);
                    Err(swapping.timed_out())
                }
            };
            self.last_generation = swapping.generation;
            self.needs_poll = std::mem::take(&mut self.has_refused);
            if ended.is_ok() {
                self.filters = std::mem::take(&mut swapping.filters);
                self.generation = swapping.generation;
                self.sizes = SizesAtOpening {
                    below_bytes: swapping.below_bytes,
                    size_bytes: self.geometry().size_bytes,
                };
            }
            self.filters.iter_mut().for_each(|filter| filter.resume());
            return swapping.report(ended);
        }
    }

    /// By how many bytes the device below, which has `below_bytes`, has grown without the filters
    /// in use showing it.
    fn unseen_growth(&self, below_bytes: u64) -> u64 {
        let grown = below_bytes.saturating_sub(self.sizes.below_bytes);
        let size_bytes = self.geometry().size_bytes;
        grown.saturating_sub(size_bytes.saturating_sub(self.sizes.size_bytes))
    }

    /// Quiesces all filters, and returns whether none has requests of its own pending.
    fn are_quiescent(&mut self) -> bool {
        let resting = self.filters.iter_mut().map(|filter| filter.quiesce());
        resting.fold(true, |all, is_resting| all & is_resting)
    }

    fn step(&mut self, swapping: &mut HotSwapProgress) -> Step {
        match &swapping.phase {
            Phase::Draining => self.drain(swapping),
            Phase::Flushing => Step::Wait,
            Phase::Flushed(Err(error)) => Step::Ended(Err(HotSwapError::Flush(error.clone()))),
            Phase::Flushed(Ok(())) => match self.top().end_batch() {
                Ok(()) => {
                    let below_bytes = self.bottom.geometry().size_bytes;
                    let now = self.clock.monotonic();
                    swapping.begin_opening(below_bytes, now, self.open_within);
                    Step::Again
                }
                Err(error) => Step::Ended(Err(HotSwapError::Flush(error))),
            },
            Phase::Opening {
                ready,
                is_replaying,
            } => {
                let (ready, is_replaying) = (*ready, *is_replaying);
                self.continue_opening(swapping, ready, is_replaying)
            }
        }
    }

    /// Waits until the filters in use may be removed, and starts their last flush.
    fn drain(&mut self, swapping: &mut HotSwapProgress) -> Step {
        for (at, filter) in self.filters.iter().enumerate() {
            if let Err(reason) = filter.check_removable() {
                return Step::Ended(Err(HotSwapError::NotRemovable { at, reason }));
            }
        }
        if !self.are_quiescent() || self.pending > 0 || self.late_flushes > 0 {
            return Step::Wait;
        }
        swapping.phase = match self.start_flush() {
            Started::Busy => return Step::Wait,
            Started::Pending => Phase::Flushing,
            Started::Done => Phase::Flushed(Ok(())),
            Started::Failed(error) => Phase::Flushed(Err(error)),
        };
        Step::Again
    }

    /// Opens the new filters, of which the lowest `ready` are open. With `is_replaying`, the next
    /// one is open as well, and has to replay what it has.
    fn continue_opening(
        &mut self,
        swapping: &mut HotSwapProgress,
        ready: usize,
        is_replaying: bool,
    ) -> Step {
        match swapping.filters.len().checked_sub(ready + 1) {
            Some(at) if is_replaying => match swapping.filters[at].has_replayed() {
                true => {
                    swapping.continue_opening(ready + 1, self.clock.monotonic());
                    Step::Again
                }
                false => Step::Wait,
            },
            Some(at) => self.open_next(swapping, at),
            // An out-of-process filter may have started a request since.
            None if !self.are_quiescent() => Step::Wait,
            None => Step::Ended(swapping.check(
                DiskShape {
                    geometry: self.geometry(),
                    capabilities: self.capabilities(),
                },
                DiskShape {
                    geometry: geometry_of(&swapping.filters, &self.bottom),
                    capabilities: capabilities_of(&swapping.filters, &self.bottom),
                },
                self.unseen_growth(swapping.below_bytes),
            )),
        }
    }

    /// Opens the new filter `at`; those below it are open.
    fn open_next(&mut self, swapping: &mut HotSwapProgress, at: usize) -> Step {
        let (above, filters) = swapping.filters.split_at_mut(at + 1);
        let ready = filters.len();
        let mut below = Below {
            filters,
            bottom: Bottom {
                device: &mut self.bottom,
                generation: swapping.generation,
            },
        };
        match above[at].open(&mut below) {
            Opening::Pending => Step::Wait,
            Opening::Failed(reason) => Step::Ended(Err(HotSwapError::Open { at, reason })),
            Opening::Ready => {
                if swapping.is_first() {
                    swapping.filters[at].resume();
                    swapping.replay(ready, self.clock.monotonic());
                } else {
                    swapping.opened(ready + 1);
                }
                Step::Again
            }
        }
    }

    /// Flushes what the filters in use have acknowledged. What they answered in this turn of the
    /// loop is a batch of its own, and the flush may begin when the next batch ends.
    fn start_flush(&mut self) -> Started {
        if !self.capabilities().can_flush {
            return Started::Done;
        }
        let mut top = self.top();
        let flushed = top.end_batch().map(|()| top.start(Request::flush(FLUSH)));
        match flushed.and_then(|flushed| top.end_batch().map(|()| flushed)) {
            Ok(flushed) => flushed,
            Err(error) => Started::Failed(error),
        }
    }
}

/// What follows a step of a hot swap.
enum Step {
    /// The next step.
    Again,
    /// The same step, after the next poll.
    Wait,
    /// Nothing: the hot swap has ended.
    Ended(Result<(), HotSwapError>),
}

impl<D: BlockDevice> BlockDevice for Chain<D> {
    fn geometry(&self) -> DeviceGeometry {
        geometry_of(&self.filters, &self.bottom)
    }

    fn capabilities(&self) -> Capabilities {
        capabilities_of(&self.filters, &self.bottom)
    }

    /// Starts the request on the filters, unless they are being swapped.
    fn start(&mut self, request: Request<'_>) -> Started {
        if self.swapping.is_some() {
            self.has_refused = true;
            return Started::Busy;
        }
        let started = self.top().start(request);
        self.pending += u64::from(started == Started::Pending);
        started
    }

    fn end_batch(&mut self) -> Result<(), IoError> {
        self.top().end_batch()
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        self.needs_poll = false;
        self.collect(completions);
        if let Some(swapping) = self.swapping.take() {
            self.proceed(swapping);
        }
    }

    fn stop_waiting(&mut self) {
        self.is_stopping = true;
        if let Some(mut swapping) = self.swapping.take() {
            self.late_flushes += u64::from(swapping.phase == Phase::Flushing);
            self.last_generation = swapping.generation;
            self.needs_poll = std::mem::take(&mut self.has_refused);
            self.filters.iter_mut().for_each(|filter| filter.resume());
            swapping.report(Err(HotSwapError::Stopped));
        }
        self.top().stop_waiting();
    }

    fn next_timer(&self) -> Option<Duration> {
        let swapping = self.swapping.as_ref();
        if self.needs_poll {
            return Some(Duration::ZERO);
        }
        let filters = match swapping.filter(|swap| swap.is_opening()) {
            Some(swapping) => &swapping.filters[swapping.begun()],
            None => &self.filters,
        };
        let now = self.clock.monotonic();
        let deadline = swapping.map(|swap| swap.deadline.saturating_sub(now));
        // Nothing wakes the owner when a filter is no longer busy, has quiesced, or may be
        // opened again.
        let is_retried = swapping.is_some_and(|swap| match swap.phase {
            Phase::Draining => self.pending == 0 && self.late_flushes == 0,
            Phase::Opening { .. } => true,
            Phase::Flushing | Phase::Flushed(_) => false,
        });
        let retry = is_retried.then_some(RETRY_EVERY);
        let timers = timer_of(filters, &self.bottom).into_iter();
        timers.chain(deadline).chain(retry).min()
    }
}
