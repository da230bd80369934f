//! What controllers ask of a host beside what is attached, as long as somebody wants it: images to
//! be read into the cache (`preloads`), and audits of volumes (`audits`).
//!
//! ```text
//!  1. begin   it is wanted, and not under way yet
//!  2. follow  it runs on a thread where it may wait; now and then its host tells how far it is
//!  3. end     how it ended is told until that is heard, unless nobody wants it any more
//! ```
//!
//! One that is not wanted any more finds that out by itself: see [`Wanted::check`].

use std::collections::HashMap;
use std::hash::Hash;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use api::client::ClientError;
use api::host::Want;
use base::{BlockDevice as _, BlockSize, with_causes};
use catalog::{CatalogError, LineageKey, StoredVersion, VersionKey};
use volume::scatter::CacheView;
use volume::seal::{KeyError, Keyring};
use volume::{OpenError, ReadOnlyParams, ReadOnlyVolume};
use world::{Wake, host};

use crate::agent::{Agent, lock};
use crate::capability_cache::Kept;

/// How far it is, is told so often.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// And waited so long for that to be heard: controllers may be slow, and take a host of which they
/// hear nothing for long for one that does nothing.
const TELL_WITHIN: Duration = Duration::from_secs(10);

/// Where nothing else happens, whether it is wanted still is looked at so often.
pub(crate) const TICK: Duration = Duration::from_millis(200);

/// Nobody wants it any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it was canceled")]
pub(crate) struct CalledOff;

/// Whether one that is under way is wanted, and how far it is.
#[derive(Debug)]
pub(crate) struct Wanted {
    is_wanted: AtomicBool,
    done_bytes: AtomicU64,
}

impl Wanted {
    pub fn new() -> Self {
        Self {
            is_wanted: AtomicBool::new(true),
            done_bytes: AtomicU64::new(0),
        }
    }

    /// It is not wanted any more.
    pub fn cancel(&self) {
        self.is_wanted.store(false, Ordering::Relaxed);
    }

    /// Whether it is to go on.
    ///
    /// # Errors
    /// If not.
    pub fn check(&self, agent: &Agent) -> Result<(), CalledOff> {
        match self.is_wanted.load(Ordering::Relaxed) && !agent.is_ending() {
            true => Ok(()),
            false => Err(CalledOff),
        }
    }

    /// How far it is, in bytes.
    pub fn done_bytes(&self) -> u64 {
        self.done_bytes.load(Ordering::Relaxed)
    }

    /// It is so far.
    pub fn is_at(&self, bytes: u64) {
        self.done_bytes.store(bytes, Ordering::Relaxed);
    }

    /// It is so much further.
    pub fn goes_on(&self, bytes: u64) {
        self.done_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Step 2: what `work` comes to. Meanwhile `tell` says how far it is, and hears whether that
    /// is wanted.
    pub async fn follow<T, F>(&self, work: impl Future<Output = T>, tell: impl Fn() -> F) -> T
    where
        F: Future<Output = Result<bool, ClientError>>,
    {
        let mut work = pin!(work);
        loop {
            if let Some(done) = host::timeout(TELL_EVERY, &mut work).await {
                return done;
            }
            // Whether this one is heard is of no account: the next one says more.
            tokio::select! {
                done = &mut work => return done,
                heard = host::timeout(TELL_WITHIN, tell()) => {
                    if matches!(heard, Some(Ok(false))) {
                        self.cancel();
                    }
                }
            }
        }
    }
}

/// `it` is not under way any more; another one may be, under the same key.
pub(crate) fn forget<K: Eq + Hash, T>(all: &Mutex<HashMap<K, Arc<T>>>, key: &K, it: &Arc<T>) {
    let mut all = lock(all);
    if all.get(key).is_some_and(|now| Arc::ptr_eq(now, it)) {
        all.remove(key);
    }
}

/// Why a version is not to be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum VersionError {
    #[error("it cannot be found: {0}")]
    Catalog(#[from] CatalogError),
    #[error("its keys do not open: {}", with_causes(.0))]
    Key(#[from] KeyError),
    #[error("it cannot be opened: {}", with_causes(.0))]
    Open(#[from] OpenError),
}

/// A version that this host may read as long as this is here, and what opens it.
pub(crate) struct Version {
    pub version: StoredVersion,
    pub keys: Vec<LineageKey>,
    pub keyring: Arc<Keyring>,
    _kept: Kept,
}

impl Agent {
    /// Asks for a version and its keys. Waits.
    pub(crate) fn version(&self, key: VersionKey) -> Result<Version, VersionError> {
        let inner = &self.inner;
        let version = inner.catalog.version(key)?;
        let lineage = version.lineage;
        let capabilities = inner.controller.capability_cache();
        let kept = capabilities.keep(vec![Want::Read { lineage }]);
        let keys = inner.catalog.keys(lineage)?;
        let keyring = Arc::new(inner.keys.keyring(&keys)?);
        Ok(Version {
            version,
            keys,
            keyring,
            _kept: kept,
        })
    }

    /// Opens it as a disk of `size_bytes`. It wakes this thread, which is to [`rest`].
    pub(crate) fn read_only(
        &self,
        version: &Version,
        size_bytes: u64,
        block_size: BlockSize,
        cache: Option<CacheView>,
    ) -> Result<ReadOnlyVolume, VersionError> {
        let inner = &self.inner;
        let reading = thread::current();
        Ok(ReadOnlyVolume::open(ReadOnlyParams {
            wake: Wake::new(move || reading.unpark()),
            clock: Arc::clone(&inner.world.clock),
            store: Arc::clone(&inner.store),
            version: Some((version.version.clone(), Arc::clone(&version.keyring))),
            size_bytes,
            block_size,
            pages: Arc::clone(&inner.pages),
            cache,
        })?)
    }
}

/// Waits until something happens, but no longer than so.
pub(crate) fn rest(volume: &ReadOnlyVolume, time: Duration) {
    let timer = volume.next_timer().unwrap_or(time);
    #[expect(clippy::disallowed_methods, reason = "a job that ends wakes it before")]
    thread::park_timeout(timer.min(time));
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tokio::sync::Notify;

    use super::*;

    /// What a slow controller had not heard within a second was given up each time.
    #[tokio::test]
    async fn a_controller_that_is_slow_to_hear_is_told() {
        let (wanted, is_heard, begun) = (Wanted::new(), Notify::new(), Cell::new(0));
        let work = is_heard.notified();
        let tell = || async {
            begun.set(begun.get() + 1);
            // Longer than one is apart from the next.
            host::sleep(2 * TELL_EVERY).await;
            is_heard.notify_one();
            Ok(true)
        };
        let followed = host::timeout(TELL_WITHIN, wanted.follow(work, tell)).await;
        assert_eq!((followed, begun.get()), (Some(()), 1));
    }

    #[tokio::test]
    async fn what_ends_while_it_is_told_of_has_ended() {
        let (wanted, is_told) = (Wanted::new(), Notify::new());
        let tell = || async {
            is_told.notify_one();
            std::future::pending().await
        };
        let followed = wanted.follow(is_told.notified(), tell);
        let followed = host::timeout(TELL_WITHIN, followed).await;
        assert_eq!(followed, Some(()), "it waited to be heard");
    }
}
