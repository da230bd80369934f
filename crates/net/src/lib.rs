//! Floor 2: bytes both ways over a socket, with or without TLS on it, without
//! ever waiting.
//!
//! * [`Pipe`]: what a protocol needs of the thing that carries its bytes.
//! * [`Channel`]: a pipe over a socket of [`world::real`].
//! * [`Outbox`]: what waits to be sent over one.
//!
//! It must not know: what is said, or who may say it.

mod channel;
mod outbox;
mod pipe;

pub use channel::Channel;
pub use outbox::Outbox;
pub use pipe::{Pipe, Sent};
