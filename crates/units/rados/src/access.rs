//! Access to a pool: connecting when it is first needed, and waiting for answers with a timeout.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use parking_lot::Mutex;
use unit::UnitError;
use world::Clock;

use crate::errors::{Intent, connect_error, is_blocklisted, unit_error};
use crate::librados::{ConnectError, Connection};
use crate::location::Location;
use crate::pool::{Change, Errno, Inspected, Pool};

/// Timeout of requests that transfer content: longer than a cluster takes to notice that one of
/// its daemons has failed.
pub(crate) const DATA_TIMEOUT: Duration = Duration::from_secs(32);

/// Timeout of requests for metadata, so that an unavailable unit is noticed soon.
pub(crate) const METADATA_TIMEOUT: Duration = Duration::from_secs(4);

/// Time after a failure to connect during which calls fail at once.
const RECONNECT_AFTER: Duration = Duration::from_millis(500);

/// Connects to a pool.
pub(crate) type Connect = Box<dyn Fn() -> Result<Arc<dyn Pool>, ConnectError> + Send + Sync>;

#[derive(Default)]
struct State {
    pool: Option<Arc<dyn Pool>>,
    /// When connecting failed last, and the error.
    failed: Option<(Duration, UnitError)>,
}

/// Access to the pool of one unit.
pub(crate) struct PoolAccess {
    pub(crate) url: String,
    location: Location,
    connect: Connect,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

impl PoolAccess {
    pub(crate) fn new(location: &Location, connect: Connect, clock: Arc<dyn Clock>) -> Self {
        Self {
            url: location.url(),
            location: location.clone(),
            connect,
            clock,
            state: Mutex::default(),
        }
    }

    /// Connects by librados.
    pub(crate) fn by_librados(location: &Location) -> Connect {
        let location = location.clone();
        Box::new(move || {
            let (pool, namespace) = (&location.pool, &location.namespace);
            let connection = Connection::to(pool, namespace, &location.settings())?;
            Ok(Arc::new(connection) as Arc<dyn Pool>)
        })
    }

    /// The pool, if it is connected.
    pub(crate) fn connected(&self) -> Option<Arc<dyn Pool>> {
        // The lock is held during a connect, which takes long.
        self.state.try_lock()?.pool.clone()
    }

    /// The pool, which is connected first if necessary.
    pub(crate) fn pool(&self) -> Result<Arc<dyn Pool>, UnitError> {
        let mut state = self.state.lock();
        if let Some(pool) = &state.pool {
            return Ok(Arc::clone(pool));
        }
        if let Some((when, why)) = &state.failed
            && self.clock.monotonic().saturating_sub(*when) < RECONNECT_AFTER
        {
            return Err(why.clone());
        }
        match (self.connect)() {
            Ok(pool) => {
                state.failed = None;
                state.pool = Some(Arc::clone(&pool));
                Ok(pool)
            }
            Err(error) => {
                let why = connect_error(&self.url, &self.location, &error);
                state.failed = Some((self.clock.monotonic(), why.clone()));
                Err(why)
            }
        }
    }

    /// Sends a request and waits for the answer.
    fn request<T: Send + 'static>(
        &self,
        within: Duration,
        begin: impl FnOnce(&dyn Pool, Box<dyn FnOnce(Result<T, Errno>) + Send>),
    ) -> Result<Result<T, Errno>, UnitError> {
        let pool = self.pool()?;
        let (sender, receiver) = mpsc::sync_channel(1);
        begin(
            &*pool,
            Box::new(move |answer| {
                // The caller may have timed out.
                let _ = sender.send(answer);
            }),
        );
        let answer = receiver.recv_timeout(within);
        let answer = answer.unwrap_or(Err(Errno(libc::ETIMEDOUT)));
        if let Err(errno) = &answer
            && is_blocklisted(*errno)
        {
            // The next request connects again, under another client name.
            let mut state = self.state.lock();
            if state
                .pool
                .as_ref()
                .is_some_and(|now| Arc::ptr_eq(now, &pool))
            {
                state.pool = None;
            }
        }
        Ok(answer)
    }

    /// Changes an object. The inner error is one that the caller may expect.
    pub(crate) fn change(
        &self,
        name: &str,
        changes: &[Change<'_>],
        within: Duration,
    ) -> Result<Result<(), Errno>, UnitError> {
        self.request(within, |pool, callback| {
            pool.change(name, changes, callback)
        })
    }

    /// Reads a part of an object.
    pub(crate) fn read(
        &self,
        name: &str,
        offset: u64,
        length: usize,
        within: Duration,
    ) -> Result<Result<Vec<u8>, Errno>, UnitError> {
        self.request(within, |pool, callback| {
            let callback =
                Box::new(move |read: Result<&[u8], Errno>| callback(read.map(<[u8]>::to_vec)));
            pool.read(name, offset, length, callback);
        })
    }

    /// Reads an object's length and attributes.
    pub(crate) fn inspect(&self, name: &str) -> Result<Result<Inspected, Errno>, UnitError> {
        self.request(DATA_TIMEOUT, |pool, callback| pool.inspect(name, callback))
    }

    /// Converts an error of a request that changes nothing.
    pub(crate) fn read_error(&self, doing: &str, errno: Errno) -> UnitError {
        unit_error(&self.url, doing, Intent::Read, errno)
    }

    /// Converts an error of a request that would have changed something.
    pub(crate) fn write_error(&self, doing: &str, errno: Errno) -> UnitError {
        unit_error(&self.url, doing, Intent::Write, errno)
    }
}
