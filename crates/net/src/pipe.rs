//! [`Pipe`]: the interface between a protocol and the connection that carries its bytes.

use std::io::{self, IoSlice};

/// The result of sending to a pipe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sent {
    /// The number of bytes that the pipe accepted. They arrive in order if the connection holds.
    pub bytes: usize,
    /// Whether the pipe accepts no more bytes now.
    pub blocked: bool,
}

/// A connection that carries bytes in both directions and never blocks.
pub trait Pipe {
    /// Receives bytes. `Ok(0)` means that the other side has closed the connection.
    ///
    /// # Errors
    /// `WouldBlock` if no bytes have arrived. Any other error ends the connection.
    fn receive(&mut self, into: &mut [u8]) -> io::Result<usize>;

    /// Whether the pipe may buffer received bytes, which the poller does not report. The caller
    /// has to receive again without waiting.
    fn holds_received(&self) -> bool;

    /// Sends the slices, or a prefix of them, after the bytes that the pipe buffers.
    ///
    /// # Errors
    /// Every error ends the connection.
    fn send(&mut self, from: &[IoSlice<'_>]) -> io::Result<Sent>;

    /// Whether the pipe buffers accepted bytes that the socket has no room for.
    fn holds_unsent(&self) -> bool;
}
