//! A version as a device that nobody writes.
//!
//! It takes no lease and has no journal: it changes nothing anywhere, and any
//! number of hosts may have the same version open. What it reads stays as long
//! as the catalog keeps the version; that somebody sees to that is up to the
//! caller. A version that is removed all the same makes reads fail, and never
//! brings other data: every block is opened against the sequence that the map
//! expects.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use base::{
    BlockDevice, BlockSize, Capabilities, Completion, DeviceGeometry, Durability, Extent, IoError,
    Started, Token, ZeroMode,
};
use world::{Clock, Wake};

use super::event::{Event, Reporter};
use super::fetch::Fetcher;
use super::layers::Layers;
use super::open::{OpenError, open_version};
use super::reader::Reader;
use super::volume::{Counters, VolumeStatus};
use crate::catalog::{StoredVersion, VersionKey};
use crate::map::{Overlay, PageBudget, PageCache, Root};
use crate::scatter::{CacheView, Store};
use crate::seal::Keyring;
use crate::version::BadRecord;

/// Everything that opening a version takes.
pub struct ReadOnlyParams {
    /// Wakes the owner's loop when a job has ended.
    pub wake: Wake,
    /// Says when a reading takes too long.
    pub clock: Arc<dyn Clock>,
    /// The units.
    pub store: Arc<Store>,
    /// The version, and the keys of its lineage, opened; `None` for a volume
    /// that never had one: it is empty, and may have no key yet.
    pub version: Option<(StoredVersion, Arc<Keyring>)>,
    /// Size in bytes. Beyond the version's own it reads as zeroes.
    pub size_bytes: u64,
    /// Block size of the volume.
    pub block_size: BlockSize,
    /// The memory for map pages, that of the host.
    pub pages: Arc<PageBudget>,
    /// Its way through the host's cache, if it has one.
    pub cache: Option<CacheView>,
}

/// A version, open for reading: a [`BlockDevice`] without a thread or a lease
/// of its own.
pub struct ReadOnlyVolume {
    reader: Reader,
    inbox: Receiver<Event>,
    version: Option<VersionKey>,
    tail_pages: usize,
}

impl ReadOnlyVolume {
    /// Opens a version: reads its record and tail. May wait.
    ///
    /// # Errors
    /// [`OpenError`], but for those of journal and catalog.
    pub fn open(params: ReadOnlyParams) -> Result<Self, OpenError> {
        let ReadOnlyParams {
            wake,
            clock,
            store,
            version,
            size_bytes,
            block_size,
            pages,
            cache: view,
        } = params;
        let mut layers = Layers {
            active: Overlay::default(),
            frozen: Default::default(),
            young: Overlay::default(),
            old: None,
            root: Root::default(),
            cache: PageCache::sharing(pages),
        };
        let (key, tail_pages, keyring) = match version {
            Some((version, keyring)) => {
                let (record, overlay) = open_version(&version, view.as_ref(), &store, &keyring)?;
                if record.block_size != block_size {
                    return Err(BadRecord::Field("block bytes").into());
                }
                (layers.root, layers.young) = (record.root, overlay);
                (Some(version.key), record.tail.len(), keyring)
            }
            None => (None, 0, Arc::new(Keyring::of_nothing())),
        };
        let (sender, inbox) = mpsc::channel();
        let fetcher = Fetcher {
            store,
            keyring,
            view,
            block_size,
            journal: None,
            reporter: Reporter::new(sender, wake),
            clock,
        };
        Ok(Self {
            reader: Reader::new(size_bytes, layers, fetcher, key.map(|key| key.volume)),
            inbox,
            version: key,
            tail_pages,
        })
    }

    /// How it is doing: as a volume that nothing was ever written to since it
    /// was opened.
    #[must_use]
    pub fn status(&self) -> VolumeStatus {
        VolumeStatus {
            size_bytes: self.reader.size_bytes,
            journal_bytes: 0,
            journal_used_bytes: 0,
            pieces_placed: 0,
            tail_entries: self.reader.layers.young.len(),
            tail_pages: self.tail_pages,
            head: self.version,
            counters: Counters::default(),
            stalled: false,
            destage_error: None,
            stopped: None,
            reads_waiting: self.reader.unavailable.count(),
            read_error: self.reader.unavailable.error().map(ToString::to_string),
            cache: self.reader.fetcher.view.as_ref().map(CacheView::counts),
        }
    }
}

const REFUSED: Started = Started::Failed(IoError::ReadOnly);

impl BlockDevice for ReadOnlyVolume {
    fn geometry(&self) -> DeviceGeometry {
        DeviceGeometry {
            size_bytes: self.reader.size_bytes,
            block_bytes: self.reader.fetcher.slot_bytes(),
        }
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            read_only: true,
            can_trim: false,
            can_write_zeroes: false,
            ..Capabilities::ALL
        }
    }

    fn read(&mut self, token: Token, offset: u64, out: &mut [u8]) -> Started {
        match self.reader.check_range(offset, out.len() as u64) {
            Ok(()) => self.reader.start_read(None, token, offset, out),
            Err(error) => Started::Failed(error),
        }
    }

    fn write(&mut self, _: Token, _: u64, _: &[u8], _: Durability) -> Started {
        REFUSED
    }

    /// Everything it holds has been durable since before it was opened.
    fn flush(&mut self, _: Token) -> Started {
        Started::Done
    }

    fn trim(&mut self, _: Token, _: u64, _: u64, _: Durability) -> Started {
        REFUSED
    }

    fn write_zeroes(&mut self, _: Token, _: u64, _: u64, _: ZeroMode) -> Started {
        REFUSED
    }

    fn extents(
        &mut self,
        token: Token,
        offset: u64,
        length: u64,
        runs: &mut Vec<Extent>,
    ) -> Started {
        match self.reader.check_range(offset, length) {
            Ok(()) => self.reader.start_extents(token, offset, length, runs),
            Err(error) => Started::Failed(error),
        }
    }

    fn prefetch(&mut self, token: Token, offset: u64, length: u64) -> Started {
        match self.reader.check_range(offset, length) {
            Ok(()) => self.reader.start_prefetch(token, offset, length),
            Err(error) => Started::Failed(error),
        }
    }

    fn commit(&mut self) -> Result<(), IoError> {
        Ok(())
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        self.reader.refresh();
        while let Ok(event) = self.inbox.try_recv() {
            match event {
                Event::Fetched { request, fetched } => {
                    let change = self.reader.on_fetched(request, fetched);
                    debug_assert!(change.is_none(), "no change is ever parked");
                }
                Event::Pages { request, pages } => self.reader.on_pages(request, pages),
                Event::Synced { .. }
                | Event::Destaged(_)
                | Event::Checkpointed(_)
                | Event::Swept(_) => unreachable!("no such job is ever begun"),
            }
        }
        self.reader.hedge_slow_reads();
        self.reader.retry_unavailable();
        completions.append(&mut self.reader.ready);
    }

    fn next_timer(&self) -> Option<Duration> {
        match self.reader.ready.is_empty() {
            false => Some(Duration::ZERO),
            true => self.reader.timer(),
        }
    }

    fn stop_waiting(&mut self) {
        self.reader.fail_waiting();
    }
}
