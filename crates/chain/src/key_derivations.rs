//! [`KeyDerivations`]: derives keys from passphrases in threads of its own.
//!
//! The header of a disk says what deriving its key costs, and anyone who can write the disk can
//! make that a minute and a GiB. So derivations have a few threads that no request waits for, and
//! each disk has one derivation at a time, even if its requester no longer waits.

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::Mutex;
use world::Pool;

use crate::Attribution;

/// The number of keys that a host derives at once: each may take a GiB of memory.
pub const KEY_DERIVATIONS_MAX: usize = 2;

/// A disk of which a key is being derived.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct DiskName {
    tenant: String,
    volume: String,
    volume_id: Option<String>,
}

/// Derives keys in a pool of its own, one at a time for each disk.
pub struct KeyDerivations {
    pool: Arc<dyn Pool>,
    disks: Arc<Mutex<HashSet<DiskName>>>,
}

/// The right to derive a key of one disk; dropping it returns the right.
pub(crate) struct DerivationPermit {
    disk: DiskName,
    disks: Arc<Mutex<HashSet<DiskName>>>,
}

impl KeyDerivations {
    /// Derives in `pool`, which has [`KEY_DERIVATIONS_MAX`] threads and no other work.
    #[must_use]
    pub fn new(pool: Arc<dyn Pool>) -> Self {
        Self {
            pool,
            disks: Arc::default(),
        }
    }

    /// A permit for a disk; `None` while a key of it is being derived.
    pub(crate) fn permit(&self, attribution: &Attribution) -> Option<DerivationPermit> {
        let disk = DiskName {
            tenant: attribution.tenant.clone(),
            volume: attribution.volume.clone(),
            volume_id: attribution.volume_id.clone(),
        };
        let is_free = self.disks.lock().insert(disk.clone());
        is_free.then(|| DerivationPermit {
            disk,
            disks: Arc::clone(&self.disks),
        })
    }

    /// Runs `derive` in the pool, and returns the permit after it.
    pub(crate) fn run(&self, permit: DerivationPermit, derive: impl FnOnce() + Send + 'static) {
        self.pool.run(Box::new(move || {
            let _permit = permit;
            derive();
        }));
    }
}

impl Drop for DerivationPermit {
    fn drop(&mut self) {
        self.disks.lock().remove(&self.disk);
    }
}
