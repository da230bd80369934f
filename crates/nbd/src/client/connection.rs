//! [`Connection`]: connects to a server, performs the handshake, and connects again.
//!
//! ```text
//!      ┌────────────────── after a pause ──────────────────────────┐
//!      ▼                                                           │
//!  (AwaitingOrphans) ─▶ Connecting ─▶ Greeting ─▶ Ready ─▶ Disconnected ─▶ (Reconnect::Never:
//!      └────────────────────┴────────────┴── error ──▲                      for good)
//! ```
//!
//! In `AwaitingOrphans` an earlier connection to the same export has not ended.
//!
//! Must not know which requests there are: [`RequestLog`] keeps them over all connections.

use std::time::Duration;

use base::IoError;
use net::Channel;
use world::Endpoint;
use world::real::Stream;

use super::super::buffers::BufferPool;
use super::super::watcher::Watcher;
use super::super::wire::transmission_flags as flags;
use super::orphaned::OrphanedConnection;
use super::reconnection::Reconnection;
use super::transport::Transport;
use super::{
    ClientOptions, ConnectionError, ExportParameters, Greeting, Reconnect, Replies, RequestLog,
    State, Step,
};

/// How often the client checks whether an orphaned connection has ended.
const ORPHAN_CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// The state of the connection. Times are those of the clock's monotonic time.
enum Phase {
    /// An orphaned connection has not ended. The time is the deadline.
    AwaitingOrphans(Duration),
    /// The socket connects. The time is the deadline of connecting and the handshake.
    Connecting(Transport, Duration),
    /// The handshake proceeds. The time is its deadline.
    Greeting(Transport, Greeting, Duration),
    Ready(Transport, Replies),
    Disconnected {
        error: ConnectionError,
        /// When the client connects again; `None` if it does not.
        retry_at: Option<Duration>,
    },
}

/// What [`Connection::advance`] achieved.
pub(super) enum Progress {
    /// The connection is not ready.
    NotReady,
    /// The handshake has ended just now.
    Established,
    /// The connection was ready before.
    Ready,
}

/// A client's connection to its server, made again when it is lost.
pub(super) struct Connection {
    /// Where the client connects; `None` if the owner provides channels.
    endpoint: Option<Endpoint>,
    reconnection: Reconnection,
    watcher: Watcher,
    phase: Phase,
    /// The export's parameters in the first connection, with what later ones may change.
    parameters: Option<ExportParameters>,
    pool: BufferPool,
}

impl Connection {
    /// A connection that has not been opened.
    pub fn new(endpoint: Option<Endpoint>, reconnect: Reconnect, watcher: Watcher) -> Self {
        Self {
            endpoint,
            reconnection: Reconnection::new(reconnect),
            watcher,
            phase: Phase::Disconnected {
                error: ConnectionError::Ended,
                retry_at: None,
            },
            parameters: None,
            pool: BufferPool::default(),
        }
    }

    pub fn state(&self) -> State {
        match &self.phase {
            Phase::AwaitingOrphans(_) | Phase::Connecting(..) | Phase::Greeting(..) => {
                State::Connecting
            }
            Phase::Ready(..) => State::Ready,
            Phase::Disconnected { error, .. } => State::Disconnected {
                error: error.clone(),
            },
        }
    }

    pub fn is_ready(&self) -> bool {
        matches!(self.phase, Phase::Ready(..))
    }

    pub fn is_disconnected(&self) -> bool {
        matches!(self.phase, Phase::Disconnected { .. })
    }

    /// Why requests fail: the connection is lost, and the client does not reconnect.
    pub fn final_error(&self) -> Option<IoError> {
        match &self.phase {
            Phase::Disconnected { error, .. } if !self.reconnection.is_on() => {
                Some(IoError::Unavailable(error.to_string()))
            }
            _ => None,
        }
    }

    /// The export's parameters; `None` before the first connection is ready.
    pub fn parameters(&self) -> Option<&ExportParameters> {
        self.parameters.as_ref()
    }

    /// Whether the client connects by itself, and not over channels of its owner.
    pub fn has_endpoint(&self) -> bool {
        self.endpoint.is_some()
    }

    /// Whether unflushed changes can be replayed over another connection to this server.
    pub fn can_replay(&self) -> bool {
        let can_flush = |parameters: &ExportParameters| parameters.can(flags::SEND_FLUSH);
        self.reconnection.is_on() && self.parameters.as_ref().is_some_and(can_flush)
    }

