//! A link over TCP and TLS: one thread (`driver`), which maintains one connection to a unit's
//! daemon.
//!
//! ```text
//!   send ──► outbox ──waker──► thread: connect, hello, present capabilities,
//!            (encoded)                 then send the outbox and deliver answers
//!                                        │ broken, unresponsive or refused
//!                                        ▼
//!                              all requests fail; a pause follows, during which
//!                              new requests fail at once
//! ```
//!
//! After a connection that worked until it broke there is no pause, once in a while: a daemon
//! that was restarted is available again, and a caller that lost an answer may retry.
//!
//! Invariants:
//!
//! * A request is sent on one connection only. If that breaks, the outcome is unknown, and the
//!   caller decides what to do.
//! * On each new connection this host's capabilities are presented before any request. The link
//!   stores none of them: it gets them from [`LinkConfig::capabilities`].
//! * Requests and expected answers take no more memory than the daemon holds for a connection;
//!   beyond that, senders wait.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use base::{ClusterId, UnitId};
use parking_lot::{Condvar, Mutex, MutexGuard};
use rustls::ClientConfig;
use unit_wire::{HEAD_BYTES, Request};
use world::real::{Poller, Waker};
use world::{Clock, Endpoint, Interest};

use super::conversation::HELLO_TAG;
use super::driver::{Driver, WAKER};
use super::{Done, Link, Reply};

/// Timeout of most requests, after which the daemon counts as unavailable.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Timeout of requests that wait for a device or read much.
pub(super) const DEVICE_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum bytes in flight before the greeting, which says what the daemon holds.
const IN_FLIGHT_BYTES_MAX: usize = 1 << 20;

/// Returns endpoints of daemons.
pub type Detours = Arc<dyn Fn() -> Vec<Endpoint> + Send + Sync>;

/// Returns the current capabilities of this host, each with its signature. Called on the link's
/// thread, without the link's lock.
pub type Capabilities = Arc<dyn Fn() -> Vec<Arc<[u8]>> + Send + Sync>;

/// The configuration of a link.
#[derive(Clone)]
pub struct LinkConfig {
    /// The cluster.
    pub cluster: ClusterId,
    /// The unit.
    pub unit: UnitId,
    /// The endpoint of the unit's own daemon.
    pub own: Endpoint,
    /// Called when the own daemon does not answer: endpoints of daemons that may relay, the most
    /// promising ones first.
    pub detours: Detours,
    /// Called for each new connection: the capabilities that are presented there first.
    pub capabilities: Capabilities,
    /// This host's certificate and the authorities of daemons. The link does not connect without
    /// it.
    pub tls: Option<Arc<ClientConfig>>,
}

/// A link to the daemon of one unit. Dropping it ends the thread and fails waiting requests.
pub struct TlsLink {
    shared: Arc<Shared>,
    thread: Option<thread::JoinHandle<()>>,
}

pub(super) struct Shared {
    state: Mutex<State>,
    /// Notified when there is room for another request.
    pub room: Condvar,
    pub waker: Waker,
    pub clock: Arc<dyn Clock>,
}

pub(super) struct State {
    pub config: LinkConfig,
    /// Frames to send.
    pub outbox: Vec<u8>,
    /// The requests in `outbox`.
    pub pending: Vec<PendingRequest>,
    pub last_tag: u64,
    /// Bytes of unanswered requests and their expected answers.
    in_flight_bytes: usize,
    pub in_flight_bytes_max: usize,
    /// Whether the last attempt to connect failed.
    pub is_unavailable: bool,
    /// The endpoint of the current connection.
    pub via: Option<Endpoint>,
    /// The end of a pause and the error that caused it.
    pub pause: Option<(Duration, Arc<io::Error>)>,
    pub is_stopping: bool,
}

pub(super) struct PendingRequest {
    pub tag: u64,
    /// Time from sending to the answer.
    pub timeout: Duration,
    pub done: Done,
}

impl Shared {
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Why no request can be sent now, if so.
    fn refusal(&self, state: &State) -> Option<Arc<io::Error>> {
        match &state.pause {
            _ if state.is_stopping => Some(Arc::new(stopping())),
            Some((until, why)) if self.clock.monotonic() < *until => Some(Arc::clone(why)),
            _ => None,
        }
    }
}

impl State {
    /// Whether another request may be sent. One that exceeds the limit is sent alone.
    fn has_room(&self) -> bool {
        self.in_flight_bytes == 0 || self.in_flight_bytes < self.in_flight_bytes_max
    }
}

