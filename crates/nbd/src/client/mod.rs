//! An NBD client that is a [`base::BlockDevice`]: the export of any NBD server, as a disk.
//! `docs/internals/nbd.md` says what the client requires of a server.
//!
//! ```text
//!   block_device ─▶ request_log ─▶ connection ─▶ transport ─▶ server
//!   poll         ◀─ replies ◀──────────────────────┘
//! ```
//!
//! * `nbd_client`: [`NbdClient`], which ties the parts together. `block_device`: requests to the
//!   device as NBD requests. `split`: requests that are too long for one NBD request.
//! * `request_log`, `entry`: requests without a reply, and changes that no flush has covered.
//! * `connection`: connects, and connects again. It knows no requests. `greeting`: the handshake.
//!   `transport`: the socket. `replies`: the server's bytes as replies.
//! * `orphaned`: connections that were given up while the server may still carry out requests.
//!
//! Nothing here blocks. Connecting, TLS and the handshake proceed in
//! [`base::BlockDevice::poll`]. Requests are sent in `end_batch` and `poll`, many in one system
//! call. The thread that owns the device watches the socket ([`super::Watcher`]).
//!
//! Life of a request: 1. logged, 2. sent, 3. answered, 4. *unflushed*, if it is a change that no
//! flush has covered and the client may reconnect, 5. removed.
//!
//! Invariants:
//!
//! * `unanswered <= requests_max`, `unanswered bytes + unflushed bytes <= bytes_max +
//!   unflushed_bytes_max`. Beyond that the device is `Busy`.
//! * Every reply is checked against its request. One that does not fit ends the connection
//!   ([`ProtocolViolation`]).
//! * With [`Reconnect::Backoff`] a lost connection loses no data. Over the next connection the
//!   client first replays unflushed changes, in order where they overlap, and then sends the
//!   requests without a reply. So the server may carry out a request twice, and a write may take
//!   effect after another one that was outstanding at the same time.
//! * The client neither replays nor sends anything to an export while the server may still carry
//!   out changes that it received over an earlier connection (`orphaned`).
//! * After a failed flush, no later flush counts until all unflushed changes have been replayed.
//! * If a server refuses to replay an unflushed change for `replay_timeout`, an acknowledged
//!   write is lost, and the device stops for good.

mod block_device;
mod connection;
mod entry;
mod export_parameters;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
mod greeting;
mod nbd_client;
mod orphaned;
mod protocol_violation;
mod reconnection;
mod replies;
mod request_log;
mod split;
mod tls;
mod transport;

use std::sync::Arc;
use std::time::Duration;

use net::Channel;
use world::{Clock, Endpoint};

pub(super) use export_parameters::ExportParameters;
pub(super) use greeting::{Greeting, Step};
pub(super) use replies::Replies;
pub(super) use request_log::RequestLog;

pub use nbd_client::NbdClient;
pub use orphaned::OrphanedConnections;
pub use protocol_violation::ProtocolViolation;
pub use tls::{ClientTls, ClientTlsError};

/// How a client reaches its server.
#[derive(Debug)]
pub enum Target {
    /// The client connects to this address.
    Endpoint(Endpoint),
    /// The server is at the other end of this channel, which does not block and may still be
    /// connecting. When it ends, the owner provides another one ([`NbdClient::connect_over`]).
    Connected(Channel),
    /// The owner provides the channel later ([`NbdClient::connect_over`]).
    Later,
}

/// What the client does when it loses its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reconnect {
    /// It fails all requests, those without a reply and later ones.
    Never,
    /// It connects again after pauses that double. Requests wait meanwhile.
    Backoff {
        /// The first pause.
        min: Duration,
        /// The longest pause.
        max: Duration,
    },
}

/// How a client uses its server.
#[derive(Clone)]
pub struct ClientOptions {
    /// The name of the export on the server.
    pub export: String,
    /// With TLS, everything but the greeting is encrypted; `None` for plain bytes.
    pub tls: Option<ClientTls>,
    /// What the client does when it loses its connection.
    pub reconnect: Reconnect,
    /// The longest time for connecting and the handshake together.
    pub connect_timeout: Duration,
    /// When the oldest request makes no progress for this long, the connection counts as lost.
    pub request_timeout: Duration,
    /// How long a server may refuse to replay unflushed changes before they count as lost. Until
    /// then the client tries again after the pauses of `reconnect`.
    pub replay_timeout: Duration,
    /// The maximal number of requests without a reply.
    pub requests_max: usize,
    /// The maximal number of bytes that these read or write. One longer request is accepted alone.
    pub bytes_max: usize,
    /// The maximal number of bytes in unflushed changes. At half of it the client flushes.
    pub unflushed_bytes_max: usize,
    /// Connections that were given up. Clients of the same export have to share them.
    pub orphaned: Arc<OrphanedConnections>,
    /// The clock for timeouts and pauses.
    pub clock: Arc<dyn Clock>,
}

impl ClientOptions {
    /// The defaults: the client never reconnects, waits 10 s for each step, and has at most 1024
    /// requests of 64 MiB, and 64 MiB of unflushed changes.
    pub fn new(export: impl Into<String>, clock: Arc<dyn Clock>) -> Self {
        Self {
            export: export.into(),
            tls: None,
            reconnect: Reconnect::Never,
            connect_timeout: Duration::from_secs(10),
            request_timeout: Duration::from_secs(10),
            replay_timeout: Duration::from_secs(60),
            requests_max: 1024,
            bytes_max: 64 << 20,
            unflushed_bytes_max: 64 << 20,
            orphaned: Arc::default(),
            clock,
        }
    }
}

/// Why a client has no connection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConnectionError {
    /// The operating system reported an error.
    #[error("{0}")]
    Socket(String),
    /// The server closed the connection.
    #[error("the server closed the connection")]
    Closed,
    /// The server refused an option of the handshake.
    #[error("the server refused: {0}")]
    Refused(String),
    /// The server broke the protocol.
    #[error("the server violated the NBD protocol: {0}")]
    ProtocolViolation(#[from] ProtocolViolation),
    /// A step took too long.
    #[error("{what} within {} s", within.as_secs_f64())]
    TimedOut {
        /// What did not happen.
        what: &'static str,
        /// The timeout.
        within: Duration,
    },
    /// The export differs from that of the first connection.
    #[error("the export changed: {what} was {was}, and is {is}")]
    ExportChanged {
        /// The property that differs.
        what: &'static str,
        /// Its value in the first connection.
        was: u64,
        /// Its value now.
        is: u64,
    },
    /// An orphaned connection to the export has not ended.
    #[error(
        "requests of an earlier connection have no reply, and the server may still carry them out"
    )]
    OrphanPending,
    /// The server refused to replay an unflushed change.
    #[error("the server refused to replay an acknowledged write: {0}")]
    ReplayRefused(String),
    /// The server could not flush acknowledged changes to stable storage.
    #[error("the server failed to flush: {0}")]
    FlushFailed(String),
    /// The server is shutting down.
    #[error("the server is shutting down")]
    ServerStopping,
    /// The owner closed the connection.
    #[error("the client closed the connection")]
    Ended,
}

/// The state of a client's connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// The client connects, or performs the handshake.
    Connecting,
    /// The server answers requests.
    Ready,
    /// There is no connection.
    Disconnected {
        /// Why.
        error: ConnectionError,
    },
}
