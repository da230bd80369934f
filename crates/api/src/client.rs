//! A client of the API, of one controller or of several that have one database.
//! Connections are kept and used again.
//!
//! Of several controllers one is asked, as long as it answers:
//!
//! ```text
//!   no connection                    the next one is asked the same
//!   no answer, or given up waiting   nobody knows what came of it: a GET is asked
//!                                    again of the next one; what changes something
//!                                    is not, its caller decides
//!   503                              likewise: perhaps only this one is ending, or
//!                                    cannot reach the database
//! ```
//!
//! In each of these cases the next one is asked from then on.

use std::future::Future;
use std::io;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::{Method, Request, Uri, header};
use rustls::ClientConfig;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use world::host;

use crate::connect::{Connector, Server, Way};
use crate::types::{Page, Problem};

/// A server that is there takes a connection in less.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);

/// If there is another one to ask, it is not waited for as long: a host has to
/// find one before its leases end.
const CONNECT_TO_ONE_WITHIN: Duration = Duration::from_secs(2);

/// What a server says that cannot carry out a request now.
const UNAVAILABLE: u16 = 503;

/// Answers are lists of volumes and the like: longer ones are a mistake.
const ANSWER_BYTES_MAX: usize = 256 << 20;

/// So much is asked for at a time where everything is wanted.
const PAGE: u32 = 1000;

/// Why there is no answer, or a bad one.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody listens.
    #[error("{0}")]
    Unreachable(io::Error),
    /// The connection broke, or what came back is no answer.
    #[error("the server did not answer properly: {0}; see its log")]
    Broken(String),
    /// The server takes this client's certificate for none, or this client the
    /// server's.
    #[error("{0}")]
    Certificate(&'static str),
    /// The server says no.
    #[error("{}", .0.detail)]
    Refused(Box<Problem>),
}

impl ClientError {
    /// Whether the server was asked and may answer better another time.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        match self {
            // A certificate may be renewed meanwhile.
            Self::Unreachable(_) | Self::Broken(_) | Self::Certificate(_) => true,
            Self::Refused(problem) => problem.status >= 500,
        }
    }
}

/// Asks one server, or one of several. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
    /// Under which key things are made.
    idempotency_key: Option<Arc<str>>,
}

struct Inner {
    /// At least one.
    servers: Vec<Server>,
    /// Which of them is asked.
    current: watch::Sender<usize>,
    /// What is shown to them, where they ask for it.
    tls: Option<watch::Sender<Arc<ClientConfig>>>,
}

/// Where a server is, if not on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// A name, or an IP address without brackets.
    pub host: String,
    /// The TCP port.
    pub port: u16,
}

/// A text that is no server's address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a controller's URL; write it as https://HOST:PORT")]
pub struct BadAddress(pub String);

impl FromStr for Address {
    type Err = BadAddress;

    fn from_str(text: &str) -> Result<Self, BadAddress> {
        let bad = || BadAddress(text.to_owned());
        let uri: Uri = text.parse().map_err(|_| bad())?;
        let is_bare = matches!(uri.path(), "" | "/") && uri.query().is_none();
        if uri.scheme_str() != Some("https") || !is_bare {
            return Err(bad());
        }
        let host = uri.host().ok_or_else(bad)?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        Ok(Self {
            host: host.to_owned(),
            port: uri.port_u16().unwrap_or(443),
        })
    }
}

impl Client {
    /// Asks the server that listens at `socket`.
    #[must_use]
    pub fn unix(socket: &Path) -> Self {
        Self::with(vec![Way::Unix(socket.into())], None)
    }

    /// Asks the servers at `addresses`, as `tls` says; they have one database.
    ///
    /// # Panics
    /// If there are none.
    #[must_use]
    pub fn https(addresses: Vec<Address>, tls: Arc<ClientConfig>) -> Self {
        let tls = watch::Sender::new(tls);
        let ways = addresses.into_iter().map(|address| Way::Https {
            address,
            tls: tls.subscribe(),
        });
        Self::with(ways.collect(), Some(tls))
    }

    fn with(ways: Vec<Way>, tls: Option<watch::Sender<Arc<ClientConfig>>>) -> Self {
        assert!(!ways.is_empty(), "there is nobody to ask");
        let within = match ways.len() {
            1 => CONNECT_WITHIN,
            _ => CONNECT_TO_ONE_WITHIN,
        };
        let connect = |way| {
            let way = Arc::new(way);
            Server::new(Connector { way, within })
        };
        Self {
            inner: Arc::new(Inner {
                servers: ways.into_iter().map(connect).collect(),
                current: watch::Sender::new(0),
                tls,
            }),
            idempotency_key: None,
        }
    }

