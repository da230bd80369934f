//! Filters on other machines: this side, and what both say before they speak NBD.
//!
//! ```text
//!   agent                                         scree filter
//!     ── TCP, TLS 1.3: both show a certificate ──▶   twice
//!     ── greeting: length (4 bytes, little-endian), JSON ──▶
//!     ◀═ NBD: requests ══▶  the filter is the server      1st
//!     ◀═ NBD: what it asks ══▶  the agent is           2nd
//! ```
//!
//! The agent makes both connections: no filter has credentials for anything of the host's, and
//! no port of the host's is open for it. It knows the machine's key from the policy; the
//! machine knows hosts by the cluster's authority.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use auth::{Credentials, KeyFingerprint, pinned_client_config};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use chain::Attribution;
use net::{Channel, Pipe as _};
use rustls::{ClientConfig, ClientConnection};
use rustls_pki_types::{IpAddr, ServerName};
use serde::{Deserialize, Serialize};
use world::real::Stream;
use world::{Endpoint, Random};
use zeroize::Zeroizing;

use crate::program::{Asks, Launched, Requests};

/// A longer greeting is none, in bytes.
const GREETING_BYTES_MAX: usize = 16 << 10;

/// As whom a host shows itself to machines of filters.
pub trait HostIdentity: Send + Sync {
    /// Its certificate and those between it and its authority, and its key, both in PEM. It
    /// may wait.
    ///
    /// # Errors
    /// Why it has none now, for people.
    fn credentials(&self) -> Result<(String, Zeroizing<String>), String>;
}

/// Which of the two connections one is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Role {
    /// The filter is asked.
    Requests,
    /// The filter asks.
    Asks,
}

/// What is said first on each.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Greeting {
    pub role: Role,
    /// Of one start of the filter: 32 random bytes, in base64.
    pub session: String,
    /// The filter's name.
    #[serde(rename = "filter")]
    pub name: String,
    pub whose: Attribution,
}

impl Greeting {
    fn encode(&self) -> io::Result<Vec<u8>> {
        let text = serde_json::to_vec(self)?;
        let mut whole = (text.len() as u32).to_le_bytes().to_vec();
        whole.extend_from_slice(&text);
        Ok(whole)
    }
}

/// Receives a greeting, over as many calls as it takes.
#[derive(Default)]
pub(crate) struct GreetingReader {
    bytes: Vec<u8>,
}

impl GreetingReader {
    /// Goes on; none: more is to come. Nothing behind the greeting is taken.
    pub fn receive(&mut self, channel: &mut Channel) -> io::Result<Option<Greeting>> {
        loop {
            let wanted = match self.bytes.first_chunk() {
                None => 4,
                Some(length) => 4 + u32::from_le_bytes(*length) as usize,
            };
            if wanted > 4 + GREETING_BYTES_MAX {
                return Err(io::Error::other("a greeting is never as long"));
            }
            let have = self.bytes.len();
            if have == wanted && have > 4 {
                return Ok(Some(serde_json::from_slice(&self.bytes[4..])?));
            }
            self.bytes.resize(wanted, 0);
            let received = channel.receive(&mut self.bytes[have..]);
            let count = *received.as_ref().unwrap_or(&0);
            self.bytes.truncate(have + count);
            match received {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }
}

/// Begins to connect to the filter `name` on a machine, twice.
pub(crate) fn call(
    (at, key): (SocketAddr, &str),
    name: &str,
    whose: &Attribution,
    host: &dyn HostIdentity,
    random: &dyn Random,
) -> io::Result<Launched> {
    let key: KeyFingerprint = key.parse().map_err(io::Error::other)?;
    let (chain_pem, key_pem) = host.credentials().map_err(io::Error::other)?;
    let credentials = Credentials {
        chain_pem: &chain_pem,
        key_pem: &key_pem,
    };
    let config = pinned_client_config(key, credentials).map_err(io::Error::other)?;
    let config = Arc::new(config);
    let mut session = [0; 32];
    random.fill(&mut session);
    let mut greeting = Greeting {
        role: Role::Requests,
        session: STANDARD.encode(session),
        name: name.to_owned(),
        whose: whose.clone(),
    };
    let requests = connect(at, &config, &greeting)?;
    greeting.role = Role::Asks;
    let asks = connect(at, &config, &greeting)?;
    Ok(Launched {
        requests: Requests::Over(requests),
        asks: Asks::Over(asks),
        child: None,
    })
}

/// Connecting and TLS go on as the channel is used; the greeting leaves then.
fn connect(at: SocketAddr, config: &Arc<ClientConfig>, greeting: &Greeting) -> io::Result<Channel> {
    let stream = Stream::connect(&Endpoint::Tcp(at))?;
    let name = ServerName::IpAddress(IpAddr::from(at.ip()));
    let mut tls = ClientConnection::new(Arc::clone(config), name).map_err(io::Error::other)?;
    io::Write::write_all(&mut tls.writer(), &greeting.encode()?)?;
    Ok(Channel::with_tls(stream, tls.into()))
}
