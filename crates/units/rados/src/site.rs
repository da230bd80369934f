//! The way to the pool: connecting when there is something to ask, waiting for
//! answers, and no longer than they may take.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use parking_lot::Mutex;
use unit::UnitError;
use world::Clock;

use crate::librados::{ConnectError, Connection};
use crate::meaning::{Intent, is_blocklisted, meaning, meaning_of_connect};
use crate::place::Place;
use crate::pool::{Change, Errno, Inspected, Pool};

/// How long what moves content may take: longer than a cluster needs to notice that
/// one of its daemons is gone.
pub(crate) const MOVE_WITHIN: Duration = Duration::from_secs(32);

/// How long what only looks may take: who asks whether the unit is there wants to
/// hear that it is not.
pub(crate) const LOOK_WITHIN: Duration = Duration::from_secs(4);

/// After a failure to connect, how long everybody is told of that before it is tried
/// again.
const CONNECT_AGAIN_AFTER: Duration = Duration::from_millis(500);

/// How a pool is connected to.
pub(crate) type Connect = Box<dyn Fn() -> Result<Arc<dyn Pool>, ConnectError> + Send + Sync>;

#[derive(Default)]
struct State {
    pool: Option<Arc<dyn Pool>>,
    /// When connecting failed last, and why.
    failed: Option<(Duration, UnitError)>,
}

/// See the module's head.
pub(crate) struct Site {
    pub(crate) url: String,
    place: Place,
    connect: Connect,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

impl Site {
    pub(crate) fn new(place: &Place, connect: Connect, clock: Arc<dyn Clock>) -> Self {
        Self {
            url: place.url(),
            place: place.clone(),
            connect,
            clock,
            state: Mutex::default(),
        }
    }

    /// By librados.
    pub(crate) fn by_librados(place: &Place) -> Connect {
        let place = place.clone();
        Box::new(move || {
            let (pool, namespace) = (&place.pool, &place.namespace);
            let connection = Connection::to(pool, namespace, &place.settings())?;
            Ok(Arc::new(connection) as Arc<dyn Pool>)
        })
    }

    /// The pool, if there is a connection already.
    pub(crate) fn connected(&self) -> Option<Arc<dyn Pool>> {
        // Held while somebody connects, which takes long.
        self.state.try_lock()?.pool.clone()
    }

    /// The pool.
    pub(crate) fn pool(&self) -> Result<Arc<dyn Pool>, UnitError> {
        let mut state = self.state.lock();
        if let Some(pool) = &state.pool {
            return Ok(Arc::clone(pool));
        }
        if let Some((when, why)) = &state.failed
            && self.clock.monotonic().saturating_sub(*when) < CONNECT_AGAIN_AFTER
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
                let why = meaning_of_connect(&self.url, &self.place, &error);
                state.failed = Some((self.clock.monotonic(), why.clone()));
                Err(why)
            }
        }
    }

    /// Asks, and waits for the answer.
    fn ask<T: Send + 'static>(
        &self,
        within: Duration,
        begin: impl FnOnce(&dyn Pool, Box<dyn FnOnce(Result<T, Errno>) + Send>),
    ) -> Result<Result<T, Errno>, UnitError> {
        let pool = self.pool()?;
        let (tell, told) = mpsc::sync_channel(1);
        begin(
            &*pool,
            Box::new(move |answer| {
                // Whoever asked may have given up.
                let _ = tell.send(answer);
            }),
        );
        let answer = told.recv_timeout(within);
        let answer = answer.unwrap_or(Err(Errno(libc::ETIMEDOUT)));
        if let Err(errno) = &answer
            && is_blocklisted(*errno)
        {
            // The next one to ask gets a connection under another name.
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

    /// Changes an object; the inner error is one that the caller may expect.
    pub(crate) fn change(
        &self,
        name: &str,
        changes: &[Change<'_>],
        within: Duration,
    ) -> Result<Result<(), Errno>, UnitError> {
        self.ask(within, |pool, told| pool.change(name, changes, told))
    }

    /// Reads a part of an object.
    pub(crate) fn read(
        &self,
        name: &str,
        offset: u64,
        length: usize,
        within: Duration,
    ) -> Result<Result<Vec<u8>, Errno>, UnitError> {
        self.ask(within, |pool, told| {
            let told = Box::new(move |read: Result<&[u8], Errno>| told(read.map(<[u8]>::to_vec)));
            pool.read(name, offset, length, told);
        })
    }

    /// Reads an object's length and attributes.
    pub(crate) fn inspect(&self, name: &str) -> Result<Result<Inspected, Errno>, UnitError> {
        self.ask(MOVE_WITHIN, |pool, told| pool.inspect(name, told))
    }

    /// What `errno` means of something that changes nothing.
    pub(crate) fn meaning(&self, doing: &str, errno: Errno) -> UnitError {
        meaning(&self.url, doing, Intent::Read, errno)
    }

    /// As [`Site::meaning`], of what would have changed something.
    pub(crate) fn meaning_of_write(&self, doing: &str, errno: Errno) -> UnitError {
        meaning(&self.url, doing, Intent::Write, errno)
    }
}
