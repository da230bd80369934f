//! [`Chain`]: filters over a device, which are a device again.

use std::sync::Arc;
use std::time::Duration;

use base::{
    BlockDevice, Capabilities, Completion, DeviceGeometry, IoError, Request, Started, TOKEN_MAX,
    Token,
};
use world::{Clock, Wake};

use crate::bottom::Bottom;
use crate::exchange::{Exchange, ExchangeError, Exchanging, OPEN_WITHIN, Phase};
use crate::filter::{Filter, Opening};

/// What somebody asks the device past the chain ([`Chain::bottom`]) has no generation.
const FIRST_GENERATION: u8 = 1;

fn next_generation(generation: u8) -> u8 {
    generation.checked_add(1).unwrap_or(FIRST_GENERATION)
}

/// How often a step of an exchange is tried again of whose end nobody tells.
const ASK_AGAIN_EVERY: Duration = Duration::from_millis(1);

/// The token of a flush that the chain asks for itself: nobody's who uses it.
const FLUSH: Token = TOKEN_MAX;

/// Filters over a device. See docs/internals/live-reconfiguration.md.
pub struct Chain<D> {
    /// The uppermost first.
    filters: Vec<Box<dyn Filter>>,
    begun: Begun,
    bottom: D,
    /// Of the filters ([`Bottom`]).
    generation: u8,
    /// Of those that were tried last.
    last_generation: u8,
    /// So many requests were answered `Pending`, and nothing more so far.
    under_way: u64,
    /// So many flushes of exchanges that were given up have not been answered.
    late_flushes: u64,
    exchanging: Option<Exchanging>,
    /// Something was answered `Busy` because filters are being exchanged.
    has_refused: bool,
    /// An exchange begins, or has ended after something was refused: nothing else may
    /// bring about the next poll.
    needs_poll: bool,
    /// Nothing waits any more for what is away.
    is_stopping: bool,
    /// New filters begin within this.
    open_within: Duration,
    clock: Arc<dyn Clock>,
    wake: Wake,
}

/// Sizes in bytes, when the filters in use began.
struct Begun {
    /// Of the device below them.
    below_bytes: u64,
    /// Of the disk.
    size_bytes: u64,
}

/// Some filters of a chain, the lowest ones, with the device.
struct Below<'a, D> {
    filters: &'a mut [Box<dyn Filter>],
    bottom: Bottom<'a, D>,
}

/// The filter that a request reaches first, with what lies below it; or the device, if there is
/// no filter.
enum Uppermost<'a, D> {
    Filter(&'a mut dyn Filter, Below<'a, D>),
    Bottom(Bottom<'a, D>),
}

impl<D> Below<'_, D> {
    fn uppermost(&mut self) -> Uppermost<'_, D> {
        let bottom = Bottom {
            device: &mut *self.bottom.device,
            generation: self.bottom.generation,
        };
        match self.filters.split_first_mut() {
            Some((first, filters)) => Uppermost::Filter(&mut **first, Below { filters, bottom }),
            None => Uppermost::Bottom(bottom),
        }
    }
}

impl<D: BlockDevice> BlockDevice for Below<'_, D> {
    fn geometry(&self) -> DeviceGeometry {
        geometry_of(self.filters, &*self.bottom.device)
    }

    fn capabilities(&self) -> Capabilities {
        capabilities_of(self.filters, &*self.bottom.device)
    }

    fn start(&mut self, request: Request<'_>) -> Started {
        match self.uppermost() {
            Uppermost::Filter(first, mut below) => first.start(&mut below, request),
            Uppermost::Bottom(mut bottom) => bottom.start(request),
        }
    }

    fn commit(&mut self) -> Result<(), IoError> {
        match self.uppermost() {
            Uppermost::Filter(first, mut below) => first.commit(&mut below),
            Uppermost::Bottom(mut bottom) => bottom.commit(),
        }
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        match self.uppermost() {
            Uppermost::Filter(first, mut below) => first.poll(&mut below, completions),
            Uppermost::Bottom(mut bottom) => bottom.poll(completions),
        }
    }

    fn stop_waiting(&mut self) {
        match self.uppermost() {
            Uppermost::Filter(first, mut below) => first.stop_waiting(&mut below),
            Uppermost::Bottom(mut bottom) => bottom.stop_waiting(),
        }
    }

    fn next_timer(&self) -> Option<Duration> {
        timer_of(self.filters, &*self.bottom.device)
    }
}

