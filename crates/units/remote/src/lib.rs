//! A unit behind a unit daemon: each call is a request to the daemon
//! (docs/internals/unit-protocol.md).
//!
//! * [`RemoteUnit`]: calls as requests.
//! * [`Link`]: sends requests to a daemon and delivers the answers.
//! * [`Conversation`]: one connection as a state machine without I/O.
//! * [`TlsLink`]: a link over TCP and TLS.
//! * [`Pauses`]: how long a link waits after a failure.
//! * [`endpoint_of_url`]: the endpoint in a daemon's URL.

mod address;
mod attempt;
mod conversation;
mod driver;
mod link;
mod pauses;
mod remote_unit;

pub use address::{endpoint_of_url, url_of_address};
pub use conversation::{ConnectionError, Conversation, GreetingProgress};
pub use link::{Capabilities, Detours, LinkConfig, TlsLink};
pub use pauses::Pauses;
pub use remote_unit::RemoteUnit;

use std::io;
use std::sync::Arc;

use unit_wire::{Request, Status};

/// An answer of a daemon.
#[derive(Debug, Clone, Copy)]
pub struct Reply<'a> {
    /// The status.
    pub status: Status,
    /// The body.
    pub body: &'a [u8],
    /// The incarnation of the daemon that answered.
    pub incarnation: u64,
}

/// Called once with the answer to a request, or with the reason why it, or its answer, was lost.
pub type Done = Box<dyn FnOnce(Result<Reply<'_>, Arc<io::Error>>) + Send>;

/// Whether a connection ended because it broke and not because the daemon did not respond: then
/// another connection may succeed at once.
fn has_broken(why: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    matches!(
        why.kind(),
        Kind::ConnectionReset | Kind::ConnectionAborted | Kind::BrokenPipe | Kind::UnexpectedEof
    )
}

/// Sends requests to the daemon of one unit. Shared by many threads.
pub trait Link: Send + Sync {
    /// Queues a request, and calls `done` once with the answer, on any thread. Waits while too
    /// much is in flight.
    fn send(&self, request: &Request<'_>, done: Done);

    /// As [`Link::send`], without waiting. Returns `false`, and never calls `done`, if too much is
    /// in flight or the link cannot do that.
    fn try_send(&self, request: &Request<'_>, done: Done) -> bool {
        let _ = (request, done);
        false
    }
}
