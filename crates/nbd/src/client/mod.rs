//! An NBD client that is a [`base::BlockDevice`]: any NBD server's export, for whoever uses
//! devices. `docs/internals/nbd.md` says what it asks of a server.
//!
//! ```text
//!   verbs ─▶ log ─▶ line ─▶ server         greeting: the handshake
//!   poll  ◀─ replies ◀──┘                  log: what is not answered, and what is not flushed
//! ```
//!
//! Nothing waits. Connecting, TLS and the handshake go on in [`base::BlockDevice::poll`];
//! requests leave together in `commit` and `poll`, in one system call for many; the socket
//! is watched by the thread that owns the device ([`super::Watcher`]).
//!
//! Lifecycle of a request: 1. logged (taken, in memory), 2. sent, 3. answered, 4. *kept*,
//! if it is a change that no flush has covered and the client may connect again, 5. gone.
//!
//! Invariants:
//!
//! * `unanswered <= requests_max`, `unanswered bytes + kept bytes <= bytes_max + kept_max`:
//!   beyond it the device is `Busy`.
//! * Nothing that a server says is believed before it is checked against the request that
//!   it answers. What makes no sense ends the connection ([`Nonsense`]).
//! * With [`Reconnect::Again`] a connection that is lost loses nothing: on the new one kept
//!   changes are made once more, those that overlap in their order, and only when they are
//!   answered the rest is sent. A request may so be carried out twice, and a write that was
//!   under way together with another one may come after it.
//! * Nothing is made once more, nor anything new asked of the same export, while what was
//!   sent over an earlier connection may still be carried out (`leaving`).
//! * After a flush that has failed none counts before all that is kept was made once more.
//! * A kept change that a server refuses to make once more for `refused_for` is a lost write:
//!   the device is stopped for good.

mod device;
pub mod fuzz;
mod greeting;
mod leaving;
mod line;
mod log;
mod nonsense;
mod replies;
mod tls;
mod verbs;

use std::sync::Arc;
use std::time::Duration;

use net::Channel;
use world::{Clock, Endpoint};

pub(super) use greeting::{Agreed, Greeting, Step};
pub(super) use log::Log;
pub(super) use replies::Replies;

pub use device::NbdClient;
pub use leaving::Departed;
pub use nonsense::Nonsense;
pub use tls::{ClientTls, ClientTlsError};

/// Where a server is.
#[derive(Debug)]
pub enum Target {
    /// At an address.
    Endpoint(Endpoint),
    /// At the other end of this, which does not block, and may not be connected yet. If
    /// that ends only the owner can say where to go on ([`NbdClient::connect_over`]).
    Connected(Channel),
    /// The owner says later ([`NbdClient::connect_over`]).
    Later,
}

/// What becomes of a connection that is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reconnect {
    /// It is over: what is unanswered fails, and all that comes.
    Never,
    /// It is tried again after pauses that double. Requests wait for it.
    Again {
        /// The first pause.
        min: Duration,
        /// The longest one.
        max: Duration,
    },
}

/// How a server is used.
#[derive(Clone)]
pub struct ClientOptions {
    /// The export's name there.
    pub export: String,
    /// With it, all but the greeting is TLS.
    pub tls: Option<ClientTls>,
    /// What becomes of a connection that is lost.
    pub reconnect: Reconnect,
    /// Connecting and the handshake take no longer.
    pub connect_timeout: Duration,
    /// If nothing of the oldest request goes on for so long the connection counts as lost.
    pub request_timeout: Duration,
    /// A server that refuses for so long to make once more what it had acknowledged has lost
    /// it. Until then it is tried again after the pauses of `reconnect`.
    pub refused_for: Duration,
    /// Requests that are not answered.
    pub requests_max: usize,
    /// Bytes to be read or written by them. One request may be larger.
    pub bytes_max: usize,
    /// Bytes of acknowledged changes that are kept until a flush; at half of it the client
    /// asks for a flush itself.
    pub kept_bytes_max: usize,
    /// Connections that were left and may not be over: those of other clients, too, if they
    /// have the same.
    pub departed: Arc<Departed>,
    /// Where time comes from.
    pub clock: Arc<dyn Clock>,
}

impl ClientOptions {
    /// Usual values: connections are never made again, 10 s for each step, 1024 requests of
    /// 64 MiB, and 64 MiB that are kept.
    pub fn new(export: impl Into<String>, clock: Arc<dyn Clock>) -> Self {
        Self {
            export: export.into(),
            tls: None,
            reconnect: Reconnect::Never,
            connect_timeout: Duration::from_secs(10),
            request_timeout: Duration::from_secs(10),
            refused_for: Duration::from_secs(60),
            requests_max: 1024,
            bytes_max: 64 << 20,
            kept_bytes_max: 64 << 20,
            departed: Arc::default(),
            clock,
        }
    }
}

/// Why there is no connection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// The operating system says so.
    #[error("{0}")]
    Socket(String),
    /// The server has closed it.
    #[error("the server has closed the connection")]
    Closed,
    /// The server does not serve what was asked for.
    #[error("the server refuses: {0}")]
    Refused(String),
    /// The server says what none may say.
    #[error("the server makes no sense: {0}")]
    Nonsense(#[from] Nonsense),
    /// It took too long.
    #[error("{what} within {} s", within.as_secs_f64())]
    Late {
        /// What did not happen.
        what: &'static str,
        /// How long it was waited for.
        within: Duration,
    },
    /// It is not the export that it was.
    #[error("the export is another one now: {what} was {was}, and is {is}")]
    Changed {
        /// What is different.
        what: &'static str,
        /// As it was.
        was: u64,
        /// As it is.
        is: u64,
    },
    /// An older connection to it is not over.
    #[error(
        "what was asked of it over an earlier connection is not answered, and may still be \
         carried out"
    )]
    Unheard,
    /// It does not make an acknowledged change once more.
    #[error("the server refuses to make once more what it had acknowledged: {0}")]
    Unmade(String),
    /// It could not bring to stable storage what it has acknowledged.
    #[error("the server failed to flush: {0}")]
    Unflushed(String),
    /// The server says that it is stopping.
    #[error("the server is stopping")]
    Stopping,
    /// The owner has ended it.
    #[error("it was ended")]
    Ended,
}

/// How a client's connection is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// It is being made.
    Connecting,
    /// Requests are answered.
    Ready,
    /// There is none.
    Broken {
        /// Why.
        why: Broken,
    },
}
