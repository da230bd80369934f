//! [`Server`]: the acceptor, a thread that listens and performs the handshake with every client.
//! A connection whose handshake has ended moves to the thread of its export.
//!
//! Invariants: handshakes ≤ `handshakes_max` (a new one ends the oldest), each no longer than
//! `handshake_timeout` and with about 100 KiB; connections ≤ `connections_max`.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use world::real::{Listener, Poller, Stream, Waker};
use world::{Clock, Endpoint, Interest, Ready};

use super::export::{ConnectionPermit, NewConnection};
use super::handshake::{Offer, TlsPolicy};
use super::handshaking_client::{HandshakeProgress, HandshakingClient};
use super::slab::{Key, Slab};
use super::table::Exports;
use super::tls::ServerTls;
use net::Channel;

/// The poller's key of the thread's waker.
const WAKER: u64 = u64::MAX;

/// The send buffer of a Unix socket, in bytes. The default of 208 KiB is less than one large read,
/// and each further part costs a wake-up. TCP adapts its own buffer.
const UNIX_SEND_BYTES: usize = 512 << 10;

/// The pause of accepting after the process has run out of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(500);

/// The limits of a server.
#[derive(Clone)]
pub struct ServerOptions {
    /// The maximal time of a handshake.
    pub handshake_timeout: Duration,
    /// The maximal number of handshaking clients. A further one ends the oldest handshake.
    pub handshakes_max: usize,
    /// The maximal number of connections of all listeners. Further ones are closed at once.
    pub connections_max: usize,
    /// The clock for timeouts.
    pub clock: Arc<dyn Clock>,
}

impl ServerOptions {
    /// The defaults: 10 s, 128 handshakes, 4096 connections.
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
    /// Whether clients may list them.
    pub list: bool,
    /// Whether clients may, or must, use TLS.
    pub tls_policy: TlsPolicy,
    /// The certificates; `None` only if TLS is off.
    pub tls: Option<ServerTls>,
    /// The mode of a Unix socket.
    pub unix_mode: u32,
}

impl ListenOptions {
    /// The options to offer and list `exports` without TLS, to this user.
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

/// A listener that was added.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listening {
    /// Its endpoint, with the port that the kernel chose for port 0.
    pub endpoint: Endpoint,
}

enum Command {
    Listen(Listener, ListenOptions),
    Stop,
}

/// An NBD server. Dropping it ends its thread and all handshakes; connections to exports
/// continue.
pub struct Server {
    commands: Mutex<Sender<Command>>,
    waker: Waker,
    thread: Option<thread::JoinHandle<()>>,
}

