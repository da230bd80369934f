//! Connections that a client has given up while the server may still carry out changes that it
//! received over them.
//!
//! A server that hangs has requests in its socket, or in its queue, and carries them out later.
//! So a connection that is given up becomes an orphan, and no other one to the same export begins
//! before the orphan has ended:
//!
//! ```text
//!  orphaned ─▶ each change that was sent has a reply ──────────────▶ ended
//!          ├─▶ a change was sent in part: shut down sending ── EOF ─▶ ended
//!          └─▶ a reply is invalid: shut down sending ───────── EOF ─▶ ended
//!              (EOF: the server, or its kernel, has closed the connection)
//! ```
//!
//! Replies count, and not EOF alone, since there are servers that close the connection first and
//! then carry out what they have begun.
//!
//! Invariant: no connection to an export begins while another one in the same
//! [`OrphanedConnections`] has not ended.

use std::fmt;
use std::io::ErrorKind;

use net::{Channel, Pipe};
use parking_lot::Mutex;

use super::super::buffers::{BufferPool, Input};
use super::request_log::OrphanedRequests;
use super::transport::Transport;
use super::{Replies, RequestLog};

/// The maximal number of bytes received in one check.
const CHECK_BYTES_MAX: usize = 4 << 20;

/// The number of orphaned connections with which no other connection begins, wherever it leads,
/// since each has a socket.
const ORPHANS_MAX: usize = 64;

/// A connection that was given up.
pub(super) struct OrphanedConnection {
    channel: Channel,
    input: Input,
    pool: BufferPool,
    /// The replies, and the requests that they are checked against; `None` if only EOF counts.
    replies: Option<(Replies, RequestLog)>,
    /// Whether a change was sent only in part, so that EOF counts after the replies.
    is_cut: bool,
}

impl OrphanedConnection {
    /// The connection over `transport`, on which `requests` have no reply. Without `replies` only
    /// EOF ends it.
    pub fn new(transport: Transport, replies: Option<Replies>, requests: OrphanedRequests) -> Self {
        let (channel, input) = transport.into_parts();
        let mut new = Self {
            channel,
            input,
            pool: BufferPool::default(),
            replies: replies.map(|replies| (replies, requests.log)),
            is_cut: requests.is_cut,
        };
        if new.replies.is_none() {
            new.wait_for_eof();
        }
        new
    }

    /// Ignores replies from now on, and asks the server to close the connection.
    fn wait_for_eof(&mut self) {
        self.replies = None;
        // If this fails, receiving reports the end.
        let _ = self.channel.stream().shut_down_sending();
    }

    /// Receives replies, and returns whether the server carries out nothing more.
    pub fn has_ended(&mut self) -> bool {
        let mut total = 0;
        while total < CHECK_BYTES_MAX {
            if self.channel.holds_unsent() && self.channel.send(&[]).is_err() {
                // Receiving reports whether this is the end.
                self.is_cut = true;
            }
            if self.all_changes_answered() {
                if !self.is_cut {
                    return true;
                }
                self.wait_for_eof();
            }
            match self.channel.receive(self.input.space(&mut self.pool)) {
                Ok(0) => return true,
                Ok(count) => {
                    self.input.received(count);
                    total += count;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::InvalidData => {
                    // The bytes are not valid TLS.
                    self.channel.drop_tls();
                    self.wait_for_eof();
                }
                Err(_) => return true,
            }
        }
        false
    }

    /// Checks the replies that were received, and returns whether each change that was sent whole
    /// has one.
    fn all_changes_answered(&mut self) -> bool {
        let Some((replies, log)) = &mut self.replies else {
            self.input.consume(self.input.len());
            return false;
        };
        let mut completed = Vec::new();
        let advanced = replies.advance(self.input.bytes(), log, &mut completed);
        completed.into_iter().for_each(|cookie| log.discard(cookie));
        let Ok(used) = advanced else {
            self.wait_for_eof();
            return self.all_changes_answered();
        };
        self.input.consume(used);
        !log.has_sent_changes()
    }
}

/// The orphaned connections of the clients that share this value, each with a key for the export
/// that it leads to. Clients of the same export have to share one.
#[derive(Default)]
pub struct OrphanedConnections(Mutex<Vec<(String, OrphanedConnection)>>);

impl fmt::Debug for OrphanedConnections {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("OrphanedConnections")
    }
}

impl OrphanedConnections {
    /// Adds a connection to the export `key`.
    pub(super) fn add(&self, key: String, orphan: OrphanedConnection) {
        let mut all = self.0.lock();
        all.push((key, orphan));
        all.retain_mut(|(_, orphan)| !orphan.has_ended());
    }

    /// Whether all orphaned connections have ended.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let mut all = self.0.lock();
        all.retain_mut(|(_, orphan)| !orphan.has_ended());
        all.is_empty()
    }

    /// Whether no connection to the export `key` may begin: one to it has not ended, or there are
    /// too many that have not.
    pub(super) fn blocks(&self, key: &str) -> bool {
        let mut all = self.0.lock();
        let checks_all = all.len() >= ORPHANS_MAX;
        all.retain_mut(|(other, orphan)| !checks_all && other != key || !orphan.has_ended());
        all.len() >= ORPHANS_MAX || all.iter().any(|(other, _)| other == key)
    }
}
