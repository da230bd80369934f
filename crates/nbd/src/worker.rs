//! The thread of an export: a loop around its [`Service`].

use std::io::{self, IoSlice};
use std::sync::PoisonError;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use base::{BlockDevice, IoError};
use world::real::Waker;
use world::{Interest, Ready};

use super::desk::Failures;
use super::export::{Arrival, Command, ExportOptions, Seat, Shared, Stopped};
use super::service::Service;
use super::spin::Spinner;
use super::watcher::Watcher;
use net::Channel;
use net::{Pipe, Sent};

/// The poller's key for the thread's waker.
const WAKER: u64 = u64::MAX;

/// How often a stopping export looks whether it may go.
const STOP_TICK: Duration = Duration::from_millis(5);

/// How long replies may take to leave when an export stops: a client that does
/// not read has no claim to hold a detach up.
const STOP_SEND_TIMEOUT: Duration = Duration::from_secs(1);

/// How often, at most, it is logged that requests failed.
const FAILURES_TOLD_EVERY: Duration = Duration::from_secs(10);

/// A channel with the places it takes.
struct Line {
    channel: Channel,
    _seats: [Seat; 2],
}

impl Pipe for Line {
    fn receive(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.channel.receive(into)
    }

    fn holds_received(&self) -> bool {
        self.channel.holds_received()
    }

    fn send(&mut self, from: &[IoSlice<'_>]) -> io::Result<Sent> {
        self.channel.send(from)
    }

    fn holds_unsent(&self) -> bool {
        self.channel.holds_unsent()
    }
}

/// The thread's own things.
pub(super) struct Worker<D> {
    watcher: Watcher,
    waker: Waker,
    commands: Receiver<Command<D>>,
    options: ExportOptions,
}

/// What was logged of failed requests.
#[derive(Default)]
struct Told {
    count: u64,
    /// When more may be said.
    next: Option<Duration>,
}

type Finish<D> = Box<dyn FnOnce(D, Stopped) + Send>;

impl<D: BlockDevice> Worker<D> {
    pub(super) fn new(
        waker: Waker,
        commands: Receiver<Command<D>>,
        options: ExportOptions,
    ) -> io::Result<Self> {
        let watcher = Watcher::new()?;
        watcher.poller().add(&waker, WAKER, Interest::READABLE)?;
        Ok(Self {
            watcher,
            waker,
            commands,
            options,
        })
    }

    /// Lets the device have descriptors of its own watched.
    pub(super) fn watcher(&self) -> Watcher {
        self.watcher.clone()
    }

    /// Serves `device` until it is told to stop.
    pub(super) fn serve(self, device: D, shared: &Shared) {
        let mut service = Service::new(device, self.options.limits);
        let mut ready = Vec::new();
        let mut spinner = Spinner::default();
        let mut answered = 0;
        let mut told = Told::default();
        loop {
            let sleep = service.sleep();
            let served = service.desk().answered != answered;
            answered = service.desk().answered;
            let may_spin = !self.options.spin.is_zero() && sleep != Some(Duration::ZERO);
            if may_spin && spinner.should_spin(served) {
                spinner.spun(self.spin(&mut ready));
            }
            let finish = self.turn(&mut service, shared, sleep, &mut ready);
            self.tell_failures(&service.desk().failures, &mut told);
            if let Some(finish) = finish {
                let flushed = self.finish(&mut service, shared, &mut ready);
                finish(service.into_device(), Stopped { flushed });
                return;
            }
        }
    }

    fn tell_failures(&self, failures: &Failures, told: &mut Told) {
        let Some(error) = failures
            .last
            .as_ref()
            .filter(|_| failures.count > told.count)
        else {
            return;
        };
        let now = self.options.clock.monotonic();
        if told.next.is_none_or(|next| now >= next) {
            let (export, more) = (&self.options.name, failures.count - told.count);
            tracing::warn!(export, more, %error, "requests ended with I/O errors");
            *told = Told {
                count: failures.count,
                next: Some(now + FAILURES_TOLD_EVERY),
            };
        }
    }

