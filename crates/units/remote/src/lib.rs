//! A unit that is somewhere else: each call is a request to its daemon
//! (docs/internals/unit-protocol.md).
//!
//! * [`RemoteUnit`]: calls as requests.
//! * [`Link`]: what carries requests to a daemon, and answers back.
//! * [`Conversation`]: one connection as a state machine without I/O.
//! * [`TlsLink`]: a link over TCP and TLS.
//! * [`Pauses`]: how long a link that has failed tries nothing.
//! * [`endpoint_of_url`]: where a daemon is.

mod address;
mod attempt;
mod conversation;
mod driver;
mod link;
mod pauses;
mod remote_unit;

pub use address::{endpoint_of_url, url_of_address};
pub use conversation::{Broken, Conversation, Greeted};
pub use link::{Capabilities, Detours, LinkConfig, TlsLink};
pub use pauses::Pauses;
pub use remote_unit::RemoteUnit;

use std::io;
use std::sync::Arc;

use unit_wire::{Request, Status};

/// What a daemon has answered.
#[derive(Debug, Clone, Copy)]
pub struct Reply<'a> {
    /// How the request has ended.
    pub status: Status,
    /// What is said of that.
    pub body: &'a [u8],
    /// The life of the daemon in which that was.
    pub incarnation: u64,
}

/// Is told what came of a request; of one that was lost on the way, or whose
/// answer was, why.
pub type Done = Box<dyn FnOnce(Result<Reply<'_>, Arc<io::Error>>) + Send>;

/// Whether a connection has ended because it broke, and not because nobody answered on
/// it: then another one may be had at once.
fn has_broken(why: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    matches!(
        why.kind(),
        Kind::ConnectionReset | Kind::ConnectionAborted | Kind::BrokenPipe | Kind::UnexpectedEof
    )
}

/// Carries requests to one unit's daemon. Shared by many threads.
pub trait Link: Send + Sync {
    /// Sends a request, soon, and has `done` told what came of it, once, on any
    /// thread. Waits while too much is under way.
    fn ask(&self, request: &Request<'_>, done: Done);

    /// As [`Link::ask`], without waiting. `false` if nothing was sent, and nobody is
    /// told: too much is under way, or the link cannot do that.
    fn try_ask(&self, request: &Request<'_>, done: Done) -> bool {
        let _ = (request, done);
        false
    }
}
