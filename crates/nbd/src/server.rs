//! The acceptor: one thread that listens, and takes every client through its
//! handshake. What opens an export goes on in that export's thread.
//!
//! Invariants: handshakes at once ≤ `handshakes_max` (the oldest makes room),
//! each no longer than `handshake_timeout` and within about 100 KiB; sockets
//! at once ≤ `connections_max`.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use world::real::{Listener, Poller, Stream, Waker};
use world::{Clock, Endpoint, Interest, Ready};

use super::export::{Arrival, Seat};
use super::guest::{Fate, Guest};
use super::handshake::{Offer, TlsPolicy};
use super::slab::{Key, Slab};
use super::table::Exports;
use super::tls::ServerTls;
use net::Channel;

/// The poller's key for the thread's waker.
const WAKER: u64 = u64::MAX;

/// What the kernel may hold of the replies on a Unix socket: its usual 208 KiB
/// are less than one large read, and each rest costs a wake-up. TCP finds its
/// own size.
const UNIX_SEND_BYTES: usize = 512 << 10;

/// How long nothing is accepted after the process ran out of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(500);

/// How the acceptor bounds its clients.
#[derive(Clone)]
pub struct ServerOptions {
    /// How long a client may take to choose an export.
    pub handshake_timeout: Duration,
    /// Clients that have not chosen yet, at once. One more makes the oldest
    /// leave.
    pub handshakes_max: usize,
    /// Sockets at once, of all listeners. One more is closed at once.
    pub connections_max: usize,
    /// Where time comes from.
    pub clock: Arc<dyn Clock>,
}

impl ServerOptions {
    /// Usual values: 10 s, 128 handshakes, 4096 sockets.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            handshake_timeout: Duration::from_secs(10),
            handshakes_max: 128,
            connections_max: 4096,
            clock,
        }
    }
}

/// What one listener offers.
#[derive(Clone)]
pub struct ListenOptions {
    /// The exports.
    pub exports: Arc<dyn Exports>,
    /// Clients may ask for a list of them.
    pub list: bool,
    /// Whether clients may, or must, use TLS.
    pub tls_policy: TlsPolicy,
    /// The certificates, unless TLS is off.
    pub tls: Option<ServerTls>,
    /// Permissions of a Unix socket.
    pub unix_mode: u32,
}

impl ListenOptions {
    /// All of `exports`, listed, without TLS, for this user.
    #[must_use]
    pub fn new(exports: Arc<dyn Exports>) -> Self {
        Self {
            exports,
            list: true,
            tls_policy: TlsPolicy::Off,
            tls: None,
            unix_mode: 0o600,
        }
    }
}

/// A listener that was started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listening {
    /// Where it listens; the port is a real one.
    pub endpoint: Endpoint,
}

enum Command {
    Listen(Listener, ListenOptions),
    Stop,
}

/// The acceptor's owner. Dropping it ends the thread and all handshakes;
/// connections that have an export go on.
pub struct Server {
    commands: Mutex<Sender<Command>>,
    waker: Waker,
    thread: Option<thread::JoinHandle<()>>,
}

