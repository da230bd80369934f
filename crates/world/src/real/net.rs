//! Non-blocking sockets of this machine, and an epoll to wait on them.

use std::fs;
use std::io::{self, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, SocketAddrUnix,
    SocketFlags, SocketType, sockopt,
};

use crate::{Endpoint, Interest, Ready, Wake};

/// How many connections may wait to be accepted. The kernel caps it at
/// `net.core.somaxconn`.
const BACKLOG: i32 = 1024;

/// A TCP peer that answers no probe for about two minutes is gone.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_COUNT: u32 = 6;

/// How many sockets one wait reports at most; the others are reported by the
/// next one.
const EVENTS_MAX: usize = 64;

/// Waits on many sockets. Level-triggered: what is still ready is reported
/// again.
#[derive(Debug)]
pub struct Poller {
    epoll: OwnedFd,
}

impl Poller {
    /// A poller that waits on nothing yet.
    ///
    /// # Errors
    /// As the operating system says; so for the others below.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
        })
    }

    /// Begins to watch `source`, which will be reported as `key`.
    ///
    /// # Errors
    /// As the operating system says.
    pub fn add(&self, source: &impl AsFd, key: u64, interest: Interest) -> io::Result<()> {
        let data = epoll::EventData::new_u64(key);
        Ok(epoll::add(&self.epoll, source, data, flags_of(interest))?)
    }

    /// Changes what is wanted of `source`.
    ///
    /// # Errors
    /// As the operating system says.
    pub fn modify(&self, source: &impl AsFd, key: u64, interest: Interest) -> io::Result<()> {
        let data = epoll::EventData::new_u64(key);
        Ok(epoll::modify(
            &self.epoll,
            source,
            data,
            flags_of(interest),
        )?)
    }

    /// Stops watching `source`. Closing it does the same.
    ///
    /// # Errors
    /// As the operating system says.
    pub fn remove(&self, source: &impl AsFd) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, source)?)
    }

    /// Waits until something is ready or `timeout` has passed (`None`: for
    /// ever), and puts what is ready into `ready`, which is cleared first.
    /// A timeout is rounded up to whole multiples of 50 µs; zero only looks.
    ///
    /// # Errors
    /// As the operating system says. Being interrupted is no error.
    pub fn wait(&self, timeout: Option<Duration>, ready: &mut Vec<Ready>) -> io::Result<()> {
        ready.clear();
        let timeout = timeout.map(|timeout| {
            // A day is as good as any longer time: the owner just looks again.
            let timeout = timeout.min(Duration::from_hours(24));
            let rounded = Duration::from_micros(timeout.as_nanos().div_ceil(50_000) as u64 * 50);
            Timespec {
                tv_sec: rounded.as_secs() as i64,
                tv_nsec: rounded.subsec_nanos().into(),
            }
        });
        let mut events = [MaybeUninit::<epoll::Event>::uninit(); EVENTS_MAX];
        let seen = match epoll::wait(&self.epoll, &mut events, timeout.as_ref()) {
            Ok((seen, _)) => seen,
            Err(Errno::INTR) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        ready.extend(seen.iter().map(|event| {
            let flags = event.flags;
            let hung_up = flags.intersects(epoll::EventFlags::HUP | epoll::EventFlags::ERR);
            Ready {
                key: event.data.u64(),
                readable: flags.contains(epoll::EventFlags::IN) || hung_up,
                writable: flags.contains(epoll::EventFlags::OUT) || hung_up,
                hung_up,
            }
        }));
        Ok(())
    }
}

fn flags_of(interest: Interest) -> epoll::EventFlags {
    let mut flags = epoll::EventFlags::empty();
    flags.set(epoll::EventFlags::IN, interest.readable);
    flags.set(epoll::EventFlags::OUT, interest.writable);
    flags
}

/// Wakes a loop that waits on a [`Poller`]: add it there, and [`clear`] it
/// when it is reported.
///
/// [`clear`]: Bell::clear
#[derive(Debug, Clone)]
pub struct Bell(Arc<OwnedFd>);

