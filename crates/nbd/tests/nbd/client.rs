//! A small NBD client that can also violate the protocol.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

pub const READ: u16 = 0;
pub const WRITE: u16 = 1;
pub const DISC: u16 = 2;
pub const FLUSH: u16 = 3;
pub const TRIM: u16 = 4;
pub const CACHE: u16 = 5;
pub const WRITE_ZEROES: u16 = 6;
pub const BLOCK_STATUS: u16 = 7;
pub const FUA: u16 = 1;

pub const OPT_EXPORT_NAME: u32 = 1;
pub const OPT_ABORT: u32 = 2;
pub const OPT_LIST: u32 = 3;
pub const OPT_STARTTLS: u32 = 5;
pub const OPT_INFO: u32 = 6;
pub const OPT_GO: u32 = 7;
pub const OPT_STRUCTURED_REPLY: u32 = 8;
pub const OPT_LIST_META_CONTEXT: u32 = 9;
pub const OPT_SET_META_CONTEXT: u32 = 10;

pub const REP_ACK: u32 = 1;
pub const REP_SERVER: u32 = 2;
pub const REP_INFO: u32 = 3;
pub const REP_META_CONTEXT: u32 = 4;
pub const REP_ERR_UNSUP: u32 = 1 << 31 | 1;
pub const REP_ERR_POLICY: u32 = 1 << 31 | 2;
pub const REP_ERR_INVALID: u32 = 1 << 31 | 3;
pub const REP_ERR_TLS_REQD: u32 = 1 << 31 | 5;
pub const REP_ERR_UNKNOWN: u32 = 1 << 31 | 6;
pub const REP_ERR_SHUTDOWN: u32 = 1 << 31 | 7;
pub const REP_ERR_TOO_BIG: u32 = 1 << 31 | 9;

/// The reply to one request.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Reply {
    pub cookie: u64,
    pub errno: u32,
    pub message: String,
    pub data: Vec<u8>,
    /// The length and state of each extent.
    pub extents: Vec<(u32, u32)>,
}

pub struct Client {
    pub stream: UnixStream,
    next_cookie: u64,
}

pub fn option(number: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = b"IHAVEOPT".to_vec();
    bytes.extend(number.to_be_bytes());
    bytes.extend((data.len() as u32).to_be_bytes());
    bytes.extend(data);
    bytes
}

pub fn named(name: &str, rest: &[u8]) -> Vec<u8> {
    let mut bytes = (name.len() as u32).to_be_bytes().to_vec();
    bytes.extend(name.as_bytes());
    bytes.extend(rest);
    bytes
}

