//! Connection permits: how many connections there may be, and of which kind.
//!
//! | connections | at most |
//! |---|---|
//! | all | `connections_max` |
//! | of unknown hosts | a quarter of that, each for 10 s |
//! | relayed to another daemon | half of it |
//! | of one host | 4: with one more, the oldest is closed |
//!
//! A host has one link to each daemon, and for a moment two, when it finds a shorter way or
//! has a new certificate. Older connections are orphaned.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, MutexGuard};
use world::real::Waker;

/// Most connections of one host.
const PER_HOST_MAX: usize = 4;

/// The kind of a connection, as far as it is known.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    Unknown,
    Relayed,
    Host(String),
}

#[derive(Debug)]
struct Entry {
    kind: Kind,
    waker: Waker,
    is_over: Arc<AtomicBool>,
}

#[derive(Debug, Default)]
struct State {
    /// By number, which grows: the oldest connection comes first.
    entries: BTreeMap<u64, Entry>,
    next: u64,
}

/// The permits of a server.
#[derive(Debug, Default)]
pub(crate) struct Permits {
    state: Mutex<State>,
}

/// The permit of one connection, returned when it is dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    permits: Arc<Permits>,
    number: u64,
    waker: Waker,
    is_over: Arc<AtomicBool>,
}

/// Why there is no permit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoPermit {
    #[error("there are too many connections")]
    All,
    #[error("there are too many connections of unknown hosts")]
    Unknown,
    #[error("there are too many relayed connections")]
    Relayed,
}

impl State {
    fn count(&self, kind: &Kind) -> usize {
        let all = self.entries.values();
        all.filter(|one| one.kind == *kind).count()
    }
}

impl Permits {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// The number of connections.
    pub fn len(&self) -> usize {
        self.lock().entries.len()
    }

    /// A permit for one more connection, of `max` in all. `waker` wakes the connection when it
    /// must end.
    ///
    /// # Errors
    /// [`NoPermit`].
    pub fn acquire(self: &Arc<Self>, max: usize, waker: Waker) -> Result<Permit, NoPermit> {
        let mut state = self.lock();
        if state.entries.len() >= max {
            return Err(NoPermit::All);
        }
        if state.count(&Kind::Unknown) >= max.div_ceil(4) {
            return Err(NoPermit::Unknown);
        }
        let number = state.next;
        state.next += 1;
        let is_over = Arc::new(AtomicBool::new(false));
        let entry = Entry {
            kind: Kind::Unknown,
            waker: waker.clone(),
            is_over: Arc::clone(&is_over),
        };
        state.entries.insert(number, entry);
        drop(state);
        Ok(Permit {
            permits: Arc::clone(self),
            number,
            waker,
            is_over,
        })
    }

    /// Wakes all connections, so that they check whether they must end.
    pub fn wake_all(&self) {
        for entry in self.lock().entries.values() {
            entry.waker.wake();
        }
    }
}

impl Permit {
    /// Wakes the connection when it must check whether to end.
    pub fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Whether the connection must end, because its host has too many newer ones.
    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Counts the connection as relayed; `max` is the limit of all connections.
    ///
    /// # Errors
    /// [`NoPermit::Relayed`].
    pub fn set_relayed(&self, max: usize) -> Result<(), NoPermit> {
        let mut state = self.permits.lock();
        if state.count(&Kind::Relayed) >= max.div_ceil(2) {
            return Err(NoPermit::Relayed);
        }
        if let Some(entry) = state.entries.get_mut(&self.number) {
            entry.kind = Kind::Relayed;
        }
        Ok(())
    }

    /// Counts the connection as one of `host`. If the host has too many, its oldest must end.
    pub fn set_host(&self, host: String) {
        let mut state = self.permits.lock();
        let kind = Kind::Host(host);
        let is_lasting =
            |entry: &&Entry| entry.kind == kind && !entry.is_over.load(Ordering::Relaxed);
        let lasting: Vec<&Entry> = state.entries.values().filter(is_lasting).collect();
        if lasting.len() >= PER_HOST_MAX {
            lasting[0].is_over.store(true, Ordering::Relaxed);
            lasting[0].waker.wake();
        }
        if let Some(entry) = state.entries.get_mut(&self.number) {
            entry.kind = kind;
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.permits.lock().entries.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waker() -> Waker {
        Waker::new().expect("a descriptor")
    }

    #[test]
    fn unknown_connections_leave_permits_for_hosts() {
        let permits = Arc::new(Permits::default());
        let enter = || permits.acquire(16, waker());
        let strangers: Vec<Permit> = (0..4).map(|_| enter().expect("a permit")).collect();
        assert_eq!(enter().err(), Some(NoPermit::Unknown));
        for stranger in &strangers {
            stranger.set_relayed(16).expect("a permit");
        }
        let more: Vec<Permit> = (0..4).map(|_| enter().expect("a permit")).collect();
        for stranger in &more {
            stranger.set_relayed(16).expect("a permit");
        }
        let host = enter().expect("a permit");
        assert_eq!(host.set_relayed(16), Err(NoPermit::Relayed));
        let mut hosts = vec![host];
        for name in 0..8 {
            hosts.last().expect("one").set_host(name.to_string());
            match enter() {
                Ok(permit) => hosts.push(permit),
                Err(full) => assert_eq!((full, name), (NoPermit::All, 7)),
            }
        }
        drop((strangers, more, hosts));
        assert_eq!(permits.len(), 0);
    }

    #[test]
    fn a_host_with_too_many_connections_loses_its_oldest_one() {
        let permits = Arc::new(Permits::default());
        let enter = |host: &str| {
            let permit = permits.acquire(100, waker()).expect("a permit");
            permit.set_host(host.to_owned());
            permit
        };
        let other = enter("h2");
        let own: Vec<Permit> = (0..6).map(|_| enter("h1")).collect();
        let over: Vec<bool> = own.iter().map(Permit::is_over).collect();
        assert_eq!(over, [true, true, false, false, false, false]);
        assert!(!other.is_over());
    }
}