impl Bell {
    /// A bell that has not rung.
    ///
    /// # Errors
    /// If the process has no file descriptor left.
    pub fn new() -> io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self(Arc::new(fd)))
    }

    /// Makes the poller report it.
    pub fn ring(&self) {
        // The only failure is a counter at its end: then it rings already.
        let _ = rustix::io::write(&*self.0, &1_u64.to_ne_bytes());
    }

    /// Forgets that it rang.
    pub fn clear(&self) {
        let _ = rustix::io::read(&*self.0, &mut [0; 8]);
    }

    /// A wake that rings this bell.
    #[must_use]
    pub fn wake(&self) -> Wake {
        let bell = self.clone();
        Wake::new(move || bell.ring())
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A socket that takes connections. A Unix socket's name is removed when the
/// listener is dropped.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    endpoint: Endpoint,
}

impl Listener {
    /// Listens at `endpoint`. A Unix socket gets the permissions `mode`, and
    /// nobody can connect before it has them; a socket left there by a process
    /// that has died is replaced.
    ///
    /// # Errors
    /// As the operating system says; `AddrInUse` if somebody listens there,
    /// or if the path names something that is no socket.
    pub fn bind(endpoint: &Endpoint, mode: u32) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        match endpoint {
            Endpoint::Unix(path) => {
                let address = SocketAddrUnix::new(path.as_path()).map_err(|_| {
                    let message = "the path is too long for a Unix socket (107 bytes)";
                    io::Error::new(io::ErrorKind::InvalidInput, message)
                })?;
                remove_stale(path)?;
                let socket =
                    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
                rustix::net::bind(&socket, &address)?;
                let listener = Self {
                    socket,
                    endpoint: endpoint.clone(),
                };
                fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
                rustix::net::listen(&listener.socket, BACKLOG)?;
                Ok(listener)
            }
            Endpoint::Tcp(address) => {
                let family = family_of(address);
                let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
                sockopt::set_socket_reuseaddr(&socket, true)?;
                rustix::net::bind(&socket, address)?;
                rustix::net::listen(&socket, BACKLOG)?;
                let bound = rustix::net::getsockname(&socket)?;
                Ok(Self {
                    socket,
                    endpoint: Endpoint::Tcp(bound.try_into()?),
                })
            }
        }
    }

    /// Where it listens; the port is a real one.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The next connection, if one waits.
    ///
    /// # Errors
    /// As the operating system says, for instance when the process has no file
    /// descriptor left. The connection waits on.
    pub fn accept(&self) -> io::Result<Option<Stream>> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = match rustix::net::accept_with(&self.socket, flags) {
            Ok(socket) => socket,
            // It was there, and went away before it was accepted.
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        if matches!(self.endpoint, Endpoint::Tcp(_)) {
            set_tcp(&socket)?;
        }
        Ok(Some(Stream { socket }))
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Endpoint::Unix(path) = &self.endpoint {
            let _ = fs::remove_file(path);
        }
    }
}

fn family_of(address: &SocketAddr) -> AddressFamily {
    match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    }
}

