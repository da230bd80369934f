//! Opening a volume: from a lease and a journal to a block device.
//!
//! 1. load     the newest version's record and tail
//! 2. recover  the journal: follow it in place, copy it, or create one
//! 3. name     it in the catalog, where several hosts share a folder of journals
//! 4. assemble the owner; start its background jobs
//!
//! Step 2 is `open_journal`.

use std::sync::Arc;
use std::sync::mpsc;

use base::{Sequence, with_causes};
use catalog::{Catalog, CatalogError, Lease, Leftovers, StoredVersion};
use world::{Wake, World};

use super::checkpoint::state::CheckpointState;
use super::config::VolumeConfig;
use super::destage::state::DestageState;
use super::env::{Env, MapPreload};
use super::event::{Event, Reporter};
use super::flush::FlushState;
use super::layers::Layers;
use super::lease::LeaseState;
use super::open_journal::{JournalWrites, recover_journal};
use super::reader::Reader;
use super::reader::fetch::Fetcher;
use super::status::Counters;
use super::tail_pages::TailPages;
use super::volume::Volume;
use crate::clean;
use crate::journal::{Journal, JournalError, JournalLocation};
use crate::lease_term::LeaseTerm;
use crate::map::{Entry, Overlay, PAGE_BYTES, PageBudget, PageCache, Root};
use crate::scatter::{
    CacheView, Layout, Ledger, Piece, Placer, PlacerConfig, Progress, ReadError, Serials, Store,
    read_pieces_through,
};
use crate::seal::{Address, Keyring, SequenceSource};
use crate::version::{BadRecord, BadTail, Record, decode_tail_page};

/// The parameters of opening a volume.
pub struct OpenParams {
    /// The machine: disk, clock, randomness, threads.
    pub world: World,
    /// Wakes the owner's loop when a job has ended.
    pub wake: Wake,
    /// The storage units.
    pub store: Arc<Store>,
    /// The database.
    pub catalog: Arc<dyn Catalog>,
    /// The lease, just acquired.
    pub lease: Lease,
    /// How long the lease lasts. It belongs to this volume alone.
    pub term: LeaseTerm,
    /// The lease's keys, unwrapped.
    pub keyring: Arc<Keyring>,
    /// The journal's path; it is created if it does not exist. Another host
    /// may have the previous journal open if the lease ends by itself or the
    /// folder is shared: then it is copied ([`Journal::take_over`]).
    pub journal: JournalLocation,
    /// Whether another host may have opened the volume since this host had it
    /// open. If so, a version is committed at once, so that no journal which the
    /// other host keeps elsewhere is ever followed.
    pub taken_over: bool,
    /// Sizes and times.
    pub config: VolumeConfig,
    /// The host's memory budget for map pages.
    pub pages: Arc<PageBudget>,
    /// The volume's view of the host's cache, if there is one.
    pub cache: Option<CacheView>,
}

/// Why a volume cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The journal cannot be used.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The newest version's record is invalid.
    #[error(transparent)]
    Record(#[from] BadRecord),
    /// A page of the newest version's tail cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A page of the newest version's tail is invalid.
    #[error(transparent)]
    Tail(#[from] BadTail),
    /// The catalog refused.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
}

/// The newest committed version, opened; all empty for a new volume.
struct Base {
    root: Root,
    /// Pages of the tail, oldest first.
    tail: Vec<Entry>,
    /// What the tail says, over the root.
    young: Overlay<Entry>,
    /// The last journal sequence that the version contains.
    last_sequence: Sequence,
}

impl Volume {
    /// Opens a volume: reads the newest version's record and tail, follows the
    /// journal, and continues where it ends. May wait; returns within seconds
    /// however large the volume is.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(mut params: OpenParams) -> Result<Self, OpenError> {
        let view = params.cache.take().map(CacheView::of_newest);
        let base = Base::load(&params, view.as_ref())?;
        let mut writes = JournalWrites {
            active: Overlay::default(),
            last_sequence: base.last_sequence,
        };
        let journal = recover_journal(&params, base.last_sequence, &mut writes)?;
        let (lease, folder) = (&params.lease, params.journal.folder);
        if folder.is_some() || lease.journal.is_some() {
            // From here on the next lease continues this journal. Nothing may be
            // acknowledged before the catalog knows that.
            params
                .catalog
                .name_journal(lease.volume, lease.epoch, folder)?;
        }
        // All writes of earlier leases that will ever count have been found. The
        // next version records that, so what a host that lost the volume still
        // has in a journal of its own does not follow it.
        let first = Sequence::new(lease.epoch, 0).expect("the catalog keeps epochs below 2^24");
        writes.last_sequence = writes.last_sequence.max(first);
        let leftovers = params.lease.leftovers.clone();
        let opened = Self::assemble(params, view, base, journal, writes);
        opened.start_sweep(leftovers);
        opened.start_map_preload();
        Ok(opened)
    }

    fn assemble(
        params: OpenParams,
        view: Option<CacheView>,
        base: Base,
        journal: Journal,
        writes: JournalWrites,
    ) -> Self {
        let (sender, inbox) = mpsc::channel();
        params.term.set_wake(params.wake.clone());
        let fetcher = Fetcher {
            store: Arc::clone(&params.store),
            keyring: Arc::clone(&params.keyring),
            view: view.clone(),
            block_size: params.lease.block_size,
            journal: Some(journal.file().clone()),
            reporter: Reporter::new(sender, params.wake.clone()),
            clock: Arc::clone(&params.world.clock),
        };
        let layers = Layers {
            active: writes.active,
            frozen: Default::default(),
            young: base.young,
            old: None,
            root: base.root,
            cache: PageCache::sharing(Arc::clone(&params.pages)),
        };
        let (volume, size_bytes) = (params.lease.volume, params.lease.size_bytes);
        let (term, taken_over) = (params.term.clone(), params.taken_over);
        let head = params.lease.head.as_ref().map(|version| version.key);
        let number_next = params.lease.number_last + 1;
        let now = params.world.clock.monotonic();
        let (replicas, layout) = (params.lease.replicas, Layout::new(params.lease.erasure));
        let env = Arc::new(Env::new(params, view));
        let flush = FlushState {
            // What was replayed may be in the page cache only.
            synced: journal.head() - journal.used_bytes(),
            ..FlushState::default()
        };
        let mut destage = DestageState::new(env.placer(env.slot_bytes(), replicas, layout));
        destage.dirty_since = now;
        destage.commit_requested = taken_over;
        Self {
            reader: Reader::new(size_bytes, layers, fetcher, Some(volume)),
            journal,
            inbox,
            lease: LeaseState::new(term),
            flush,
            destage,
            checkpoint: CheckpointState::new(env.placer(PAGE_BYTES as u32, replicas, layout)),
            env,
            tail: TailPages::new(base.tail),
            last_sequence: writes.last_sequence,
            head,
            number_next,
            deferred: Default::default(),
            stopped: None,
            closing: false,
            counters: Counters::default(),
        }
    }

    /// Frees, in the background, what earlier leases left behind.
    fn start_sweep(&self, leftovers: Leftovers) {
        if leftovers == Leftovers::default() {
            return;
        }
        for open in &leftovers.open_segments {
            self.env.store.open_segments().forget(open.segment);
        }
        let env = Arc::clone(&self.env);
        let reporter = self.reader.fetcher.reporter.clone();
        self.env.world.pool.run(Box::new(move || {
            let swept = clean::sweep(&env.store, &leftovers).map_err(|error| with_causes(&error));
            let result = swept.and_then(|()| {
                env.catalog
                    .finish_sweep(env.volume, env.epoch)
                    .map_err(|error| with_causes(&error))
            });
            reporter.report(Event::Swept(result));
        }));
    }
}

