//! File descriptors of a device, watched by the thread that owns it.
//!
//! A device that waits for another process has a socket to it. [`Watcher::watch`] lets the
//! poller of the export's thread watch that beside the sockets of its clients: the thread
//! wakes up, notes what was seen, and polls the device as in every turn. So an answer costs
//! no other thread and no second epoll.
//!
//! Invariant: what was seen and not taken yet ([`Watched::take_seen`]) is kept, so a device
//! need not try a socket to find out that nothing is there.

use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use world::real::Poller;
use world::{Interest, Ready};

use super::slab::{Key, Slab};

/// Marks the keys of devices' descriptors; those of connections are below 2^56.
const DEVICE: Key = 1 << 63;

/// A source is taken out with its watch's end.
const THERE: &str = "what is watched is there";

/// What a poller saw of a source since it was asked last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Seen {
    /// Receiving will not block.
    pub readable: bool,
    /// Sending will not block.
    pub writable: bool,
}

struct Shared {
    poller: Poller,
    /// By key, without [`DEVICE`]. Never held across a call.
    seen: Mutex<Slab<Seen>>,
}

/// A thread's poller, for those who have descriptors to be watched by it. Cheap to clone.
#[derive(Clone)]
pub struct Watcher(Arc<Shared>);

impl fmt::Debug for Watcher {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Watcher")
    }
}

impl Watcher {
    /// A watcher of its own, for who polls a device by hand.
    ///
    /// # Errors
    /// If the process has no file descriptor left.
    pub fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(Shared {
            poller: Poller::new()?,
            seen: Mutex::default(),
        })))
    }

    /// Watches `source` until what is returned is dropped.
    ///
    /// # Errors
    /// As the operating system says.
    pub fn watch<S: AsFd>(&self, source: S, interest: Interest) -> io::Result<Watched<S>> {
        let key = self.seen().insert(Seen::default());
        if let Err(error) = self.0.poller.add(&source, key | DEVICE, interest) {
            self.seen().remove(key);
            return Err(error);
        }
        Ok(Watched {
            source: Some(source),
            key,
            interest,
            watcher: self.clone(),
        })
    }

    /// Waits until something that is watched is ready, or that long. Only for who polls a
    /// device by hand, or before it is served.
    ///
    /// # Errors
    /// As the operating system says.
    pub fn wait(&self, timeout: Option<Duration>) -> io::Result<()> {
        let mut ready = Vec::new();
        self.0.poller.wait(timeout, &mut ready)?;
        for ready in ready {
            self.note(ready);
        }
        Ok(())
    }

    /// The poller itself, for its thread.
    pub(super) fn poller(&self) -> &Poller {
        &self.0.poller
    }

    /// Notes what the poller saw, if it is of a device's descriptor.
    pub(super) fn note(&self, ready: Ready) -> bool {
        let is_device = ready.key & DEVICE != 0;
        if is_device && let Some(seen) = self.seen().get_mut(ready.key & !DEVICE) {
            seen.readable |= ready.readable;
            seen.writable |= ready.writable;
        }
        is_device
    }

    fn seen(&self) -> MutexGuard<'_, Slab<Seen>> {
        self.0.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Something that is watched. Dropping it ends that, and closes it.
#[derive(Debug)]
pub struct Watched<S: AsFd> {
    /// Until it is dropped, or taken out.
    source: Option<S>,
    key: Key,
    interest: Interest,
    watcher: Watcher,
}

impl<S: AsFd> Watched<S> {
    /// What is watched.
    pub fn source(&mut self) -> &mut S {
        self.source.as_mut().expect(THERE)
    }

    /// The same, to be looked at.
    pub fn get(&self) -> &S {
        self.source.as_ref().expect(THERE)
    }

    /// It is not watched any more.
    pub fn into_source(mut self) -> S {
        self.unwatch();
        self.source.take().expect(THERE)
    }

    /// What was seen since this was asked last.
    pub fn take_seen(&self) -> Seen {
        let mut seen = self.watcher.seen();
        seen.get_mut(self.key)
            .map(std::mem::take)
            .unwrap_or_default()
    }

    /// Changes what is waited for.
    ///
    /// # Errors
    /// As the operating system says.
    pub fn wait_for(&mut self, interest: Interest) -> io::Result<()> {
        if interest == self.interest {
            return Ok(());
        }
        let key = self.key | DEVICE;
        let poller = &self.watcher.0.poller;
        poller.modify(self.source.as_ref().expect(THERE), key, interest)?;
        self.interest = interest;
        Ok(())
    }

    fn unwatch(&self) {
        if let Some(source) = &self.source {
            // It may be open elsewhere too, and would be reported for ever.
            let _ = self.watcher.0.poller.remove(source);
            self.watcher.seen().remove(self.key);
        }
    }
}

impl<S: AsFd> Drop for Watched<S> {
    fn drop(&mut self) {
        self.unwatch();
    }
}