/// What all TCP sockets have: messages leave at once, and a peer that is gone is
/// noticed.
fn set_tcp(socket: &OwnedFd) -> io::Result<()> {
    sockopt::set_tcp_nodelay(socket, true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(socket, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(socket, KEEPALIVE_COUNT)?;
    Ok(())
}

/// Removes a socket on which nobody listens any more.
fn remove_stale(path: &PathBuf) -> io::Result<()> {
    let in_use = |what: &str| {
        let message = format!("{} {what}", Path::display(path));
        io::Error::new(io::ErrorKind::AddrInUse, message)
    };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(found) if !found.file_type().is_socket() => Err(in_use("exists and is no socket")),
        Ok(_) => match UnixStream::connect(path) {
            Ok(_) => Err(in_use("is served by another process")),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
            // Somebody may well be there who does not let this process in.
            Err(error) => Err(in_use(&format!("cannot be asked who serves it: {error}"))),
        },
    }
}

/// A connection. All calls return at once; `WouldBlock` says that there is
/// nothing to read, or no room to write.
#[derive(Debug)]
pub struct Stream {
    socket: OwnedFd,
}

impl Stream {
    /// Begins to connect to `endpoint`. A poller says that it can be written to
    /// when that is over; then ask [`Stream::connected`].
    ///
    /// # Errors
    /// As the operating system says, if it knows at once.
    pub fn connect(endpoint: &Endpoint) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let open = |family| rustix::net::socket_with(family, SocketType::STREAM, flags, None);
        let (socket, begun) = match endpoint {
            Endpoint::Unix(path) => {
                let address = SocketAddrUnix::new(path.as_path())?;
                let socket = open(AddressFamily::UNIX)?;
                let begun = rustix::net::connect(&socket, &address);
                (socket, begun)
            }
            Endpoint::Tcp(address) => {
                let socket = open(family_of(address))?;
                set_tcp(&socket)?;
                let begun = rustix::net::connect(&socket, address);
                (socket, begun)
            }
        };
        match begun {
            Ok(()) | Err(Errno::INPROGRESS) => Ok(Self { socket }),
            Err(error) => Err(error.into()),
        }
    }

    /// How connecting has ended.
    ///
    /// # Errors
    /// Why there is no connection; `WouldBlock` while it is not over.
    pub fn connected(&self) -> io::Result<()> {
        sockopt::socket_error(&self.socket)??;
        match rustix::net::getpeername(&self.socket) {
            Ok(_) => Ok(()),
            Err(Errno::NOTCONN) => Err(io::ErrorKind::WouldBlock.into()),
            Err(error) => Err(error.into()),
        }
    }

    /// From now on it waits, or not, where there is nothing to receive or no room.
    ///
    /// # Errors
    /// As the operating system says.
    pub fn set_blocking(&self, blocks: bool) -> io::Result<()> {
        Ok(rustix::io::ioctl_fionbio(&self.socket, !blocks)?)
    }

    /// Nothing more is sent: the other side sees the end of what it receives, and may go on
    /// sending.
    ///
    /// # Errors
    /// If it is not connected any more.
    pub fn shut_down_sending(&self) -> io::Result<()> {
        Ok(rustix::net::shutdown(&self.socket, Shutdown::Write)?)
    }

    /// Asks the kernel to hold this many bytes on their way out. It may give
    /// less.
    pub fn set_send_buffer(&self, bytes: usize) {
        let _ = sockopt::set_socket_send_buffer_size(&self.socket, bytes);
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl From<OwnedFd> for Stream {
    /// Takes over a connected, non-blocking socket.
    fn from(socket: OwnedFd) -> Self {
        Self { socket }
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let (count, _) = rustix::net::recv(&self.socket, into, RecvFlags::empty())?;
        Ok(count)
    }
}

impl Write for Stream {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        Ok(rustix::net::send(&self.socket, from, SendFlags::NOSIGNAL)?)
    }

    fn write_vectored(&mut self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut control = SendAncillaryBuffer::default();
        Ok(rustix::net::sendmsg(
            &self.socket,
            from,
            &mut control,
            SendFlags::NOSIGNAL,
        )?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait(poller: &Poller) -> Vec<Ready> {
        let mut ready = Vec::new();
        poller
            .wait(Some(Duration::from_secs(10)), &mut ready)
            .expect("epoll works");
        ready
    }

    fn echo_over(endpoint: &Endpoint, connect: impl FnOnce(&Endpoint) -> Box<dyn ReadWrite>) {
        let poller = Poller::new().expect("an epoll");
        let listener = Listener::bind(endpoint, 0o600).expect("a free name");
        poller.add(&listener, 1, Interest::READABLE).expect("added");
        assert!(listener.accept().expect("no failure").is_none());
        let mut client = connect(listener.endpoint());
        assert_eq!(wait(&poller)[0].key, 1);
        let mut stream = listener.accept().expect("no failure").expect("one waits");
        poller.add(&stream, 2, Interest::READABLE).expect("added");
        let mut bytes = [0; 16];
        let empty = stream.read(&mut bytes).expect_err("nothing was sent");
        assert_eq!(empty.kind(), io::ErrorKind::WouldBlock);
        client.write_all(b"hello").expect("sent");
        assert!(
            wait(&poller)
                .iter()
                .any(|ready| ready.key == 2 && ready.readable)
        );
        assert_eq!(stream.read(&mut bytes).expect("received"), 5);
        let parts = [IoSlice::new(b"hel"), IoSlice::new(b"lo")];
        assert_eq!(stream.write_vectored(&parts).expect("room"), 5);
        client.read_exact(&mut bytes[..5]).expect("echoed");
        assert_eq!(&bytes[..5], b"hello");
        drop(client);
        assert!(wait(&poller).iter().any(|ready| ready.key == 2));
    }

    trait ReadWrite: Read + Write {}
    impl<T: Read + Write> ReadWrite for T {}

    #[test]
    fn bytes_go_both_ways_over_a_unix_socket_that_others_cannot_open() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        echo_over(&Endpoint::Unix(path.clone()), |_| {
            let mode = fs::metadata(&path)
                .expect("it is there")
                .permissions()
                .mode();
            assert_eq!(mode & 0o777, 0o600);
            Box::new(UnixStream::connect(&path).expect("it listens"))
        });
        assert!(!path.exists(), "the name goes with the listener");
    }

    #[test]
    fn bytes_go_both_ways_over_tcp() {
        let any_port = "127.0.0.1:0".parse().expect("an address");
        echo_over(&Endpoint::Tcp(any_port), |endpoint| {
            let Endpoint::Tcp(address) = endpoint else {
                panic!("{endpoint} is not TCP");
            };
            Box::new(std::net::TcpStream::connect(address).expect("it listens"))
        });
    }

    #[test]
    fn a_dead_process_leaves_a_socket_that_can_be_replaced_and_a_live_one_does_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        drop(std::os::unix::net::UnixListener::bind(&path).expect("a free name"));
        let endpoint = Endpoint::Unix(path.clone());
        let listener = Listener::bind(&endpoint, 0o600).expect("nobody listens");
        let error = Listener::bind(&endpoint, 0o600).expect_err("somebody listens");
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        drop(listener);
        fs::File::create(&path).expect("a file");
        let error = Listener::bind(&endpoint, 0o600).expect_err("a file is no socket");
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        assert!(path.exists());
    }

    /// Any error once counted as "nobody is there", and the socket of a server
    /// that let only others in was removed under it.
    #[test]
    fn a_socket_that_answers_anything_but_refused_is_left_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        // It takes datagrams: a stream gets EPROTOTYPE.
        let server = std::os::unix::net::UnixDatagram::bind(&path).expect("a free name");
        let error = Listener::bind(&Endpoint::Unix(path.clone()), 0o600).expect_err("it is there");
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        assert!(path.exists());
        drop(server);
        Listener::bind(&Endpoint::Unix(path), 0o600).expect("nobody is there");
    }

    #[test]
    fn a_bell_wakes_the_poller_until_it_is_cleared() {
        let poller = Poller::new().expect("an epoll");
        let bell = Bell::new().expect("an eventfd");
        poller.add(&bell, 7, Interest::READABLE).expect("added");
        let wake = bell.wake();
        let ringer = std::thread::spawn(move || {
            wake.wake();
            wake.wake();
        });
        assert_eq!(wait(&poller)[0].key, 7);
        ringer.join().expect("it rang");
        bell.clear();
        let mut ready = Vec::new();
        poller
            .wait(Some(Duration::ZERO), &mut ready)
            .expect("epoll works");
        assert_eq!(ready, []);
    }
}
