//! [`LeaseRegistry`]: the controller's part: the holder of the lease, and its last renewal.

use std::time::Duration;

use base::{JournalFolderId, VolumeId};
use catalog::{Catalog, Lease, MemoryCatalog};
use volume::seal::LeaseSalt;

/// How long a lease lasts after its last renewal.
pub const TERM: Duration = Duration::from_secs(10);

/// The lease of one volume, by the catalog's clock.
#[derive(Debug, Default)]
pub struct LeaseRegistry {
    /// The catalog's time.
    pub now: Duration,
    /// The host of each lease, the newest last. The number of leases is the epoch.
    pub holders: Vec<usize>,
    renewed_at: Duration,
}

impl LeaseRegistry {
    /// The newest lease's epoch; 0 before the first.
    pub fn epoch(&self) -> u32 {
        u32::try_from(self.holders.len()).expect("few")
    }

    /// Acquires the lease, unless another host still has it.
    pub fn acquire(
        &mut self,
        host: usize,
        catalog: &MemoryCatalog,
        volume: VolumeId,
        salt: LeaseSalt,
        journals: Option<JournalFolderId>,
    ) -> Option<Lease> {
        let holder = self.holders.last();
        let is_free =
            holder.is_none_or(|holder| *holder == host) || self.now >= self.renewed_at + TERM;
        if !is_free {
            return None;
        }
        let lease = catalog
            .acquire(volume, salt, journals)
            .expect("the volume exists, and its journal is reachable");
        self.holders.push(host);
        self.renewed_at = self.now;
        assert_eq!(lease.epoch, self.epoch(), "no one else acquires leases");
        Some(lease)
    }

    /// Renews lease `epoch`; `false` if there is a newer one.
    pub fn renew(&mut self, epoch: u32) -> bool {
        let is_newest = epoch == self.epoch();
        if is_newest {
            self.renewed_at = self.now;
        }
        is_newest
    }

    /// Whether another host has acquired a lease since that of `epoch`.
    pub fn others_since(&self, epoch: u32, host: usize) -> bool {
        self.holders[epoch as usize..]
            .iter()
            .any(|holder| *holder != host)
    }
}
