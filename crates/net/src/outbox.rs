//! Bytes that wait to be sent.

use std::io::{self, IoSlice};

use crate::Pipe;

/// Bytes that wait to be sent, in order.
#[derive(Debug, Default)]
pub struct Outbox {
    bytes: Vec<u8>,
    /// What lies before has been taken.
    sent: usize,
}

impl Outbox {
    /// For more to be appended.
    pub fn bytes(&mut self) -> &mut Vec<u8> {
        if self.is_empty() {
            self.bytes.clear();
            self.sent = 0;
        }
        &mut self.bytes
    }

    /// How many bytes wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len() - self.sent
    }

    /// Whether none does.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Gives back the room of what was sent, if nothing waits.
    pub fn shrink(&mut self) {
        if self.is_empty() {
            *self = Self::default();
        }
    }

    /// Sends what there is, and what `pipe` holds; whether that takes no more.
    ///
    /// # Errors
    /// The connection's end.
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
