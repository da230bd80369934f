//! A link's thread: from requests that wait to a connection, and back.
//!
//! The daemon's own address is tried first. If it does not answer, others are
//! that may pass the connection on; and as long as one of these does, the own one
//! is tried beside it. When that answers, nothing more is sent the long way, and
//! what was is waited for.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Duration;

use channel::{Channel, Outbox, Pipe as _};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};
use world::real::{Poller, Stream};
use world::{Endpoint, Interest, Ready};

use super::link::{ANSWER_WITHIN, Asked, LinkConfig, Shared, stopping};
use super::{Conversation, Greeted, Reply};
use crate::wire::Request;

/// A connection is there and greeted within this.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// Or within this, if another one can be tried.
const DETOUR_AFTER: Duration = Duration::from_secs(1);

/// How often a daemon's own address is tried while it is reached through another.
const TRY_OWN_EVERY: Duration = Duration::from_secs(30);

/// How long nothing is tried after a failure: at first, and at most.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// How often it is looked whether an answer is overdue.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Received at once, in bytes.
const RECEIVE_BYTES: usize = 256 << 10;

/// The poller's keys.
pub(super) const BELL: u64 = 0;
const SOCKET: u64 = 1;
const OWN: u64 = 2;

/// The link's thread.
pub(super) struct Driver {
    shared: Arc<Shared>,
    poller: Poller,
    /// How long nothing is tried after the next failure.
    pause: Duration,
}

/// A connection that is there.
struct Connected {
    channel: Channel,
    conversation: Conversation,
    out: Outbox,
    /// If it goes through another daemon.
    detour: Option<Detour>,
}

/// The own address, while another one is used.
struct Detour {
    own: Endpoint,
    /// When to try it next.
    next: Duration,
    trial: Option<Stream>,
    /// It has answered.
    is_over: bool,
}

/// How a connection has ended.
enum End {
    /// Nobody waits for anything that was asked on it; there is a shorter way.
    Detour,
    /// It broke, or the link ends.
    Broken(Arc<io::Error>),
}

impl Driver {
    pub fn new(shared: Arc<Shared>, poller: Poller) -> Self {
        Self {
            shared,
            poller,
            pause: PAUSE_MIN,
        }
    }

    pub fn run(mut self) {
        loop {
            if self.wait_for_work() {
                break;
            }
            let end = match self.connect() {
                Ok(connected) => self.serve(connected),
                Err(error) => End::Broken(Arc::new(error)),
            };
            self.shared.lock().via = None;
            match end {
                End::Detour => {}
                End::Broken(why) => self.fail(&why),
            }
        }
        self.fail(&Arc::new(stopping()));
    }

    /// Waits until something is asked and no pause is over it; `true`: it ends.
    fn wait_for_work(&self) -> bool {
        let mut ready = Vec::new();
        loop {
            {
                let state = self.shared.lock();
                if state.is_stopping {
                    return true;
                }
                if !state.asked.is_empty() {
                    return false;
                }
            }
            // Nobody waits: there is nothing to connect for.
            self.wait(None, &mut ready);
        }
    }

    fn wait(&self, timeout: Option<Duration>, ready: &mut Vec<world::Ready>) {
        let waited = self.poller.wait(timeout, ready);
        waited.expect("an epoll of this thread can be waited on");
        if ready.iter().any(|ready| ready.key == BELL) {
            self.shared.bell.clear();
        }
    }

    /// Whoever waits is told why there is no connection.
    fn fail(&mut self, why: &Arc<io::Error>) {
        let asked = {
            let mut state = self.shared.lock();
            let until = self.shared.clock.monotonic() + self.pause;
            state.pause = Some((until, Arc::clone(why)));
            state.outbox.clear();
            std::mem::take(&mut state.asked)
        };
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        for asked in asked {
            (asked.done)(Err(Arc::clone(why)));
        }
        self.shared.room.notify_all();
    }