fn geometry_of(filters: &[Box<dyn Filter>], bottom: &impl BlockDevice) -> DeviceGeometry {
    let filters = filters.iter().rev();
    filters.fold(bottom.geometry(), |below, one| one.geometry(below))
}

fn capabilities_of(filters: &[Box<dyn Filter>], bottom: &impl BlockDevice) -> Capabilities {
    let filters = filters.iter().rev();
    filters.fold(bottom.capabilities(), |below, one| one.capabilities(below))
}

fn timer_of(filters: &[Box<dyn Filter>], bottom: &impl BlockDevice) -> Option<Duration> {
    let timers = filters.iter().filter_map(|one| one.next_timer());
    timers.chain(bottom.next_timer()).min()
}

impl<D: BlockDevice> Chain<D> {
    /// A chain of no filters yet; `wake` has it polled.
    #[must_use]
    pub fn new(bottom: D, clock: Arc<dyn Clock>, wake: Wake) -> Self {
        let size_bytes = bottom.geometry().size_bytes;
        Self {
            filters: Vec::new(),
            begun: Begun {
                below_bytes: size_bytes,
                size_bytes,
            },
            bottom,
            generation: FIRST_GENERATION,
            last_generation: FIRST_GENERATION,
            under_way: 0,
            late_flushes: 0,
            exchanging: None,
            has_refused: false,
            needs_poll: false,
            is_stopping: false,
            open_within: OPEN_WITHIN,
            clock,
            wake,
        }
    }

    /// New filters may take as long to begin; usually it is 15 s. For one who can wait: a
    /// journal may have much to carry out.
    pub fn set_open_within(&mut self, within: Duration) {
        self.open_within = within;
    }

    /// The device below all filters. Answers to what is asked there are nobody's.
    pub fn bottom(&mut self) -> &mut D {
        &mut self.bottom
    }

    /// Has it polled: for filters that something ends for elsewhere.
    #[must_use]
    pub fn wake(&self) -> Wake {
        self.wake.clone()
    }

    /// The device, without the filters.
    #[must_use]
    pub fn into_bottom(self) -> D {
        self.bottom
    }

    /// Whether the disk below may be used without its filters from now on: it has all that was
    /// written through them.
    ///
    /// # Errors
    /// What keeps the uppermost one that may not be left, for people.
    pub fn may_leave(&self) -> Result<(), String> {
        self.filters.iter().try_for_each(|one| one.may_leave())
    }

    /// Whether the device below has grown by more than the filters in use show: one that keeps
    /// the size it began with, as `replicate`, shows it when it is exchanged.
    #[must_use]
    pub fn hides_growth(&self) -> bool {
        self.unseen_growth(self.bottom.geometry().size_bytes) > 0
    }

    /// Puts other filters in the place of those that there are, without a request lost. It
    /// goes on with the polls that follow; who asked for it is told when it has ended.
    /// Until then every verb is answered [`Started::Busy`].
    pub fn exchange(&mut self, exchange: Exchange) {
        if self.is_stopping {
            return exchange.tell(Err(ExchangeError::Stopped));
        }
        if self.exchanging.is_some() {
            return exchange.tell(Err(ExchangeError::UnderWay));
        }
        self.needs_poll = true;
        let mut generation = next_generation(self.last_generation);
        if generation == self.generation {
            generation = next_generation(generation);
        }
        let now = self.clock.monotonic();
        self.exchanging = Some(Exchanging::new(exchange, generation, now));
    }

    /// Of the filters that were tried last.
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

    /// Polls the filters in use; or those that begin, which alone ask for anything then. Those
    /// above the one that is being opened have not been asked to begin, and are left alone.
    fn collect(&mut self, completions: &mut Vec<Completion>) {
        let before = completions.len();
        if let Some(exchanging) = self.exchanging.as_mut().filter(|one| one.is_opening()) {
            let begun = exchanging.begun();
            let mut below = Below {
                filters: &mut exchanging.filters[begun],
                bottom: Bottom {
                    device: &mut self.bottom,
                    generation: exchanging.generation,
                },
            };
            below.poll(completions);
            debug_assert_eq!(completions.len(), before, "nobody has asked them");
            return;
        }
        self.top().poll(completions);
        let mut at = before;
        while at < completions.len() {
            if completions[at].token == FLUSH {
                let flushed = completions.remove(at).result;
                self.is_flushed(flushed.map(|_| ()));
            } else {
                self.under_way -= 1;
                at += 1;
            }
        }
    }

