//! [`MonitorListener`]: serves health and metrics over plain HTTP, and nothing of Scree's API.
//!
//! Clients that hang, and many clients at once, affect only their own responses: the number and
//! the lifetime of connections are limited.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tower_service::Service as _;
use world::host;

use crate::Monitor;

/// The maximal number of connections. Further ones wait in the operating system's queue.
const CONNECTIONS_MAX: usize = 64;

/// The time limit for the head of a request, including the idle time before it. A client that
/// stays connected longer has to connect again.
const HEAD_TIMEOUT: Duration = Duration::from_secs(75);

/// The maximal lifetime of a connection. It also ends a connection whose client reads nothing.
const LIFETIME_MAX: Duration = Duration::from_secs(600);

/// The pause after a connection that could not be accepted.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// A server of health and metrics.
pub struct MonitorListener {
    listener: TcpListener,
    address: SocketAddr,
}

impl MonitorListener {
    /// Listens at `address`; at any free port if its port is 0. This has to be called within a
    /// runtime.
    ///
    /// # Errors
    /// As [`host::listen`].
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let listener = host::listen(address)?;
        let address = listener.local_addr()?;
        Ok(Self { listener, address })
    }

    /// The address at which this listens, with its actual port.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves requests until the future is dropped.
    pub async fn serve(self, monitor: Monitor) {
        let router = monitor.router();
        let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        loop {
            let Ok(slot) = Arc::clone(&slots).acquire_owned().await else {
                return;
            };
            let stream = match self.listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // Most likely there are too many open files, which connections that end free.
                    tracing::warn!(%error, "metrics listener cannot accept a connection");
                    host::sleep(ACCEPT_RETRY).await;
                    continue;
                }
            };
            let router = router.clone();
            tokio::spawn(async move {
                let _slot = slot;
                match host::timeout(LIFETIME_MAX, serve_one(stream, router)).await {
                    Some(Ok(())) | None => {}
                    Some(Err(error)) => {
                        tracing::debug!(%error, "connection to the metrics listener failed");
                    }
                }
            });
        }
    }
}

async fn serve_one(stream: TcpStream, router: Router) -> Result<(), hyper::Error> {
    let service = service_fn(move |request: hyper::Request<Incoming>| router.clone().call(request));
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service)
        .await
}
