//! [`Channel`]: a connection over a socket, with or without TLS.

use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::{Connection, ServerConfig, ServerConnection};
use world::real::Stream;

use crate::{Pipe, Sent};

/// The maximal number of encrypted bytes that TLS buffers for one connection.
const TLS_UNSENT_BYTES_MAX: usize = 256 << 10;

/// A connection over a socket, with or without TLS.
#[derive(Debug)]
pub struct Channel {
    stream: Stream,
    tls: Option<Box<Connection>>,
    holds_received: bool,
}

impl Channel {
    /// A channel without TLS.
    #[must_use]
    pub fn new(stream: Stream) -> Self {
        Self {
            stream,
            tls: None,
            holds_received: false,
        }
    }

    /// A channel with TLS. The handshake proceeds as bytes are received and sent.
    #[must_use]
    pub fn with_tls(stream: Stream, mut tls: Connection) -> Self {
        tls.set_buffer_limit(Some(TLS_UNSENT_BYTES_MAX));
        Self {
            stream,
            tls: Some(Box::new(tls)),
            holds_received: false,
        }
    }

    /// Switches the channel to TLS, as the server.
    ///
    /// # Errors
    /// If `config` cannot be used.
    pub fn start_tls(&mut self, config: Arc<ServerConfig>) -> Result<(), rustls::Error> {
        self.begin_tls(ServerConnection::new(config)?.into());
        Ok(())
    }

    /// Switches the channel to TLS, as the side that `tls` is.
    pub fn begin_tls(&mut self, mut tls: Connection) {
        tls.set_buffer_limit(Some(TLS_UNSENT_BYTES_MAX));
        self.tls = Some(Box::new(tls));
    }

    /// Switches the channel back to plain bytes. TLS errors are no longer noticed.
    pub fn drop_tls(&mut self) {
        (self.tls, self.holds_received) = (None, false);
    }

    /// The channel's socket.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Whether the TLS handshake has ended; always true without TLS.
    #[must_use]
    pub fn is_established(&self) -> bool {
        self.tls.as_ref().is_none_or(|tls| !tls.is_handshaking())
    }

    /// The certificate of the other side, which it has proved to hold, and those between it and
    /// its root. The list is empty without TLS, and if the other side has no certificate.
    #[must_use]
    pub fn peer_certificates(&self) -> &[CertificateDer<'static>] {
        let certificates = self.tls.as_ref().and_then(|tls| tls.peer_certificates());
        certificates.unwrap_or_default()
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

fn would_block(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

/// Sends what TLS has encrypted. Returns whether the socket is full.
fn send_encrypted(tls: &mut Connection, stream: &mut Stream) -> io::Result<bool> {
    while tls.wants_write() {
        match tls.write_tls(stream) {
            Ok(_) => {}
            Err(error) if would_block(&error) => return Ok(true),
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}

/// Fills `into` as far as the socket allows.
fn receive_encrypted(
    tls: &mut Connection,
    stream: &mut Stream,
    into: &mut [u8],
) -> io::Result<usize> {
    let mut filled = 0;
    while filled < into.len() {
        match tls.reader().read(&mut into[filled..]) {
            Ok(0) => break,
            Ok(count) => {
                filled += count;
                continue;
            }
            Err(error) if would_block(&error) => {}
            Err(error) => return Err(error),
        }
        match tls.read_tls(stream) {
            // The protocols above mark the ends of their messages, so a stream that ends without
            // TLS's `close_notify` hides nothing.
            Ok(0) => break,
            Ok(_) => {}
            Err(error) if would_block(&error) && filled > 0 => break,
            Err(error) => return Err(error),
        }
        if let Err(error) = tls.process_new_packets() {
            // The alert tells the other side the reason.
            let _ = send_encrypted(tls, stream);
            return Err(io::Error::new(io::ErrorKind::InvalidData, error));
        }
    }
    Ok(filled)
}

impl Pipe for Channel {
    fn receive(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match &mut self.tls {
            None => self.stream.read(into),
            Some(tls) => {
                let received = receive_encrypted(tls, &mut self.stream, into);
                self.holds_received = received.as_ref().is_ok_and(|count| *count == into.len());
                received
            }
        }
    }

    fn holds_received(&self) -> bool {
        self.holds_received
    }

    fn send(&mut self, from: &[IoSlice<'_>]) -> io::Result<Sent> {
        let Some(tls) = &mut self.tls else {
            let offered: usize = from.iter().map(|slice| slice.len()).sum();
            return match self.stream.write_vectored(from) {
                Ok(bytes) => Ok(Sent {
                    bytes,
                    blocked: bytes < offered,
                }),
                Err(error) if would_block(&error) => Ok(Sent {
                    bytes: 0,
                    blocked: true,
                }),
                Err(error) => Err(error),
            };
        };
        let mut bytes = 0;
        let mut blocked = send_encrypted(tls, &mut self.stream)?;
        if !blocked && !from.is_empty() {
            bytes = tls.writer().write_vectored(from)?;
            blocked = send_encrypted(tls, &mut self.stream)?;
        }
        Ok(Sent { bytes, blocked })
    }

    fn holds_unsent(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.wants_write())
    }
}