    /// Waits for no connection any more.
    pub fn stop_reconnecting(&mut self) {
        self.reconnection.stop();
    }

    /// Makes the next pause the shortest one, since the server answers requests.
    pub fn reset_pause(&mut self) {
        self.reconnection.reset_pause();
    }

    /// Connects over `channel`.
    pub fn open(&mut self, channel: Channel, deadline: Duration) -> Result<(), ConnectionError> {
        let transport = Transport::new(channel, &self.watcher)?;
        self.phase = Phase::Connecting(transport, deadline);
        Ok(())
    }

    /// Connects to the endpoint, if the client has one and no orphaned connection is left there.
    ///
    /// # Errors
    /// The socket's, or [`ConnectionError::OrphanPending`] after the deadline.
    pub fn connect(
        &mut self,
        options: &ClientOptions,
        now: Duration,
    ) -> Result<(), ConnectionError> {
        let Some(endpoint) = &self.endpoint else {
            return Ok(());
        };
        let deadline = now + options.connect_timeout;
        if options.orphaned.blocks(&orphan_key(endpoint, options)) {
            return match &self.phase {
                Phase::AwaitingOrphans(until) if *until <= now => {
                    Err(ConnectionError::OrphanPending)
                }
                Phase::AwaitingOrphans(_) => Ok(()),
                _ => {
                    self.phase = Phase::AwaitingOrphans(deadline);
                    Ok(())
                }
            };
        }
        let stream = Stream::connect(endpoint)?;
        self.open(Channel::new(stream), deadline)
    }

    /// Takes the next steps of connecting.
    ///
    /// # Errors
    /// Why the connection is lost; the caller has to [`Connection::close`] it.
    pub fn advance(
        &mut self,
        options: &ClientOptions,
        now: Duration,
    ) -> Result<Progress, ConnectionError> {
        match &self.phase {
            Phase::Disconnected {
                retry_at: Some(at), ..
            } if *at <= now => self.connect(options, now)?,
            Phase::AwaitingOrphans(_) => self.connect(options, now)?,
            _ => {}
        }
        match &self.phase {
            Phase::Connecting(..) | Phase::Greeting(..) => self.shake_hands(options, now),
            Phase::Ready(..) => Ok(Progress::Ready),
            Phase::AwaitingOrphans(_) | Phase::Disconnected { .. } => Ok(Progress::NotReady),
        }
    }

    /// Moves the phase out; the caller sets the next one.
    fn take_phase(&mut self) -> Phase {
        let disconnected = Phase::Disconnected {
            error: ConnectionError::Ended,
            retry_at: None,
        };
        std::mem::replace(&mut self.phase, disconnected)
    }

    fn shake_hands(
        &mut self,
        options: &ClientOptions,
        now: Duration,
    ) -> Result<Progress, ConnectionError> {
        if let Phase::Connecting(transport, deadline) = &mut self.phase {
            transport.take_readiness();
            if !transport.is_connected()? {
                check_deadline(*deadline, now, options.connect_timeout)?;
                return Ok(Progress::NotReady);
            }
            if let Phase::Connecting(transport, deadline) = self.take_phase() {
                let greeting = Greeting::new(&options.export, options.tls.is_some());
                self.phase = Phase::Greeting(transport, greeting, deadline);
            }
        }
        let Phase::Greeting(transport, greeting, deadline) = &mut self.phase else {
            return Ok(Progress::NotReady);
        };
        transport.take_readiness();
        loop {
            transport.send()?;
            let (input, output) = transport.handshake_buffers();
            let (used, step) = greeting.advance(input, output)?;
            transport.consume(used);
            match (step, &options.tls) {
                (Step::Done(parameters), _) => return self.establish(parameters),
                (Step::StartTls, Some(tls)) => {
                    transport.channel().begin_tls(tls.begin()?);
                    greeting.tls_started(transport.handshake_buffers().1);
                }
                (Step::StartTls | Step::Wait, _) => {
                    if !transport.receive(&mut self.pool)? {
                        transport.send()?;
                        check_deadline(*deadline, now, options.connect_timeout)?;
                        return Ok(Progress::NotReady);
                    }
                }
            }
        }
    }

    /// Makes the connection ready after the handshake.
    fn establish(&mut self, parameters: ExportParameters) -> Result<Progress, ConnectionError> {
        let parameters = match &self.parameters {
            Some(first) => first.check_unchanged(parameters)?,
            None => parameters,
        };
        self.parameters = Some(parameters);
        if let Phase::Greeting(transport, ..) = self.take_phase() {
            let replies = Replies::new(parameters.structured, parameters.allocation);
            self.phase = Phase::Ready(transport, replies);
            self.reconnection.connected();
        }
        Ok(Progress::Established)
    }

