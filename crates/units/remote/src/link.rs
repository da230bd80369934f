//! A link over TCP and TLS: one thread (`driver`), which keeps one connection to a
//! unit's daemon as long as there is one to be had.
//!
//! ```text
//!   ask ──► outbox ──waker──► thread: connect, greet, show, then: send what is in
//!           (encoded)                the outbox, receive, tell whoever asked
//!                                      │ broken, unresponsive or refused
//!                                      ▼
//!                            everybody who waits is told; again after a pause,
//!                            during which whoever asks is told at once
//! ```
//!
//! After a connection that was of use until it broke there is no pause, once in a while:
//! a daemon that was restarted is there again, and whoever has lost an answer may ask anew.
//!
//! Invariants:
//!
//! * A request is sent on one connection only. Whether it was carried out when
//!   that broke nobody knows, and whoever asked decides.
//! * On each new connection what this host may do is shown before anything is asked
//!   on it. The link keeps none of that: it asks whoever does.
//! * Requests and the answers to come take no more than the daemon holds;
//!   beyond that, whoever asks waits.

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

use super::conversation::HELLO;
use super::driver::{Driver, WAKER};
use super::{Done, Link, Reply};

/// A daemon answers within this, or it is taken for gone.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// Likewise what waits for a device, or reads much.
pub(super) const WORK_WITHIN: Duration = Duration::from_secs(30);

/// What may be under way, in bytes, until the daemon has said what it holds.
const UNDER_WAY_MAX: usize = 1 << 20;

/// Says where daemons listen.
pub type Detours = Arc<dyn Fn() -> Vec<Endpoint> + Send + Sync>;

/// Says what this host may do now: capabilities, each as it was signed. It is asked
/// on the link's thread, without a lock of the link.
pub type Capabilities = Arc<dyn Fn() -> Vec<Arc<[u8]>> + Send + Sync>;

/// To which daemon, and as whom.
#[derive(Clone)]
pub struct LinkConfig {
    /// The cluster.
    pub cluster: ClusterId,
    /// The unit.
    pub unit: UnitId,
    /// Where its daemon listens.
    pub own: Endpoint,
    /// Asked whenever that one does not answer: where daemons listen that may pass
    /// connections on, those first that are most likely to answer.
    pub detours: Detours,
    /// Asked on each new connection: what is shown there first.
    pub capabilities: Capabilities,
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

pub(super) struct Shared {
    state: Mutex<State>,
    /// Rings when there is room for another request.
    pub room: Condvar,
    pub waker: Waker,
    pub clock: Arc<dyn Clock>,
}

pub(super) struct State {
    pub config: LinkConfig,
    /// Frames to be sent, and who waits for their answers.
    pub outbox: Vec<u8>,
    pub asked: Vec<Asked>,
    pub last_tag: u64,
    /// Of requests that are not answered, with their answers, in bytes.
    under_way: usize,
    pub under_way_max: usize,
    /// No connection could be had the last time.
    pub is_away: bool,
    /// Over which endpoint there is a connection.
    pub via: Option<Endpoint>,
    /// Nothing is tried before then, and this is why.
    pub pause: Option<(Duration, Arc<io::Error>)>,
    pub is_stopping: bool,
}

pub(super) struct Asked {
    pub tag: u64,
    /// It is answered within so long of being sent.
    pub within: Duration,
    pub done: Done,
}

impl Shared {
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Why nothing can be asked now, if so.
    fn why_not(&self, state: &State) -> Option<Arc<io::Error>> {
        match &state.pause {
            _ if state.is_stopping => Some(Arc::new(stopping())),
            Some((until, why)) if self.clock.monotonic() < *until => Some(Arc::clone(why)),
            _ => None,
        }
    }
}

impl State {
    /// One that is larger than all that may be under way goes alone.
    fn has_room(&self) -> bool {
        self.under_way == 0 || self.under_way < self.under_way_max
    }
}

impl TlsLink {
    /// Starts the thread; it connects when something is asked.
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
                asked: Vec::new(),
                last_tag: HELLO,
                under_way: 0,
                under_way_max: UNDER_WAY_MAX,
                is_away: false,
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

    /// From the next connection on, which may be tried at once.
    pub fn set_config(&self, config: LinkConfig) {
        let mut state = self.shared.lock();
        state.config = config;
        state.pause = None;
        state.is_away = false;
        drop(state);
        // It may have something to end.
        self.shared.waker.wake();
    }

    /// Over which endpoint there is a connection now.
    #[must_use]
    pub fn via(&self) -> Option<Endpoint> {
        self.shared.lock().via.clone()
    }

    /// Shows a capability that [`LinkConfig::capabilities`] has already. A daemon that
    /// was away is not waited for: it is shown first when there is a connection.
    pub fn show(&self, capability: &[u8], done: Done) {
        if self.shared.lock().is_away {
            let reason = "the unit's daemon is away";
            let why = io::Error::new(io::ErrorKind::NotConnected, reason);
            return done(Err(Arc::new(why)));
        }
        self.ask(&Request::Show(capability), done);
    }
}

impl Link for TlsLink {
    fn ask(&self, request: &Request<'_>, done: Done) {
        let shared = &self.shared;
        let mut state = shared.lock();
        loop {
            if let Some(why) = shared.why_not(&state) {
                drop(state);
                return done(Err(why));
            }
            if state.has_room() {
                break;
            }
            shared.room.wait(&mut state);
        }
        self.put(state, request, done);
    }

    fn try_ask(&self, request: &Request<'_>, done: Done) -> bool {
        let shared = &self.shared;
        let state = shared.lock();
        // Why it cannot be asked, whoever waits is told.
        let may = shared.why_not(&state).is_none() && state.has_room();
        if may {
            self.put(state, request, done);
        }
        may
    }
}

impl TlsLink {
    /// Puts a request where the thread takes it from.
    fn put(&self, mut state: MutexGuard<'_, State>, request: &Request<'_>, done: Done) {
        let shared = &self.shared;
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
        // Whoever was told last may have had the last of it: then that is the thread.
        let is_other =
            |thread: &thread::JoinHandle<()>| thread.thread().id() != thread::current().id();
        if let Some(thread) = thread.filter(is_other) {
            // If it has panicked, that was said.
            let _ = thread.join();
        }
    }
}

pub(super) fn stopping() -> io::Error {
    io::Error::other("this host does not use the unit any more")
}

fn patience(request: &Request<'_>) -> Duration {
    match request {
        // It waits for what is done under older leases.
        Request::Show(_)
        | Request::Sync { .. }
        | Request::Free { .. }
        | Request::Delete(_)
        | Request::List { .. }
        | Request::Replace { .. }
        | Request::Scrub(_) => WORK_WITHIN,
        _ => ANSWER_WITHIN,
    }
}
