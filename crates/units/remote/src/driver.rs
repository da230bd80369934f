//! The thread of a link: it connects when requests are pending, sends them, and receives the
//! answers.
//!
//! The daemon's own address is tried first. If it does not answer, other daemons are tried, which
//! may relay the connection. While one of these does, the own address is tried beside it. Once
//! that connection has its greeting, new requests are sent on it, and the relayed one is only
//! kept for the answers that are outstanding. A new certificate of this host is handled the same
//! way: answers to requests under the old one are waited for, and later requests use the new.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Duration;

use net::Pipe as _;
use rustls::ClientConfig;
use unit_wire::Request;
use world::real::Poller;
use world::{Endpoint, Interest, Ready};

use super::attempt::{Attempt, Connected, RECEIVE_BYTES};
use super::link::{DEVICE_TIMEOUT, LinkConfig, PendingRequest, Shared, stopping};
use super::{Conversation, Pauses, Reply};

/// Time for establishing a connection, on any path.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// Time for one path, if there are others.
const DETOUR_AFTER: Duration = Duration::from_secs(1);

/// Interval at which a daemon's own address is tried while another daemon relays.
const TRY_OWN_EVERY: Duration = Duration::from_secs(30);

/// Interval at which overdue answers are looked for.
const CHECK_EVERY: Duration = Duration::from_millis(500);

/// The poller's keys. A connection has the key of its attempt; the next attempt gets the other.
pub(super) const WAKER: u64 = 0;
const SOCKETS: [u64; 2] = [1, 2];

/// The link's thread.
pub(super) struct Driver {
    shared: Arc<Shared>,
    poller: Poller,
    pauses: Pauses,
}

/// The connection in use.
struct CurrentConnection {
    connected: Connected,
    detour: Option<Detour>,
}

/// Attempts to reach the own address, while another daemon relays.
struct Detour {
    /// When to try the own address next.
    next: Duration,
    trial: Option<Attempt>,
    /// The connection to the own address, once it has its greeting.
    own: Option<Connected>,
}

/// How a connection ended.
enum End {
    /// No answers are outstanding. Holds a better connection, if there is one.
    Unneeded(Option<Connected>),
    /// It broke, or the link is being dropped. Holds the outstanding requests.
    Broken(io::Error, Option<Conversation>),
}

impl Driver {
    pub fn new(shared: Arc<Shared>, poller: Poller) -> Self {
        Self {
            shared,
            poller,
            pauses: Pauses::default(),
        }
    }

    pub fn run(mut self) {
        let mut next = None;
        loop {
            if next.is_none() && self.wait_for_work() {
                break;
            }
            let used = match next.take() {
                Some(connected) => Ok(CurrentConnection {
                    connected,
                    detour: None,
                }),
                None => self.connect(),
            };
            let end = match used {
                Ok(used) => self.serve(used),
                Err(error) => End::Broken(error, None),
            };
            self.shared.lock().via = None;
            match end {
                End::Unneeded(better) => next = better,
                End::Broken(why, lost) => self.fail(&Arc::new(why), lost),
            }
        }
        self.fail(&Arc::new(stopping()), None);
    }

    /// Waits until a request is pending. Returns `true` if the link is being dropped.
    fn wait_for_work(&self) -> bool {
        let mut ready = Vec::new();
        loop {
            {
                let state = self.shared.lock();
                if state.is_stopping {
                    return true;
                }
                if !state.pending.is_empty() {
                    return false;
                }
            }
            // Without a request there is no need to connect.
            self.wait(None, &mut ready);
        }
    }

    fn wait(&self, timeout: Option<Duration>, ready: &mut Vec<world::Ready>) {
        let waited = self.poller.wait(timeout, ready);
        waited.expect("an epoll of this thread can be waited on");
        if ready.iter().any(|ready| ready.key == WAKER) {
            self.shared.waker.clear();
        }
    }

    /// Fails the pending and the outstanding requests. The pause is set before, so that a caller
    /// that retries at once sees it.
    fn fail(&mut self, why: &Arc<io::Error>, lost: Option<Conversation>) {
        let pause_until = self.pauses.failed(self.shared.clock.monotonic(), why);
        let pending = {
            let mut state = self.shared.lock();
            state.pause = Some((pause_until, Arc::clone(why)));
            state.is_unavailable = true;
            state.outbox.clear();
            std::mem::take(&mut state.pending)
        };
        if let Some(lost) = lost {
            lost.lose(why);
        }
        for request in pending {
            (request.done)(Err(Arc::clone(why)));
        }
        self.shared.room.notify_all();
    }