impl TlsLink {
    /// Starts the thread, which connects once a request is pending.
    ///
    /// # Errors
    /// If the process has no thread or no file descriptor left.
    pub fn start(config: LinkConfig, clock: Arc<dyn Clock>) -> io::Result<Self> {
        let waker = Waker::new()?;
        let poller = Poller::new()?;
        poller.add(&waker, WAKER, Interest::READABLE)?;
        let name = format!("link-{}", config.unit);
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                config,
                outbox: Vec::new(),
                pending: Vec::new(),
                last_tag: HELLO_TAG,
                in_flight_bytes: 0,
                in_flight_bytes_max: IN_FLIGHT_BYTES_MAX,
                is_unavailable: false,
                via: None,
                pause: None,
                is_stopping: false,
            }),
            room: Condvar::new(),
            waker,
            clock,
        });
        let driver = Driver::new(Arc::clone(&shared), poller);
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

    /// Replaces the configuration from the next connection on, and ends a pause.
    pub fn set_config(&self, config: LinkConfig) {
        let mut state = self.shared.lock();
        state.config = config;
        state.pause = None;
        state.is_unavailable = false;
        drop(state);
        // The thread may have to end a connection.
        self.shared.waker.wake();
    }

    /// The endpoint of the current connection.
    #[must_use]
    pub fn via(&self) -> Option<Endpoint> {
        self.shared.lock().via.clone()
    }

    /// Presents a capability that [`LinkConfig::capabilities`] returns already. Fails at once if
    /// the daemon is unavailable: the next connection presents it.
    pub fn present(&self, capability: &[u8], done: Done) {
        if self.shared.lock().is_unavailable {
            let reason = "the unit's daemon is unavailable";
            let why = io::Error::new(io::ErrorKind::NotConnected, reason);
            return done(Err(Arc::new(why)));
        }
        self.send(&Request::Present(capability), done);
    }
}

impl Link for TlsLink {
    fn send(&self, request: &Request<'_>, done: Done) {
        let shared = &self.shared;
        let mut state = shared.lock();
        loop {
            if let Some(why) = shared.refusal(&state) {
                drop(state);
                return done(Err(why));
            }
            if state.has_room() {
                break;
            }
            shared.room.wait(&mut state);
        }
        self.enqueue(state, request, done);
    }

    fn try_send(&self, request: &Request<'_>, done: Done) -> bool {
        let shared = &self.shared;
        let state = shared.lock();
        // A caller that can wait gets the reason from `send`.
        let may = shared.refusal(&state).is_none() && state.has_room();
        if may {
            self.enqueue(state, request, done);
        }
        may
    }
}

impl TlsLink {
    /// Queues a request for the thread.
    fn enqueue(&self, mut state: MutexGuard<'_, State>, request: &Request<'_>, done: Done) {
        let shared = &self.shared;
        state.last_tag += 1;
        let tag = state.last_tag;
        let before = state.outbox.len();
        request.encode(tag, &mut state.outbox);
        let bytes = state.outbox.len() - before + HEAD_BYTES + request.answer_bytes();
        state.in_flight_bytes += bytes;
        let released = Arc::clone(shared);
        state.pending.push(PendingRequest {
            tag,
            timeout: timeout_of(request),
            done: Box::new(move |reply: Result<Reply<'_>, Arc<io::Error>>| {
                let mut state = released.lock();
                state.in_flight_bytes -= bytes;
                let has_room = state.has_room();
                drop(state);
                if has_room {
                    released.room.notify_one();
                }
                done(reply);
            }),
        });
        drop(state);
        if before == 0 {
            shared.waker.wake();
        }
    }
}

impl Drop for TlsLink {
    fn drop(&mut self) {
        self.shared.lock().is_stopping = true;
        self.shared.waker.wake();
        self.shared.room.notify_all();
        let thread = self.thread.take();
        // The last reference may be dropped in a callback, which runs on the thread itself.
        let is_other =
            |thread: &thread::JoinHandle<()>| thread.thread().id() != thread::current().id();
        if let Some(thread) = thread.filter(is_other) {
            // A panic was reported already.
            let _ = thread.join();
        }
    }
}

pub(super) fn stopping() -> io::Error {
    io::Error::other("this host no longer uses the unit")
}

fn timeout_of(request: &Request<'_>) -> Duration {
    match request {
        // It waits for requests under older leases.
        Request::Present(_)
        | Request::Sync { .. }
        | Request::Free { .. }
        | Request::Delete(_)
        | Request::List { .. }
        | Request::Replace { .. }
        | Request::Scrub(_) => DEVICE_TIMEOUT,
        _ => ANSWER_TIMEOUT,
    }
}
