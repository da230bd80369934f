//! Sockets: the words for them. What opens and moves bytes is in
//! [`crate::real`] ([`Listener`](crate::real::Listener),
//! [`Stream`](crate::real::Stream), [`Poller`](crate::real::Poller),
//! [`Bell`](crate::real::Bell)).
//!
//! There is no trait over sockets: protocols above are written as state
//! machines over bytes, and the simulator drives those directly.

pub use base::Endpoint;

/// What an owner wants to be told of a socket. That the other side has gone is
/// told in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Interest {
    /// When bytes, a connection or the stream's end can be received.
    pub readable: bool,
    /// When there is room to send.
    pub writable: bool,
}

impl Interest {
    /// Only what can be received.
    pub const READABLE: Self = Self {
        readable: true,
        writable: false,
    };
}

/// What a poller saw of one socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ready {
    /// The key it was added with.
    pub key: u64,
    /// Receiving will not block.
    pub readable: bool,
    /// Sending will not block.
    pub writable: bool,
    /// Both directions are closed, or the connection failed.
    pub hung_up: bool,
}
