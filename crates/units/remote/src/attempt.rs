//! A connection on its way: from nothing to a daemon that has greeted.

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
use super::{Conversation, Greeted};

/// Received at once, in bytes.
pub(super) const RECEIVE_BYTES: usize = 256 << 10;

/// A daemon has greeted.
pub(super) struct Connected {
    pub channel: Channel,
    pub conversation: Conversation,
    pub out: Outbox,
    pub greeting: Greeting,
    /// By which the poller names it.
    pub key: u64,
    pub endpoint: Endpoint,
    /// As whom.
    pub tls: Arc<ClientConfig>,
}

/// See the module's head.
pub(super) struct Attempt {
    key: u64,
    endpoint: Endpoint,
    config: LinkConfig,
    tls: Arc<ClientConfig>,
    /// It is given up then, by whoever drives it.
    pub deadline: Duration,
    stage: Option<Stage>,
}

enum Stage {
    Tcp(Stream),
    Tls(Channel, Conversation, Outbox),
}

impl Attempt {
    /// Begins to connect to `endpoint`.
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

    /// Goes on as far as it can, when the poller has named it; the connection, when
    /// the daemon has greeted.
    ///
    /// # Errors
    /// There is no connection to be had; it is not to be called again.
    pub fn go_on(&mut self, poller: &Poller) -> io::Result<Option<Connected>> {
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
            if matches!(greeted, Greeted::Now(_)) || !channel.holds_received() {
                break greeted;
            }
        };
        let is_blocked = out.send(&mut channel)?;
        if let Greeted::Now(greeting) = greeted {
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
    /// Sends what there is; whether the socket takes no more.
    pub fn send(&mut self) -> io::Result<bool> {
        self.out.send(&mut self.channel)
    }

    /// Takes what has come, and tells whoever is answered by it.
    ///
    /// # Errors
    /// The connection's end; as [`ErrorKind::UnexpectedEof`], that the daemon has
    /// closed it.
    pub fn receive(&mut self, buffer: &mut [u8]) -> io::Result<Greeted> {
        receive(&mut self.channel, &mut self.conversation, buffer)
    }
}

fn receive(
    channel: &mut Channel,
    conversation: &mut Conversation,
    buffer: &mut [u8],
) -> io::Result<Greeted> {
    let received = match channel.receive(buffer) {
        Ok(0) => {
            let reason = "its daemon has closed the connection";
            return Err(io::Error::new(ErrorKind::UnexpectedEof, reason));
        }
        Ok(count) => &buffer[..count],
        Err(error) if error.kind() == ErrorKind::WouldBlock => &[],
        Err(error) => return Err(error),
    };
    let greeted = conversation.receive(received);
    greeted.map_err(|broken| io::Error::new(ErrorKind::InvalidData, broken))
}
