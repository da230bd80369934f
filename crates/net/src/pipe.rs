//! What a conversation needs of the thing that carries its bytes.

use std::io::{self, IoSlice};

/// How much a pipe took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sent {
    /// In bytes; they will arrive, in order, if the connection holds.
    pub bytes: usize,
    /// It takes no more now.
    pub blocked: bool,
}

/// Carries bytes both ways without ever waiting.
pub trait Pipe {
    /// Receives bytes. `Ok(0)` is the end.
    ///
    /// # Errors
    /// `WouldBlock` if nothing is there; anything else is the connection's
    /// end.
    fn receive(&mut self, into: &mut [u8]) -> io::Result<usize>;

    /// Received bytes are held inside, and nobody will report them: receive
    /// again.
    fn holds_received(&self) -> bool;

    /// Sends the slices, or a beginning of them, after what is held inside.
    ///
    /// # Errors
    /// The connection's end.
    fn send(&mut self, from: &[IoSlice<'_>]) -> io::Result<Sent>;

    /// Bytes that were taken are held inside, until there is room.
    fn holds_unsent(&self) -> bool;
}
