//! Non-blocking connections, with or without TLS.
//!
//! * [`Pipe`]: the interface between a protocol and the connection that carries its bytes.
//! * [`Channel`]: a pipe over a socket of [`world::real`].
//! * [`Outbox`]: bytes that wait to be sent over a pipe.
//!
//! Sockets and the poller stay in [`world::real`], and not here: `world` is the one seam to the
//! operating system. Its `host` module listens for tasks with the same sockets, and `clippy.toml`
//! refuses sockets everywhere else, so a second crate that makes system calls would need the same
//! exceptions.
//!
//! Must not know: which protocol is spoken, or who may speak it.

mod channel;
mod outbox;
mod pipe;

pub use channel::Channel;
pub use outbox::Outbox;
pub use pipe::{Pipe, Sent};
