//! Relays a connection to the daemon that it is for: bytes both ways, which this daemon cannot
//! read (HVSTO §III: work out the destination, transfer, process).

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::time::Duration;

use unit_wire::PREFACE;
use world::real::{Poller, Stream, Waker};
use world::{Clock, Endpoint, Interest};

/// Time for connecting to the other daemon.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// Size of the buffer for each direction, in bytes.
const BUFFER_BYTES: usize = 256 << 10;

/// The poller's keys.
const WAKER: u64 = 0;
const NEAR: u64 = 1;
const FAR: u64 = 2;

/// One direction of a relayed connection.
struct Direction {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
    /// Whether the sender has closed its side.
    has_ended: bool,
}

impl Direction {
    fn new(first: &[u8]) -> Self {
        let mut bytes = vec![0; BUFFER_BYTES.max(first.len())];
        bytes[..first.len()].copy_from_slice(first);
        Self {
            bytes,
            start: 0,
            end: first.len(),
            has_ended: false,
        }
    }

    fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Moves bytes without waiting. Returns whether it moved any.
    fn carry(&mut self, from: &mut Stream, to: &mut Stream) -> io::Result<bool> {
        let mut has_moved = false;
        loop {
            if self.is_empty() {
                (self.start, self.end) = (0, 0);
                if self.has_ended {
                    return Ok(has_moved);
                }
                match from.read(&mut self.bytes) {
                    Ok(0) => self.has_ended = true,
                    Ok(count) => self.end = count,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(has_moved),
                    Err(error) => return Err(error),
                }
                has_moved = true;
                continue;
            }
            match to.write(&self.bytes[self.start..self.end]) {
                Ok(count) => self.start += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(has_moved),
                Err(error) => return Err(error),
            }
            has_moved = true;
        }
    }
}

/// What a relay needs.
pub(crate) struct Relay<'a> {
    /// The connection of the host.
    pub near: Stream,
    /// The bytes that the host has sent so far.
    pub received: &'a [u8],
    /// The daemon that the connection is for.
    pub there: &'a Endpoint,
    pub clock: &'a dyn Clock,
    /// Time without a byte moved after which the relay ends.
    pub idle: Duration,
    /// Wakes the relay when the server closes.
    pub waker: &'a Waker,
}

/// Connects to the other daemon, sends it the preface of a relayed connection, and moves bytes
/// until either side has closed or the relay was idle for too long.
///
/// # Errors
/// Why the connection could not be made, or has ended.
pub(crate) fn relay(relay: Relay<'_>, is_closing: impl Fn() -> bool) -> io::Result<()> {
    let Relay {
        mut near,
        received,
        there,
        clock,
        idle,
        waker,
    } = relay;
    let poller = Poller::new()?;
    poller.add(waker, WAKER, Interest::READABLE)?;
    let mut far = connect(there, clock, &poller, &is_closing)?;
    poller.add(&near, NEAR, Interest::READABLE)?;
    let mut forth = Direction::new(&[PREFACE, received].concat());
    let mut back = Direction::new(&[]);
    let mut ready = Vec::new();
    let mut moved = clock.monotonic();
    loop {
        let is_moving = [
            forth.carry(&mut near, &mut far)?,
            back.carry(&mut far, &mut near)?,
        ];
        let now = clock.monotonic();
        if is_moving.contains(&true) {
            moved = now;
        } else if now >= moved + idle {
            return Err(ErrorKind::TimedOut.into());
        }
        // TLS closes both ways: when one side has closed, so has the other.
        let is_over = (forth.has_ended && forth.is_empty()) || (back.has_ended && back.is_empty());
        if is_over || is_closing() {
            return Ok(());
        }
        let interest = |incoming: &Direction, outgoing: &Direction| Interest {
            readable: incoming.is_empty() && !incoming.has_ended,
            writable: !outgoing.is_empty(),
        };
        poller.modify(&near, NEAR, interest(&forth, &back))?;
        poller.modify(&far, FAR, interest(&back, &forth))?;
        poller.wait(Some((moved + idle).saturating_sub(now)), &mut ready)?;
        waker.clear();
        let is_gone = |key| ready.iter().any(|ready| ready.key == key && ready.hung_up);
        // A side that hung up is still read to its end first.
        if (is_gone(NEAR) && !forth.is_empty()) || (is_gone(FAR) && !back.is_empty()) {
            return Ok(());
        }
    }
}

fn connect(
    there: &Endpoint,
    clock: &dyn Clock,
    poller: &Poller,
    is_closing: &impl Fn() -> bool,
) -> io::Result<Stream> {
    let deadline = clock.monotonic() + CONNECT_WITHIN;
    let stream = Stream::connect(there)?;
    let interest = Interest {
        readable: false,
        writable: true,
    };
    poller.add(&stream, FAR, interest)?;
    let mut ready = Vec::new();
    loop {
        let now = clock.monotonic();
        if now >= deadline || is_closing() {
            return Err(ErrorKind::TimedOut.into());
        }
        poller.wait(Some(deadline - now), &mut ready)?;
        match stream.connected() {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            other => {
                other?;
                return Ok(stream);
            }
        }
    }
}
