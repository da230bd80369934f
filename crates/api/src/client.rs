//! [`Client`]: a client of the API, of one controller or of several that share one database.
//! Connections are kept and reused.
//!
//! Of several controllers the client uses one, as long as it answers:
//!
//! ```text
//!   no connection                    the request is sent to the next one
//!   no answer, or a timeout          the outcome is unknown: a GET is repeated with the
//!                                    next one; for a change the caller decides
//!   503                              likewise: only this controller may be stopping, or
//!                                    unable to reach the database
//! ```
//!
//! In each of these cases the client uses the next one from then on.

use std::future::Future;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::{Method, Request, header};
use rustls::ClientConfig;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use world::host;

pub use crate::connect::{Address, BadAddress};
use crate::connect::{Connector, Server, Transport};
use crate::host::{Call, RPC_PATH};
use crate::types::{Page, Problem};

/// The time within which an available server accepts a connection.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);

/// The timeout of a connection if there is another server: a host has to find one before its leases
/// end.
const CONNECT_TO_ONE_WITHIN: Duration = Duration::from_secs(2);

/// The status of a server that cannot carry out a request now.
const UNAVAILABLE: u16 = 503;

/// The longest answer, in bytes.
const ANSWER_BYTES_MAX: usize = 256 << 20;

/// The number of items on a page when a whole list is read.
const PAGE: u32 = 1000;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No server listens.
    #[error("{0}")]
    Unreachable(io::Error),
    /// The connection broke, or the answer cannot be parsed.
    #[error("the server did not answer properly: {0}; see its log")]
    Broken(String),
    /// The server rejects this client's certificate, or this client the server's.
    #[error("{0}")]
    Certificate(&'static str),
    /// The server refused the request.
    #[error("{}", .0.detail)]
    Refused(Box<Problem>),
}

impl ClientError {
    /// Whether the request may succeed later.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        match self {
            // The certificate may have been renewed meanwhile.
            Self::Unreachable(_) | Self::Broken(_) | Self::Certificate(_) => true,
            Self::Refused(problem) => problem.status >= 500,
        }
    }
}

/// A client of one server, or of several. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
    /// The idempotency key of creations.
    idempotency_key: Option<Arc<str>>,
}

struct Inner {
    /// The servers, at least one.
    servers: Vec<Server>,
    /// The index of the server in use.
    current: watch::Sender<usize>,
    /// The certificate that is presented to them, if they are remote.
    tls: Option<watch::Sender<Arc<ClientConfig>>>,
}

impl Client {
    /// A client of the server that listens at `socket`.
    #[must_use]
    pub fn unix(socket: &Path) -> Self {
        Self::with(vec![Transport::Unix(socket.into())], None)
    }

    /// A client of the servers at `addresses`, which share one database, over `tls`.
    ///
    /// # Panics
    /// If `addresses` is empty.
    #[must_use]
    pub fn https(addresses: Vec<Address>, tls: Arc<ClientConfig>) -> Self {
        let tls = watch::Sender::new(tls);
        let transports = addresses.into_iter().map(|address| Transport::Https {
            address,
            tls: tls.subscribe(),
        });
        Self::with(transports.collect(), Some(tls))
    }

    fn with(transports: Vec<Transport>, tls: Option<watch::Sender<Arc<ClientConfig>>>) -> Self {
        assert!(!transports.is_empty(), "there is no server");
        let within = match transports.len() {
            1 => CONNECT_WITHIN,
            _ => CONNECT_TO_ONE_WITHIN,
        };
        let connect = |transport| {
            let transport = Arc::new(transport);
            Server::new(Connector { transport, within })
        };
        Self {
            inner: Arc::new(Inner {
                servers: transports.into_iter().map(connect).collect(),
                current: watch::Sender::new(0),
                tls,
            }),
            idempotency_key: None,
        }
    }

    /// Adds an idempotency key to creations: a repeated request creates nothing twice.
    #[must_use]
    pub fn under(mut self, key: &str) -> Self {
        self.idempotency_key = Some(key.into());
        self
    }

    /// Presents another certificate from the next request on. Connections with the former one are
    /// not used any more.
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
    /// [`ClientError`].
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.send(Method::GET, path, None::<&()>).await
    }

    /// Reads a whole list, page by page. `path` may have a query.
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

    /// Makes a call of the host RPC.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn call<C: Call>(&self, call: &C) -> Result<C::Answer, ClientError> {
        let path = format!("{RPC_PATH}{}", C::NAME);
        let body = body_of(call)?;
        let is_safe = C::IS_READ_ONLY;
        self.send_bytes(Method::POST, &path, body, is_safe).await
    }

    /// The result of `what`, unless it takes longer than `wait`.
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
        let body = body.map_or_else(|| Ok(Bytes::new()), body_of)?;
        let is_keyed = method == Method::POST && self.idempotency_key.is_some();
        let is_safe = method == Method::GET || is_keyed;
        self.send_bytes(method, path, body, is_safe).await
    }

    /// Sends a request; one that `is_safe` is repeated with the next server, if one does not
    /// answer.
    async fn send_bytes<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        is_safe: bool,
    ) -> Result<T, ClientError> {
        let mut others = self.inner.servers.len() - 1;
        loop {
            let at = *self.inner.current.borrow();
            let answer = self.send_to(at, &method, path, body.clone());
            let answer = match is_safe {
                true => match self.unless_left(at, answer).await {
                    Some(answer) => answer,
                    // Another request has timed out at the same server.
                    None => continue,
                },
                false => answer.await,
            };
            let may_try_another = match &answer {
                // The server has not received the request.
                Err(ClientError::Unreachable(_) | ClientError::Certificate(_)) => true,
                Err(ClientError::Broken(_)) => is_safe,
                Err(ClientError::Refused(problem)) => is_safe && problem.status == UNAVAILABLE,
                Ok(_) => false,
            };
            if !may_try_another || others == 0 {
                let answer = answer?;
                return serde_json::from_slice(&answer).map_err(|error| broken(&error));
            }
            others -= 1;
        }
    }

    /// Waits for `answer`, unless the server at `at` is not in use any more.
    async fn unless_left<T>(&self, at: usize, answer: impl Future<Output = T>) -> Option<T> {
        let mut current = self.inner.current.subscribe();
        let left = async {
            // The returned guard is dropped at once, since other requests take the lock.
            drop(current.wait_for(|now| *now != at).await);
        };
        tokio::select! {
            answer = answer => Some(answer),
            () = left => None,
        }
    }

    /// Sends a request to one server. If it does not answer, or is unavailable, the next
    /// one is used from then on.
    async fn send_to(
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
            // The name is not resolved: see `Connector`.
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

/// A request to a server. If it ends without an answer, also because the caller gives up, the next
/// server is used.
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

fn body_of(body: &impl Serialize) -> Result<Bytes, ClientError> {
    let body = serde_json::to_vec(body).map_err(|error| broken(&error))?;
    Ok(body.into())
}

fn broken(error: &dyn std::fmt::Display) -> ClientError {
    ClientError::Broken(error.to_string())
}

/// The text of a TLS error about a certificate, with a remedy. A server rejects the client's
/// certificate after the handshake, with the first answer.
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
            // `DecryptError`, if an authority has the same name and another key.
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

/// The cause of hyper's error: why the server could not be reached.
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
            // The error cannot be moved out of its wrapper.
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