    /// A flush that the chain has asked for is answered.
    fn is_flushed(&mut self, flushed: Result<(), IoError>) {
        match self.exchanging.as_mut() {
            Some(exchanging) if exchanging.phase == Phase::Flushing => {
                exchanging.phase = Phase::Flushed(flushed);
            }
            _ => self.late_flushes -= 1,
        }
    }

    /// Goes on with an exchange as far as there is nothing to wait for.
    fn go_on(&mut self, mut exchanging: Exchanging) {
        loop {
            let ended = match self.step(&mut exchanging) {
                Step::Again => continue,
                Step::Ended(ended) => ended,
                Step::Wait if self.clock.monotonic() < exchanging.deadline => {
                    self.exchanging = Some(exchanging);
                    return;
                }
                Step::Wait => {
                    self.late_flushes += u64::from(exchanging.phase == Phase::Flushing);
                    Err(exchanging.late())
                }
            };
            self.last_generation = exchanging.generation;
            self.needs_poll = std::mem::take(&mut self.has_refused);
            if ended.is_ok() {
                self.filters = std::mem::take(&mut exchanging.filters);
                self.generation = exchanging.generation;
                self.begun = Begun {
                    below_bytes: exchanging.below_bytes,
                    size_bytes: self.geometry().size_bytes,
                };
            }
            self.filters.iter_mut().for_each(|one| one.resume());
            return exchanging.tell(ended);
        }
    }

    /// How many of the bytes by which the device below has grown, to `below_bytes`, the filters
    /// in use do not show.
    fn unseen_growth(&self, below_bytes: u64) -> u64 {
        let grown = below_bytes.saturating_sub(self.begun.below_bytes);
        let size_bytes = self.geometry().size_bytes;
        grown.saturating_sub(size_bytes.saturating_sub(self.begun.size_bytes))
    }

    /// Whether nothing of the filters' own is under way. All of them are told to rest, whatever
    /// the first one says.
    fn are_resting(&mut self) -> bool {
        let resting = self.filters.iter_mut().map(|one| one.rest());
        resting.fold(true, |all, one| all & one)
    }

    fn step(&mut self, exchanging: &mut Exchanging) -> Step {
        match &exchanging.phase {
            Phase::Draining => {
                for (at, one) in self.filters.iter().enumerate() {
                    if let Err(reason) = one.may_leave() {
                        return Step::Ended(Err(ExchangeError::Held { at, reason }));
                    }
                }
                if !self.are_resting() || self.under_way > 0 || self.late_flushes > 0 {
                    return Step::Wait;
                }
                exchanging.phase = match self.start_flush() {
                    Started::Busy => return Step::Wait,
                    Started::Pending => Phase::Flushing,
                    Started::Done => Phase::Flushed(Ok(())),
                    Started::Failed(error) => Phase::Flushed(Err(error)),
                };
                Step::Again
            }
            Phase::Flushing => Step::Wait,
            Phase::Flushed(Err(error)) => Step::Ended(Err(ExchangeError::Below(error.clone()))),
            Phase::Flushed(Ok(())) => match self.top().commit() {
                Ok(()) => {
                    let below_bytes = self.bottom.geometry().size_bytes;
                    let now = self.clock.monotonic();
                    exchanging.begin_opening(below_bytes, now, self.open_within);
                    Step::Again
                }
                Err(error) => Step::Ended(Err(ExchangeError::Below(error))),
            },
            Phase::Opening { ready, carries_out } => {
                let (ready, carries_out) = (*ready, *carries_out);
                match exchanging.filters.len().checked_sub(ready + 1) {
                    Some(at) if carries_out => match exchanging.filters[at].has_carried_out() {
                        true => {
                            exchanging.go_on_opening(ready + 1, self.clock.monotonic());
                            Step::Again
                        }
                        false => Step::Wait,
                    },
                    Some(at) => self.open_next(exchanging, at),
                    // A filter that works for a program may have begun something since.
                    None if !self.are_resting() => Step::Wait,
                    None => Step::Ended(exchanging.check(
                        (self.geometry(), self.capabilities()),
                        (
                            geometry_of(&exchanging.filters, &self.bottom),
                            capabilities_of(&exchanging.filters, &self.bottom),
                        ),
                        self.unseen_growth(exchanging.below_bytes),
                    )),
                }
            }
        }
    }

