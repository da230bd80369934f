//! A client of the API. Connections are kept and used again.

use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::{Method, Request, Uri, header};
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::watch;
use tokio_rustls::TlsConnector;
use tower_service::Service;
use world::host;

use crate::types::{Page, Problem};

/// A server that is there takes a connection in less.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);

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
    /// The server says no.
    #[error("{}", .0.detail)]
    Refused(Box<Problem>),
}

impl ClientError {
    /// Whether the server was asked and may answer better another time.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Unreachable(_) | Self::Broken(_) => true,
            Self::Refused(problem) => problem.status >= 500,
        }
    }
}

/// Asks one server. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    http: hyper_util::client::legacy::Client<Connector, Full<Bytes>>,
    connector: Connector,
    /// Under which key things are made.
    idempotency_key: Option<Arc<str>>,
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
        Self::with(Way::Unix(socket.into()))
    }

    /// Asks the server at `address`, as `tls` says.
    #[must_use]
    pub fn https(address: Address, tls: Arc<ClientConfig>) -> Self {
        let tls = watch::Sender::new(tls);
        Self::with(Way::Https { address, tls })
    }

    fn with(way: Way) -> Self {
        let connector = Connector(Arc::new(way));
        let builder = hyper_util::client::legacy::Client::builder(TokioExecutor::new());
        Self {
            http: builder.build(connector.clone()),
            connector,
            idempotency_key: None,
        }
    }

    /// Makes what it makes under `key`: the same again makes nothing twice.
    #[must_use]
    pub fn under(mut self, key: &str) -> Self {
        self.idempotency_key = Some(key.into());
        self
    }

    /// Shows another certificate from the next connection on.
    pub fn renew(&self, config: Arc<ClientConfig>) {
        if let Way::Https { tls, .. } = &*self.connector.0 {
            tls.send_replace(config);
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
        host::within(wait, what).await.unwrap_or_else(|| {
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
        let mut request = Request::builder();
        if let (&Method::POST, Some(key)) = (&method, &self.idempotency_key) {
            request = request.header("idempotency-key", &**key);
        }
        let request = request
            .method(method)
            // The name is none that is looked up: see `Connector`.
            .uri(format!("http://scree{path}"))
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| broken(&error))?;
        let response = self.http.request(request).await.map_err(unreachable)?;
        let status = response.status();
        let answer = http_body_util::Limited::new(response.into_body(), ANSWER_BYTES_MAX)
            .collect()
            .await
            .map_err(|error| broken(&error))?
            .to_bytes();
        if status.is_success() {
            return serde_json::from_slice(&answer).map_err(|error| broken(&error));
        }
        match serde_json::from_slice(&answer) {
            Ok(problem) => Err(ClientError::Refused(Box::new(problem))),
            Err(_) => Err(ClientError::Broken(format!("HTTP status {status}"))),
        }
    }
}

fn broken(error: &dyn std::fmt::Display) -> ClientError {
    ClientError::Broken(error.to_string())
}

/// What the client's own error hides: who could not be reached, and why.
fn unreachable(error: hyper_util::client::legacy::Error) -> ClientError {
    if !error.is_connect() {
        let cause: &dyn std::error::Error = &error;
        return ClientError::Broken(base::with_causes(cause));
    }
    let mut cause = std::error::Error::source(&error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            // It cannot be taken out of its box.
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

/// How the one server is reached.
enum Way {
    Unix(PathBuf),
    Https {
        address: Address,
        tls: watch::Sender<Arc<ClientConfig>>,
    },
}

/// Makes connections, whatever host a URI names: there is one server.
#[derive(Clone)]
struct Connector(Arc<Way>);

impl Service<Uri> for Connector {
    type Response = TokioIo<Stream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<TokioIo<Stream>>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let way = Arc::clone(&self.0);
        Box::pin(async move {
            let connected = host::within(CONNECT_WITHIN, connect(&way)).await;
            let stream = connected.unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into()))?;
            Ok(TokioIo::new(Stream(stream)))
        })
    }
}

#[expect(clippy::disallowed_methods, reason = "hyper wants tokio's sockets")]
async fn connect(way: &Way) -> io::Result<Box<dyn Both>> {
    match way {
        Way::Unix(socket) => Ok(Box::new(UnixStream::connect(socket).await?)),
        Way::Https { address, tls } => {
            let name = ServerName::try_from(address.host.clone()).map_err(io::Error::other)?;
            let config = Arc::clone(&tls.borrow());
            let stream = TcpStream::connect((address.host.as_str(), address.port)).await?;
            stream.set_nodelay(true)?;
            let stream = TlsConnector::from(config).connect(name, stream).await?;
            Ok(Box::new(stream))
        }
    }
}

/// What a connection can do.
trait Both: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Both for T {}

/// A connection, as hyper wants it.
struct Stream(Box<dyn Both>);

impl Connection for Stream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, into)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        from: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, from)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_controllers_url_has_a_host_and_perhaps_a_port() {
        for (text, host, port) in [
            ("https://c1.example:8443", "c1.example", 8443),
            ("https://c1.example/", "c1.example", 443),
            ("https://[::1]:8443", "::1", 8443),
            ("https://127.0.0.1", "127.0.0.1", 443),
        ] {
            let address: Address = text.parse().expect("an address");
            assert_eq!((address.host.as_str(), address.port), (host, port));
        }
        for bad in [
            "",
            "c1",
            "http://c1",
            "https://",
            "https://c1/v1",
            "https://c1?a=b",
            "ftp://c1",
        ] {
            assert!(bad.parse::<Address>().is_err(), "{bad}");
        }
    }
}