    /// Makes what it makes under `key`: the same again makes nothing twice.
    #[must_use]
    pub fn under(mut self, key: &str) -> Self {
        self.idempotency_key = Some(key.into());
        self
    }

    /// Shows another certificate from the next request on: connections that have
    /// shown the one before are used no more.
    pub fn renew(&self, config: Arc<ClientConfig>) {
        if let Some(tls) = &self.inner.tls {
            tls.send_replace(config);
            self.inner
                .servers
                .iter()
                .for_each(Server::forget_connections);
        }
    }

    /// `GET path`.
    ///
    /// # Errors
    /// [`ClientError`]; so for the others.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.send(Method::GET, path, None::<&()>).await
    }

    /// Everything that a list has, page by page. `path` may have a query.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn all<T: DeserializeOwned>(&self, path: &str) -> Result<Vec<T>, ClientError> {
        let joint = if path.contains('?') { '&' } else { '?' };
        let mut all = Vec::new();
        let mut after = String::new();
        loop {
            let path = format!("{path}{joint}limit={PAGE}&after={after}");
            let page: Page<T> = self.get(&path).await?;
            all.extend(page.items);
            match page.next {
                // An id needs no escaping.
                Some(next) => after = next,
                None => return Ok(all),
            }
        }
    }

    /// `DELETE path`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn delete<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.send(Method::DELETE, path, None::<&()>).await
    }

    /// `POST path`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &(impl Serialize + Sync),
    ) -> Result<T, ClientError> {
        self.send(Method::POST, path, Some(body)).await
    }

    /// `PUT path`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn put<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &(impl Serialize + Sync),
    ) -> Result<T, ClientError> {
        self.send(Method::PUT, path, Some(body)).await
    }

    /// `what`, unless it takes longer than `wait`.
    ///
    /// # Errors
    /// [`ClientError::Broken`] then.
    pub async fn within<T>(
        wait: Duration,
        what: impl Future<Output = Result<T, ClientError>>,
    ) -> Result<T, ClientError> {
        host::timeout(wait, what).await.unwrap_or_else(|| {
            let seconds = wait.as_secs();
            Err(ClientError::Broken(format!("no answer in {seconds} s")))
        })
    }

    async fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&(impl Serialize + Sync)>,
    ) -> Result<T, ClientError> {
        let body = match body {
            Some(body) => serde_json::to_vec(body).map_err(|error| broken(&error))?,
            None => Vec::new(),
        };
        let body = Bytes::from(body);
        let is_keyed = method == Method::POST && self.idempotency_key.is_some();
        let is_safe = method == Method::GET || is_keyed;
        let mut others = self.inner.servers.len() - 1;
        loop {
            let at = *self.inner.current.borrow();
            let asked = self.ask(at, &method, path, body.clone());
            let answer = match is_safe {
                true => match self.unless_left(at, asked).await {
                    Some(answer) => answer,
                    // Somebody else has waited in vain for the same server.
                    None => continue,
                },
                false => asked.await,
            };
            let may_ask_another = match &answer {
                // Neither has heard the request.
                Err(ClientError::Unreachable(_) | ClientError::Certificate(_)) => true,
                Err(ClientError::Broken(_)) => is_safe,
                Err(ClientError::Refused(problem)) => is_safe && problem.status == UNAVAILABLE,
                Ok(_) => false,
            };
            if !may_ask_another || others == 0 {
                let answer = answer?;
                return serde_json::from_slice(&answer).map_err(|error| broken(&error));
            }
            others -= 1;
        }
    }

    /// `asked`, unless the server at `at` is not the one to ask any more.
    async fn unless_left<T>(&self, at: usize, asked: impl Future<Output = T>) -> Option<T> {
        let mut current = self.inner.current.subscribe();
        let left = async {
            // What it returns is a lock on it, which whoever asks takes, too.
            drop(current.wait_for(|now| *now != at).await);
        };
        tokio::select! {
            answer = asked => Some(answer),
            () = left => None,
        }
    }

    /// Asks one server. If it does not answer, or cannot do it now, the next
    /// one is asked from then on.
    async fn ask(
        &self,
        at: usize,
        method: &Method,
        path: &str,
        body: Bytes,
    ) -> Result<Bytes, ClientError> {
        let mut request = Request::builder();
        if let (&Method::POST, Some(key)) = (method, &self.idempotency_key) {
            request = request.header("idempotency-key", &**key);
        }
        let request = request
            .method(method)
            // The name is none that is looked up: see `Connector`.
            .uri(format!("http://scree{path}"))
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(body))
            .map_err(|error| broken(&error))?;
        let mut waiting = Waiting {
            inner: &self.inner,
            at,
            is_answered: false,
        };
        let response = self.inner.servers[at].begin(request);
        let response = response.await.map_err(unreachable)?;
        let status = response.status();
        let answer = http_body_util::Limited::new(response.into_body(), ANSWER_BYTES_MAX)
            .collect()
            .await
            .map_err(|error| broken(&error))?
            .to_bytes();
        waiting.is_answered = status.as_u16() != UNAVAILABLE;
        if status.is_success() {
            return Ok(answer);
        }
        match serde_json::from_slice(&answer) {
            Ok(problem) => Err(ClientError::Refused(Box::new(problem))),
            Err(_) => Err(ClientError::Broken(format!("HTTP status {status}"))),
        }
    }
}

