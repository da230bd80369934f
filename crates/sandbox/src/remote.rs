//! Remote filters: the host's side of the connections, and the greeting that both sides exchange
//! before they speak NBD.
//!
//! ```text
//!   agent                                          scree filter-server
//!     ── TCP, TLS 1.3: both show a certificate ──▶   on each of two connections
//!     ── greeting: length (4 bytes, little-endian), JSON ──▶
//!     ◀═ NBD: requests ══▶  the filter is the server        role "requests"
//!     ◀═ NBD: disk below ══▶  the agent is the server       role "below"
//! ```
//!
//! The agent makes both connections, so no filter has credentials for the host, and no port of
//! the host is open for it. The agent knows the filter server's key from the policy. The filter
//! server accepts hosts with certificates of the cluster's authority.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use auth::{Credentials, KeyFingerprint, pinned_client_config};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use chain::Attribution;
use chain_policy::RemoteConfig;
use net::{Channel, Pipe as _};
use rustls::{ClientConfig, ClientConnection};
use rustls_pki_types::{IpAddr, ServerName};
use serde::{Deserialize, Serialize};
use world::real::Stream;
use world::{Endpoint, Random};
use zeroize::Zeroizing;

use crate::connection::{BelowConnection, LaunchedFilter, RequestConnection};

/// The maximal length of a greeting's JSON, in bytes.
const GREETING_BYTES_MAX: usize = 16 << 10;

/// The identity with which a host connects to filter servers.
pub trait HostIdentity: Send + Sync {
    /// The host's certificate with the certificates up to its authority, and its key, both in
    /// PEM. The call may wait.
    ///
    /// # Errors
    /// Text for users, if the host has no certificate now.
    fn credentials(&self) -> Result<(String, Zeroizing<String>), String>;
}

/// The purpose of one of the two connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Role {
    /// The agent sends requests to the filter.
    Requests,
    /// The filter sends requests to the disk below.
    Below,
}

/// The first message on each connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Greeting {
    pub role: Role,
    /// The session to which both connections belong: 32 random bytes in base64, new for each
    /// start of the filter.
    pub session: String,
    /// The filter's name.
    #[serde(rename = "filter")]
    pub name: String,
    /// The tenant, VM and volume to which the disk belongs.
    pub attribution: Attribution,
}

impl Greeting {
    fn encode(&self) -> io::Result<Vec<u8>> {
        let text = serde_json::to_vec(self)?;
        let mut whole = (text.len() as u32).to_le_bytes().to_vec();
        whole.extend_from_slice(&text);
        Ok(whole)
    }
}

/// Receives a greeting in as many calls as it takes.
#[derive(Default)]
pub(crate) struct GreetingReader {
    bytes: Vec<u8>,
}

impl GreetingReader {
    /// Receives more bytes. Returns `None` until the greeting is complete, and takes no byte
    /// behind it.
    pub fn receive(&mut self, channel: &mut Channel) -> io::Result<Option<Greeting>> {
        loop {
            let wanted = match self.bytes.first_chunk() {
                None => 4,
                Some(length) => 4 + u32::from_le_bytes(*length) as usize,
            };
            if wanted > 4 + GREETING_BYTES_MAX {
                return Err(io::Error::other(format!(
                    "the greeting is longer than {GREETING_BYTES_MAX} bytes"
                )));
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

/// Begins both connections to the filter `name` on a filter server.
pub(crate) fn connect(
    server: &RemoteConfig,
    name: &str,
    attribution: &Attribution,
    host: &dyn HostIdentity,
    random: &dyn Random,
) -> io::Result<LaunchedFilter> {
    let key: KeyFingerprint = server.key.parse().map_err(io::Error::other)?;
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
        attribution: attribution.clone(),
    };
    let requests = connect_one(server.address, &config, &greeting)?;
    greeting.role = Role::Below;
    let below = connect_one(server.address, &config, &greeting)?;
    Ok(LaunchedFilter {
        requests: RequestConnection::Open(requests),
        below: BelowConnection::Open(below),
        process: None,
    })
}

/// Begins one connection. The TCP and TLS handshakes proceed as the channel is used, and the
/// greeting is sent after them.
fn connect_one(
    at: SocketAddr,
    config: &Arc<ClientConfig>,
    greeting: &Greeting,
) -> io::Result<Channel> {
    let stream = Stream::connect(&Endpoint::Tcp(at))?;
    let name = ServerName::IpAddress(IpAddr::from(at.ip()));
    let mut tls = ClientConnection::new(Arc::clone(config), name).map_err(io::Error::other)?;
    io::Write::write_all(&mut tls.writer(), &greeting.encode()?)?;
    Ok(Channel::with_tls(stream, tls.into()))
}
