//! A long link: forwards bytes between sockets with a delay. For measurements on kernels without
//! netem.
//!
//! ```text
//! nbd_delay --listen ADDRESS --to ADDRESS --micros N
//! ```
//!
//! An address is the path of a Unix socket, or IP:PORT; port 0 chooses a free one. Prints the
//! address on which it listens, and forwards until its standard input ends.
#![expect(
    clippy::disallowed_methods,
    reason = "this is the network of measurements, and not what they measure"
)]

use std::collections::VecDeque;
use std::error::Error;
use std::io::Read as _;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::thread::set_current_timer_slack;

/// The approximate maximal number of delayed bytes in one direction.
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
    let listener = Listener::bind(&listen)?;
    match &listener {
        Listener::Tcp(listener) => println!("{}", listener.local_addr()?),
        Listener::Unix(_) => println!("{listen}"),
    }
    thread::spawn(move || {
        loop {
            let Ok(near) = listener.accept() else {
                continue;
            };
            let Ok(far) = connect(&to) else {
                continue;
            };
            thread::spawn(move || {
                if let Err(error) = forward(&near, &far, Duration::from_micros(micros)) {
                    eprintln!("connection ended: {error}");
                }
            });
        }
    });
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// A listening socket.
enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    fn bind(address: &str) -> std::io::Result<Self> {
        match address.parse::<SocketAddr>() {
            Ok(tcp) => TcpListener::bind(tcp).map(Self::Tcp),
            Err(_) => UnixListener::bind(address).map(Self::Unix),
        }
    }

    fn accept(&self) -> std::io::Result<OwnedFd> {
        match self {
            Self::Tcp(listener) => without_nagle(listener.accept()?.0),
            Self::Unix(listener) => Ok(listener.accept()?.0.into()),
        }
    }
}

fn connect(address: &str) -> std::io::Result<OwnedFd> {
    match address.parse::<SocketAddr>() {
        Ok(tcp) => without_nagle(TcpStream::connect(tcp)?),
        Err(_) => Ok(UnixStream::connect(address)?.into()),
    }
}

/// Disables Nagle's algorithm, which would add a delay of its own.
fn without_nagle(stream: TcpStream) -> std::io::Result<OwnedFd> {
    stream.set_nodelay(true)?;
    Ok(stream.into())
}

/// Bytes that were received together.
struct Piece {
    arrives_at: Instant,
    buffer: Vec<u8>,
    /// The range of the buffer that has not been forwarded.
    bytes: Range<usize>,
}

/// One direction of a connection.
#[derive(Default)]
struct Direction {
    pieces: VecDeque<Piece>,
    bytes: usize,
    /// The buffers of forwarded pieces, which are reused: new memory is slow at its first use.
    unused: Vec<Vec<u8>>,
    has_ended: bool,
    is_blocked: bool,
}

impl Direction {
    fn may_receive(&self) -> bool {
        !self.has_ended && self.bytes < BYTES_MAX
    }

    fn receive(&mut self, from: &OwnedFd, delay: Duration) -> Result<(), Errno> {
        let mut buffer = self.unused.pop().unwrap_or_else(|| vec![0; PIECE_BYTES]);
        match rustix::io::read(from, &mut *buffer) {
            Ok(0) => self.has_ended = true,
            Ok(count) => {
                self.bytes += count;
                self.pieces.push_back(Piece {
                    arrives_at: Instant::now() + delay,
                    buffer,
                    bytes: 0..count,
                });
            }
            Err(Errno::AGAIN) => self.unused.push(buffer),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Forwards the pieces whose delay is over.
    fn send(&mut self, to: &OwnedFd) -> Result<(), Errno> {
        self.is_blocked = false;
        while let Some(piece) = self.pieces.front_mut() {
            if piece.arrives_at > Instant::now() {
                break;
            }
            match rustix::io::write(to, &piece.buffer[piece.bytes.clone()]) {
                Ok(count) => {
                    piece.bytes.start += count;
                    self.bytes -= count;
                }
                Err(Errno::AGAIN) => {
                    self.is_blocked = true;
                    break;
                }
                Err(error) => return Err(error),
            }
            if piece.bytes.is_empty() {
                self.unused
                    .extend(self.pieces.pop_front().map(|piece| piece.buffer));
            }
        }
        Ok(())
    }

    /// The time until the next piece arrives.
    fn next(&self) -> Option<Duration> {
        let piece = self.pieces.front().filter(|_| !self.is_blocked)?;
        Some(piece.arrives_at.saturating_duration_since(Instant::now()))
    }

    fn has_finished(&self) -> bool {
        self.has_ended && self.pieces.is_empty()
    }
}

/// Forwards in both directions, until one has ended.
fn forward(near: &OwnedFd, far: &OwnedFd, delay: Duration) -> Result<(), Box<dyn Error>> {
    // Otherwise each wait takes 50 µs longer.
    set_current_timer_slack(NonZeroU64::new(1))?;
    rustix::io::ioctl_fionbio(near, true)?;
    rustix::io::ioctl_fionbio(far, true)?;
    let (mut forward, mut back) = (Direction::default(), Direction::default());
    while !forward.has_finished() && !back.has_finished() {
        let wanted = |receives: &Direction, sends: &Direction| {
            let mut wanted = PollFlags::empty();
            wanted.set(PollFlags::IN, receives.may_receive());
            wanted.set(PollFlags::OUT, sends.is_blocked);
            wanted
        };
        let mut ends = [
            PollFd::new(near, wanted(&forward, &back)),
            PollFd::new(far, wanted(&back, &forward)),
        ];
        let next = forward.next().into_iter().chain(back.next()).min();
        let timeout = next.map(Timespec::try_from).transpose()?;
        poll(&mut ends, timeout.as_ref())?;
        let [at_near, at_far] = ends.map(|end| end.revents());
        let is_ready = PollFlags::IN | PollFlags::HUP;
        if at_near.intersects(is_ready) {
            forward.receive(near, delay)?;
        }
        if at_far.intersects(is_ready) {
            back.receive(far, delay)?;
        }
        forward.send(far)?;
        back.send(near)?;
    }
    Ok(())
}