pub fn request(command: u16, flags: u16, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    let mut bytes = 0x2560_9513_u32.to_be_bytes().to_vec();
    bytes.extend(flags.to_be_bytes());
    bytes.extend(command.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes.extend(offset.to_be_bytes());
    bytes.extend(length.to_be_bytes());
    bytes
}

impl Client {
    /// Connects and answers the greeting.
    pub fn connect(socket: &Path) -> Self {
        let mut client = Self::connect_unresponsive(socket);
        let greeting = client.take(18);
        assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
        assert_eq!(&greeting[16..], [0, 3], "fixed newstyle and no zeroes");
        client.send(&3_u32.to_be_bytes());
        client
    }

    /// Connects and sends nothing.
    pub fn connect_unresponsive(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).expect("the server listens");
        // A test that waits in vain fails after a while.
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .expect("a timeout");
        stream
            .set_write_timeout(Some(Duration::from_secs(20)))
            .expect("a timeout");
        Self {
            stream,
            next_cookie: 1,
        }
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the server reads");
    }

    pub fn take(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.stream
            .read_exact(&mut bytes)
            .expect("the server answers");
        bytes
    }

    fn number<const N: usize>(&mut self) -> u64 {
        self.take(N)
            .iter()
            .fold(0, |number, &byte| number << 8 | u64::from(byte))
    }

    /// Waits until the server closes the connection, and returns the bytes before that.
    pub fn closed(mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        match self.stream.read_to_end(&mut rest) {
            Ok(_) => rest,
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => rest,
            Err(error) => panic!("the server does not close the connection: {error}"),
        }
    }

    /// Receives one reply to an option: its kind and data.
    pub fn option_reply(&mut self, number: u32) -> (u32, Vec<u8>) {
        assert_eq!(self.number::<8>(), 0x0003_e889_0455_65a9);
        assert_eq!(self.number::<4>(), u64::from(number));
        let kind = self.number::<4>() as u32;
        let length = self.number::<4>() as usize;
        (kind, self.take(length))
    }

    /// Sends an option and receives all its replies.
    pub fn send_option(&mut self, number: u32, data: &[u8]) -> Vec<(u32, Vec<u8>)> {
        self.send(&option(number, data));
        let mut replies = Vec::new();
        loop {
            let reply = self.option_reply(number);
            let is_last = reply.0 == REP_ACK || reply.0 >= 1 << 31;
            replies.push(reply);
            if is_last {
                return replies;
            }
        }
    }

    /// Sends an option and returns the kind of its last reply.
    pub fn send_option_kind(&mut self, number: u32, data: &[u8]) -> u32 {
        self.send_option(number, data)
            .last()
            .expect("a last reply")
            .0
    }

    pub fn structured(&mut self) {
        assert_eq!(self.send_option_kind(OPT_STRUCTURED_REPLY, &[]), REP_ACK);
    }

    pub fn set_base_allocation(&mut self, export: &str) {
        let query = [&[0, 0, 0, 1, 0, 0, 0, 15][..], b"base:allocation"].concat();
        let replies = self.send_option(OPT_SET_META_CONTEXT, &named(export, &query));
        assert_eq!(replies[0].0, REP_META_CONTEXT);
    }

    /// Opens an export and returns its size and flags.
    pub fn go(&mut self, export: &str) -> (u64, u16) {
        let replies = self.send_option(OPT_GO, &named(export, &[0, 0]));
        let (kind, fact) = &replies[0];
        assert_eq!(*kind, REP_INFO, "{replies:?}");
        let size = u64::from_be_bytes(fact[2..10].try_into().expect("8 bytes"));
        (
            size,
            u16::from_be_bytes(fact[10..12].try_into().expect("2 bytes")),
        )
    }

    /// Sends a request without waiting, and returns its cookie.
    pub fn start(
        &mut self,
        command: u16,
        flags: u16,
        offset: u64,
        length: u32,
        data: &[u8],
    ) -> u64 {
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        let mut bytes = request(command, flags, cookie, offset, length);
        bytes.extend(data);
        self.send(&bytes);
        cookie
    }

    /// Receives the next reply. Replies to reads have to be structured.
    pub fn reply(&mut self) -> Reply {
        let mut reply = Reply::default();
        loop {
            let magic = self.number::<4>();
            if magic == 0x6744_6698 {
                reply.errno = self.number::<4>() as u32;
                reply.cookie = self.number::<8>();
                return reply;
            }
            assert_eq!(magic, 0x668e_33ef);
            let flags = self.number::<2>();
            let kind = self.number::<2>();
            reply.cookie = self.number::<8>();
            let length = self.number::<4>() as usize;
            let body = self.take(length);
            match kind {
                0 => {}
                1 => reply.data.extend_from_slice(&body[8..]),
                5 => {
                    let word = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().expect("4"));
                    let pair = |pair: &[u8]| (word(&pair[..4]), word(&pair[4..]));
                    reply.extents = body[4..].chunks(8).map(pair).collect();
                }
                _ => {
                    reply.errno = u32::from_be_bytes(body[..4].try_into().expect("4 bytes"));
                    reply.message = String::from_utf8(body[6..].to_vec()).expect("UTF-8");
                }
            }
            if flags & 1 != 0 {
                return reply;
            }
        }
    }

    /// Sends a request and waits for its reply.
    pub fn call(
        &mut self,
        command: u16,
        flags: u16,
        offset: u64,
        length: u32,
        data: &[u8],
    ) -> Reply {
        let cookie = self.start(command, flags, offset, length, data);
        let reply = self.reply();
        assert_eq!(reply.cookie, cookie);
        reply
    }

    pub fn read(&mut self, offset: u64, length: u32) -> Reply {
        self.call(READ, 0, offset, length, &[])
    }

    pub fn write(&mut self, offset: u64, data: &[u8]) -> Reply {
        self.call(WRITE, 0, offset, data.len() as u32, data)
    }
}
