//! One connection on its thread: from the first byte to a session, or relayed to another daemon.
//!
//! ```text
//!   bytes ──► preface? ──► first TLS message: which unit?
//!                             │ one of this daemon            │ another
//!                             ▼                               ▼
//!                          handshake: which host?          relay
//!                             ▼
//!                          session: jobs on the pool, answers as they end
//! ```

use std::io::{self, ErrorKind, Read as _};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

use auth::{Kind, Peer, ServerTls, SignedBy};
use base::{UnitId, with_causes};
use net::{Channel, Outbox, Pipe as _};
use rustls::ServerConfig;
use rustls::server::{Accepted, Acceptor};
use unit_wire::PREFACE;
use world::real::{Poller, Stream, Waker};
use world::{Interest, Millis, Wake};

use crate::budget::Share;
use crate::permits::Permit;
use crate::relay::{Relay, relay};
use crate::server::Shared;
use crate::session::{Closing, Session, Step};
use crate::timeouts::{Activity, Watchdog};

/// Length limit of the first message, in bytes.
const HELLO_BYTES_MAX: usize = 16 << 10;

/// Bytes received at once.
const RECEIVE_BYTES: usize = 256 << 10;

/// Bytes of unsent answers above which the connection begins no further request.
const UNSENT_MAX: usize = 4 << 20;

/// Longest time between two checks of the clocks, which change without waking the thread.
const CHECK_EVERY: Duration = Duration::from_secs(10);

/// The poller's keys.
const WAKER: u64 = 0;
const SOCKET: u64 = 1;

/// Serves one connection until it ends.
///
/// # Errors
/// Why the connection ended, unless the host closed it.
pub(crate) fn serve(shared: &Shared, stream: Stream, permit: &Permit) -> io::Result<()> {
    let waker = permit.waker();
    let poller = Poller::new()?;
    poller.add(waker, WAKER, Interest::READABLE)?;
    poller.add(&stream, SOCKET, Interest::READABLE)?;
    let begun = shared.clock.monotonic();
    let mut handshake = Handshake {
        shared,
        permit,
        waker,
        poller,
        begun,
        deadline: begun + shared.config().limits.timeouts.hello,
    };
    let Some(hello) = handshake.receive_hello(stream)? else {
        return Ok(());
    };
    match shared.keeper(hello.unit) {
        Some(_) => handshake.serve(hello),
        None => handshake.relay(hello),
    }
}

/// A connection whose first message was received.
struct Hello {
    stream: Stream,
    unit: UnitId,
    /// Whether another daemon relayed it.
    is_relayed: bool,
    accepted: Accepted,
    /// The bytes that were received, without the preface.
    received: Vec<u8>,
    /// Length of the first message in `received`.
    consumed: usize,
}

/// A connection whose host is not known yet.
struct Handshake<'a> {
    shared: &'a Shared,
    permit: &'a Permit,
    waker: &'a Waker,
    poller: Poller,
    /// When it was accepted.
    begun: Duration,
    /// When it must have been authenticated.
    deadline: Duration,
}

