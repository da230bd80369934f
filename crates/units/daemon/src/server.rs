//! Where hosts come in: a thread that listens, and one for each connection.

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

/// How long nothing is accepted after the process ran out of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(500);

/// Says where the daemon of another unit listens, as far as it is known.
pub type WhereUnitsAre = Arc<dyn Fn(UnitId) -> Option<Endpoint> + Send + Sync>;

/// How a server is kept.
#[derive(Clone)]
pub struct ServerConfig {
    /// Who the daemon is, and which authorities sign hosts.
    pub tls: Arc<ServerTls>,
    /// Where connections for other units are passed on to.
    pub others: WhereUnitsAre,
    /// How much there may be at once.
    pub limits: Limits,
}

/// How much a server's connections may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Connections at once, those that are passed on included. One more is
    /// closed at once.
    pub connections_max: usize,
    /// How long they are waited for.
    pub timeouts: Timeouts,
    /// Bytes of requests and answers that are held, over all connections. It counts
    /// as it was when the server was opened.
    pub held_bytes_max: usize,
}

impl Limits {
    /// Those of a daemon with so many connections.
    #[must_use]
    pub fn of(connections_max: usize) -> Self {
        Self {
            connections_max,
            timeouts: Timeouts::default(),
            held_bytes_max: BUDGET_BYTES,
        }
    }
}

/// What a server's threads have in common.
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

    /// What a handshake needs, for this protocol and no other.
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
    /// Opens a server at `endpoint` to the units that `keepers` keep.
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
            keepers: keepers.into_iter().map(|one| (one.id(), one)).collect(),
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

    /// Where it is; the port is a real one.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// From the next connection on.
    pub fn set_config(&self, config: ServerConfig) {
        let mut known = self.shared.config.write();
        *known = config;
    }

    /// How many connections there are.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.shared.permits.len()
    }

    /// How many bytes of requests and answers are held.
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
            // If it has panicked, that was said.
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
                tracing::warn!(%error, "cannot accept a connection");
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
            tracing::error!(%error, "the listener cannot be watched");
        }
    }

    fn accept_all(&mut self) -> io::Result<()> {
        while let Some(stream) = self.listener.accept()? {
            self.welcome(stream)?;
        }
        Ok(())
    }

    fn welcome(&mut self, stream: Stream) -> io::Result<()> {
        let max = self.shared.config().limits.connections_max;
        let permit = match self.shared.permits.acquire(max, Waker::new()?) {
            Ok(permit) => permit,
            Err(why) => {
                tracing::warn!(max, %why, "a connection is refused");
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
                    tracing::debug!(%error, "a connection has ended");
                }
            })?;
        self.threads.insert(number, thread);
        Ok(())
    }
}