    /// The first endpoint that answers.
    fn connect(&mut self) -> io::Result<Connected> {
        let config = self.shared.lock().config.clone();
        let Some(tls) = &config.tls else {
            let reason = "this host has no certificate for unit daemons yet";
            return Err(io::Error::new(ErrorKind::NotConnected, reason));
        };
        let mut detours = (config.detours)();
        detours.retain(|detour| *detour != config.own);
        let within = match detours.is_empty() {
            true => CONNECT_WITHIN,
            false => DETOUR_AFTER,
        };
        // What is said of the unit is what its own daemon has to do with.
        let failure = match self.connect_to(&config.own, within, &config, tls) {
            Ok(connected) => return Ok(connected),
            Err(error) => io::Error::new(error.kind(), format!("{}: {error}", config.own)),
        };
        for detour in &detours {
            if self.shared.lock().is_stopping {
                return Err(stopping());
            }
            // Why there is no way through is less than why there is none but that.
            if let Ok(mut connected) = self.connect_to(detour, DETOUR_AFTER, &config, tls) {
                connected.detour = Some(Detour {
                    own: config.own.clone(),
                    next: self.shared.clock.monotonic() + TRY_OWN_EVERY,
                    trial: None,
                    is_over: false,
                });
                return Ok(connected);
            }
        }
        Err(failure)
    }

    fn connect_to(
        &self,
        endpoint: &Endpoint,
        within: Duration,
        config: &LinkConfig,
        tls: &Arc<ClientConfig>,
    ) -> io::Result<Connected> {
        let deadline = self.shared.clock.monotonic() + within;
        let stream = Stream::connect(endpoint)?;
        let interest = Interest {
            readable: false,
            writable: true,
        };
        self.poller.add(&stream, SOCKET, interest)?;
        loop {
            self.wait_until(deadline)?;
            match stream.connected() {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                other => break other?,
            }
        }
        let name = ServerName::try_from(config.unit.to_string()).map_err(io::Error::other)?;
        let tls = ClientConnection::new(Arc::clone(tls), name).map_err(io::Error::other)?;
        let mut out = Outbox::default();
        let conversation = Conversation::begin(config.unit, config.cluster, out.bytes());
        let mut connected = Connected {
            channel: Channel::with_tls(stream, tls.into()),
            conversation,
            out,
            detour: None,
        };
        let mut buffer = vec![0; RECEIVE_BYTES];
        loop {
            let is_blocked = connected.send()?;
            self.watch(&connected, is_blocked)?;
            self.wait_until(deadline)?;
            if let Greeted::Now(greeting) = connected.receive(&mut buffer)? {
                let mut state = self.shared.lock();
                state.under_way_max = greeting.held_bytes_max as usize / 2;
                state.via = Some(endpoint.clone());
                return Ok(connected);
            }
        }
    }

    fn watch(&self, connected: &Connected, writable: bool) -> io::Result<()> {
        let interest = Interest {
            readable: true,
            writable,
        };
        self.poller.modify(&connected.channel, SOCKET, interest)
    }

