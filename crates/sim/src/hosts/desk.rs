//! The controller's part: who has the lease, and since when it has not been
//! heard of.

use std::time::Duration;

use base::{JournalFolderId, VolumeId};
use volume::catalog::{Catalog, Lease, MemoryCatalog};
use volume::seal::LeaseSalt;

/// How long a lease lasts after its holder was heard of.
pub const TERM: Duration = Duration::from_secs(10);

/// The lease of one volume, by the catalog's clock.
#[derive(Debug, Default)]
pub struct Desk {
    /// The time.
    pub now: Duration,
    /// Who took the leases, the newest last. The number of those is its epoch.
    pub takers: Vec<usize>,
    heard: Duration,
}

impl Desk {
    /// The newest lease's epoch; 0 before the first.
    pub fn epoch(&self) -> u32 {
        u32::try_from(self.takers.len()).expect("few")
    }

    /// Takes the lease, unless another host has it still.
    pub fn acquire(
        &mut self,
        host: usize,
        catalog: &MemoryCatalog,
        volume: VolumeId,
        salt: LeaseSalt,
        journals: Option<JournalFolderId>,
    ) -> Option<Lease> {
        let holder = self.takers.last();
        let is_free = holder.is_none_or(|holder| *holder == host) || self.now >= self.heard + TERM;
        if !is_free {
            return None;
        }
        let lease = catalog
            .acquire(volume, salt, journals)
            .expect("it is there, and its journal in reach");
        self.takers.push(host);
        self.heard = self.now;
        assert_eq!(lease.epoch, self.epoch(), "nobody else takes leases");
        Some(lease)
    }

    /// Hears of the holder of lease `epoch`; false if there is a newer one.
    pub fn renew(&mut self, epoch: u32) -> bool {
        let is_newest = epoch == self.epoch();
        if is_newest {
            self.heard = self.now;
        }
        is_newest
    }

    /// Whether another host has taken a lease since that of `epoch`.
    pub fn others_since(&self, epoch: u32, host: usize) -> bool {
        self.takers[epoch as usize..]
            .iter()
            .any(|taker| *taker != host)
    }
}