    /// Looks for a moment whether something becomes ready.
    fn spin(&self, ready: &mut Vec<Ready>) -> bool {
        let clock = &self.options.clock;
        let until = clock.monotonic() + self.options.spin;
        loop {
            let waited = self.watcher.poller().wait(Some(Duration::ZERO), ready);
            waited.expect("an epoll of this thread can be waited on");
            if !ready.is_empty() {
                return true;
            }
            if clock.monotonic() >= until {
                return false;
            }
            std::hint::spin_loop();
        }
    }

    fn turn(
        &self,
        service: &mut Service<D, Line>,
        shared: &Shared,
        sleep: Option<Duration>,
        ready: &mut Vec<Ready>,
    ) -> Option<Finish<D>> {
        if ready.is_empty() {
            let waited = self.watcher.poller().wait(sleep, ready);
            waited.expect("an epoll of this thread can be waited on");
        }
        let mut stop = None;
        for ready in ready.drain(..) {
            if ready.key == WAKER {
                self.waker.clear();
                stop = self.obey(service, shared);
            } else if !self.watcher.note(ready) {
                service.ready(ready);
            }
        }
        service.turn();
        while let Some((key, line, interest)) = service.next_changed() {
            if let Err(error) = self.watcher.poller().modify(&line.channel, key, interest) {
                tracing::error!(%error, "a connection cannot be watched any more");
            }
        }
        let had_failure = service.failure().is_some();
        shared.publish(service.desk().geometry);
        if had_failure {
            let mut failure = shared
                .failure
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            *failure = service.failure().map(ToString::to_string);
        }
        service.hang_up();
        stop
    }

    fn obey(&self, service: &mut Service<D, Line>, shared: &Shared) -> Option<Finish<D>> {
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Command::Arrive(arrival) => self.welcome(service, *arrival),
                Command::Run(action) => {
                    let desk = service.desk();
                    let then = action(&mut desk.device);
                    shared.publish_all(&desk.device);
                    service.device_was_used();
                    then();
                }
                Command::Stop(finish) => return Some(finish),
            }
        }
        None
    }

    fn welcome(&self, service: &mut Service<D, Line>, arrival: Arrival) {
        let line = Line {
            channel: arrival.channel,
            _seats: arrival.seats,
        };
        let key = service.next_key();
        match self
            .watcher
            .poller()
            .add(&line.channel, key, Interest::READABLE)
        {
            Ok(()) => {
                let mut settings = arrival.settings;
                settings.read_only |= self.options.read_only;
                let opened = service.open(line, settings, &arrival.replies, &arrival.received);
                debug_assert_eq!(opened, key);
            }
            Err(error) => tracing::error!(%error, "a connection cannot be watched"),
        }
    }

    /// Steps 1 to 5 of an export's end.
    fn finish(
        &self,
        service: &mut Service<D, Line>,
        shared: &Shared,
        ready: &mut Vec<Ready>,
    ) -> Result<(), IoError> {
        let clock = &self.options.clock;
        service.refuse_requests();
        let deadline = clock.monotonic() + self.options.stop_timeout;
        let flushed = loop {
            if let Some(flushed) = service.flush() {
                break flushed;
            }
            if clock.monotonic() >= deadline {
                let message = "the device did not finish in time".into();
                break Err(IoError::Unavailable(message));
            }
            let sleep = service
                .sleep()
                .map_or(STOP_TICK, |sleep| sleep.min(STOP_TICK));
            let _ = self.turn(service, shared, Some(sleep), ready);
        };
        let deadline = clock.monotonic() + STOP_SEND_TIMEOUT;
        while !service.all_sent() && clock.monotonic() < deadline {
            let sleep = service
                .sleep()
                .map_or(STOP_TICK, |sleep| sleep.min(STOP_TICK));
            let _ = self.turn(service, shared, Some(sleep), ready);
        }
        flushed
    }
}
