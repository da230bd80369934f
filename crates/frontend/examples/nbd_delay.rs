//! A link that is long: passes bytes on between unix sockets, each so much later. For
//! measurements, where the kernel has no netem.
//!
//! ```text
//! nbd_delay --listen PATH --to PATH --micros N
//! ```
//!
//! Prints a line and passes on until its input ends.
#![expect(
    clippy::disallowed_methods,
    reason = "it is the network of measurements, and no part of what is measured"
)]

use std::collections::VecDeque;
use std::error::Error;
use std::io::{ErrorKind, Read as _, Write as _};
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::set_current_timer_slack;

/// Bytes under way in one direction are bounded by about so many.
const BYTES_MAX: usize = 64 << 20;
const PIECE_BYTES: usize = 256 << 10;

fn main() -> Result<(), Box<dyn Error>> {
    let (mut listen, mut to, mut micros) = (None, None, 0);
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{name} needs a value"));
        match name.as_str() {
            "--listen" => listen = Some(value()?),
            "--to" => to = Some(value()?),
            "--micros" => micros = value()?.parse()?,
            _ => return Err(format!("unknown argument {name}").into()),
        }
    }
    let (listen, to) = (
        listen.ok_or("--listen is missing")?,
        to.ok_or("--to is missing")?,
    );
    let listener = UnixListener::bind(&listen)?;
    println!("{listen}");
    thread::spawn(move || {
        for near in listener.incoming().flatten() {
            let Ok(far) = UnixStream::connect(&to) else {
                continue;
            };
            thread::spawn(move || {
                if let Err(error) = pass_on(&near, &far, Duration::from_micros(micros)) {
                    eprintln!("a connection has ended: {error}");
                }
            });
        }
    });
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// What was received in one go.
struct Piece {
    arrives: Instant,
    space: Vec<u8>,
    /// Of it these have not left.
    bytes: Range<usize>,
}

/// One direction.
#[derive(Default)]
struct Way {
    pieces: VecDeque<Piece>,
    bytes: usize,
    /// What pieces lay in that have left: to be touched first is what memory costs most.
    spaces: Vec<Vec<u8>>,
    has_ended: bool,
    is_blocked: bool,
}

impl Way {
    fn may_receive(&self) -> bool {
        !self.has_ended && self.bytes < BYTES_MAX
    }

    fn receive(&mut self, mut from: &UnixStream, delay: Duration) -> std::io::Result<()> {
        let mut space = self.spaces.pop().unwrap_or_else(|| vec![0; PIECE_BYTES]);
        match from.read(&mut space) {
            Ok(0) => self.has_ended = true,
            Ok(count) => {
                self.bytes += count;
                self.pieces.push_back(Piece {
                    arrives: Instant::now() + delay,
                    space,
                    bytes: 0..count,
                });
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => self.spaces.push(space),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Sends what has arrived.
    fn send(&mut self, mut to: &UnixStream) -> std::io::Result<()> {
        self.is_blocked = false;
        while let Some(piece) = self.pieces.front_mut() {
            if piece.arrives > Instant::now() {
                break;
            }
            match to.write(&piece.space[piece.bytes.clone()]) {
                Ok(count) => {
                    piece.bytes.start += count;
                    self.bytes -= count;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.is_blocked = true;
                    break;
                }
                Err(error) => return Err(error),
            }
            if piece.bytes.is_empty() {
                self.spaces
                    .extend(self.pieces.pop_front().map(|piece| piece.space));
            }
        }
        Ok(())
    }

    /// How long until something arrives.
    fn next(&self) -> Option<Duration> {
        let piece = self.pieces.front().filter(|_| !self.is_blocked)?;
        Some(piece.arrives.saturating_duration_since(Instant::now()))
    }

    fn is_over(&self) -> bool {
        self.has_ended && self.pieces.is_empty()
    }
}

/// Both directions, until one is over.
fn pass_on(near: &UnixStream, far: &UnixStream, delay: Duration) -> Result<(), Box<dyn Error>> {
    // Else a wait takes 50 µs more than it should.
    set_current_timer_slack(NonZeroU64::new(1))?;
    near.set_nonblocking(true)?;
    far.set_nonblocking(true)?;
    let (mut there, mut back) = (Way::default(), Way::default());
    while !there.is_over() && !back.is_over() {
        let wanted = |receives: &Way, sends: &Way| {
            let mut wanted = PollFlags::empty();
            wanted.set(PollFlags::IN, receives.may_receive());
            wanted.set(PollFlags::OUT, sends.is_blocked);
            wanted
        };
        let mut ends = [
            PollFd::new(near, wanted(&there, &back)),
            PollFd::new(far, wanted(&back, &there)),
        ];
        let next = there.next().into_iter().chain(back.next()).min();
        let timeout = next.map(Timespec::try_from).transpose()?;
        poll(&mut ends, timeout.as_ref())?;
        let [at_near, at_far] = ends.map(|end| end.revents());
        let is_ready = PollFlags::IN | PollFlags::HUP;
        if at_near.intersects(is_ready) {
            there.receive(near, delay)?;
        }
        if at_far.intersects(is_ready) {
            back.receive(far, delay)?;
        }
        there.send(far)?;
        back.send(near)?;
    }
    Ok(())
}
