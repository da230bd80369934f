//! The types that describe sockets and their events. The sockets themselves are in [`crate::real`]
//! ([`Listener`](crate::real::Listener), [`Stream`](crate::real::Stream),
//! [`Poller`](crate::real::Poller), [`Waker`](crate::real::Waker)).
//!
//! There is no trait over sockets: the protocols above are state machines over bytes, which the
//! simulator drives directly.

pub use base::Endpoint;

/// The events of a socket that a poller reports. A hang-up is always reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Interest {
    /// Report when bytes, a connection or the end of the stream can be received.
    pub readable: bool,
    /// Report when there is room to send.
    pub writable: bool,
}

impl Interest {
    /// The interest in receiving only.
    pub const READABLE: Self = Self {
        readable: true,
        writable: false,
    };
}

/// The events that a poller reports of one socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ready {
    /// The key with which the socket was added.
    pub key: u64,
    /// Whether receiving does not block.
    pub readable: bool,
    /// Whether sending does not block.
    pub writable: bool,
    /// Whether both directions are closed, or the connection failed.
    pub hung_up: bool,
}
