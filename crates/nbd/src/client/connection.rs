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
    reconnect: Reconnect,
    watcher: Watcher,
    phase: Phase,
    /// The export's parameters in the first connection, with what later ones may change.
    parameters: Option<ExportParameters>,
    pause: Duration,
    /// The error that was logged last; `None` while there is a connection.
    logged_error: Option<String>,
    pool: BufferPool,
}

impl Connection {
    /// A connection that has not been opened.
    pub fn new(endpoint: Option<Endpoint>, reconnect: Reconnect, watcher: Watcher) -> Self {
        Self {
            endpoint,
            reconnect,
            watcher,
            phase: Phase::Disconnected {
                error: ConnectionError::Ended,
                retry_at: None,
            },
            parameters: None,
            pause: Duration::ZERO,
            logged_error: None,
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
            Phase::Disconnected { error, .. } if self.reconnect == Reconnect::Never => {
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
        self.reconnect != Reconnect::Never && self.parameters.as_ref().is_some_and(can_flush)
    }

    /// Waits for no connection any more.
    pub fn stop_reconnecting(&mut self) {
        self.reconnect = Reconnect::Never;
    }

    /// Makes the next pause the shortest one, since the server answers requests.
    pub fn reset_pause(&mut self) {
        self.pause = Duration::ZERO;
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
            Some(first) => check_unchanged(first, parameters)?,
            None => parameters,
        };
        self.parameters = Some(parameters);
        if let Phase::Greeting(transport, ..) = self.take_phase() {
            let replies = Replies::new(parameters.structured, parameters.allocation);
            self.phase = Phase::Ready(transport, replies);
            if self.logged_error.take().is_some() {
                tracing::info!("NBD client connected again");
            }
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
        let retry_at = match self.reconnect {
            Reconnect::Never => {
                tracing::debug!(%error, "NBD client lost connection");
                None
            }
            Reconnect::Backoff { min, max } => {
                self.log_error(&error);
                self.pause = (self.pause * 2).clamp(min, max);
                self.endpoint.is_some().then_some(now + self.pause)
            }
        };
        self.phase = Phase::Disconnected { error, retry_at };
        self.reconnect != Reconnect::Never
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

    /// Logs why requests wait. An error that was logged last is not repeated.
    fn log_error(&mut self, error: &ConnectionError) {
        let error = error.to_string();
        if self.logged_error.as_ref() != Some(&error) {
            tracing::warn!(
                error,
                "NBD client lost connection; requests wait until it reconnects"
            );
            self.logged_error = Some(error);
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

/// Checks that the export is the one of the first connection. The user of the device keeps its
/// first parameters, so a later connection may offer more, and not less.
fn check_unchanged(
    first: &ExportParameters,
    now: ExportParameters,
) -> Result<ExportParameters, ConnectionError> {
    let read_only = |parameters: &ExportParameters| u64::from(parameters.flags & flags::READ_ONLY);
    // The client uses one connection, so the flag for several does not matter.
    let needed = first.flags & !flags::CAN_MULTI_CONN;
    let size = (first.size_bytes, now.size_bytes);
    let offered = (needed.into(), (needed & now.flags).into());
    let block = (first.block_min.into(), now.block_min.into());
    let payload = (first.payload_max.into(), now.payload_max.into());
    let extents = (first.allocation.is_some(), now.allocation.is_some());
    let properties = [
        ("its size", size, size.0 == size.1),
        (
            "its read-only flag",
            (read_only(first), read_only(&now)),
            read_only(first) == read_only(&now),
        ),
        ("its transmission flags", offered, offered.0 == offered.1),
        (
            "its minimal block size",
            block,
            block.0.is_multiple_of(block.1),
        ),
        ("its maximal payload", payload, payload.0 <= payload.1),
        (
            "its support of base:allocation",
            (extents.0.into(), extents.1.into()),
            extents.0 <= extents.1,
        ),
    ];
    match properties
        .into_iter()
        .find(|(.., is_unchanged)| !is_unchanged)
    {
        Some((what, (was, is), _)) => Err(ConnectionError::ExportChanged { what, was, is }),
        None => Ok(ExportParameters {
            structured: now.structured,
            allocation: now.allocation.filter(|_| extents.0),
            ..*first
        }),
    }
}

impl From<rustls::Error> for ConnectionError {
    fn from(error: rustls::Error) -> Self {
        Self::Socket(std::io::Error::other(error).to_string())
    }
}