    /// Waits for the socket.
    fn wait_until(&self, deadline: Duration) -> io::Result<()> {
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
            if ready.iter().any(|ready| ready.key == SOCKET) {
                return Ok(());
            }
        }
    }

    /// Carries requests and answers until the connection ends.
    fn serve(&mut self, mut connected: Connected) -> End {
        let why = match self.carry(&mut connected) {
            Ok(true) => return End::Detour,
            Ok(false) => stopping(),
            Err(error) => error,
        };
        let why = Arc::new(why);
        connected.conversation.lose(&why);
        End::Broken(why)
    }

    /// Returns when the link is to end, or (`true`) there is a shorter way.
    fn carry(&mut self, connected: &mut Connected) -> io::Result<bool> {
        self.show_again(connected);
        let mut buffer = vec![0; RECEIVE_BYTES];
        let mut ready = Vec::new();
        loop {
            let is_over = connected.is_detour_over();
            if self.shared.lock().is_stopping {
                return Ok(false);
            }
            if !is_over {
                self.take_asked(connected);
            }
            let is_blocked = connected.send()?;
            let is_waiting = connected.conversation.waiting() > 0;
            if is_over && !is_waiting {
                return Ok(true);
            }
            self.watch(connected, is_blocked)?;
            let timeout = match () {
                () if connected.channel.holds_received() => Some(Duration::ZERO),
                () => (is_waiting || connected.detour.is_some()).then_some(LOOK_EVERY),
            };
            self.wait(timeout, &mut ready);
            self.try_own(connected, &ready);
            let is_ready = ready.iter().any(|ready| ready.key == SOCKET);
            if is_ready || connected.channel.holds_received() {
                connected.receive(&mut buffer)?;
                self.pause = PAUSE_MIN;
            }
            let now = self.shared.clock.monotonic();
            if connected.conversation.is_overdue(now) {
                let reason = "its daemon does not answer";
                return Err(io::Error::new(ErrorKind::TimedOut, reason));
            }
        }
    }

    /// Looks now and then whether there is a shorter way.
    fn try_own(&self, connected: &mut Connected, ready: &[Ready]) {
        let Some(detour) = &mut connected.detour else {
            return;
        };
        let now = self.shared.clock.monotonic();
        if let Some(trial) = &detour.trial {
            let is_told = ready.iter().any(|ready| ready.key == OWN);
            detour.is_over |= is_told && trial.connected().is_ok();
            // Whether it answers at all is what was asked.
            if is_told || now >= detour.next {
                detour.trial = None;
            }
        } else if now >= detour.next && !detour.is_over {
            detour.next = now + TRY_OWN_EVERY;
            let interest = Interest {
                readable: false,
                writable: true,
            };
            let trial = Stream::connect(&detour.own)
                .and_then(|trial| self.poller.add(&trial, OWN, interest).map(|()| trial));
            detour.trial = trial.ok();
        }
    }

    /// What was shown on connections before.
    fn show_again(&self, connected: &mut Connected) {
        let mut state = self.shared.lock();
        state.pause = None;
        let now = self.shared.clock.monotonic();
        state.shown.retain(|(_, ends)| *ends > now);
        for (capability, _) in state.shown.clone() {
            state.last_tag += 1;
            Request::Show(&capability).encode(state.last_tag, connected.out.bytes());
            // Who uses it is told if it is refused.
            let done = Box::new(|_: Result<Reply<'_>, Arc<io::Error>>| {});
            connected
                .conversation
                .expect(state.last_tag, now + ANSWER_WITHIN, done);
        }
    }

    /// Takes what was asked.
    fn take_asked(&self, connected: &mut Connected) {
        let mut state = self.shared.lock();
        let out = connected.out.bytes();
        match out.is_empty() {
            true => std::mem::swap(out, &mut state.outbox),
            false => out.append(&mut state.outbox),
        }
        let asked = std::mem::take(&mut state.asked);
        drop(state);
        let now = self.shared.clock.monotonic();
        for Asked { tag, within, done } in asked {
            connected.conversation.expect(tag, now + within, done);
        }
    }
}

impl Connected {
    fn is_detour_over(&self) -> bool {
        self.detour.as_ref().is_some_and(|detour| detour.is_over)
    }

    /// Sends what there is; whether the socket takes no more.
    fn send(&mut self) -> io::Result<bool> {
        self.out.send(&mut self.channel)
    }

    fn receive(&mut self, buffer: &mut [u8]) -> io::Result<Greeted> {
        let received = match self.channel.receive(buffer) {
            Ok(0) => {
                let reason = "its daemon has closed the connection";
                return Err(io::Error::new(ErrorKind::UnexpectedEof, reason));
            }
            Ok(count) => &buffer[..count],
            Err(error) if error.kind() == ErrorKind::WouldBlock => &[],
            Err(error) => return Err(error),
        };
        let greeted = self.conversation.receive(received);
        greeted.map_err(|broken| io::Error::new(ErrorKind::InvalidData, broken))
    }
}