    /// Connects to the first endpoint that answers.
    fn connect(&mut self) -> io::Result<CurrentConnection> {
        self.pauses.connects();
        let config = self.shared.lock().config.clone();
        let Some(tls) = &config.tls else {
            let reason = "this host has no certificate for unit daemons yet";
            return Err(io::Error::new(ErrorKind::NotConnected, reason));
        };
        let mut detours = (config.detours)();
        detours.retain(|detour| *detour != config.own);
        let begun = self.shared.clock.monotonic();
        let within = match detours.is_empty() {
            true => CONNECT_WITHIN,
            false => DETOUR_AFTER,
        };
        // The error that is reported is that of the unit's own daemon.
        let failure = match self.connect_to(&config.own, begun + within, &config, tls) {
            Ok(connected) => {
                return Ok(CurrentConnection {
                    connected,
                    detour: None,
                });
            }
            Err(error) => io::Error::new(error.kind(), format!("{}: {error}", config.own)),
        };
        for detour in &detours {
            let now = self.shared.clock.monotonic();
            if self.shared.lock().is_stopping {
                return Err(stopping());
            }
            let deadline = (now + DETOUR_AFTER).min(begun + CONNECT_WITHIN);
            // The error of the own address says more than that of a relay.
            if let Ok(connected) = self.connect_to(detour, deadline, &config, tls) {
                let detour = Some(Detour {
                    next: self.shared.clock.monotonic() + TRY_OWN_EVERY,
                    trial: None,
                    own: None,
                });
                return Ok(CurrentConnection { connected, detour });
            }
        }
        Err(failure)
    }

    fn connect_to(
        &self,
        endpoint: &Endpoint,
        deadline: Duration,
        config: &LinkConfig,
        tls: &Arc<ClientConfig>,
    ) -> io::Result<Connected> {
        let key = SOCKETS[0];
        let mut attempt = Attempt::begin(&self.poller, key, endpoint, config, tls, deadline)?;
        loop {
            self.wait_until(key, deadline)?;
            if let Some(connected) = attempt.advance(&self.poller)? {
                return Ok(connected);
            }
        }
    }

    fn watch(&self, connected: &Connected, writable: bool) -> io::Result<()> {
        let interest = Interest {
            readable: true,
            writable,
        };
        self.poller
            .modify(&connected.channel, connected.key, interest)
    }

    /// Stops polling a connection until it is used: its bytes would keep the thread from sleeping
    /// while it waits for another connection.
    fn unwatch(&self, connected: &Connected) -> io::Result<()> {
        let interest = Interest {
            readable: false,
            writable: false,
        };
        self.poller
            .modify(&connected.channel, connected.key, interest)
    }

    /// Waits for the socket.
    fn wait_until(&self, key: u64, deadline: Duration) -> io::Result<()> {
        let mut ready = Vec::new();
        loop {
            let now = self.shared.clock.monotonic();
            if now >= deadline {
                return Err(ErrorKind::TimedOut.into());
            }
            if self.shared.lock().is_stopping {
                return Err(stopping());
            }
            self.wait(Some(deadline - now), &mut ready);
            if ready.iter().any(|ready| ready.key == key) {
                return Ok(());
            }
        }
    }

    /// Sends requests and receives answers until the connection ends.
    fn serve(&mut self, mut used: CurrentConnection) -> End {
        {
            let mut state = self.shared.lock();
            let greeting = &used.connected.greeting;
            state.in_flight_bytes_max = greeting.held_bytes_max as usize / 2;
            state.via = Some(used.connected.endpoint.clone());
            state.pause = None;
            state.is_unavailable = false;
        }
        let why = match self.exchange(&mut used) {
            Ok(true) => return End::Unneeded(used.detour.and_then(|detour| detour.own)),
            Ok(false) => stopping(),
            Err(error) => error,
        };
        End::Broken(why, Some(used.connected.conversation))
    }