impl Env {
    fn new(params: OpenParams, view: Option<CacheView>) -> Self {
        let Lease { volume, epoch, .. } = params.lease;
        let open_segments = Arc::clone(params.store.open_segments());
        let clock = Arc::clone(&params.world.clock);
        Self {
            serials: Arc::new(Serials::new(Arc::clone(&params.catalog), volume, epoch)),
            ledger: Arc::new(Ledger::new(open_segments)),
            progress: Arc::new(Progress::new(params.term, clock)),
            sequences: SequenceSource::new(epoch),
            preload: MapPreload::default(),
            block_size: params.lease.block_size,
            world: params.world,
            store: params.store,
            catalog: params.catalog,
            keyring: params.keyring,
            config: params.config,
            view,
            volume,
            epoch,
        }
    }

    /// A placer of pieces that take `slot_bytes` each.
    fn placer(&self, slot_bytes: u32, replicas: u8, layout: Layout) -> Placer {
        let config = PlacerConfig {
            slot_bytes,
            slots_max: layout.slots_max(self.config.segment_bytes / slot_bytes),
            destage_width: self.config.destage_width,
            replicas,
            layout,
            shuffle: self.keyring.own().is_plaintext(),
        };
        let (serials, ledger) = (Arc::clone(&self.serials), Arc::clone(&self.ledger));
        Placer::new(config, serials, ledger, Arc::clone(&self.progress))
    }
}

impl Base {
    fn load(params: &OpenParams, view: Option<&CacheView>) -> Result<Self, OpenError> {
        let Some(version) = &params.lease.head else {
            return Ok(Self {
                root: Root::default(),
                tail: Vec::new(),
                young: Overlay::default(),
                last_sequence: Sequence::ZERO,
            });
        };
        let (record, young) = open_version(version, view, &params.store, &params.keyring)?;
        Ok(Self {
            root: record.root,
            tail: record.tail,
            young,
            last_sequence: record.last_sequence,
        })
    }
}

/// Reads a version's record and its tail, through the cache if there is one.
pub(crate) fn open_version(
    version: &StoredVersion,
    view: Option<&CacheView>,
    store: &Arc<Store>,
    keyring: &Arc<Keyring>,
) -> Result<(Record, Overlay<Entry>), OpenError> {
    let record = Record::open(version.key, &version.record, keyring)?;
    let pieces: Vec<Piece> = record
        .tail
        .iter()
        .map(|entry| Piece {
            entry: *entry,
            address: Address::TAIL,
        })
        .collect();
    let slot_bytes = u32::try_from(record.block_size.bytes()).expect("at most 64 KiB");
    let mut overlay = Overlay::default();
    let view = view.map(CacheView::filling);
    for page in read_pieces_through(view.as_ref(), store, keyring, slot_bytes, &pieces, &[]) {
        decode_tail_page(&page?, &mut overlay)?;
    }
    Ok((record, overlay))
}
