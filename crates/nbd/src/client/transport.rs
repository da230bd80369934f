//! [`Transport`]: a watched socket to a server, and the bytes received from it.

use std::io::{self, ErrorKind};
use std::time::Duration;

use net::{Channel, Outbox, Pipe};
use world::Interest;

use super::super::buffers::{BufferPool, Input};
use super::super::watcher::{WatchedSource, Watcher};
use super::{ConnectionError, Replies, RequestLog};

/// The minimal length of a read's outstanding data, in bytes, that is received directly into the
/// data. Below it a copy costs less than a system call.
const DIRECT_BYTES_MIN: usize = 32 << 10;

/// The maximal number of bytes received in one turn, so that requests are sent soon.
const TURN_BYTES_MAX: usize = 4 << 20;

/// A socket to a server.
pub struct Transport {
    socket: WatchedSource<Channel>,
    /// What the handshake sends.
    output: Outbox,
    input: Input,
    readable: bool,
    writable: bool,
}

impl From<io::Error> for ConnectionError {
    fn from(error: io::Error) -> Self {
        Self::Socket(error.to_string())
    }
}

impl Transport {
    /// A transport over a channel that may still be connecting.
    pub fn new(channel: Channel, watcher: &Watcher) -> Result<Self, ConnectionError> {
        let interest = Interest {
            readable: true,
            writable: true,
        };
        Ok(Self {
            socket: watcher.watch(channel, interest)?,
            output: Outbox::default(),
            input: Input::default(),
            readable: false,
            writable: false,
        })
    }

    /// Takes what the poller has seen of the socket.
    pub fn take_readiness(&mut self) {
        let seen = self.socket.take_readiness();
        self.readable |= seen.readable;
        self.writable |= seen.writable;
    }

    /// Whether the socket is connected.
    pub fn is_connected(&mut self) -> Result<bool, ConnectionError> {
        match self.socket.source().stream().connected() {
            Ok(()) => {
                (self.readable, self.writable) = (true, true);
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// The channel, on which TLS may begin.
    pub fn channel(&mut self) -> &mut Channel {
        self.socket.source()
    }

    /// The bytes that were received, and the buffer for those that the handshake sends.
    pub fn handshake_buffers(&mut self) -> (&[u8], &mut Vec<u8>) {
        (self.input.bytes(), self.output.bytes())
    }

    /// Removes the first `count` received bytes.
    pub fn consume(&mut self, count: usize) {
        self.input.consume(count);
    }

    /// Receives bytes for the handshake. Returns whether some have arrived.
    pub fn receive(&mut self, pool: &mut BufferPool) -> Result<bool, ConnectionError> {
        if !self.readable {
            return Ok(false);
        }
        let channel = self.socket.source();
        match channel.receive(self.input.space(pool)) {
            Ok(0) => Err(ConnectionError::Closed),
            Ok(count) => {
                self.input.received(count);
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.readable = false;
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Sends the bytes of the handshake and of TLS.
    pub fn send(&mut self) -> Result<(), ConnectionError> {
        if self.writable {
            self.writable = !self.output.send(self.socket.source())?;
        }
        self.watch_readiness()
    }

    /// Receives replies, and records the progress of the request whose reply is arriving. Adds
    /// the cookies of completed requests to `completed`.
    pub fn receive_replies(
        &mut self,
        replies: &mut Replies,
        log: &mut RequestLog,
        pool: &mut BufferPool,
        now: Duration,
        completed: &mut Vec<u64>,
    ) -> Result<(), ConnectionError> {
        let mut total = 0;
        let channel = self.socket.source();
        // The handshake may have received the beginning.
        let used = replies.advance(self.input.bytes(), log, completed)?;
        self.input.consume(used);
        while self.readable && total < TURN_BYTES_MAX {
            let direct = match self.input.len() {
                0 => replies.data_space(log),
                _ => None,
            };
            let (received, room) = match direct.filter(|room| room.len() >= DIRECT_BYTES_MIN) {
                Some(room) => {
                    let received = channel.receive(room);
                    let room = room.len();
                    if let Ok(count) = received {
                        replies.data_received(count, log, completed);
                    }
                    (received, room)
                }
                None => {
                    let space = self.input.space(pool);
                    let received = channel.receive(space);
                    let room = space.len();
                    if let Ok(count) = received {
                        self.input.received(count);
                        let used = replies.advance(self.input.bytes(), log, completed)?;
                        self.input.consume(used);
                    }
                    (received, room)
                }
            };
            match received {
                Ok(0) => return Err(ConnectionError::Closed),
                Ok(count) => {
                    total += count;
                    // The poller reports further bytes again.
                    self.readable = count == room || channel.holds_received();
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.readable = false,
                Err(error) => return Err(error.into()),
            }
        }
        self.input.release(pool);
        if total > 0
            && let Some(cookie) = replies.current()
            && let Ok(entry) = log.sent_entry(cookie)
        {
            entry.progress_at = now;
        }
        Ok(())
    }

    /// Sends requests until the socket is full.
    pub fn send_requests(
        &mut self,
        log: &mut RequestLog,
        now: Duration,
    ) -> Result<(), ConnectionError> {
        let channel = self.socket.source();
        while self.writable && (log.has_outgoing() || channel.holds_unsent()) {
            let (slices, count) = log.slices();
            let sent = channel.send(&slices[..count])?;
            log.sent(sent.bytes, now);
            self.writable = !sent.blocked;
        }
        self.watch_readiness()
    }

    /// Tells the poller which readiness the transport waits for.
    fn watch_readiness(&mut self) -> Result<(), ConnectionError> {
        let interest = Interest {
            readable: true,
            writable: !self.writable,
        };
        Ok(self.socket.wait_for(interest)?)
    }

    /// Whether the transport can receive or send without waiting for the poller.
    pub fn is_busy(&self, has_outgoing: bool) -> bool {
        self.readable || self.writable && has_outgoing
    }

    /// Ends watching, and returns the socket and the received bytes that were not consumed.
    pub fn into_parts(self) -> (Channel, Input) {
        (self.socket.into_source(), self.input)
    }

    /// Closes the socket and returns the buffer to the pool.
    pub fn close(mut self, pool: &mut BufferPool) {
        let rest = self.input.len();
        self.input.consume(rest);
        self.input.release(pool);
    }
}
