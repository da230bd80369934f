//! Non-blocking sockets.

use std::fs;
use std::io::{self, IoSlice, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, SocketAddrUnix,
    SocketFlags, SocketType, sockopt,
};

use crate::Endpoint;

/// The maximal number of connections that wait to be accepted. The kernel caps it at
/// `net.core.somaxconn`.
const BACKLOG: i32 = 1024;

/// A TCP connection ends when the peer has answered no probe for about two minutes.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_COUNT: u32 = 6;

/// A socket that accepts connections. Dropping it removes the name of a Unix socket.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    endpoint: Endpoint,
}

impl Listener {
    /// Listens at `endpoint`. A Unix socket gets the permissions `mode` before anything can
    /// connect, and replaces a socket that a dead process has left.
    ///
    /// # Errors
    /// The operating system's; `AddrInUse` if another process listens there, or if the path names
    /// something other than a socket.
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

    /// The address at which this listens, with its actual port.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The next connection, if one waits.
    ///
    /// # Errors
    /// The operating system's, for instance if the process has too many open files. The
    /// connection still waits then.
    pub fn accept(&self) -> io::Result<Option<Stream>> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = match rustix::net::accept_with(&self.socket, flags) {
            Ok(socket) => socket,
            // No connection waits, or the client has closed it before it was accepted.
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

/// Sets the options of all TCP sockets: messages are sent at once, and a dead peer is noticed.
fn set_tcp(socket: &OwnedFd) -> io::Result<()> {
    sockopt::set_tcp_nodelay(socket, true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(socket, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(socket, KEEPALIVE_COUNT)?;
    Ok(())
}

/// Removes a socket on which no process listens any more.
fn remove_stale(path: &PathBuf) -> io::Result<()> {
    let in_use = |what: &str| {
        let message = format!("{} {what}", Path::display(path));
        io::Error::new(io::ErrorKind::AddrInUse, message)
    };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(found) if !found.file_type().is_socket() => Err(in_use("exists and is not a socket")),
        Ok(_) => match UnixStream::connect(path) {
            Ok(_) => Err(in_use("is served by another process")),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
            // Another process may serve it without access for this one.
            Err(error) => Err(in_use(&format!(
                "may be served by another process: {error}"
            ))),
        },
    }
}

/// A connection. No call blocks: `WouldBlock` means that there is nothing to read, or no room to
/// write.
#[derive(Debug)]
pub struct Stream {
    socket: OwnedFd,
}

impl Stream {
    /// Begins to connect to `endpoint`. The stream becomes writable when that has ended, and then
    /// [`Stream::connected`] returns the result.
    ///
    /// # Errors
    /// The operating system's, if it fails at once.
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

    /// The result of connecting.
    ///
    /// # Errors
    /// The reason for the failure; `WouldBlock` while connecting has not ended.
    pub fn connected(&self) -> io::Result<()> {
        sockopt::socket_error(&self.socket)??;
        match rustix::net::getpeername(&self.socket) {
            Ok(_) => Ok(()),
            Err(Errno::NOTCONN) => Err(io::ErrorKind::WouldBlock.into()),
            Err(error) => Err(error.into()),
        }
    }

    /// Makes the socket blocking or non-blocking.
    ///
    /// # Errors
    /// The operating system's.
    pub fn set_blocking(&self, blocks: bool) -> io::Result<()> {
        Ok(rustix::io::ioctl_fionbio(&self.socket, !blocks)?)
    }

    /// Closes the sending direction. The other side receives the end of the stream and may still
    /// send.
    ///
    /// # Errors
    /// If the socket is not connected any more.
    pub fn shut_down_sending(&self) -> io::Result<()> {
        Ok(rustix::net::shutdown(&self.socket, Shutdown::Write)?)
    }

    /// Sets the size of the kernel's send buffer, in bytes. The kernel may use less.
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
    /// A stream over a connected, non-blocking socket.
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
    use super::super::poller::tests::wait;
    use super::*;
    use crate::Interest;
    use crate::real::Poller;

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
    fn a_unix_socket_carries_bytes_both_ways_and_is_private() {
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
        assert!(!path.exists(), "dropping the listener removes the name");
    }

    #[test]
    fn tcp_carries_bytes_both_ways() {
        let any_port = "127.0.0.1:0".parse().expect("an address");
        echo_over(&Endpoint::Tcp(any_port), |endpoint| {
            let Endpoint::Tcp(address) = endpoint else {
                panic!("{endpoint} is not TCP");
            };
            Box::new(std::net::TcpStream::connect(address).expect("it listens"))
        });
    }

    #[test]
    fn the_socket_of_a_dead_process_is_replaced_and_that_of_a_live_one_is_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        drop(std::os::unix::net::UnixListener::bind(&path).expect("a free name"));
        let endpoint = Endpoint::Unix(path.clone());
        let listener = Listener::bind(&endpoint, 0o600).expect("no process listens");
        let error = Listener::bind(&endpoint, 0o600).expect_err("a process listens");
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        drop(listener);
        fs::File::create(&path).expect("a file");
        let error = Listener::bind(&endpoint, 0o600).expect_err("a file is no socket");
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        assert!(path.exists());
    }

    /// Any error once counted as "no process listens", and so the socket of a server that refused
    /// this user was removed.
    #[test]
    fn a_socket_that_answers_anything_but_refused_is_not_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        // A datagram socket answers a stream with EPROTOTYPE.
        let server = std::os::unix::net::UnixDatagram::bind(&path).expect("a free name");
        let error =
            Listener::bind(&Endpoint::Unix(path.clone()), 0o600).expect_err("the socket is taken");
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        assert!(path.exists());
        drop(server);
        Listener::bind(&Endpoint::Unix(path), 0o600).expect("no process listens");
    }
}