impl Server {
    /// Starts the thread; it listens nowhere yet.
    ///
    /// # Errors
    /// If the process has no thread or no file descriptor left.
    pub fn start(options: ServerOptions) -> io::Result<Self> {
        let waker = Waker::new()?;
        let poller = Poller::new()?;
        poller.add(&waker, WAKER, Interest::READABLE)?;
        let (commands, received) = mpsc::channel();
        let acceptor = Acceptor {
            poller,
            waker: waker.clone(),
            commands: received,
            options,
            connections: Arc::default(),
            listeners: Slab::default(),
            guests: Slab::default(),
            deadlines: VecDeque::new(),
            accept_again: None,
        };
        #[expect(
            clippy::disallowed_methods,
            reason = "it lasts as long as the server: no job for a pool"
        )]
        let thread = thread::Builder::new()
            .name("nbd-accept".into())
            .spawn(|| acceptor.run())?;
        Ok(Self {
            commands: Mutex::new(commands),
            waker,
            thread: Some(thread),
        })
    }

    /// Listens at `endpoint` as well.
    ///
    /// # Errors
    /// As [`Listener::bind`]; `InvalidInput` if TLS is on without
    /// certificates.
    pub fn listen(&self, endpoint: &Endpoint, options: ListenOptions) -> io::Result<Listening> {
        if options.tls_policy != TlsPolicy::Off && options.tls.is_none() {
            let message = "TLS needs certificates";
            return Err(io::Error::new(ErrorKind::InvalidInput, message));
        }
        let listener = Listener::bind(endpoint, options.unix_mode)?;
        let endpoint = listener.endpoint().clone();
        let commands = self.commands.lock().unwrap_or_else(PoisonError::into_inner);
        let sent = commands.send(Command::Listen(listener, options));
        sent.map_err(|_| io::Error::other("the acceptor has ended"))?;
        self.waker.wake();
        Ok(Listening { endpoint })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let commands = self.commands.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = commands.send(Command::Stop);
        drop(commands);
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct OpenListener {
    listener: Listener,
    options: ListenOptions,
}

/// Set in the poller's keys of listeners; a slab's keys leave it clear.
const LISTENER: u64 = 1 << 63;

struct Acceptor {
    poller: Poller,
    waker: Waker,
    commands: Receiver<Command>,
    options: ServerOptions,
    connections: Arc<AtomicUsize>,
    listeners: Slab<OpenListener>,
    guests: Slab<Box<Guest>>,
    /// When each guest must be gone, oldest first. May name some that are.
    deadlines: VecDeque<(Duration, Key)>,
    /// Listeners are not watched until then.
    accept_again: Option<Duration>,
}

impl Acceptor {
    fn run(mut self) {
        let mut ready = Vec::new();
        loop {
            let waited = self.poller.wait(self.sleep(), &mut ready);
            waited.expect("an epoll of this thread can be waited on");
            for &ready in &ready {
                if ready.key == WAKER {
                    self.waker.clear();
                    if self.obey() {
                        return;
                    }
                    continue;
                }
                if ready.key & LISTENER != 0 {
                    self.accept(ready.key & !LISTENER);
                } else {
                    self.serve(ready);
                }
            }
            self.expire();
        }
    }

    fn sleep(&self) -> Option<Duration> {
        let now = self.options.clock.monotonic();
        let next = self.deadlines.front().map(|(deadline, _)| *deadline);
        let soonest = next.into_iter().chain(self.accept_again).min();
        soonest.map(|moment| moment.saturating_sub(now))
    }

    fn obey(&mut self) -> bool {
        loop {
            match self.commands.try_recv() {
                Ok(Command::Listen(listener, options)) => {
                    let key = LISTENER | self.listeners.next_key();
                    match self.poller.add(&listener, key, Interest::READABLE) {
                        Ok(()) => {
                            self.listeners.insert(OpenListener { listener, options });
                        }
                        Err(error) => tracing::error!(%error, "a listener cannot be watched"),
                    }
                }
                Ok(Command::Stop) | Err(mpsc::TryRecvError::Disconnected) => return true,
                Err(mpsc::TryRecvError::Empty) => return false,
            }
        }
    }

    fn accept(&mut self, key: Key) {
        loop {
            let Some(open) = self.listeners.get(key) else {
                return;
            };
            match open.listener.accept() {
                Ok(Some(stream)) => {
                    if matches!(open.listener.endpoint(), Endpoint::Unix(_)) {
                        stream.set_send_buffer(UNIX_SEND_BYTES);
                    }
                    let options = open.options.clone();
                    self.welcome(stream, options);
                }
                Ok(None) => return,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    self.watch_listeners(false);
                    let now = self.options.clock.monotonic();
                    self.accept_again = Some(now + ACCEPT_PAUSE);
                    return;
                }
            }
        }
    }

    fn watch_listeners(&self, watch: bool) {
        let interest = Interest {
            readable: watch,
            writable: false,
        };
        for key in self.listeners.keys() {
            if let Some(open) = self.listeners.get(key)
                && let Err(error) = self.poller.modify(&open.listener, LISTENER | key, interest)
            {
                tracing::error!(%error, "a listener cannot be watched");
            }
        }
    }

    fn welcome(&mut self, stream: Stream, options: ListenOptions) {
        let max = self.options.connections_max;
        let Some(seat) = Seat::take(&self.connections, max) else {
            tracing::warn!(max, "a connection is refused: there are too many");
            return;
        };
        while self.guests.len() >= self.options.handshakes_max.max(1) {
            let Some((_, oldest)) = self.deadlines.pop_front() else {
                break;
            };
            self.leave(oldest, "newer handshakes need its place");
        }
        let channel = Channel::new(stream);
        let key = self.guests.next_key();
        if let Err(error) = self.poller.add(&channel, key, Interest::READABLE) {
            tracing::error!(%error, "a connection cannot be watched");
            return;
        }
        let offer = Offer {
            exports: options.exports,
            list: options.list,
            tls: options.tls_policy,
        };
        let guest = Guest::new(channel, offer, options.tls, seat);
        self.guests.insert(Box::new(guest));
        let deadline = self.options.clock.monotonic() + self.options.handshake_timeout;
        self.deadlines.push_back((deadline, key));
        // The greeting leaves at once.
        self.serve(Ready {
            key,
            readable: false,
            writable: true,
            hung_up: false,
        });
    }

    fn leave(&mut self, key: Key, reason: &str) {
        if self.guests.remove(key).is_some() {
            tracing::debug!(guest = key, reason, "handshake ended");
        }
    }

    fn expire(&mut self) {
        let now = self.options.clock.monotonic();
        while let Some(&(deadline, key)) = self.deadlines.front() {
            let there = self.guests.get(key).is_some();
            if there && deadline > now {
                break;
            }
            self.deadlines.pop_front();
            self.leave(key, "the client took too long");
        }
        if self.accept_again.is_some_and(|moment| moment <= now) {
            self.accept_again = None;
            self.watch_listeners(true);
        }
    }

    fn serve(&mut self, ready: Ready) {
        let Some(guest) = self.guests.get_mut(ready.key) else {
            return;
        };
        guest.writable |= ready.writable;
        match guest.turn(ready.readable) {
            Fate::Stays => {
                let interest = guest.wanted();
                if interest != guest.interest {
                    guest.interest = interest;
                    if let Err(error) = self.poller.modify(&guest.channel, ready.key, interest) {
                        self.leave(ready.key, &error.to_string());
                    }
                }
            }
            Fate::Leaves(reason) => self.leave(ready.key, &reason),
            Fate::Opened(opened) => {
                let Some(guest) = self.guests.remove(ready.key) else {
                    return;
                };
                let guest = *guest;
                if let Err(error) = self.poller.remove(&guest.channel) {
                    tracing::error!(%error, "a connection cannot be passed on");
                    return;
                }
                opened.export.arrive(Arrival {
                    channel: guest.channel,
                    settings: opened.settings,
                    replies: guest.output,
                    received: guest.input,
                    seats: [opened.seat, guest.seat],
                });
            }
        }
        self.forget_gone();
    }

    /// Keeps `deadlines` about as long as there are handshakes.
    fn forget_gone(&mut self) {
        if self.deadlines.len() > 2 * self.guests.len() {
            let guests = &self.guests;
            self.deadlines.retain(|(_, key)| guests.get(*key).is_some());
        }
    }
}
