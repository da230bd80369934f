//! A connection to a server: a socket that is watched, and what has been received.

use std::io::{self, ErrorKind};
use std::time::Duration;

use net::{Channel, Outbox, Pipe};
use world::Interest;

use super::super::buffers::{BufferPool, Input};
use super::super::watcher::{Watched, Watcher};
use super::{Broken, Log, Replies};

/// Data that are expected are received where they stay if they are as many: below it a copy
/// costs less than a system call.
const DIRECT_BYTES_MIN: usize = 32 << 10;

/// So much is received in one turn at most, that what is sent does not wait for long.
const TURN_BYTES_MAX: usize = 4 << 20;

/// See the module's head.
pub struct Line {
    socket: Watched<Channel>,
    /// What the handshake sends.
    output: Outbox,
    input: Input,
    readable: bool,
    writable: bool,
}

impl From<io::Error> for Broken {
    fn from(error: io::Error) -> Self {
        Self::Socket(error.to_string())
    }
}

impl Line {
    /// A channel that may not be connected yet.
    pub fn new(channel: Channel, watcher: &Watcher) -> Result<Self, Broken> {
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

    /// Takes notice of what was seen.
    pub fn look(&mut self) {
        let seen = self.socket.take_seen();
        self.readable |= seen.readable;
        self.writable |= seen.writable;
    }

    /// Whether the socket is connected.
    pub fn is_connected(&mut self) -> Result<bool, Broken> {
        match self.socket.source().stream().connected() {
            Ok(()) => {
                (self.readable, self.writable) = (true, true);
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// The socket, for TLS to begin.
    pub fn channel(&mut self) -> &mut Channel {
        self.socket.source()
    }

    /// What has been received, and where the handshake puts what it says.
    pub fn talk(&mut self) -> (&[u8], &mut Vec<u8>) {
        (self.input.bytes(), self.output.bytes())
    }

    /// So much of it is done with.
    pub fn consume(&mut self, count: usize) {
        self.input.consume(count);
    }

    /// Receives what there is for the handshake. Whether something came.
    pub fn receive(&mut self, pool: &mut BufferPool) -> Result<bool, Broken> {
        if !self.readable {
            return Ok(false);
        }
        let channel = self.socket.source();
        match channel.receive(self.input.space(pool)) {
            Ok(0) => Err(Broken::Closed),
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

    /// Sends the handshake's bytes, and those of TLS's.
    pub fn send(&mut self) -> Result<(), Broken> {
        if self.writable {
            self.writable = !self.output.send(self.socket.source())?;
        }
        self.wait()
    }

    /// Receives what there is, as answers, and marks the request that it belongs to. What
    /// is answered is added to `done`.
    pub fn receive_replies(
        &mut self,
        replies: &mut Replies,
        log: &mut Log,
        pool: &mut BufferPool,
        now: Duration,
        done: &mut Vec<u64>,
    ) -> Result<(), Broken> {
        let mut total = 0;
        let channel = self.socket.source();
        // What came behind the handshake.
        let used = replies.advance(self.input.bytes(), log, done)?;
        self.input.consume(used);
        while self.readable && total < TURN_BYTES_MAX {
            let direct = match self.input.len() {
                0 => replies.room(log),
                _ => None,
            };
            let (came, room) = match direct.filter(|room| room.len() >= DIRECT_BYTES_MIN) {
                Some(room) => {
                    let came = channel.receive(room);
                    let room = room.len();
                    if let Ok(count) = came {
                        replies.came(count, log, done);
                    }
                    (came, room)
                }
                None => {
                    let space = self.input.space(pool);
                    let came = channel.receive(space);
                    let room = space.len();
                    if let Ok(count) = came {
                        self.input.received(count);
                        let used = replies.advance(self.input.bytes(), log, done)?;
                        self.input.consume(used);
                    }
                    (came, room)
                }
            };
            match came {
                Ok(0) => return Err(Broken::Closed),
                Ok(count) => {
                    total += count;
                    // If there is more, the poller says so again.
                    self.readable = count == room || channel.holds_received();
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.readable = false,
                Err(error) => return Err(error.into()),
            }
        }
        self.input.release(pool);
        if total > 0
            && let Some(cookie) = replies.underway()
            && let Ok(entry) = log.sent_one(cookie)
        {
            entry.since = now;
        }
        Ok(())
    }

    /// Sends requests, as far as the socket takes them.
    pub fn send_requests(&mut self, log: &mut Log, now: Duration) -> Result<(), Broken> {
        let channel = self.socket.source();
        while self.writable && (log.has_outgoing() || channel.holds_unsent()) {
            let (slices, count) = log.slices();
            let sent = channel.send(&slices[..count])?;
            log.sent(sent.bytes, now);
            self.writable = !sent.blocked;
        }
        self.wait()
    }

    /// Has the poller tell what this waits for.
    fn wait(&mut self) -> Result<(), Broken> {
        let interest = Interest {
            readable: true,
            writable: !self.writable,
        };
        Ok(self.socket.wait_for(interest)?)
    }

    /// Whether there is something to do without the poller having seen anything.
    pub fn is_busy(&self, has_outgoing: bool) -> bool {
        self.readable || self.writable && has_outgoing
    }

    /// The socket, which is not watched any more, and what was received and not looked at.
    pub fn into_parts(self) -> (Channel, Input) {
        (self.socket.into_source(), self.input)
    }

    /// Gives buffers back.
    pub fn close(mut self, pool: &mut BufferPool) {
        let rest = self.input.len();
        self.input.consume(rest);
        self.input.release(pool);
    }
}
