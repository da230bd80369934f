//! A link over TCP and TLS: one thread, which keeps one connection to a unit's
//! daemon as long as there is one to be had.
//!
//! ```text
//!   ask ──► outbox ──bell──► thread: connect, greet, show, then: send what is in
//!           (encoded)                the outbox, receive, tell whoever asked
//!                                      │ broken, silent or refused
//!                                      ▼
//!                            everybody who waits is told; again after a pause,
//!                            during which whoever asks is told at once
//! ```
//!
//! Invariants:
//!
//! * A request is sent on one connection only. Whether it was carried out when
//!   that broke nobody knows, and whoever asked decides.
//! * Capabilities that were shown are shown again on each new connection,
//!   before anything is asked on it.
//! * Requests and the answers to come take no more than the daemon holds;
//!   beyond that, whoever asks waits.

use std::io::{self, ErrorKind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use base::{ClusterId, UnitId};
use channel::{Channel, Outbox, Pipe as _};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};
use world::real::{Bell, Poller, Stream};
use world::{Clock, Endpoint, Interest, Millis};

use super::conversation::HELLO;
use super::{Conversation, Done, Greeted, Link, Reply};
use crate::wire::{HEAD_BYTES, Request};

/// A daemon answers within this, or it is taken for gone.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// Likewise what waits for a device, or reads much.
const WORK_WITHIN: Duration = Duration::from_secs(30);

/// A connection is there and greeted within this.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// How long nothing is tried after a failure: at first, and at most.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// How often it is looked whether an answer is overdue.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// What may be under way, in bytes, until the daemon has said what it holds.
const UNDER_WAY_MAX: usize = 1 << 20;

/// Received at once, in bytes.
const RECEIVE_BYTES: usize = 256 << 10;

/// The poller's keys.
const BELL: u64 = 0;
const SOCKET: u64 = 1;

/// To which daemon, and as whom.
#[derive(Clone)]
pub struct LinkConfig {
    /// The cluster.
    pub cluster: ClusterId,
    /// The unit.
    pub unit: UnitId,
    /// Where its daemon listens; then where daemons do that may pass
    /// connections on. The first that answers is taken.
    pub endpoints: Vec<Endpoint>,
    /// Who this host is, and by what a daemon is known; nothing is tried before it
    /// is there.
    pub tls: Option<Arc<ClientConfig>>,
}

/// A link to one unit's daemon. Dropping it ends the thread; whoever still
/// waits is told.
pub struct TlsLink {
    shared: Arc<Shared>,
    thread: Option<thread::JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    /// Rings when there is room for another request.
    room: Condvar,
    bell: Bell,
    clock: Arc<dyn Clock>,
}

struct State {
    config: LinkConfig,
    /// Frames to be sent, and who waits for their answers.
    outbox: Vec<u8>,
    asked: Vec<Asked>,
    last_tag: u64,
    /// Of requests that are not answered, with their answers, in bytes.
    under_way: usize,
    under_way_max: usize,
    /// Capabilities, until they end by this host's clock.
    shown: Vec<(Arc<[u8]>, Millis)>,
    /// Nothing is tried before then, and this is why.
    pause: Option<(Duration, Arc<io::Error>)>,
    is_stopping: bool,
}

struct Asked {
    tag: u64,
    /// It is answered within so long of being sent.
    within: Duration,
    done: Done,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TlsLink {
    /// Starts the thread; it connects when something is asked.
    ///
    /// # Errors
    /// If the process has no thread or no file descriptor left.
    pub fn start(config: LinkConfig, clock: Arc<dyn Clock>) -> io::Result<Self> {
        let bell = Bell::new()?;
        let poller = Poller::new()?;
        poller.add(&bell, BELL, Interest::READABLE)?;
        let name = format!("link-{}", config.unit);
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                config,
                outbox: Vec::new(),
                asked: Vec::new(),
                last_tag: HELLO,
                under_way: 0,
                under_way_max: UNDER_WAY_MAX,
                shown: Vec::new(),
                pause: None,
                is_stopping: false,
            }),
            room: Condvar::new(),
            bell,
            clock,
        });
        let driver = Driver {
            shared: Arc::clone(&shared),
            poller,
            pause: PAUSE_MIN,
        };
        #[expect(
            clippy::disallowed_methods,
            reason = "it lasts as long as the link: no job for a pool"
        )]
        let thread = thread::Builder::new().name(name).spawn(|| driver.run())?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// From the next connection on, which may be tried at once.
    pub fn set_config(&self, config: LinkConfig) {
        let mut state = self.shared.lock();
        state.config = config;
        state.pause = None;
    }

    /// Shows a capability, now if there is a connection, and on each new one
    /// until it `ends`. `done` is told what came of it the first time.
    pub fn show(&self, capability: Arc<[u8]>, ends: Millis, done: Done) {
        let now = self.shared.clock.wall();
        {
            let mut state = self.shared.lock();
            state.shown.retain(|(_, ends)| *ends > now);
            state.shown.push((Arc::clone(&capability), ends));
        }
        self.ask(&Request::Show(&capability), done);
    }
}