impl Server {
    /// Starts the thread, without a listener.
    ///
    /// # Errors
    /// The operating system's, for example without free file descriptors.
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
            handshaking: Slab::default(),
            deadlines: VecDeque::new(),
            accept_again: None,
        };
        #[expect(
            clippy::disallowed_methods,
            reason = "the thread lives as long as the server, which is too long for a pool"
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

    /// Adds a listener.
    ///
    /// # Errors
    /// As [`Listener::bind`]; `InvalidInput` if TLS is on without certificates.
    pub fn listen(&self, endpoint: &Endpoint, options: ListenOptions) -> io::Result<Listening> {
        if options.tls_policy != TlsPolicy::Off && options.tls.is_none() {
            let message = "TLS needs certificates";
            return Err(io::Error::new(ErrorKind::InvalidInput, message));
        }
        let listener = Listener::bind(endpoint, options.unix_mode)?;
        let endpoint = listener.endpoint().clone();
        let commands = self.commands.lock();
        let sent = commands.send(Command::Listen(listener, options));
        sent.map_err(|_| io::Error::other("the server's thread has ended"))?;
        self.waker.wake();
        Ok(Listening { endpoint })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let commands = self.commands.lock();
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

/// A bit of the poller's keys that is set for listeners, and clear in a slab's keys.
const LISTENER: u64 = 1 << 63;

struct Acceptor {
    poller: Poller,
    waker: Waker,
    commands: Receiver<Command>,
    options: ServerOptions,
    connections: Arc<AtomicUsize>,
    listeners: Slab<OpenListener>,
    handshaking: Slab<Box<HandshakingClient>>,
    /// The deadline of each handshake, oldest first. Some of the clients may be gone.
    deadlines: VecDeque<(Duration, Key)>,
    /// When listeners are watched again, after accepting has failed.
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
                    if self.run_commands() {
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

    /// Runs the commands that have arrived. Returns whether one was to stop.
    fn run_commands(&mut self) -> bool {
        loop {
            match self.commands.try_recv() {
                Ok(Command::Listen(listener, options)) => {
                    let key = LISTENER | self.listeners.next_key();
                    match self.poller.add(&listener, key, Interest::READABLE) {
                        Ok(()) => {
                            self.listeners.insert(OpenListener { listener, options });
                        }
                        Err(error) => tracing::error!(%error, "NBD server cannot watch listener"),
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
                    self.add_client(stream, options);
                }
                Ok(None) => return,
                Err(error) => {
                    tracing::warn!(%error, "NBD server cannot accept connection");
                    self.set_accepting(false);
                    let now = self.options.clock.monotonic();
                    self.accept_again = Some(now + ACCEPT_PAUSE);
                    return;
                }
            }
        }
    }

    fn set_accepting(&self, accepts: bool) {
        let interest = Interest {
            readable: accepts,
            writable: false,
        };
        for key in self.listeners.keys() {
            if let Some(open) = self.listeners.get(key)
                && let Err(error) = self.poller.modify(&open.listener, LISTENER | key, interest)
            {
                tracing::error!(%error, "NBD server cannot watch listener");
            }
        }
    }

    fn add_client(&mut self, stream: Stream, options: ListenOptions) {
        let max = self.options.connections_max;
        let Some(permit) = ConnectionPermit::take(&self.connections, max) else {
            tracing::warn!(
                connections_max = max,
                "NBD server refused connection: too many connections"
            );
            return;
        };
        while self.handshaking.len() >= self.options.handshakes_max.max(1) {
            let Some((_, oldest)) = self.deadlines.pop_front() else {
                break;
            };
            self.drop_client(oldest, "there are too many newer handshakes");
        }
        let channel = Channel::new(stream);
        let key = self.handshaking.next_key();
        if let Err(error) = self.poller.add(&channel, key, Interest::READABLE) {
            tracing::error!(%error, "NBD server cannot watch connection");
            return;
        }
        let offer = Offer {
            exports: options.exports,
            list: options.list,
            tls: options.tls_policy,
        };
        let client = HandshakingClient::new(channel, offer, options.tls, permit);
        self.handshaking.insert(Box::new(client));
        let deadline = self.options.clock.monotonic() + self.options.handshake_timeout;
        self.deadlines.push_back((deadline, key));
        // Sends the greeting.
        self.serve(Ready {
            key,
            readable: false,
            writable: true,
            hung_up: false,
        });
    }

    fn drop_client(&mut self, key: Key, reason: &str) {
        if self.handshaking.remove(key).is_some() {
            tracing::debug!(
                client = key,
                reason,
                "NBD handshake ended without an export"
            );
        }
    }

    fn expire(&mut self) {
        let now = self.options.clock.monotonic();
        while let Some(&(deadline, key)) = self.deadlines.front() {
            let is_open = self.handshaking.get(key).is_some();
            if is_open && deadline > now {
                break;
            }
            self.deadlines.pop_front();
            self.drop_client(key, "the handshake timed out");
        }
        if self.accept_again.is_some_and(|moment| moment <= now) {
            self.accept_again = None;
            self.set_accepting(true);
        }
    }

    fn serve(&mut self, ready: Ready) {
        let Some(client) = self.handshaking.get_mut(ready.key) else {
            return;
        };
        client.writable |= ready.writable;
        match client.turn(ready.readable) {
            HandshakeProgress::Continues => {
                let interest = client.needed_interest();
                if interest != client.interest {
                    client.interest = interest;
                    if let Err(error) = self.poller.modify(&client.channel, ready.key, interest) {
                        self.drop_client(ready.key, &error.to_string());
                    }
                }
            }
            HandshakeProgress::Ended(reason) => self.drop_client(ready.key, &reason),
            HandshakeProgress::Opened(opened) => {
                let Some(client) = self.handshaking.remove(ready.key) else {
                    return;
                };
                let client = *client;
                if let Err(error) = self.poller.remove(&client.channel) {
                    tracing::error!(%error, "NBD server cannot move connection to its export");
                    return;
                }
                opened.export.add_connection(NewConnection {
                    channel: client.channel,
                    settings: opened.settings,
                    replies: client.output,
                    received: client.input,
                    permits: [opened.permit, client.permit],
                });
            }
        }
        self.trim_deadlines();
    }

    /// Removes the deadlines of clients that are gone, when there are many.
    fn trim_deadlines(&mut self) {
        if self.deadlines.len() > 2 * self.handshaking.len() {
            let handshaking = &self.handshaking;
            self.deadlines
                .retain(|(_, key)| handshaking.get(*key).is_some());
        }
    }
}
