//! The API over HTTPS: TLS 1.3, and the authentication of the caller.
//!
//! ```text
//!  1. accept     no more connections than CONNECTIONS_MAX
//!  2. look       at the first byte: who speaks in the clear is told so
//!  3. handshake  within HANDSHAKE_MAX; a certificate that is shown must be
//!                signed by an authority and in date, or there is no connection
//!  4. serve      every request carries the Peer; none if none was shown
//! ```
//!
//! Each connection is a task of its own, and an idle one is closed.

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

/// Connections at a time; further ones wait in the system's queue.
const CONNECTIONS_MAX: usize = 4096;

/// How long a handshake may take.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);

/// How long the head of a request may take, and how long a connection may be
/// idle between two.
const HEAD_MAX: Duration = Duration::from_secs(60);

/// How long running requests have to end when the server stops.
const STOP_MAX: Duration = Duration::from_secs(10);

/// What a TLS record that begins a handshake begins with.
const HANDSHAKE_RECORD: u8 = 0x16;

/// The answer to a client that speaks HTTP without TLS.
const IN_THE_CLEAR: &str = "{\"type\":\"urn:scree:problem:invalid-argument\",\
    \"title\":\"invalid argument\",\"status\":400,\
    \"detail\":\"this port speaks HTTPS only; ask for https:// instead\",\
    \"code\":\"invalid-argument\"}";

/// A port on which the API is served over TLS.
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
                    // Out of descriptors, most likely: some will end.
                    tracing::warn!(%error, "no connection could be taken");
                    host::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            let (router, watcher) = (router.clone(), graceful.watcher());
            let (tls, clock) = (Arc::clone(&tls.borrow()), Arc::clone(&clock));
            tokio::spawn(async move {
                let _slot = slot;
                let served = serve_one(stream, address, (tls, clock), router, watcher).await;
                if let Err(error) = served {
                    tracing::debug!(%address, error, "a connection ended");
                }
            });
        }
        drop(self.listener);
        if host::timeout(STOP_MAX, graceful.shutdown()).await.is_none() {
            tracing::warn!("some requests were cut off by the end of the server");
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

/// Steps 2 to 4.
async fn serve_one(
    stream: TcpStream,
    address: SocketAddr,
    (tls, clock): (Arc<ServerTls>, Arc<dyn Clock>),
    router: Router,
    watcher: hyper_util::server::graceful::Watcher,
) -> Result<(), String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    stream.set_nodelay(true).map_err(|error| text(&error))?;
    let handshake = async {
        let mut first = [0];
        stream.peek(&mut first).await?;
        if first[0] != HANDSHAKE_RECORD {
            tell_in_the_clear(stream).await?;
            return Err(io::Error::other("it spoke in the clear"));
        }
        TlsAcceptor::from(tls.config()).accept(stream).await
    };
    let stream = host::timeout(HANDSHAKE_MAX, handshake)
        .await
        .ok_or("its handshake took too long")?
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

/// Answers, and hears the rest: a connection that is closed with something
/// unread in it takes the answer away with it.
async fn tell_in_the_clear(mut stream: TcpStream) -> io::Result<()> {
    let length = IN_THE_CLEAR.len();
    let answer = format!(
        "HTTP/1.1 400 Bad Request\r\ncontent-type: application/problem+json\r\n\
         content-length: {length}\r\nconnection: close\r\n\r\n{IN_THE_CLEAR}"
    );
    stream.write_all(answer.as_bytes()).await?;
    stream.shutdown().await?;
    let mut rest = [0; 4096];
    while stream.read(&mut rest).await? > 0 {}
    Ok(())
}
