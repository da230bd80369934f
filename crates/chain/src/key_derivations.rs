//! [`KeyDerivations`]: keys that are derived, apart from everything else.
//!
//! What a key costs to derive a header says, which whoever can write the disk can write: a
//! minute, and a GiB. So this has few threads of its own, which nobody's requests wait for,
//! and of each disk one is derived at a time, also when nobody waits for that any more.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use world::Pool;

use crate::Attribution;

/// So many keys are derived at once on a host: each may take a GiB of memory.
pub const KEY_DERIVATIONS_MAX: usize = 2;

/// Whose disk it is, which, and its id.
type Disk = (String, String, Option<String>);

/// See the module's head.
pub struct KeyDerivations {
    pool: Arc<dyn Pool>,
    under_way: Arc<Mutex<HashSet<Disk>>>,
}

/// A disk's turn; it ends when this is dropped.
pub(crate) struct Turn {
    disk: Disk,
    under_way: Arc<Mutex<HashSet<Disk>>>,
}

impl KeyDerivations {
    /// In this pool, which has [`KEY_DERIVATIONS_MAX`] threads and nothing else to do.
    #[must_use]
    pub fn new(pool: Arc<dyn Pool>) -> Self {
        Self {
            pool,
            under_way: Arc::default(),
        }
    }

    /// The turn of a disk, unless a key of it is being derived.
    pub(crate) fn turn(&self, attribution: &Attribution) -> Option<Turn> {
        let disk = (
            attribution.tenant.clone(),
            attribution.volume.clone(),
            attribution.volume_id.clone(),
        );
        let mut under_way = self
            .under_way
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        under_way.insert(disk.clone()).then(|| Turn {
            disk,
            under_way: Arc::clone(&self.under_way),
        })
    }

    /// Derives; the turn ends with it.
    pub(crate) fn run(&self, turn: Turn, derive: impl FnOnce() + Send + 'static) {
        self.pool.run(Box::new(move || {
            let _turn = turn;
            derive();
        }));
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let under_way = self.under_way.lock();
        let mut under_way = under_way.unwrap_or_else(PoisonError::into_inner);
        under_way.remove(&self.disk);
    }
}
