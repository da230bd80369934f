//! [`Outbox`]: bytes that wait to be sent.

use std::io::{self, IoSlice};

use crate::Pipe;

/// A buffer of bytes that wait to be sent, in order.
#[derive(Debug, Default)]
pub struct Outbox {
    bytes: Vec<u8>,
    /// The number of bytes at the front that were sent already.
    sent: usize,
}

impl Outbox {
    /// The buffer, for the caller to append to.
    pub fn bytes(&mut self) -> &mut Vec<u8> {
        if self.is_empty() {
            self.bytes.clear();
            self.sent = 0;
        }
        &mut self.bytes
    }

    /// The number of bytes that wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len() - self.sent
    }

    /// Whether no bytes wait.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Frees the buffer's memory if no bytes wait.
    pub fn shrink(&mut self) {
        if self.is_empty() {
            *self = Self::default();
        }
    }

    /// Sends the bytes that wait here and in `pipe`. Returns whether the pipe accepts no more.
    ///
    /// # Errors
    /// Every error ends the connection.
    pub fn send(&mut self, pipe: &mut impl Pipe) -> io::Result<bool> {
        while !self.is_empty() || pipe.holds_unsent() {
            let sent = pipe.send(&[IoSlice::new(&self.bytes[self.sent..])])?;
            self.sent += sent.bytes;
            if sent.blocked {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