    /// Opens the new filter `at`; those below it may be used.
    fn open_next(&mut self, exchanging: &mut Exchanging, at: usize) -> Step {
        let (above, filters) = exchanging.filters.split_at_mut(at + 1);
        let ready = filters.len();
        let mut below = Below {
            filters,
            bottom: Bottom {
                device: &mut self.bottom,
                generation: exchanging.generation,
            },
        };
        match above[at].open(&mut below) {
            Opening::UnderWay => Step::Wait,
            Opening::Failed(reason) => Step::Ended(Err(ExchangeError::Filter { at, reason })),
            Opening::Ready => {
                if exchanging.is_first() {
                    exchanging.filters[at].resume();
                    exchanging.carry_out(ready, self.clock.monotonic());
                } else {
                    exchanging.opened(ready + 1);
                }
                Step::Again
            }
        }
    }

    /// Flushes what was acknowledged by the filters in use. What they answered in this turn
    /// of the loop comes before that, and it may begin with the commit that follows.
    fn start_flush(&mut self) -> Started {
        if !self.capabilities().can_flush {
            return Started::Done;
        }
        let mut top = self.top();
        let flushed = top.commit().map(|()| top.start(Request::flush(FLUSH)));
        match flushed.and_then(|flushed| top.commit().map(|()| flushed)) {
            Ok(flushed) => flushed,
            Err(error) => Started::Failed(error),
        }
    }
}

/// What comes after a step of an exchange.
enum Step {
    /// The next one.
    Again,
    /// The same, after the next poll.
    Wait,
    /// Nothing.
    Ended(Result<(), ExchangeError>),
}

impl<D: BlockDevice> BlockDevice for Chain<D> {
    fn geometry(&self) -> DeviceGeometry {
        geometry_of(&self.filters, &self.bottom)
    }

    fn capabilities(&self) -> Capabilities {
        capabilities_of(&self.filters, &self.bottom)
    }

    /// Starts the request on the filters, unless they are being exchanged.
    fn start(&mut self, request: Request<'_>) -> Started {
        if self.exchanging.is_some() {
            self.has_refused = true;
            return Started::Busy;
        }
        let started = self.top().start(request);
        self.under_way += u64::from(started == Started::Pending);
        started
    }

    fn commit(&mut self) -> Result<(), IoError> {
        self.top().commit()
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        self.needs_poll = false;
        self.collect(completions);
        if let Some(exchanging) = self.exchanging.take() {
            self.go_on(exchanging);
        }
    }

    fn stop_waiting(&mut self) {
        self.is_stopping = true;
        if let Some(mut exchanging) = self.exchanging.take() {
            self.late_flushes += u64::from(exchanging.phase == Phase::Flushing);
            self.last_generation = exchanging.generation;
            self.needs_poll = std::mem::take(&mut self.has_refused);
            self.filters.iter_mut().for_each(|one| one.resume());
            exchanging.tell(Err(ExchangeError::Stopped));
        }
        self.top().stop_waiting();
    }

    fn next_timer(&self) -> Option<Duration> {
        let exchanging = self.exchanging.as_ref();
        if self.needs_poll {
            return Some(Duration::ZERO);
        }
        let filters = match exchanging.filter(|one| one.is_opening()) {
            Some(exchanging) => &exchanging.filters[exchanging.begun()],
            None => &self.filters,
        };
        let now = self.clock.monotonic();
        let late = exchanging.map(|one| one.deadline.saturating_sub(now));
        // Nothing rings when a filter is not busy any more, has come to rest, or may ask again.
        let is_asked_again = exchanging.is_some_and(|one| match one.phase {
            Phase::Draining => self.under_way == 0 && self.late_flushes == 0,
            Phase::Opening { .. } => true,
            Phase::Flushing | Phase::Flushed(_) => false,
        });
        let again = is_asked_again.then_some(ASK_AGAIN_EVERY);
        let timers = timer_of(filters, &self.bottom).into_iter();
        timers.chain(late).chain(again).min()
    }
}
