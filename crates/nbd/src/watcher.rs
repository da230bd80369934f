//! [`Watcher`]: watches the file descriptors of a device in the thread that owns it.
//!
//! A device that waits for another process has a socket to it. The poller of the export's thread
//! watches that socket together with those of its clients. When it becomes ready, the thread wakes
//! up, records that, and polls the device as in every turn. So a reply costs neither another
//! thread nor a second epoll.
//!
//! Invariant: readiness stays recorded until [`WatchedSource::take_readiness`], so a device calls
//! a socket only when it is ready.

use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use world::real::Poller;
use world::{Interest, Ready};

use super::slab::{Key, Slab};

/// A bit of the poller's keys that is set for devices' descriptors. Keys of connections are below
/// 2^56.
const DEVICE: Key = 1 << 63;

/// Why a watched source is always present: it is taken out only when watching ends.
const PRESENT: &str = "a watched source is present";

/// The recorded readiness of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Readiness {
    /// Receiving will not block.
    pub readable: bool,
    /// Sending will not block.
    pub writable: bool,
}

struct Shared {
    poller: Poller,
    /// By key without [`DEVICE`]. The lock is never held across a call.
    readiness: Mutex<Slab<Readiness>>,
}

/// A thread's poller, for devices whose descriptors it watches. Cheap to clone.
#[derive(Clone)]
pub struct Watcher(Arc<Shared>);

impl fmt::Debug for Watcher {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Watcher")
    }
}

impl Watcher {
    /// A watcher with its own poller, for a caller that polls a device itself.
    ///
    /// # Errors
    /// The operating system's, for example without free file descriptors.
    pub fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(Shared {
            poller: Poller::new()?,
            readiness: Mutex::default(),
        })))
    }

    /// Watches `source` until the returned value is dropped.
    ///
    /// # Errors
    /// The operating system's.
    pub fn watch<S: AsFd>(&self, source: S, interest: Interest) -> io::Result<WatchedSource<S>> {
        let key = self.readiness().insert(Readiness::default());
        if let Err(error) = self.0.poller.add(&source, key | DEVICE, interest) {
            self.readiness().remove(key);
            return Err(error);
        }
        Ok(WatchedSource {
            source: Some(source),
            key,
            interest,
            watcher: self.clone(),
        })
    }

    /// Waits until a source is ready, or for `timeout`. Only a caller that polls a device itself
    /// may call this.
    ///
    /// # Errors
    /// The operating system's.
    pub fn wait(&self, timeout: Option<Duration>) -> io::Result<()> {
        let mut ready = Vec::new();
        self.0.poller.wait(timeout, &mut ready)?;
        for ready in ready {
            self.record(ready);
        }
        Ok(())
    }

    /// The poller, for its thread.
    pub(super) fn poller(&self) -> &Poller {
        &self.0.poller
    }

    /// Records the readiness of a device's descriptor. Returns whether `ready` is of one.
    pub(super) fn record(&self, ready: Ready) -> bool {
        let is_device = ready.key & DEVICE != 0;
        if is_device && let Some(seen) = self.readiness().get_mut(ready.key & !DEVICE) {
            seen.readable |= ready.readable;
            seen.writable |= ready.writable;
        }
        is_device
    }

    fn readiness(&self) -> MutexGuard<'_, Slab<Readiness>> {
        self.0.readiness.lock()
    }
}

/// A source that is watched. Dropping it ends watching and closes the source.
#[derive(Debug)]
pub struct WatchedSource<S: AsFd> {
    /// `None` only after it was taken out.
    source: Option<S>,
    key: Key,
    interest: Interest,
    watcher: Watcher,
}

impl<S: AsFd> WatchedSource<S> {
    /// The source.
    pub fn source(&mut self) -> &mut S {
        self.source.as_mut().expect(PRESENT)
    }

    /// The source.
    pub fn get(&self) -> &S {
        self.source.as_ref().expect(PRESENT)
    }

    /// Ends watching, and returns the source.
    pub fn into_source(mut self) -> S {
        self.unwatch();
        self.source.take().expect(PRESENT)
    }

    /// The readiness that was recorded since the last call.
    pub fn take_readiness(&self) -> Readiness {
        let mut seen = self.watcher.readiness();
        seen.get_mut(self.key)
            .map(std::mem::take)
            .unwrap_or_default()
    }

    /// Changes the readiness that the poller reports.
    ///
    /// # Errors
    /// The operating system's.
    pub fn wait_for(&mut self, interest: Interest) -> io::Result<()> {
        if interest == self.interest {
            return Ok(());
        }
        let key = self.key | DEVICE;
        let poller = &self.watcher.0.poller;
        poller.modify(self.source.as_ref().expect(PRESENT), key, interest)?;
        self.interest = interest;
        Ok(())
    }

    fn unwatch(&self) {
        if let Some(source) = &self.source {
            // The descriptor may be open elsewhere, and the poller would report it forever.
            let _ = self.watcher.0.poller.remove(source);
            self.watcher.readiness().remove(self.key);
        }
    }
}

impl<S: AsFd> Drop for WatchedSource<S> {
    fn drop(&mut self) {
        self.unwatch();
    }
}