impl Handshake<'_> {
    /// Waits for the socket until the deadline. Returns `false` if the server is closing.
    fn wait(&self) -> io::Result<bool> {
        let now = self.shared.clock.monotonic();
        if now >= self.deadline {
            return Err(ErrorKind::TimedOut.into());
        }
        let mut ready = Vec::new();
        self.poller.wait(Some(self.deadline - now), &mut ready)?;
        Ok(!self.shared.is_closing())
    }

    /// Receives the first message. `None` if the host disconnects before that.
    fn receive_hello(&mut self, mut stream: Stream) -> io::Result<Option<Hello>> {
        let mut received: Vec<u8> = Vec::new();
        let mut acceptor = Acceptor::default();
        let mut is_relayed = None;
        let mut consumed = 0;
        loop {
            if !self.wait()? {
                return Ok(None);
            }
            let mut buffer = [0; 4096];
            match stream.read(&mut buffer) {
                Ok(0) => return Ok(None),
                Ok(count) => received.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                Err(error) => return Err(error),
            }
            if received.len() > HELLO_BYTES_MAX {
                return Err(invalid("the first message is too long"));
            }
            if is_relayed.is_none() {
                let length = received.len().min(PREFACE.len());
                if received[..length] != PREFACE[..length] {
                    is_relayed = Some(false);
                } else if length == PREFACE.len() {
                    received.drain(..length);
                    is_relayed = Some(true);
                }
            }
            let Some(is_relayed) = is_relayed else {
                continue;
            };
            while consumed < received.len() {
                let mut rest = &received[consumed..];
                let before = rest.len();
                acceptor.read_tls(&mut rest)?;
                consumed += before - rest.len();
                let accepted = acceptor
                    .accept()
                    .map_err(|(error, _)| io::Error::new(ErrorKind::InvalidData, error))?;
                let Some(accepted) = accepted else {
                    continue;
                };
                let name = accepted.client_hello().server_name().map(str::parse);
                let Some(Ok(unit)) = name else {
                    return Err(invalid("the server name is not the id of a unit"));
                };
                return Ok(Some(Hello {
                    stream,
                    unit,
                    is_relayed,
                    accepted,
                    received,
                    consumed,
                }));
            }
        }
    }

    /// Relays the connection to the daemon of another unit.
    fn relay(self, hello: Hello) -> io::Result<()> {
        let unit = hello.unit;
        if hello.is_relayed {
            return Err(invalid(
                "the connection was relayed here, but this daemon does not serve its unit",
            ));
        }
        let Some(there) = (self.shared.config().others)(unit) else {
            return Err(io::Error::new(
                ErrorKind::NotFound,
                format!("no controller has named the address of {unit}"),
            ));
        };
        let limits = self.shared.config().limits;
        let counted = self.permit.set_relayed(limits.connections_max);
        counted.map_err(|full| io::Error::new(ErrorKind::ResourceBusy, full))?;
        let is_closing = || self.shared.is_closing();
        let clock = &*self.shared.clock;
        relay(
            Relay {
                near: hello.stream,
                received: &hello.received,
                there: &there,
                clock,
                idle: limits.timeouts.idle,
                waker: self.waker,
            },
            is_closing,
        )
    }

    /// Serves the connection, which is for a unit of this daemon.
    fn serve(self, hello: Hello) -> io::Result<()> {
        let Some(keeper) = self.shared.keeper(hello.unit) else {
            return Err(ErrorKind::NotFound.into());
        };
        let (tls, config) = self.shared.tls();
        let mut channel = begin_tls(hello, config)?;
        let mut buffer = vec![0; RECEIVE_BYTES];
        let Some(received) = self.establish(&mut channel, &mut buffer)? else {
            return Ok(());
        };
        let host = self.authenticate(&tls, &channel)?;
        // Counted by name: a host may have certificates for many keys.
        let name = host.subject().map(ToString::to_string);
        self.permit
            .set_host(name.unwrap_or_else(|_| host.key.to_string()));
        let (wake, budget) = (self.waker.handle(), &self.shared.budget);
        let mut session = Session::new(keeper.clone(), host.key.0, budget, wake);
        session.receive(&buffer[..received]);
        let (answers, answered) = mpsc::channel();
        let timeouts = self.shared.config().limits.timeouts;
        let mut active = ActiveSession {
            watchdog: Watchdog::new(timeouts, self.begun),
            ends: host.ends,
            unsent: session.empty_share(),
            moved: received as u64,
            handshake: self,
            channel,
            session,
            answers,
            answered,
            out: Outbox::default(),
            open: 0,
            closing: None,
        };
        let ended = active.run(buffer);
        if let Err(error) = &ended {
            tracing::debug!(host = %host.key, error = with_causes(error), "connection to host failed");
        }
        ended
    }

    /// Completes the TLS handshake. Returns the length of the first bytes after it, which are in
    /// `buffer`; `None` if the host disconnects or the server closes before that.
    fn establish(&self, channel: &mut Channel, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            let sent = channel.send(&[])?;
            self.watch(channel, sent.blocked)?;
            if channel.is_established() {
                return Ok(Some(0));
            }
            if !self.wait()? {
                return Ok(None);
            }
            match channel.receive(buffer) {
                Ok(0) => return Ok(None),
                Ok(count) => return Ok(Some(count)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The host whose certificate the client presented in the handshake.
    fn authenticate(&self, tls: &ServerTls, channel: &Channel) -> io::Result<Peer> {
        let peer = tls
            .peer(channel.peer_certificates(), self.shared.clock.wall())
            .map_err(|error| io::Error::new(ErrorKind::PermissionDenied, error))?;
        let host = peer.filter(|peer| {
            // A named authority signs names of parties and not keys.
            let is_host = peer
                .subject()
                .is_ok_and(|subject| subject.kind() == Kind::Host);
            is_host || peer.signed_by == SignedBy::NamedAuthority
        });
        host.ok_or_else(|| {
            let reason = "the client presented no certificate of a host";
            io::Error::new(ErrorKind::PermissionDenied, reason)
        })
    }

    fn watch(&self, channel: &Channel, writable: bool) -> io::Result<()> {
        let interest = Interest {
            readable: true,
            writable,
        };
        self.poller.modify(channel, SOCKET, interest)
    }
}

/// The TLS channel of a connection, which has processed the received bytes.
fn begin_tls(hello: Hello, config: Arc<ServerConfig>) -> io::Result<Channel> {
    let mut connection = hello
        .accepted
        .into_connection(config)
        .map_err(|(error, _)| io::Error::new(ErrorKind::InvalidData, error))?;
    let mut rest = &hello.received[hello.consumed..];
    while !rest.is_empty() {
        connection.read_tls(&mut rest)?;
        let processed = connection.process_new_packets();
        processed.map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
    }
    Ok(Channel::with_tls(hello.stream, connection.into()))
}

/// A session on its socket.
struct ActiveSession<'a> {
    handshake: Handshake<'a>,
    channel: Channel,
    session: Session,
    answers: Sender<(u64, Vec<u8>)>,
    answered: Receiver<(u64, Vec<u8>)>,
    out: Outbox,
    /// The share of the budget that `out` uses.
    unsent: Share,
    watchdog: Watchdog,
    /// When the host's certificate expires.
    ends: Millis,
    /// Bytes that were received and sent.
    moved: u64,
    /// Number of jobs under way.
    open: usize,
    closing: Option<Closing>,
}

impl ActiveSession<'_> {
    fn run(&mut self, mut buffer: Vec<u8>) -> io::Result<()> {
        let mut ready = Vec::new();
        loop {
            self.collect();
            self.step();
            let before = self.out.len();
            let is_blocked = self.out.send(&mut self.channel)?;
            self.moved += (before - self.out.len()) as u64;
            self.unsent.set(self.out.len());
            if self.closing.is_some() && self.open == 0 && self.out.is_empty() && !is_blocked {
                return match self.closing.take() {
                    Some(closing) => Err(io::Error::new(ErrorKind::InvalidData, closing)),
                    None => Ok(()),
                };
            }
            let may_receive = self.closing.is_none() && self.session.has_room();
            let interest = Interest {
                readable: may_receive,
                writable: is_blocked,
            };
            let until = self.check_timeouts(is_blocked, may_receive)?;
            self.handshake
                .poller
                .modify(&self.channel, SOCKET, interest)?;
            let holds = may_receive && self.channel.holds_received();
            let timeout = if holds { Duration::ZERO } else { until };
            self.handshake.poller.wait(Some(timeout), &mut ready)?;
            self.handshake.waker.clear();
            if self.handshake.shared.is_closing() {
                return Ok(());
            }
            if ready.is_empty() && !holds {
                self.session.shrink();
                self.out.shrink();
            }
            let socket = ready.iter().find(|ready| ready.key == SOCKET);
            if may_receive && (holds || socket.is_some_and(|ready| ready.readable)) {
                match self.channel.receive(&mut buffer) {
                    Ok(0) => return Ok(()),
                    Ok(count) => {
                        self.moved += count as u64;
                        self.session.receive(&buffer[..count]);
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error),
                }
            } else if socket.is_some_and(|ready| ready.hung_up) {
                return Ok(());
            }
        }
    }

    /// Checks the timeouts and returns how long to wait for the socket and the waker.
    fn check_timeouts(&mut self, is_blocked: bool, may_receive: bool) -> io::Result<Duration> {
        let shared = self.handshake.shared;
        let timed_out = |why: &str| Err(io::Error::new(ErrorKind::TimedOut, why));
        if self.handshake.permit.is_over() {
            return timed_out("the host has newer connections");
        }
        if shared.clock.wall() >= self.ends {
            return timed_out("the certificate of the host has expired");
        }
        let activity = Activity {
            is_greeted: self.session.has_greeted(),
            is_busy: self.open > 0 || !self.out.is_empty(),
            is_stalled: is_blocked || (may_receive && self.session.is_within_frame()),
            requests: self.session.requests(),
            moved: self.moved,
        };
        let now = shared.clock.monotonic();
        let until = self
            .watchdog
            .check(now, activity)
            .map_err(|why| io::Error::new(ErrorKind::TimedOut, why))?;
        let holds_ms = self.ends.0.saturating_sub(shared.clock.wall().0);
        let holds = Duration::from_millis(u64::try_from(holds_ms).unwrap_or_default());
        Ok((until - now).min(CHECK_EVERY).min(holds))
    }

    /// Collects the answers of finished jobs.
    fn collect(&mut self) {
        while let Ok((tag, frame)) = self.answered.try_recv() {
            self.open -= 1;
            self.session.answered(tag);
            self.out.bytes().extend_from_slice(&frame);
        }
    }

    /// Begins the requests that may begin.
    fn step(&mut self) {
        while self.closing.is_none() && self.out.len() < UNSENT_MAX {
            match self.session.step(self.out.bytes()) {
                Ok(Step::Wait) => break,
                Ok(Step::Answered) => {}
                Ok(Step::Job(job)) => {
                    self.open += 1;
                    let (answers, wake) = (self.answers.clone(), self.handshake.waker.handle());
                    self.handshake
                        .shared
                        .pool
                        .run(Box::new(move || run(job, &answers, &wake)));
                }
                Err(closing) => self.closing = Some(closing),
            }
        }
    }
}

fn run(job: crate::Job, answers: &Sender<(u64, Vec<u8>)>, wake: &Wake) {
    let tag = job.tag();
    // Fails if the connection has ended; the answer is dropped.
    let _ = answers.send((tag, job.run()));
    wake.wake();
}

fn invalid(reason: &'static str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, reason)
}
