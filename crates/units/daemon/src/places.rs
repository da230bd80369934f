//! How many connections there may be, and of whom.
//!
//! | who | may have |
//! |---|---|
//! | all together | `connections_max` |
//! | those that have not said who they are | a quarter of that, each for 10 s |
//! | those that are passed on | half of it |
//! | one host | 4: with one more, its oldest one is closed |
//!
//! A host has one link to each daemon, and for a moment two, when there is a shorter
//! way or a new certificate. What is older than that was left behind.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use world::real::Waker;

/// Connections of one host.
const OF_ONE_HOST_MAX: usize = 4;

/// Who has a connection, as far as it is known.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Standing {
    Unknown,
    PassedOn,
    Host(String),
}

#[derive(Debug)]
struct Entry {
    standing: Standing,
    waker: Waker,
    is_over: Arc<AtomicBool>,
}

#[derive(Debug, Default)]
struct State {
    /// In the order in which they came.
    entries: BTreeMap<u64, Entry>,
    next: u64,
}

/// The connections of a server.
#[derive(Debug, Default)]
pub(crate) struct Places {
    state: Mutex<State>,
}

/// A connection's place, until it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    places: Arc<Places>,
    number: u64,
    waker: Waker,
    is_over: Arc<AtomicBool>,
}

/// Why there is no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoPlace {
    #[error("there are too many connections")]
    All,
    #[error("there are too many connections that have not said who they are")]
    Unknown,
    #[error("there are too many connections that are passed on")]
    PassedOn,
}

impl State {
    fn count(&self, standing: &Standing) -> usize {
        let all = self.entries.values();
        all.filter(|one| one.standing == *standing).count()
    }
}

impl Places {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.lock().entries.len()
    }

    /// A place for one more, of `max` in all; `waker` is rung when it is to end.
    ///
    /// # Errors
    /// [`NoPlace`].
    pub fn enter(self: &Arc<Self>, max: usize, waker: Waker) -> Result<Place, NoPlace> {
        let mut state = self.lock();
        if state.entries.len() >= max {
            return Err(NoPlace::All);
        }
        if state.count(&Standing::Unknown) >= max.div_ceil(4) {
            return Err(NoPlace::Unknown);
        }
        let number = state.next;
        state.next += 1;
        let is_over = Arc::new(AtomicBool::new(false));
        let entry = Entry {
            standing: Standing::Unknown,
            waker: waker.clone(),
            is_over: Arc::clone(&is_over),
        };
        state.entries.insert(number, entry);
        drop(state);
        Ok(Place {
            places: Arc::clone(self),
            number,
            waker,
            is_over,
        })
    }

    /// All are to look whether they are over.
    pub fn ring_all(&self) {
        for entry in self.lock().entries.values() {
            entry.waker.wake();
        }
    }
}

impl Place {
    /// Rung when the connection is to look whether it is over.
    pub fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Whether the connection is to be closed: its host has newer ones.
    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// It is passed on; `max` is that of all connections.
    ///
    /// # Errors
    /// [`NoPlace::PassedOn`].
    pub fn pass_on(&self, max: usize) -> Result<(), NoPlace> {
        let mut state = self.places.lock();
        if state.count(&Standing::PassedOn) >= max.div_ceil(2) {
            return Err(NoPlace::PassedOn);
        }
        if let Some(entry) = state.entries.get_mut(&self.number) {
            entry.standing = Standing::PassedOn;
        }
        Ok(())
    }

    /// It is this host's. If that has too many, its oldest one is told to end.
    pub fn belongs_to(&self, host: String) {
        let mut state = self.places.lock();
        let standing = Standing::Host(host);
        let is_lasting =
            |one: &&Entry| one.standing == standing && !one.is_over.load(Ordering::Relaxed);
        let lasting: Vec<&Entry> = state.entries.values().filter(is_lasting).collect();
        if lasting.len() >= OF_ONE_HOST_MAX {
            lasting[0].is_over.store(true, Ordering::Relaxed);
            lasting[0].waker.wake();
        }
        if let Some(entry) = state.entries.get_mut(&self.number) {
            entry.standing = standing;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.lock().entries.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waker() -> Waker {
        Waker::new().expect("a descriptor")
    }

    #[test]
    fn strangers_take_no_place_that_hosts_need() {
        let places = Arc::new(Places::default());
        let enter = || places.enter(16, waker());
        let strangers: Vec<Place> = (0..4).map(|_| enter().expect("a place")).collect();
        assert_eq!(enter().err(), Some(NoPlace::Unknown));
        for stranger in &strangers {
            stranger.pass_on(16).expect("a place");
        }
        let more: Vec<Place> = (0..4).map(|_| enter().expect("a place")).collect();
        for stranger in &more {
            stranger.pass_on(16).expect("a place");
        }
        let host = enter().expect("a place");
        assert_eq!(host.pass_on(16), Err(NoPlace::PassedOn));
        let mut hosts = vec![host];
        for name in 0..8 {
            hosts.last().expect("one").belongs_to(name.to_string());
            match enter() {
                Ok(place) => hosts.push(place),
                Err(full) => assert_eq!((full, name), (NoPlace::All, 7)),
            }
        }
        drop((strangers, more, hosts));
        assert_eq!(places.len(), 0);
    }

    #[test]
    fn a_host_with_too_many_connections_loses_its_oldest_one() {
        let places = Arc::new(Places::default());
        let enter = |host: &str| {
            let place = places.enter(100, waker()).expect("a place");
            place.belongs_to(host.to_owned());
            place
        };
        let other = enter("h2");
        let own: Vec<Place> = (0..6).map(|_| enter("h1")).collect();
        let over: Vec<bool> = own.iter().map(Place::is_over).collect();
        assert_eq!(over, [true, true, false, false, false, false]);
        assert!(!other.is_over());
    }
}
