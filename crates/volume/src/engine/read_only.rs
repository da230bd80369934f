//! [`ReadOnlyVolume`]: a version as a read-only device.
//!
//! It acquires no lease and has no journal: it changes nothing, and any
//! number of hosts may have the same version open. The caller makes sure that the
//! catalog keeps the version. If it is removed all the same, reads fail, and never
//! return other data: every block is opened against the sequence that the map
//! expects.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use base::{
    BlockDevice, BlockSize, Capabilities, Completion, DeviceGeometry, IoError, Op, Request, Started,
};
use catalog::{StoredVersion, VersionKey};
use world::{Clock, Wake};

use super::event::{Event, Reporter};
use super::layers::Layers;
use super::open::{OpenError, open_version};
use super::reader::Reader;
use super::reader::fetch::Fetcher;
use super::status::{Counters, VolumeStatus};
use crate::map::{Overlay, PageBudget, PageCache, Root};
use crate::scatter::{CacheView, Store};
use crate::seal::Keyring;
use crate::version::BadRecord;

/// The parameters of opening a version.
pub struct ReadOnlyParams {
    /// Wakes the owner's loop when a job has ended.
    pub wake: Wake,
    /// The clock that measures slow reads.
    pub clock: Arc<dyn Clock>,
    /// The units.
    pub store: Arc<Store>,
    /// The version, and the unwrapped keys of its lineage; `None` for a volume
    /// without a version: it is empty, and may have no key yet.
    pub version: Option<(StoredVersion, Arc<Keyring>)>,
    /// Size in bytes. Beyond the version's own size it reads as zeroes.
    pub size_bytes: u64,
    /// Block size of the volume.
    pub block_size: BlockSize,
    /// The host's memory budget for map pages.
    pub pages: Arc<PageBudget>,
    /// Its view of the host's cache, if there is one.
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
    /// [`OpenError`], except those of journal and catalog.
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

    /// The current status: that of a volume without writes.
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

    fn start(&mut self, request: Request<'_>) -> Started {
        let Request { token, op } = request;
        if op.is_change() {
            return Started::Failed(IoError::ReadOnly);
        }
        if let Err(error) = self.reader.check_range(op.range()) {
            return Started::Failed(error);
        }
        match op {
            Op::Read { offset, mut out } => out.fill_as_single(
                |out| self.reader.start_read(None, token, offset, out),
                |started| *started == Started::Done,
            ),
            Op::Extents {
                offset,
                length,
                runs,
            } => self.reader.start_extents(token, offset, length, runs),
            Op::Prefetch { offset, length } => self.reader.start_prefetch(token, offset, length),
            // Everything it holds has been durable since before it was opened.
            _ => Started::Done,
        }
    }

    fn end_batch(&mut self) -> Result<(), IoError> {
        Ok(())
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        self.reader.refresh();
        while let Ok(event) = self.inbox.try_recv() {
            match event {
                Event::Fetched { request, fetched } => {
                    let change = self.reader.on_fetched(request, fetched);
                    debug_assert!(change.is_none(), "a read-only volume parks no changes");
                }
                Event::Pages { request, pages } => self.reader.on_pages(request, pages),
                Event::Synced { .. }
                | Event::Destaged(_)
                | Event::Checkpointed(_)
                | Event::Swept(_) => unreachable!("a read-only volume starts no such job"),
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
