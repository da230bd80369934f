//! A client on its way through the handshake: its socket, and the bytes that
//! wait on either side.

use std::io::{self, ErrorKind, IoSlice};

use world::Interest;

use super::export::Seat;
use super::handshake::{Goodbye, Handshake, Next, Offer, Opened};
use super::options::{OPTION_BYTES_MAX, OptionHeader};
use super::tls::ServerTls;
use net::Channel;
use net::Pipe;

/// The receive buffer: the longest option and a little more.
const INPUT_BYTES: usize = OPTION_BYTES_MAX + OptionHeader::BYTES + 4096;

/// A client in its handshake.
pub(super) struct Guest {
    pub(super) channel: Channel,
    handshake: Handshake,
    tls: Option<ServerTls>,
    pub(super) input: Vec<u8>,
    pub(super) output: Vec<u8>,
    pub(super) seat: Seat,
    pub(super) writable: bool,
    pub(super) interest: Interest,
    /// What to do when the output has left.
    then: Option<Then>,
}

enum Then {
    StartTls,
    Close(Goodbye),
}

/// How a guest's turn ended.
pub(super) enum Fate {
    Stays,
    Leaves(String),
    Opened(Box<Opened>),
}

impl Guest {
    /// A client that is about to be greeted.
    pub(super) fn new(channel: Channel, offer: Offer, tls: Option<ServerTls>, seat: Seat) -> Self {
        Self {
            channel,
            handshake: Handshake::new(offer),
            tls,
            input: Vec::new(),
            output: Handshake::greeting(),
            seat,
            writable: true,
            interest: Interest::READABLE,
            then: None,
        }
    }

    fn has_unsent(&self) -> bool {
        !self.output.is_empty() || self.channel.holds_unsent()
    }

    /// What it waits for.
    pub(super) fn wanted(&self) -> Interest {
        Interest {
            // While replies wait to be read, nothing new is asked.
            readable: self.output.is_empty() && self.then.is_none(),
            writable: self.has_unsent(),
        }
    }

    /// Receives, answers and sends what it can.
    pub(super) fn turn(&mut self, readable: bool) -> Fate {
        match self.try_turn(readable) {
            Ok(fate) => fate,
            Err(error) => Fate::Leaves(error.to_string()),
        }
    }

    fn try_turn(&mut self, readable: bool) -> io::Result<Fate> {
        let mut receive = readable && self.then.is_none();
        loop {
            if receive {
                match self.receive() {
                    Ok(0) => return Ok(Fate::Leaves("the client hung up".into())),
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
                return Ok(Fate::Stays);
            }
            match self.then.take() {
                Some(Then::Close(reason)) => return Ok(Fate::Leaves(reason.to_string())),
                Some(Then::StartTls) => self.start_tls()?,
                None => {}
            }
            // Options may have waited for replies to leave.
            let progress = self.input.len() < before;
            receive = self.channel.holds_received();
            if !receive && !progress {
                return Ok(Fate::Stays);
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

    fn advance(&mut self) -> Option<Fate> {
        if self.then.is_some() {
            return None;
        }
        if self.handshake.client.certificate.is_none() {
            let certificate = self.channel.peer_certificates().first();
            self.handshake.client.certificate = certificate.map(|der| der.to_vec());
        }
        let (used, next) = self.handshake.advance(&self.input, &mut self.output);
        self.input.drain(..used);
        match next {
            Next::Wait => None,
            Next::StartTls => {
                self.then = Some(Then::StartTls);
                None
            }
            Next::Close(goodbye) => {
                self.then = Some(Then::Close(goodbye));
                None
            }
            Next::Opened(opened) => Some(Fate::Opened(opened)),
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
            // Sent before the client could know that TLS is on: not by it.
            let message = "plain bytes were sent where TLS should begin";
            return Err(io::Error::new(ErrorKind::InvalidData, message));
        }
        let Some(tls) = &self.tls else {
            return Err(io::Error::other("TLS has no certificates"));
        };
        self.channel
            .start_tls(tls.config())
            .map_err(io::Error::other)?;
        self.handshake.tls_started();
        Ok(())
    }
}
