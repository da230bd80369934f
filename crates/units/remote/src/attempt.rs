//! An attempt to connect: from a socket to a daemon that has sent its greeting.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Duration;

use net::{Channel, Outbox, Pipe as _};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};
use unit_wire::Greeting;
use world::real::{Poller, Stream};
use world::{Endpoint, Interest};

use super::link::LinkConfig;
use super::{Conversation, GreetingProgress};

/// Bytes received at once.
pub(super) const RECEIVE_BYTES: usize = 256 << 10;

/// A connection whose daemon has sent its greeting.
pub(super) struct Connected {
    pub channel: Channel,
    pub conversation: Conversation,
    pub out: Outbox,
    pub greeting: Greeting,
    /// Its key in the poller.
    pub key: u64,
    pub endpoint: Endpoint,
    /// The configuration with this host's certificate.
    pub tls: Arc<ClientConfig>,
}

/// A connection that is being established.
pub(super) struct Attempt {
    key: u64,
    endpoint: Endpoint,
    config: LinkConfig,
    tls: Arc<ClientConfig>,
    /// When the caller gives it up, by the monotonic clock.
    pub deadline: Duration,
    stage: Option<Stage>,
}

enum Stage {
    Tcp(Stream),
    Tls(Channel, Conversation, Outbox),
}

impl Attempt {
    /// Starts to connect to `endpoint`.
    pub fn begin(
        poller: &Poller,
        key: u64,
        endpoint: &Endpoint,
        config: &LinkConfig,
        tls: &Arc<ClientConfig>,
        deadline: Duration,
    ) -> io::Result<Self> {
        let stream = Stream::connect(endpoint)?;
        let interest = Interest {
            readable: false,
            writable: true,
        };
        poller.add(&stream, key, interest)?;
        Ok(Self {
            key,
            endpoint: endpoint.clone(),
            config: config.clone(),
            tls: Arc::clone(tls),
            deadline,
            stage: Some(Stage::Tcp(stream)),
        })
    }

    /// Advances without waiting, when the poller has reported the socket. Returns the connection
    /// once the daemon has sent its greeting.
    ///
    /// # Errors
    /// The attempt has failed and must not be advanced again.
    pub fn advance(&mut self, poller: &Poller) -> io::Result<Option<Connected>> {
        let over = || io::Error::other("the attempt is over");
        let (mut channel, mut conversation, mut out) = match self.stage.take().ok_or_else(over)? {
            Stage::Tcp(stream) => match stream.connected() {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.stage = Some(Stage::Tcp(stream));
                    return Ok(None);
                }
                other => {
                    other?;
                    self.greet(stream)?
                }
            },
            Stage::Tls(channel, conversation, out) => (channel, conversation, out),
        };
        let mut buffer = vec![0; 16 << 10];
        let greeted = loop {
            let greeted = receive(&mut channel, &mut conversation, &mut buffer)?;
            if matches!(greeted, GreetingProgress::Now(_)) || !channel.holds_received() {
                break greeted;
            }
        };
        let is_blocked = out.send(&mut channel)?;
        if let GreetingProgress::Now(greeting) = greeted {
            return Ok(Some(Connected {
                channel,
                conversation,
                out,
                greeting,
                key: self.key,
                endpoint: self.endpoint.clone(),
                tls: Arc::clone(&self.tls),
            }));
        }
        let interest = Interest {
            readable: true,
            writable: is_blocked,
        };
        poller.modify(&channel, self.key, interest)?;
        self.stage = Some(Stage::Tls(channel, conversation, out));
        Ok(None)
    }

    fn greet(&self, stream: Stream) -> io::Result<(Channel, Conversation, Outbox)> {
        let config = &self.config;
        let name = ServerName::try_from(config.unit.to_string()).map_err(io::Error::other)?;
        let tls = ClientConnection::new(Arc::clone(&self.tls), name).map_err(io::Error::other)?;
        let mut out = Outbox::default();
        let conversation = Conversation::begin(config.unit, config.cluster, out.bytes());
        Ok((Channel::with_tls(stream, tls.into()), conversation, out))
    }
}

impl Connected {
    /// Sends queued bytes. Returns whether the socket blocks.
    pub fn send(&mut self) -> io::Result<bool> {
        self.out.send(&mut self.channel)
    }

    /// Receives bytes and delivers the answers in them.
    ///
    /// # Errors
    /// Why the connection ended; [`ErrorKind::UnexpectedEof`] if the daemon closed it.
    pub fn receive(&mut self, buffer: &mut [u8]) -> io::Result<GreetingProgress> {
        receive(&mut self.channel, &mut self.conversation, buffer)
    }
}

fn receive(
    channel: &mut Channel,
    conversation: &mut Conversation,
    buffer: &mut [u8],
) -> io::Result<GreetingProgress> {
    let received = match channel.receive(buffer) {
        Ok(0) => {
            let reason = "the daemon closed the connection";
            return Err(io::Error::new(ErrorKind::UnexpectedEof, reason));
        }
        Ok(count) => &buffer[..count],
        Err(error) if error.kind() == ErrorKind::WouldBlock => &[],
        Err(error) => return Err(error),
    };
    let greeted = conversation.receive(received);
    greeted.map_err(|broken| io::Error::new(ErrorKind::InvalidData, broken))
}
