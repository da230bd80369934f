//! [`VersionReader`]: opens versions that this host may read, without a lease.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use api::host::CapabilityRequest;
use base::{BlockDevice as _, BlockSize, with_causes};
use catalog::{Catalog, CatalogError, LineageKey, StoredVersion, VersionKey};
use volume::map::PageBudget;
use volume::scatter::CacheView;
use volume::seal::{KeyError, Keyring};
use volume::{OpenError, ReadOnlyParams, ReadOnlyVolume, Store};
use world::{Clock, Wake};

use crate::controller::{Controller, KeptCapabilities};
use crate::keys::HostKeys;

/// Why a version cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum VersionError {
    #[error("the version cannot be found: {0}")]
    Catalog(#[from] CatalogError),
    #[error("its keys cannot be unwrapped: {}", with_causes(.0))]
    Key(#[from] KeyError),
    #[error("the version cannot be opened: {}", with_causes(.0))]
    Open(#[from] OpenError),
}

/// A version and its keys. This host may read it as long as the value exists.
pub(crate) struct ReadableVersion {
    pub version: StoredVersion,
    pub keys: Vec<LineageKey>,
    pub keyring: Arc<Keyring>,
    /// The capabilities to read the version, which are renewed while this exists.
    pub kept: KeptCapabilities,
}

/// Opens versions. Cheap to clone.
#[derive(Clone)]
pub(crate) struct VersionReader {
    pub controller: Controller,
    pub keys: Arc<HostKeys>,
    pub store: Arc<Store>,
    pub pages: Arc<PageBudget>,
    pub clock: Arc<dyn Clock>,
}

impl VersionReader {
    /// Fetches a version and its keys from the controllers. Blocks.
    pub fn find(&self, key: VersionKey) -> Result<ReadableVersion, VersionError> {
        let version = self.controller.version(key)?;
        let lineage = version.lineage;
        let capabilities = self.controller.capability_cache();
        let kept = capabilities.keep(vec![CapabilityRequest::Read { lineage }]);
        let keys = self.controller.keys(lineage)?;
        let keyring = Arc::new(self.keys.keyring(&keys)?);
        Ok(ReadableVersion {
            version,
            keys,
            keyring,
            kept,
        })
    }

    /// Opens a version as a disk of `size_bytes`. It wakes the calling thread, which waits with
    /// [`rest`].
    pub fn open(
        &self,
        version: &ReadableVersion,
        size_bytes: u64,
        block_size: BlockSize,
        cache: Option<CacheView>,
    ) -> Result<ReadOnlyVolume, VersionError> {
        let reading = thread::current();
        Ok(ReadOnlyVolume::open(ReadOnlyParams {
            wake: Wake::new(move || reading.unpark()),
            clock: Arc::clone(&self.clock),
            store: Arc::clone(&self.store),
            version: Some((version.version.clone(), Arc::clone(&version.keyring))),
            size_bytes,
            block_size,
            pages: Arc::clone(&self.pages),
            cache,
        })?)
    }
}

/// Waits until `volume` wakes this thread, at most for `time`.
pub(crate) fn rest(volume: &ReadOnlyVolume, time: Duration) {
    let timer = volume.next_timer().unwrap_or(time);
    #[expect(clippy::disallowed_methods, reason = "a job that ends wakes it before")]
    thread::park_timeout(timer.min(time));
}
