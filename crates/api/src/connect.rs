//! Connections to one server, on this machine or over TLS.

use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, PoisonError, RwLock};
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::{Request, Uri};
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::client::legacy::{self, ResponseFuture};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::watch;
use tokio_rustls::TlsConnector;
use tower_service::Service;
use world::host;

use crate::client::Address;

/// How a server is reached.
pub(crate) enum Way {
    Unix(PathBuf),
    Https {
        address: Address,
        /// The newest is shown.
        tls: watch::Receiver<Arc<ClientConfig>>,
    },
}

/// Makes connections to one server, whatever host a URI names.
#[derive(Clone)]
pub(crate) struct Connector {
    pub way: Arc<Way>,
    /// A server that is there takes a connection in less.
    pub within: Duration,
}

/// Connections to one server.
type Http = legacy::Client<Connector, Full<Bytes>>;

/// One server, and connections to it, which are kept and used again.
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
        let http = self.http.read().unwrap_or_else(PoisonError::into_inner);
        http.request(request)
    }

    /// The connections that there are are used no more.
    pub fn forget_connections(&self) {
        let mut kept = self.http.write().unwrap_or_else(PoisonError::into_inner);
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
        let (way, within) = (Arc::clone(&self.way), self.within);
        Box::pin(async move {
            let connected = host::timeout(within, connect(&way)).await;
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
pub(crate) trait Both: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Both for T {}

/// A connection, as hyper wants it.
pub(crate) struct Stream(Box<dyn Both>);

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
