//! The API over HTTPS: TLS 1.3, and the authentication of the caller.
//!
//! ```text
//!  1. accept     no more connections than CONNECTIONS_MAX
//!  2. peek       at the first byte: a client without TLS gets a problem document
//!  3. handshake  within HANDSHAKE_MAX; a certificate that is presented must be
//!                signed by an authority and not expired
//!  4. serve      every request carries the Peer of the certificate, if there is one
//! ```
//!
//! Each connection has its own task. Idle connections are closed.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use auth::ServerTls;
use axum::Router;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio_rustls::TlsAcceptor;
use tower_service::Service as _;
use world::{Clock, host};

use super::Caller;

/// The largest number of connections. Further ones wait in the kernel's accept queue.
const CONNECTIONS_MAX: usize = 4096;

/// How long a handshake may take.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);

/// How long the head of a request may take, and how long a connection may be idle.
const HEAD_MAX: Duration = Duration::from_secs(60);

/// How long running requests have to end when the server stops.
const STOP_MAX: Duration = Duration::from_secs(10);

/// The first byte of a TLS handshake record.
const HANDSHAKE_RECORD: u8 = 0x16;

/// The answer to a client that speaks HTTP without TLS.
const PLAINTEXT_ANSWER: &str = "{\"type\":\"urn:scree:problem:invalid_argument\",\
    \"title\":\"invalid argument\",\"status\":400,\
    \"detail\":\"this port serves HTTPS only; use an https:// URL\",\
    \"code\":\"invalid_argument\"}";

/// A TCP port on which the API is served over TLS.
pub struct HttpsListener {
    listener: TcpListener,
    address: SocketAddr,
}

impl HttpsListener {
    /// Listens at `address`; at any free port if its port is 0.
    ///
    /// # Errors
    /// As [`host::listen`].
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let listener = host::listen(address)?;
        let address = listener.local_addr()?;
        Ok(Self { listener, address })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves `router` until `stop` resolves, and running requests for a little longer. A new
    /// connection uses the newest of the `tls` configurations, so a certificate can be renewed
    /// while it runs.
    pub async fn serve(
        self,
        router: Router,
        tls: watch::Receiver<Arc<ServerTls>>,
        clock: Arc<dyn Clock>,
        stop: impl Future<Output = ()>,
    ) {
        let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        let graceful = GracefulShutdown::new();
        let mut stop = std::pin::pin!(stop);
        loop {
            let accepted = tokio::select! {
                () = &mut stop => break,
                accepted = self.accept(&slots) => accepted,
            };
            let (stream, address, slot) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    // Most likely out of file descriptors, until some connections end.
                    tracing::warn!(%error, "server could not accept connection");
                    host::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            let (router, watcher) = (router.clone(), graceful.watcher());
            let (tls, clock) = (Arc::clone(&tls.borrow()), Arc::clone(&clock));
            tokio::spawn(async move {
                let _slot = slot;
                let connection = Connection {
                    stream,
                    address,
                    tls,
                    clock,
                };
                let served = connection.serve(router, watcher).await;
                if let Err(error) = served {
                    tracing::debug!(%address, error, "connection to client failed");
                }
            });
        }
        drop(self.listener);
        if host::timeout(STOP_MAX, graceful.shutdown()).await.is_none() {
            tracing::warn!("server stopped before some requests were answered");
        }
    }

    async fn accept(
        &self,
        slots: &Arc<Semaphore>,
    ) -> io::Result<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
        let slot = Arc::clone(slots)
            .acquire_owned()
            .await
            .map_err(io::Error::other)?;
        let (stream, address) = self.listener.accept().await?;
        Ok((stream, address, slot))
    }
}

/// An accepted connection.
struct Connection {
    stream: TcpStream,
    address: SocketAddr,
    tls: Arc<ServerTls>,
    clock: Arc<dyn Clock>,
}

impl Connection {
    /// Serves the connection: steps 2 to 4.
    async fn serve(
        self,
        router: Router,
        watcher: hyper_util::server::graceful::Watcher,
    ) -> Result<(), String> {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let Self {
            stream,
            address,
            tls,
            clock,
        } = self;
        stream.set_nodelay(true).map_err(|error| text(&error))?;
        let handshake = async {
            let mut first = [0];
            stream.peek(&mut first).await?;
            if first[0] != HANDSHAKE_RECORD {
                answer_plaintext(stream).await?;
                return Err(io::Error::other("the client does not use TLS"));
            }
            TlsAcceptor::from(tls.config()).accept(stream).await
        };
        let stream = host::timeout(HANDSHAKE_MAX, handshake)
            .await
            .ok_or("the TLS handshake took too long")?
            .map_err(|error| text(&error))?;
        let chain = stream.get_ref().1.peer_certificates();
        let peer = tls.peer(chain.unwrap_or_default(), clock.wall());
        let peer = peer.map_err(|error| text(&error))?;
        let caller = Caller::Remote { address, peer };
        let service = service_fn(move |mut request: hyper::Request<Incoming>| {
            request.extensions_mut().insert(caller.clone());
            router.clone().call(request)
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_MAX)
            .serve_connection(TokioIo::new(stream), service);
        watcher
            .watch(connection)
            .await
            .map_err(|error| text(&error))
    }
}

/// Answers, and reads the rest of the request: closing a connection with unread data would discard
/// the answer.
async fn answer_plaintext(mut stream: TcpStream) -> io::Result<()> {
    let length = PLAINTEXT_ANSWER.len();
    let answer = format!(
        "HTTP/1.1 400 Bad Request\r\ncontent-type: application/problem+json\r\n\
         content-length: {length}\r\nconnection: close\r\n\r\n{PLAINTEXT_ANSWER}"
    );
    stream.write_all(answer.as_bytes()).await?;
    stream.shutdown().await?;
    let mut rest = [0; 4096];
    while stream.read(&mut rest).await? > 0 {}
    Ok(())
}