    /// Receives replies, and adds the cookies of the requests that they complete to `completed`.
    ///
    /// # Errors
    /// Why the connection is lost.
    pub fn receive(
        &mut self,
        log: &mut RequestLog,
        now: Duration,
        completed: &mut Vec<u64>,
    ) -> Result<(), ConnectionError> {
        match &mut self.phase {
            Phase::Ready(transport, replies) => {
                transport.take_readiness();
                transport.receive_replies(replies, log, &mut self.pool, now, completed)
            }
            _ => Ok(()),
        }
    }

    /// Sends requests, if the connection is ready.
    ///
    /// # Errors
    /// Why the connection is lost.
    pub fn send(&mut self, log: &mut RequestLog, now: Duration) -> Result<(), ConnectionError> {
        match &mut self.phase {
            Phase::Ready(transport, _) => transport.send_requests(log, now),
            _ => Ok(()),
        }
    }

    /// Closes the connection because of `error`, and keeps it as an orphan if the server may
    /// still carry out changes. Returns whether the client reconnects, or its owner may.
    pub fn close(
        &mut self,
        error: ConnectionError,
        options: &ClientOptions,
        now: Duration,
        log: &mut RequestLog,
    ) -> bool {
        match self.take_phase() {
            Phase::Connecting(transport, _) | Phase::Greeting(transport, ..) => {
                transport.close(&mut self.pool);
            }
            Phase::Ready(transport, replies) => {
                let is_violation = matches!(error, ConnectionError::ProtocolViolation(_));
                self.orphan(transport, (!is_violation).then_some(replies), options, log);
            }
            Phase::AwaitingOrphans(_) | Phase::Disconnected { .. } => {}
        }
        let pause = self.reconnection.record_loss(&error);
        let retry_at = pause
            .filter(|_| self.endpoint.is_some())
            .map(|pause| now + pause);
        self.phase = Phase::Disconnected { error, retry_at };
        self.reconnection.is_on()
    }

    /// Gives up a ready connection. Another one waits until the server has answered each change
    /// that was sent over this one, or has closed it.
    fn orphan(
        &mut self,
        transport: Transport,
        replies: Option<Replies>,
        options: &ClientOptions,
        log: &mut RequestLog,
    ) {
        // A channel of the owner may lead anywhere, so the owner has to ensure this.
        let key = self
            .endpoint
            .as_ref()
            .map(|endpoint| orphan_key(endpoint, options));
        let (Some(key), Some(requests)) = (key, log.split_off_sent()) else {
            return transport.close(&mut self.pool);
        };
        let mut orphan = OrphanedConnection::new(transport, replies, requests);
        if !orphan.has_ended() {
            options.orphaned.add(key, orphan);
        }
    }

    /// Waits until the socket is ready, or for `timeout`.
    ///
    /// # Errors
    /// The operating system's.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<(), ConnectionError> {
        Ok(self.watcher.wait(timeout)?)
    }

    /// When the connection itself needs a turn, unless its socket becomes ready before.
    pub fn next_turn(&self, now: Duration, log: &RequestLog) -> Option<Duration> {
        match &self.phase {
            Phase::AwaitingOrphans(until) => Some((*until).min(now + ORPHAN_CHECK_INTERVAL)),
            Phase::Connecting(_, deadline) | Phase::Greeting(.., deadline) => Some(*deadline),
            Phase::Disconnected { retry_at, .. } => *retry_at,
            Phase::Ready(transport, _) => transport.is_busy(log.has_outgoing()).then_some(now),
        }
    }
}

/// The key under which orphaned connections to an export are kept.
fn orphan_key(endpoint: &Endpoint, options: &ClientOptions) -> String {
    format!("{endpoint} {}", options.export)
}

fn check_deadline(
    deadline: Duration,
    now: Duration,
    within: Duration,
) -> Result<(), ConnectionError> {
    if now < deadline {
        return Ok(());
    }
    let what = "the server was not ready";
    Err(ConnectionError::TimedOut { what, within })
}

impl From<rustls::Error> for ConnectionError {
    fn from(error: rustls::Error) -> Self {
        Self::Socket(std::io::Error::other(error).to_string())
    }
}
