//! [`Worker`]: the thread of an export, a loop around its [`Service`].

use std::io::{self, IoSlice};
use std::sync::mpsc::Receiver;
use std::time::Duration;

use base::{BlockDevice, IoError};
use world::real::Waker;
use world::{Interest, Ready};

use super::export::{Command, ConnectionPermit, ExportOptions, NewConnection, Shared, Stopped};
use super::export_state::Failures;
use super::service::Service;
use super::spin::Spinner;
use super::watcher::Watcher;
use net::Channel;
use net::{Pipe, Sent};

/// The poller's key of the thread's waker.
const WAKER: u64 = u64::MAX;

/// The maximal time between two checks whether a stopping export has ended.
const STOP_TICK: Duration = Duration::from_millis(5);

/// The maximal time to send replies when an export stops, so that a client that does not read
/// cannot delay a detach.
const STOP_SEND_TIMEOUT: Duration = Duration::from_secs(1);

/// The minimal time between two logs of failed requests.
const FAILURE_LOG_INTERVAL: Duration = Duration::from_secs(10);

/// A channel with its connection permits.
struct PermittedChannel {
    channel: Channel,
    _permits: [ConnectionPermit; 2],
}

impl Pipe for PermittedChannel {
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

/// The thread of an export, before and while it serves a device.
pub(super) struct Worker<D> {
    watcher: Watcher,
    waker: Waker,
    commands: Receiver<Command<D>>,
    options: ExportOptions,
}

/// Which failed requests have been logged.
#[derive(Default)]
struct FailureLog {
    /// The number of failed requests that the logs cover.
    count: u64,
    /// When the next log is allowed.
    next_at: Option<Duration>,
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

    /// A watcher for the sockets of the device.
    pub(super) fn watcher(&self) -> Watcher {
        self.watcher.clone()
    }

    /// Serves `device` until a command stops the export.
    pub(super) fn serve(self, device: D, shared: &Shared) {
        let mut service = Service::new(device, self.options.limits);
        let mut ready = Vec::new();
        let mut spinner = Spinner::default();
        let mut answered = 0;
        let mut failure_log = FailureLog::default();
        loop {
            let sleep = service.next_timer();
            let served = service.state().answered != answered;
            answered = service.state().answered;
            let may_spin = !self.options.spin.is_zero() && sleep != Some(Duration::ZERO);
            if may_spin && spinner.should_spin(served) {
                spinner.record_spin(self.spin(&mut ready));
            }
            let finish = self.turn(&mut service, shared, sleep, &mut ready);
            self.log_failures(&service.state().failures, &mut failure_log);
            if let Some(finish) = finish {
                let flushed = self.finish(&mut service, shared, &mut ready);
                finish(service.into_device(), Stopped { flushed });
                return;
            }
        }
    }

    fn log_failures(&self, failures: &Failures, log: &mut FailureLog) {
        let Some(error) = failures
            .last
            .as_ref()
            .filter(|_| failures.count > log.count)
        else {
            return;
        };
        let now = self.options.clock.monotonic();
        if log.next_at.is_none_or(|next| now >= next) {
            let (export, more) = (&self.options.name, failures.count - log.count);
            tracing::warn!(export, more, %error, "device failed requests of NBD clients");
            *log = FailureLog {
                count: failures.count,
                next_at: Some(now + FAILURE_LOG_INTERVAL),
            };
        }
    }

    /// Polls for a short time whether something becomes ready.
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
        service: &mut Service<D, PermittedChannel>,
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
                stop = self.run_commands(service, shared);
            } else if !self.watcher.record(ready) {
                service.ready(ready);
            }
        }
        service.turn();
        while let Some((key, channel, interest)) = service.next_changed() {
            if let Err(error) = self
                .watcher
                .poller()
                .modify(&channel.channel, key, interest)
            {
                tracing::error!(%error, "NBD server cannot watch connection");
            }
        }
        let had_failure = service.failure().is_some();
        shared.publish(service.state().geometry);
        if had_failure {
            let mut failure = shared.failure.lock();
            *failure = service.failure().map(ToString::to_string);
        }
        service.hang_up();
        stop
    }

    /// Runs the commands that have arrived. Returns the closure of one that stops the export.
    fn run_commands(
        &self,
        service: &mut Service<D, PermittedChannel>,
        shared: &Shared,
    ) -> Option<Finish<D>> {
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Command::AddConnection(connection) => self.add_connection(service, *connection),
                Command::Run(action) => {
                    let state = service.state();
                    let after_publish = action(&mut state.device);
                    shared.publish_all(&state.device);
                    service.device_was_used();
                    after_publish();
                }
                Command::Stop(finish) => return Some(finish),
            }
        }
        None
    }

    fn add_connection(&self, service: &mut Service<D, PermittedChannel>, new: NewConnection) {
        let channel = PermittedChannel {
            channel: new.channel,
            _permits: new.permits,
        };
        let key = service.next_key();
        match self
            .watcher
            .poller()
            .add(&channel.channel, key, Interest::READABLE)
        {
            Ok(()) => {
                let mut settings = new.settings;
                settings.read_only |= self.options.read_only;
                let opened = service.open(channel, settings, &new.replies, &new.received);
                debug_assert_eq!(opened, key);
            }
            Err(error) => tracing::error!(%error, "NBD server cannot watch connection"),
        }
    }

    /// Steps 1 to 5 of the end of an export; see the head of `export`.
    fn finish(
        &self,
        service: &mut Service<D, PermittedChannel>,
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
                let message = "the device did not complete its requests in time".into();
                break Err(IoError::Unavailable(message));
            }
            let sleep = service
                .next_timer()
                .map_or(STOP_TICK, |sleep| sleep.min(STOP_TICK));
            let _ = self.turn(service, shared, Some(sleep), ready);
        };
        let deadline = clock.monotonic() + STOP_SEND_TIMEOUT;
        while !service.all_sent() && clock.monotonic() < deadline {
            let sleep = service
                .next_timer()
                .map_or(STOP_TICK, |sleep| sleep.min(STOP_TICK));
            let _ = self.turn(service, shared, Some(sleep), ready);
        }
        flushed
    }
}
