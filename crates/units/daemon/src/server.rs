//! The server: a thread that listens, and one for each connection.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use auth::ServerTls;
use base::UnitId;
use parking_lot::RwLock;
use unit_wire::ALPN;
use world::real::{Listener, Poller, Stream, Waker};
use world::{Clock, Endpoint, Interest, Pool, World};

use crate::Keeper;
use crate::budget::{BUDGET_BYTES, Budget};
use crate::connection;
use crate::permits::Permits;
use crate::timeouts::Timeouts;

/// The poller's keys.
const WAKER: u64 = 0;
const LISTENER: u64 = 1;

/// Time without accepting after the process ran out of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(500);

/// Returns the endpoint of the daemon of another unit, if it is known.
pub type UnitEndpoints = Arc<dyn Fn(UnitId) -> Option<Endpoint> + Send + Sync>;

/// The configuration of a server.
#[derive(Clone)]
pub struct ServerConfig {
    /// The daemon's certificate, and the authorities that sign hosts.
    pub tls: Arc<ServerTls>,
    /// Where connections for other units are relayed to.
    pub others: UnitEndpoints,
    /// Limits of connections and memory.
    pub limits: Limits,
}

/// Limits of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of connections, relayed ones included. Further ones are closed at once.
    pub connections_max: usize,
    /// Timeouts of connections.
    pub timeouts: Timeouts,
    /// Maximum bytes of requests and answers that are held, over all connections. Cannot be
    /// changed while the server is open.
    pub held_bytes_max: usize,
}

impl Limits {
    /// The default limits of a daemon with `connections_max` connections.
    #[must_use]
    pub fn of(connections_max: usize) -> Self {
        Self {
            connections_max,
            timeouts: Timeouts::default(),
            held_bytes_max: BUDGET_BYTES,
        }
    }
}

/// State that the threads of a server share.
pub(crate) struct Shared {
    config: RwLock<ServerConfig>,
    keepers: HashMap<UnitId, Arc<Keeper>>,
    pub pool: Arc<dyn Pool>,
    pub clock: Arc<dyn Clock>,
    pub budget: Arc<Budget>,
    permits: Arc<Permits>,
    is_closing: AtomicBool,
}

impl Shared {
    pub(crate) fn config(&self) -> ServerConfig {
        let config = self.config.read();
        config.clone()
    }

    pub(crate) fn keeper(&self, unit: UnitId) -> Option<&Arc<Keeper>> {
        self.keepers.get(&unit)
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Relaxed)
    }

    /// The TLS configuration of a handshake, for this protocol only.
    pub(crate) fn tls(&self) -> (Arc<ServerTls>, Arc<rustls::ServerConfig>) {
        let tls = self.config().tls;
        let mut config = (*tls.config()).clone();
        config.alpn_protocols = vec![ALPN.to_vec()];
        (tls, Arc::new(config))
    }
}

/// A server that is open. Dropping it closes it and all connections.
pub struct Server {
    shared: Arc<Shared>,
    waker: Waker,
    endpoint: Endpoint,
    thread: Option<thread::JoinHandle<()>>,
}

impl Server {
    /// Opens a server at `endpoint` for the units of `keepers`.
    ///
    /// # Errors
    /// As [`Listener::bind`]; or if the process has no thread left.
    pub fn open(
        world: &World,
        endpoint: &Endpoint,
        keepers: impl IntoIterator<Item = Arc<Keeper>>,
        config: ServerConfig,
    ) -> io::Result<Self> {
        let listener = Listener::bind(endpoint, 0o600)?;
        let endpoint = listener.endpoint().clone();
        let (waker, poller) = (Waker::new()?, Poller::new()?);
        poller.add(&waker, WAKER, Interest::READABLE)?;
        poller.add(&listener, LISTENER, Interest::READABLE)?;
        let shared = Arc::new(Shared {
            budget: Budget::new(config.limits.held_bytes_max),
            config: RwLock::new(config),
            keepers: keepers
                .into_iter()
                .map(|keeper| (keeper.id(), keeper))
                .collect(),
            pool: Arc::clone(&world.pool),
            clock: Arc::clone(&world.clock),
            permits: Arc::default(),
            is_closing: AtomicBool::new(false),
        });
        let acceptor = Acceptor {
            shared: Arc::clone(&shared),
            waker: waker.clone(),
            poller,
            listener,
            threads: HashMap::new(),
            next: 0,
        };
        #[expect(
            clippy::disallowed_methods,
            reason = "it lasts as long as the server: no job for a pool"
        )]
        let thread = thread::Builder::new()
            .name("server".to_owned())
            .spawn(|| acceptor.run())?;
        Ok(Self {
            shared,
            waker,
            endpoint,
            thread: Some(thread),
        })
    }

    /// The endpoint that it listens on, with the actual port.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Replaces the configuration, from the next connection on.
    pub fn set_config(&self, config: ServerConfig) {
        let mut known = self.shared.config.write();
        *known = config;
    }

    /// Number of connections.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.shared.permits.len()
    }

    /// Bytes of requests and answers that are held.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.shared.budget.held()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.is_closing.store(true, Ordering::Relaxed);
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            // A panic was reported already.
            let _ = thread.join();
        }
    }
}

/// The thread that listens.
struct Acceptor {
    shared: Arc<Shared>,
    waker: Waker,
    poller: Poller,
    listener: Listener,
    threads: HashMap<usize, thread::JoinHandle<()>>,
    next: usize,
}

impl Acceptor {
    fn run(mut self) {
        let mut ready = Vec::new();
        let mut pause = None;
        loop {
            let waited = self.poller.wait(pause, &mut ready);
            waited.expect("an epoll of this thread can be waited on");
            self.waker.clear();
            if self.shared.is_closing() {
                break;
            }
            self.threads.retain(|_, thread| !thread.is_finished());
            let paused = pause.take().is_some();
            if paused {
                self.listen(true);
            }
            if let Err(error) = self.accept_all() {
                tracing::warn!(%error, "daemon failed to accept a connection");
                self.listen(false);
                pause = Some(ACCEPT_PAUSE);
            }
        }
        self.shared.permits.wake_all();
        for (_, thread) in self.threads {
            let _ = thread.join();
        }
    }

    fn listen(&self, readable: bool) {
        let interest = Interest {
            readable,
            writable: false,
        };
        if let Err(error) = self.poller.modify(&self.listener, LISTENER, interest) {
            tracing::error!(%error, "daemon failed to poll its listener");
        }
    }

    fn accept_all(&mut self) -> io::Result<()> {
        while let Some(stream) = self.listener.accept()? {
            self.admit(stream)?;
        }
        Ok(())
    }

    fn admit(&mut self, stream: Stream) -> io::Result<()> {
        let max = self.shared.config().limits.connections_max;
        let permit = match self.shared.permits.acquire(max, Waker::new()?) {
            Ok(permit) => permit,
            Err(why) => {
                tracing::warn!(max, error = %why, "daemon refused a connection");
                return Ok(());
            }
        };
        let number = self.next;
        self.next += 1;
        let shared = Arc::clone(&self.shared);
        #[expect(
            clippy::disallowed_methods,
            reason = "it lasts as long as the connection: no job for a pool"
        )]
        let thread = thread::Builder::new()
            .name("host".to_owned())
            .spawn(move || {
                if let Err(error) = connection::serve(&shared, stream, &permit) {
                    tracing::debug!(%error, "daemon closed connection");
                }
            })?;
        self.threads.insert(number, thread);
        Ok(())
    }
}