/// A server that is waited for. If that ends without an answer, also because
/// whoever waits gives up, it is not asked next.
struct Waiting<'a> {
    inner: &'a Inner,
    at: usize,
    is_answered: bool,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.is_answered || self.inner.servers.len() == 1 {
            return;
        }
        let count = self.inner.servers.len();
        self.inner.current.send_if_modified(|current| {
            let is_asked = *current == self.at;
            if is_asked {
                *current = (self.at + 1) % count;
            }
            is_asked
        });
    }
}

fn broken(error: &dyn std::fmt::Display) -> ClientError {
    ClientError::Broken(error.to_string())
}

/// What TLS says of a certificate, in words that help. A server's word about the
/// client's comes after the handshake, with the first answer.
fn refused_certificate(error: &(dyn std::error::Error + 'static)) -> Option<&'static str> {
    use rustls::AlertDescription as Alert;
    use rustls::{CertificateError, Error};
    let mut cause = Some(error);
    while let Some(error) = cause {
        let inner = error
            .downcast_ref::<io::Error>()
            .and_then(io::Error::get_ref);
        let tls = inner.and_then(|inner| inner.downcast_ref::<Error>());
        let tls = tls.or_else(|| error.downcast_ref::<Error>());
        match tls {
            Some(Error::AlertReceived(Alert::CertificateExpired)) => {
                return Some(
                    "the controller refuses this certificate: it has ended, or does not hold \
                     yet; look at this machine's clock, and join with a new token",
                );
            }
            // The latter, if an authority has the same name and another key.
            Some(Error::AlertReceived(Alert::UnknownCA | Alert::DecryptError)) => {
                return Some(
                    "the controller refuses this certificate: it knows no authority that signed \
                     it; join with a token of this controller",
                );
            }
            Some(Error::AlertReceived(
                Alert::BadCertificate
                | Alert::UnsupportedCertificate
                | Alert::CertificateRevoked
                | Alert::CertificateUnknown,
            )) => {
                return Some(
                    "the controller refuses this certificate: it is not made for clients, or is \
                     damaged; join with a new token",
                );
            }
            Some(Error::InvalidCertificate(
                CertificateError::UnknownIssuer | CertificateError::BadSignature,
            )) => {
                return Some(
                    "the server's certificate is of an authority that is not trusted here: it \
                     is another server, or its authority has changed",
                );
            }
            _ => {}
        }
        cause = error.source();
    }
    None
}

/// What the client's own error hides: who could not be reached, and why.
fn unreachable(error: hyper_util::client::legacy::Error) -> ClientError {
    if let Some(why) = refused_certificate(&error) {
        return ClientError::Certificate(why);
    }
    if !error.is_connect() {
        let cause: &dyn std::error::Error = &error;
        return ClientError::Broken(base::with_causes(cause));
    }
    let mut cause = std::error::Error::source(&error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            // It cannot be taken out of its filter.
            let error = match error.raw_os_error() {
                Some(code) => io::Error::from_raw_os_error(code),
                None => io::Error::new(error.kind(), error.to_string()),
            };
            return ClientError::Unreachable(error);
        }
        cause = error.source();
    }
    ClientError::Unreachable(io::Error::other(error.to_string()))
}

#[cfg(test)]
mod tests;
