//! Attaching a volume: from a lease and a journal to a device.

use std::sync::Arc;
use std::sync::mpsc;

use base::{Sequence, with_causes};
use world::{File, Wake, World};

use super::checkpoint::CheckpointState;
use super::config::VolumeConfig;
use super::destage::DestageState;
use super::event::{Event, Reporter};
use super::fetch::Fetcher;
use super::flush::FlushState;
use super::layers::Layers;
use super::lease::LeaseState;
use super::map_preload::Scan;
use super::reader::Reader;
use super::volume::{Counters, Env, Volume};
use crate::catalog::{Catalog, CatalogError, Lease, Leftovers, StoredVersion};
use crate::clean;
use crate::journal::{
    Claim, Journal, JournalError, JournalLocation, ReplayedWrite, replay, replay_from,
};
use crate::lease_term::LeaseTerm;
use crate::map::{Entry, Overlay, PAGE_BYTES, PageBudget, PageCache, Root};
use crate::scatter::{
    CacheView, Layout, Ledger, Piece, Placer, PlacerConfig, Progress, ReadError, Serials, Store,
    read_pieces_through,
};
use crate::seal::{Address, Keyring, SequenceSource};
use crate::version::{BadRecord, BadTail, Record, decode_tail_page};

/// Everything an open takes.
pub struct OpenParams {
    /// The machine.
    pub world: World,
    /// Wakes the owner's loop when a job has ended.
    pub wake: Wake,
    /// The units.
    pub store: Arc<Store>,
    /// The database.
    pub catalog: Arc<dyn Catalog>,
    /// The lease, just taken.
    pub lease: Lease,
    /// Until when the lease holds. Of this volume alone.
    pub term: LeaseTerm,
    /// The lease's keys, opened.
    pub keyring: Arc<Keyring>,
    /// The journal's file; made if it does not exist. Under a lease that ends,
    /// and in a folder that other hosts have, another host may have the one
    /// before it open, or be about to: it is copied ([`Journal::take_over`]).
    pub journal: JournalLocation,
    /// Another host may have had the volume since this one had it open. Then a
    /// version is committed at once: from there on, no journal that the other
    /// one has elsewhere will ever be followed.
    pub taken_over: bool,
    /// Sizes and times.
    pub config: VolumeConfig,
    /// The memory for map pages, that of the host.
    pub pages: Arc<PageBudget>,
    /// The volume's way through the host's cache, if it has one.
    pub cache: Option<CacheView>,
}

