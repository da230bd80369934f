//! Connections to one server, on this machine or over TLS, and its address ([`Address`]).

use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::{Request, Uri};
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::client::legacy::{self, ResponseFuture};
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::RwLock;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::watch;
use tokio_rustls::TlsConnector;
use tower_service::Service;
use world::host;

/// The address of a remote server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// A name, or an IP address without brackets.
    pub host: String,
    /// The TCP port.
    pub port: u16,
}

/// A text that is not the address of a server.
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

/// The transport to a server.
pub(crate) enum Transport {
    Unix(PathBuf),
    Https {
        address: Address,
        /// The newest certificate, which is presented.
        tls: watch::Receiver<Arc<ClientConfig>>,
    },
}

/// Makes connections to one server, whatever host a URI names.
#[derive(Clone)]
pub(crate) struct Connector {
    pub transport: Arc<Transport>,
    /// The time within which an available server accepts a connection.
    pub within: Duration,
}

/// Connections to one server.
type Http = legacy::Client<Connector, Full<Bytes>>;

/// One server with its kept connections.
pub(crate) struct Server {
    connector: Connector,
    http: RwLock<Http>,
}

impl Server {
    pub fn new(connector: Connector) -> Self {
        Self {
            http: RwLock::new(http(&connector)),
            connector,
        }
    }

    /// Begins to send a request.
    pub fn begin(&self, request: Request<Full<Bytes>>) -> ResponseFuture {
        let http = self.http.read();
        http.request(request)
    }

    /// Closes the kept connections.
    pub fn forget_connections(&self) {
        let mut kept = self.http.write();
        *kept = http(&self.connector);
    }
}

/// A client without connections yet.
fn http(connector: &Connector) -> Http {
    legacy::Client::builder(TokioExecutor::new()).build(connector.clone())
}

impl Service<Uri> for Connector {
    type Response = TokioIo<Stream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<TokioIo<Stream>>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let (transport, within) = (Arc::clone(&self.transport), self.within);
        Box::pin(async move {
            let connected = host::timeout(within, connect(&transport)).await;
            let stream = connected.unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into()))?;
            Ok(TokioIo::new(Stream(stream)))
        })
    }
}

#[expect(clippy::disallowed_methods, reason = "hyper wants tokio's sockets")]
async fn connect(transport: &Transport) -> io::Result<Box<dyn ByteStream>> {
    match transport {
        Transport::Unix(socket) => Ok(Box::new(UnixStream::connect(socket).await?)),
        Transport::Https { address, tls } => {
            let name = ServerName::try_from(address.host.clone()).map_err(io::Error::other)?;
            let config = Arc::clone(&tls.borrow());
            let stream = TcpStream::connect((address.host.as_str(), address.port)).await?;
            stream.set_nodelay(true)?;
            let stream = TlsConnector::from(config).connect(name, stream).await?;
            Ok(Box::new(stream))
        }
    }
}

/// A connection, whatever its transport.
pub(crate) trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// A connection as a hyper transport.
pub(crate) struct Stream(Box<dyn ByteStream>);

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
