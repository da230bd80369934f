//! Connections that a client has left while the server may still carry out what was asked
//! over them.
//!
//! A server that hangs has requests in its socket, or in its queue, and carries them out when
//! it goes on. So a connection that is given up is heard out before another one to the same
//! export begins:
//!
//! ```text
//!  left ──▶ each change that was sent is answered ────────────────▶ over
//!       ├─▶ one was sent in part: no more is sent (SHUT_WR) ── end ─▶ over
//!       └─▶ what it says cannot be understood: likewise ─────── end ─▶ over
//!           (the end that the server, or the kernel for it, has put to the connection)
//! ```
//!
//! Invariant: no connection to an export begins while another one of the same [`Departed`]
//! is not over.
//!
//! Answers, and not the connection's end alone: there are servers that close first, and carry
//! out after that what they have begun.

use std::fmt;
use std::io::ErrorKind;
use std::sync::{Mutex, MutexGuard, PoisonError};

use net::{Channel, Pipe};

use super::super::buffers::{BufferPool, Input};
use super::line::Line;
use super::{Log, Replies};

/// So much is received in one look at most.
const LOOK_BYTES_MAX: usize = 4 << 20;

/// A connection that was left.
pub(super) struct Leaving {
    channel: Channel,
    input: Input,
    pool: BufferPool,
    /// What answers are held against; none, if they cannot be understood any more: only the
    /// end counts.
    answers: Option<(Replies, Log)>,
    /// A change was sent in part.
    is_cut: bool,
}

impl Leaving {
    /// What was sent over `line` is in `unheard`.
    pub fn new(line: Line, replies: Option<Replies>, unheard: Log, is_cut: bool) -> Self {
        let (channel, input) = line.into_parts();
        let mut new = Self {
            channel,
            input,
            pool: BufferPool::default(),
            answers: replies.map(|replies| (replies, unheard)),
            is_cut,
        };
        if new.answers.is_none() {
            new.say_no_more();
        }
        new
    }

    /// Only the end counts from now on.
    fn say_no_more(&mut self) {
        self.answers = None;
        // Where that is not possible any more there is an end to be seen.
        let _ = self.channel.stream().shut_down_sending();
    }

    /// Takes what there is; whether nothing more may be carried out.
    pub fn is_over(&mut self) -> bool {
        let mut total = 0;
        while total < LOOK_BYTES_MAX {
            if self.channel.holds_unsent() && self.channel.send(&[]).is_err() {
                // Whether that is the end is seen below.
                self.is_cut = true;
            }
            if self.is_heard_out() {
                if !self.is_cut {
                    return true;
                }
                self.say_no_more();
            }
            match self.channel.receive(self.input.space(&mut self.pool)) {
                Ok(0) => return true,
                Ok(count) => {
                    self.input.received(count);
                    total += count;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::InvalidData => {
                    // It is no TLS any more.
                    self.channel.drop_tls();
                    self.say_no_more();
                }
                Err(_) => return true,
            }
        }
        false
    }

    /// Takes what has been received; whether each change that was sent whole is answered.
    fn is_heard_out(&mut self) -> bool {
        let Some((replies, unheard)) = &mut self.answers else {
            self.input.consume(self.input.len());
            return false;
        };
        let mut done = Vec::new();
        let advanced = replies.advance(self.input.bytes(), unheard, &mut done);
        done.into_iter().for_each(|cookie| unheard.heard(cookie));
        let Ok(used) = advanced else {
            self.say_no_more();
            return self.is_heard_out();
        };
        self.input.consume(used);
        !unheard.has_sent_changes()
    }
}

/// With so many that are not over no connection begins, wherever it leads: each has a socket.
const DEPARTED_MAX: usize = 64;

/// Connections that were left and are not over, by where they lead. Whoever connects to the
/// same places by turns has one of these for all its clients.
#[derive(Default)]
pub struct Departed(Mutex<Vec<(String, Leaving)>>);

impl fmt::Debug for Departed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Departed")
    }
}

impl Departed {
    fn all(&self) -> MutexGuard<'_, Vec<(String, Leaving)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One that led to `place`.
    pub(super) fn add(&self, place: String, leaving: Leaving) {
        let mut all = self.all();
        all.push((place, leaving));
        all.retain_mut(|(_, leaving)| !leaving.is_over());
    }

    /// Whether none is left that is not over.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let mut all = self.all();
        all.retain_mut(|(_, leaving)| !leaving.is_over());
        all.is_empty()
    }

    /// Whether one that led to `place` is not over, or too many are not.
    pub(super) fn is_in_the_way(&self, place: &str) -> bool {
        let mut all = self.all();
        let looks_at_all = all.len() >= DEPARTED_MAX;
        all.retain_mut(|(to, leaving)| !looks_at_all && to != place || !leaving.is_over());
        all.len() >= DEPARTED_MAX || all.iter().any(|(to, _)| to == place)
    }
}
