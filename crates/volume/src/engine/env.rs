//! [`Env`]: what an attached volume shares with its jobs. It knows no layer, no request and
//! no journal.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::{BlockSize, VolumeId};
use catalog::Catalog;
use world::World;

use super::config::VolumeConfig;
use crate::scatter::{CacheView, Ledger, Progress, Serials, Store};
use crate::seal::{Keyring, SequenceSource};

/// What does not change while a volume is attached; shared with its jobs.
pub struct Env {
    pub world: World,
    pub store: Arc<Store>,
    pub catalog: Arc<dyn Catalog>,
    pub keyring: Arc<Keyring>,
    /// `None` without a cache.
    pub view: Option<CacheView>,
    pub volume: VolumeId,
    pub epoch: u32,
    pub block_size: BlockSize,
    pub config: VolumeConfig,
    pub sequences: SequenceSource,
    pub serials: Arc<Serials>,
    pub ledger: Arc<Ledger>,
    pub progress: Arc<Progress>,
    /// The progress of loading its map into the host's cache.
    pub preload: MapPreload,
}

impl Env {
    pub fn slot_bytes(&self) -> u32 {
        u32::try_from(self.block_size.bytes()).expect("at most 64 KiB")
    }
}

/// The progress of loading the map.
#[derive(Default)]
pub struct MapPreload {
    /// The number of the newest preload; earlier ones stop.
    newest: AtomicU64,
    /// The number of the last preload that completed.
    done: AtomicU64,
}

impl MapPreload {
    /// Begins a preload and returns its number.
    pub fn begin(&self) -> u64 {
        self.newest.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Whether no later preload has begun.
    pub fn is_newest(&self, number: u64) -> bool {
        self.newest.load(Ordering::Relaxed) == number
    }

    /// Records that a preload has completed.
    pub fn has_ended(&self, number: u64) {
        self.done.store(number, Ordering::Relaxed);
    }

    /// Whether the newest preload has completed; `false` before the first.
    pub fn is_done(&self) -> bool {
        let done = self.done.load(Ordering::Relaxed);
        done > 0 && self.is_newest(done)
    }
}
