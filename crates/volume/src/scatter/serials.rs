//! [`Serials`]: segment serials that no segment had before.

use std::ops::Range;
use std::sync::Arc;

use base::VolumeId;
use parking_lot::Mutex;

use catalog::{Catalog, CatalogError};

/// How many segment serials are reserved at once: a destage uses about ten.
const SERIALS_AT_ONCE: u32 = 64;

/// The segment serials reserved by a lease, shared by its placers.
pub struct Serials {
    catalog: Arc<dyn Catalog>,
    volume: VolumeId,
    epoch: u32,
    reserved: Mutex<Range<u64>>,
}

impl Serials {
    /// A source without serials; it reserves them as they are needed.
    pub fn new(catalog: Arc<dyn Catalog>, volume: VolumeId, epoch: u32) -> Self {
        Self {
            catalog,
            volume,
            epoch,
            reserved: Mutex::new(0..0),
        }
    }

    /// A serial that was never used. May wait for the catalog.
    pub(super) fn take(&self) -> Result<u64, CatalogError> {
        let mut reserved = self.reserved.lock();
        if reserved.is_empty() {
            *reserved = self
                .catalog
                .reserve_serials(self.volume, self.epoch, SERIALS_AT_ONCE)?;
        }
        reserved.next().ok_or_else(|| CatalogError::Refused {
            reason: "the catalog returned no segment serials".to_owned(),
        })
    }

    /// The first serial that this lease has not used.
    pub fn next(&self) -> u64 {
        self.reserved.lock().start
    }
}
