//! A link that is long: passes bytes on between sockets, each so much later. For
//! measurements, where the kernel has no netem.
//!
//! ```text
//! nbd_delay --listen PLACE --to PLACE --micros N
//! ```
//!
//! A place is the path of a unix socket, or IP:PORT; port 0 is any that is free. Prints where
//! it listens and passes on until its input ends.
#![expect(
    clippy::disallowed_methods,
    reason = "it is the network of measurements, and no part of what is measured"
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
                if let Err(error) = pass_on(&near, &far, Duration::from_micros(micros)) {
                    eprintln!("a connection has ended: {error}");
                }
            });
        }
    });
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// Where others come.
enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    fn bind(place: &str) -> std::io::Result<Self> {
        match place.parse::<SocketAddr>() {
            Ok(address) => TcpListener::bind(address).map(Self::Tcp),
            Err(_) => UnixListener::bind(place).map(Self::Unix),
        }
    }

    fn accept(&self) -> std::io::Result<OwnedFd> {
        match self {
            Self::Tcp(listener) => at_once(listener.accept()?.0),
            Self::Unix(listener) => Ok(listener.accept()?.0.into()),
        }
    }
}

fn connect(place: &str) -> std::io::Result<OwnedFd> {
    match place.parse::<SocketAddr>() {
        Ok(address) => at_once(TcpStream::connect(address)?),
        Err(_) => Ok(UnixStream::connect(place)?.into()),
    }
}

/// The delay is this program's alone.
fn at_once(stream: TcpStream) -> std::io::Result<OwnedFd> {
    stream.set_nodelay(true)?;
    Ok(stream.into())
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

    fn receive(&mut self, from: &OwnedFd, delay: Duration) -> Result<(), Errno> {
        let mut space = self.spaces.pop().unwrap_or_else(|| vec![0; PIECE_BYTES]);
        match rustix::io::read(from, &mut *space) {
            Ok(0) => self.has_ended = true,
            Ok(count) => {
                self.bytes += count;
                self.pieces.push_back(Piece {
                    arrives: Instant::now() + delay,
                    space,
                    bytes: 0..count,
                });
            }
            Err(Errno::AGAIN) => self.spaces.push(space),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Sends what has arrived.
    fn send(&mut self, to: &OwnedFd) -> Result<(), Errno> {
        self.is_blocked = false;
        while let Some(piece) = self.pieces.front_mut() {
            if piece.arrives > Instant::now() {
                break;
            }
            match rustix::io::write(to, &piece.space[piece.bytes.clone()]) {
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
fn pass_on(near: &OwnedFd, far: &OwnedFd, delay: Duration) -> Result<(), Box<dyn Error>> {
    // Else a wait takes 50 µs more than it should.
    set_current_timer_slack(NonZeroU64::new(1))?;
    rustix::io::ioctl_fionbio(near, true)?;
    rustix::io::ioctl_fionbio(far, true)?;
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