/// Why a volume cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The journal cannot be used.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The newest version's record is not good.
    #[error(transparent)]
    Record(#[from] BadRecord),
    /// A page of the newest version's tail cannot be had.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A page of the newest version's tail makes no sense.
    #[error(transparent)]
    Tail(#[from] BadTail),
    /// The catalog refused.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
}

impl Volume {
    /// Opens a volume: reads the newest version's record and tail, follows the
    /// journal, and goes on where it ended. May wait; returns within seconds
    /// however large the volume is.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(params: OpenParams) -> Result<Self, OpenError> {
        let OpenParams {
            world,
            wake,
            store,
            catalog,
            lease,
            term,
            keyring,
            journal: place,
            taken_over,
            config,
            pages,
            cache,
        } = params;
        let view = cache.map(CacheView::of_newest);
        let Lease {
            volume,
            epoch,
            block_size,
            replicas,
            erasure,
            ..
        } = lease;
        let layout = Layout::new(erasure);
        let head = lease.head.as_ref();
        let (root, tail, after, young) = match head {
            Some(version) => {
                let (record, overlay) = open_version(version, view.as_ref(), &store, &keyring)?;
                (record.root, record.tail, record.last_sequence, overlay)
            }
            None => (
                Root::default(),
                Vec::new(),
                Sequence::ZERO,
                Overlay::default(),
            ),
        };

        let position = lease.journal_next;
        let claim = Claim {
            epoch,
            term: term.clone(),
        };
        let mut active = Overlay::default();
        let mut last_sequence = after;
        let found = |write| match write {
            ReplayedWrite::Data { block, placed } => {
                last_sequence = last_sequence.max(placed.sequence);
                active.insert(block.0, placed);
            }
            ReplayedWrite::Zero {
                block,
                count,
                sequence,
            } => {
                last_sequence = last_sequence.max(sequence);
                active.zero(block.0..block.0 + count);
            }
        };
        let JournalLocation {
            path,
            former,
            folder,
        } = place;
        let opened = match &former {
            None => None,
            Some(former) if taken_over || former != &path || !term.is_unlimited() => {
                let from = former.display().to_string();
                let copy = |file: &dyn File, journal: &mut Journal| {
                    replay_from(file, &from, journal, &keyring, after, found)
                };
                Journal::take_over(
                    &world, former, &path, volume, block_size, position, &claim, copy,
                )?
            }
            Some(former) => match Journal::open(&world, former, volume, block_size, position)? {
                Some(mut journal) => {
                    let records = replay(&mut journal, &keyring, after, found)?;
                    Some((journal, records))
                }
                None => None,
            },
        };
        let is_named = lease
            .journal
            .is_some_and(|named| Some(named.folder) == folder);
        if let (None, Some(former), true) = (&opened, &former, is_named) {
            let path = former.display().to_string();
            return Err(JournalError::Missing { path }.into());
        }
        let create = |position| {
            let ring = config.journal_bytes;
            Journal::create(&world, &path, volume, block_size, ring, position, &claim)
        };
        let journal = match opened {
            Some((journal, records)) if records > 0 => {
                tracing::info!(%volume, records, bytes = journal.used_bytes(), "replayed the journal");
                journal
            }
            Some((journal, _))
                if journal.ring_bytes() == config.journal_bytes.next_multiple_of(4096) =>
            {
                journal
            }
            Some((journal, _)) => create(journal.head())?,
            None => {
                if position > 0 && lease.journal.is_none() && folder.is_none() {
                    tracing::warn!(
                        %volume, journal = %path.display(),
                        "no journal here: unless its last host closed the volume, what that flushed after the newest version is lost"
                    );
                }
                create(position)?
            }
        };
        if folder.is_some() || lease.journal.is_some() {
            // From here on whoever comes next goes on with this journal, and
            // only then may anything be acknowledged.
            catalog.name_journal(volume, epoch, folder)?;
        }
        // All of earlier leases that will ever count has been found. The next
        // version's cut says so, and what a host that lost the volume still
        // has in a journal of its own does not follow it.
        let first = Sequence::new(epoch, 0).expect("the catalog keeps epochs below 2^24");
        let last_sequence = last_sequence.max(first);

        let serials = Arc::new(Serials::new(Arc::clone(&catalog), volume, epoch));
        let ledger = Arc::new(Ledger::new(Arc::clone(store.open_segments())));
        let progress = Arc::new(Progress::new(term.clone(), Arc::clone(&world.clock)));
        let placer = |slot_bytes: u32, width| {
            let config = PlacerConfig {
                slot_bytes,
                slots_max: layout.slots_max(config.segment_bytes / slot_bytes),
                width,
                replicas,
                layout,
                shuffle: keyring.own().is_plaintext(),
            };
            let (serials, ledger) = (Arc::clone(&serials), Arc::clone(&ledger));
            Placer::new(config, serials, ledger, Arc::clone(&progress))
        };
        let slot_bytes = u32::try_from(block_size.bytes()).expect("at most 64 KiB");
        let data_placer = placer(slot_bytes, config.scatter_width);
        let page_placer = placer(PAGE_BYTES as u32, config.scatter_width);

        let (sender, inbox) = mpsc::channel();
        term.set_wake(wake.clone());
        let reporter = Reporter::new(sender, wake);
        let fetcher = Fetcher {
            store: Arc::clone(&store),
            keyring: Arc::clone(&keyring),
            view: view.clone(),
            block_size,
            journal: Some(journal.file().clone()),
            reporter,
            clock: Arc::clone(&world.clock),
        };
        let own_head = head.map(|version| version.key);
        let page_cache = PageCache::sharing(pages);
        let now = world.clock.monotonic();
        let env = Arc::new(Env {
            world,
            store,
            catalog,
            keyring,
            view,
            volume,
            epoch,
            block_size,
            config,
            sequences: SequenceSource::new(epoch),
            serials,
            ledger,
            progress,
            scan: Scan::default(),
        });
        // What was replayed may be in the page cache only.
        let synced = journal.head() - journal.used_bytes();
        let layers = Layers {
            active,
            frozen: Default::default(),
            young,
            old: None,
            root,
            cache: page_cache,
        };
        let mut opened = Self {
            env,
            reader: Reader::new(lease.size_bytes, layers, fetcher, Some(volume)),
            journal,
            inbox,
            lease: LeaseState::new(term),
            flush: FlushState {
                synced,
                ..FlushState::default()
            },
            destage: DestageState::new(data_placer),
            checkpoint: CheckpointState::new(page_placer),
            tail_old: Vec::new(),
            tail_young: tail,
            last_sequence,
            head: own_head,
            number_next: lease.number_last + 1,
            deferred: Default::default(),
            stopped: None,
            closing: false,
            counters: Counters::default(),
        };
        opened.destage.dirty_since = now;
        opened.destage.commit_requested = taken_over;
        opened.start_sweep(lease.leftovers);
        opened.start_scan();
        Ok(opened)
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
                    .swept(env.volume, env.epoch)
                    .map_err(|error| with_causes(&error))
            });
            reporter.report(Event::Swept(result));
        }));
    }
}

/// Reads a version's record, and its tail, through a cache if there is one.
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