impl Link for TlsLink {
    fn ask(&self, request: &Request<'_>, done: Done) {
        let shared = &self.shared;
        let mut state = shared.lock();
        loop {
            let now = shared.clock.monotonic();
            let why_not = match &state.pause {
                _ if state.is_stopping => Some(Arc::new(stopping())),
                Some((until, why)) if now < *until => Some(Arc::clone(why)),
                _ => None,
            };
            if let Some(why) = why_not {
                drop(state);
                return done(Err(why));
            }
            // One that is larger than all that may be under way goes alone.
            if state.under_way == 0 || state.under_way < state.under_way_max {
                break;
            }
            state = shared
                .room
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        state.last_tag += 1;
        let tag = state.last_tag;
        let before = state.outbox.len();
        request.encode(tag, &mut state.outbox);
        let bytes = state.outbox.len() - before + HEAD_BYTES + request.answer_bytes();
        state.under_way += bytes;
        let released = Arc::clone(shared);
        state.asked.push(Asked {
            tag,
            within: patience(request),
            done: Box::new(move |reply: Result<Reply<'_>, Arc<io::Error>>| {
                let mut state = released.lock();
                state.under_way -= bytes;
                let has_room = state.under_way < state.under_way_max;
                drop(state);
                if has_room {
                    released.room.notify_one();
                }
                done(reply);
            }),
        });
        drop(state);
        if before == 0 {
            shared.bell.ring();
        }
    }
}

impl Drop for TlsLink {
    fn drop(&mut self) {
        self.shared.lock().is_stopping = true;
        self.shared.bell.ring();
        self.shared.room.notify_all();
        if let Some(thread) = self.thread.take() {
            // If it has panicked, that was said.
            let _ = thread.join();
        }
    }
}

fn stopping() -> io::Error {
    io::Error::other("this host does not use the unit any more")
}

fn patience(request: &Request<'_>) -> Duration {
    match request {
        Request::Sync { .. }
        | Request::Free { .. }
        | Request::Delete(_)
        | Request::List { .. }
        | Request::Scrub(_) => WORK_WITHIN,
        _ => ANSWER_WITHIN,
    }
}

/// The link's thread.
struct Driver {
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
}

impl Driver {
    fn run(mut self) {
        loop {
            if self.wait_for_work() {
                break;
            }
            let why = match self.connect() {
                Ok(connected) => self.serve(connected),
                Err(error) => Arc::new(error),
            };
            self.fail(&why);
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
        let mut failure = io::Error::new(ErrorKind::NotFound, "the unit's daemon has no address");
        for endpoint in &config.endpoints {
            match self.connect_to(endpoint, &config, tls) {
                Ok(connected) => return Ok(connected),
                Err(error) => {
                    let kind = error.kind();
                    failure = io::Error::new(kind, format!("{endpoint}: {error}"));
                }
            }
            if self.shared.lock().is_stopping {
                return Err(stopping());
            }
        }
        Err(failure)
    }

    fn connect_to(
        &self,
        endpoint: &Endpoint,
        config: &LinkConfig,
        tls: &Arc<ClientConfig>,
    ) -> io::Result<Connected> {
        let deadline = self.shared.clock.monotonic() + CONNECT_WITHIN;
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
        };
        let mut buffer = vec![0; RECEIVE_BYTES];
        loop {
            let is_blocked = connected.send()?;
            self.watch(&connected, is_blocked)?;
            self.wait_until(deadline)?;
            if let Greeted::Now(greeting) = connected.receive(&mut buffer)? {
                let mut state = self.shared.lock();
                state.under_way_max = greeting.held_bytes_max as usize / 2;
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

    /// Carries requests and answers until the connection breaks; says why.
    fn serve(&mut self, mut connected: Connected) -> Arc<io::Error> {
        let why = match self.carry(&mut connected) {
            Ok(()) => stopping(),
            Err(error) => error,
        };
        let why = Arc::new(why);
        connected.conversation.lose(&why);
        why
    }

    /// Returns when the link is to end.
    fn carry(&mut self, connected: &mut Connected) -> io::Result<()> {
        self.show_again(connected);
        let mut buffer = vec![0; RECEIVE_BYTES];
        let mut ready = Vec::new();
        loop {
            if self.take_asked(connected) {
                return Ok(());
            }
            let is_blocked = connected.send()?;
            self.watch(connected, is_blocked)?;
            let waits = connected.conversation.waiting() > 0;
            let timeout = match () {
                () if connected.channel.holds_received() => Some(Duration::ZERO),
                () => waits.then_some(LOOK_EVERY),
            };
            self.wait(timeout, &mut ready);
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

    /// What was shown on connections before.
    fn show_again(&self, connected: &mut Connected) {
        let mut state = self.shared.lock();
        state.pause = None;
        let (now, wall) = (self.shared.clock.monotonic(), self.shared.clock.wall());
        state.shown.retain(|(_, ends)| *ends > wall);
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

    /// Takes what was asked; `true`: the link is to end.
    fn take_asked(&self, connected: &mut Connected) -> bool {
        let mut state = self.shared.lock();
        if state.is_stopping {
            return true;
        }
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
        false
    }
}

impl Connected {
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
