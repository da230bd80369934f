//! A port for those who watch: plain HTTP, and nothing of Scree's API.
//!
//! A watcher that hangs, or many that come at once, cost nothing but their own
//! answers: connections are few, and none lives long.

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

/// Connections at a time; further ones wait in the system's queue.
const CONNECTIONS_MAX: usize = 64;

/// How long the head of a request may take, and how long a connection may be
/// idle between two. A scraper that keeps one connects again.
const HEAD_MAX: Duration = Duration::from_secs(75);

/// How long a connection may live, so that one that reads nothing ends, too.
const LIFE_MAX: Duration = Duration::from_secs(600);

/// A pause after a connection that could not be taken.
const TAKE_AGAIN: Duration = Duration::from_millis(100);

/// See the module's head.
pub struct MonitorListener {
    listener: TcpListener,
    address: SocketAddr,
}

impl MonitorListener {
    /// Listens at `address`; at any free port if its port is 0. To be called
    /// within a runtime.
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

    /// Answers until it is dropped.
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
                    // Out of descriptors, most likely: some will end.
                    tracing::warn!(%error, "no watcher's connection could be taken");
                    host::pause(TAKE_AGAIN).await;
                    continue;
                }
            };
            let router = router.clone();
            tokio::spawn(async move {
                let _slot = slot;
                match host::within(LIFE_MAX, serve_one(stream, router)).await {
                    Some(Ok(())) | None => {}
                    Some(Err(error)) => tracing::debug!(%error, "a watcher's connection ended"),
                }
            });
        }
    }
}

async fn serve_one(stream: TcpStream, router: Router) -> Result<(), hyper::Error> {
    let service = service_fn(move |request: hyper::Request<Incoming>| router.clone().call(request));
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_MAX)
        .serve_connection(TokioIo::new(stream), service)
        .await
}