    /// Returns `false` if the link is being dropped, and `true` if no answers are outstanding and
    /// the connection is not used any more.
    fn exchange(&mut self, used: &mut CurrentConnection) -> io::Result<bool> {
        self.present_capabilities(&mut used.connected);
        let mut buffer = vec![0; RECEIVE_BYTES];
        let mut ready = Vec::new();
        loop {
            let CurrentConnection { connected, detour } = &mut *used;
            let has_own = detour.as_ref().is_some_and(|detour| detour.own.is_some());
            let is_over = {
                let state = self.shared.lock();
                if state.is_stopping {
                    return Ok(false);
                }
                // Whether the certificate was renewed.
                let tls = state.config.tls.as_ref();
                has_own || tls.is_some_and(|tls| !Arc::ptr_eq(tls, &connected.tls))
            };
            if !is_over {
                self.take_pending(connected);
            }
            let is_blocked = connected.send()?;
            let is_waiting = connected.conversation.waiting() > 0;
            if is_over && !is_waiting {
                return Ok(true);
            }
            self.watch(connected, is_blocked)?;
            let timeout = match () {
                () if connected.channel.holds_received() => Some(Duration::ZERO),
                () => (is_waiting || detour.is_some()).then_some(CHECK_EVERY),
            };
            self.wait(timeout, &mut ready);
            if let Some(detour) = detour {
                self.try_own(detour, connected, &ready);
            }
            let is_ready = ready.iter().any(|ready| ready.key == connected.key);
            if is_ready || connected.channel.holds_received() {
                match connected.receive(&mut buffer) {
                    // Closing an idle connection is no failure.
                    Err(error)
                        if error.kind() == ErrorKind::UnexpectedEof
                            && connected.conversation.waiting() == 0 =>
                    {
                        return Ok(true);
                    }
                    other => other?,
                };
                self.pauses.answered();
            }
            let now = self.shared.clock.monotonic();
            if connected.conversation.is_overdue(now) {
                let reason = "the daemon does not respond";
                return Err(io::Error::new(ErrorKind::TimedOut, reason));
            }
        }
    }

    /// Tries the own address at intervals, until its daemon has sent its greeting.
    fn try_own(&self, detour: &mut Detour, connected: &Connected, ready: &[Ready]) {
        if detour.own.is_some() {
            return;
        }
        let now = self.shared.clock.monotonic();
        let key = SOCKETS[usize::from(connected.key == SOCKETS[0])];
        if let Some(trial) = &mut detour.trial {
            let is_reported = ready.iter().any(|ready| ready.key == key);
            let advanced = match is_reported {
                true => trial.advance(&self.poller),
                false => Ok(None),
            };
            match advanced {
                Ok(None) if now < trial.deadline => {}
                Ok(own) => {
                    detour.own = own.filter(|own| self.unwatch(own).is_ok());
                    detour.trial = None;
                }
                // The next interval tries again.
                Err(_) => detour.trial = None,
            }
        } else if now >= detour.next {
            detour.next = now + TRY_OWN_EVERY;
            let config = self.shared.lock().config.clone();
            let tls = &connected.tls;
            let deadline = now + CONNECT_WITHIN;
            let trial = Attempt::begin(&self.poller, key, &config.own, &config, tls, deadline);
            detour.trial = trial.ok();
        }
    }

    /// Sends the capabilities of this host before any request.
    fn present_capabilities(&self, connected: &mut Connected) {
        let capabilities = self.shared.lock().config.capabilities.clone();
        // Called without the link's lock, because the callee has its own.
        let capabilities = capabilities();
        let mut state = self.shared.lock();
        let now = self.shared.clock.monotonic();
        for capability in capabilities {
            state.last_tag += 1;
            Request::Present(&capability).encode(state.last_tag, connected.out.bytes());
            // If it is refused, the requests that need it are refused too.
            let done = Box::new(|_: Result<Reply<'_>, Arc<io::Error>>| {});
            connected
                .conversation
                .expect(state.last_tag, now + DEVICE_TIMEOUT, done);
        }
    }

    /// Takes the pending requests and their frames.
    fn take_pending(&self, connected: &mut Connected) {
        let mut state = self.shared.lock();
        let out = connected.out.bytes();
        match out.is_empty() {
            true => std::mem::swap(out, &mut state.outbox),
            false => out.append(&mut state.outbox),
        }
        let pending = std::mem::take(&mut state.pending);
        drop(state);
        let now = self.shared.clock.monotonic();
        for PendingRequest { tag, timeout, done } in pending {
            connected.conversation.expect(tag, now + timeout, done);
        }
    }
}
