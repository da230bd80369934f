//! [`HandshakingClient`]: a handshaking client, with its socket and buffers.

use std::io::{self, ErrorKind, IoSlice};

use world::Interest;

use super::export::ConnectionPermit;
use super::handshake::{CloseReason, Handshake, HandshakeStep, Offer, Opened};
use super::options::{OPTION_BYTES_MAX, OptionHeader};
use super::tls::ServerTls;
use net::Channel;
use net::Pipe;

/// The length of the receive buffer: the longest option and some more.
const INPUT_BYTES: usize = OPTION_BYTES_MAX + OptionHeader::BYTES + 4096;

/// A client whose handshake has not ended.
pub(super) struct HandshakingClient {
    pub(super) channel: Channel,
    handshake: Handshake,
    tls: Option<ServerTls>,
    pub(super) input: Vec<u8>,
    pub(super) output: Vec<u8>,
    pub(super) permit: ConnectionPermit,
    pub(super) writable: bool,
    pub(super) interest: Interest,
    /// What to do when the output has been sent.
    after_send: Option<AfterSend>,
}

enum AfterSend {
    StartTls,
    Close(CloseReason),
}

/// The result of a turn.
pub(super) enum HandshakeProgress {
    /// The handshake continues.
    Continues,
    /// The client disconnected, or has to be disconnected, for this reason.
    Ended(String),
    /// The client has chosen an export.
    Opened(Box<Opened>),
}

impl HandshakingClient {
    /// A client that gets the greeting next.
    pub(super) fn new(
        channel: Channel,
        offer: Offer,
        tls: Option<ServerTls>,
        permit: ConnectionPermit,
    ) -> Self {
        Self {
            channel,
            handshake: Handshake::new(offer),
            tls,
            input: Vec::new(),
            output: Handshake::greeting(),
            permit,
            writable: true,
            interest: Interest::READABLE,
            after_send: None,
        }
    }

    fn has_unsent(&self) -> bool {
        !self.output.is_empty() || self.channel.holds_unsent()
    }

    /// The readiness that the client waits for.
    pub(super) fn needed_interest(&self) -> Interest {
        Interest {
            // The client has to read replies before its next option is handled.
            readable: self.output.is_empty() && self.after_send.is_none(),
            writable: self.has_unsent(),
        }
    }

    /// Receives, replies and sends without waiting.
    pub(super) fn turn(&mut self, readable: bool) -> HandshakeProgress {
        match self.try_turn(readable) {
            Ok(fate) => fate,
            Err(error) => HandshakeProgress::Ended(error.to_string()),
        }
    }

    fn try_turn(&mut self, readable: bool) -> io::Result<HandshakeProgress> {
        let mut receive = readable && self.after_send.is_none();
        loop {
            if receive {
                match self.receive() {
                    Ok(0) => return Ok(HandshakeProgress::Ended("the client disconnected".into())),
                    Ok(_) => {}
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error),
                }
            }
            let before = self.input.len();
            if let Some(fate) = self.advance() {
                return Ok(fate);
            }
            self.send()?;
            if self.has_unsent() {
                return Ok(HandshakeProgress::Continues);
            }
            match self.after_send.take() {
                Some(AfterSend::Close(reason)) => {
                    return Ok(HandshakeProgress::Ended(reason.to_string()));
                }
                Some(AfterSend::StartTls) => self.start_tls()?,
                None => {}
            }
            // Options may have waited until replies were sent.
            let progress = self.input.len() < before;
            receive = self.channel.holds_received();
            if !receive && !progress {
                return Ok(HandshakeProgress::Continues);
            }
        }
    }

    fn receive(&mut self) -> io::Result<usize> {
        let before = self.input.len();
        self.input.resize(INPUT_BYTES, 0);
        let received = self.channel.receive(&mut self.input[before..]);
        self.input
            .truncate(before + received.as_ref().map_or(0, |count| *count));
        received
    }

    fn advance(&mut self) -> Option<HandshakeProgress> {
        if self.after_send.is_some() {
            return None;
        }
        if self.handshake.client.certificate.is_none() {
            let certificate = self.channel.peer_certificates().first();
            self.handshake.client.certificate = certificate.map(|der| der.to_vec());
        }
        let (used, next) = self.handshake.advance(&self.input, &mut self.output);
        self.input.drain(..used);
        match next {
            HandshakeStep::Wait => None,
            HandshakeStep::StartTls => {
                self.after_send = Some(AfterSend::StartTls);
                None
            }
            HandshakeStep::Close(reason) => {
                self.after_send = Some(AfterSend::Close(reason));
                None
            }
            HandshakeStep::Opened(opened) => Some(HandshakeProgress::Opened(opened)),
        }
    }

    fn send(&mut self) -> io::Result<()> {
        while self.writable && self.has_unsent() {
            let slice = [IoSlice::new(&self.output)];
            let slices = if self.output.is_empty() {
                &[][..]
            } else {
                &slice[..]
            };
            let sent = self.channel.send(slices)?;
            self.output.drain(..sent.bytes);
            self.writable = !sent.blocked;
        }
        Ok(())
    }

    fn start_tls(&mut self) -> io::Result<()> {
        if !self.input.is_empty() {
            // The client cannot have sent them: it did not know yet that TLS begins.
            let message = "plain bytes followed STARTTLS";
            return Err(io::Error::new(ErrorKind::InvalidData, message));
        }
        let Some(tls) = &self.tls else {
            return Err(io::Error::other("the server has no certificates for TLS"));
        };
        self.channel
            .start_tls(tls.config())
            .map_err(io::Error::other)?;
        self.handshake.tls_started();
        Ok(())
    }
}
