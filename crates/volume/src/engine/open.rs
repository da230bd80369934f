//! Opening a volume: from a lease and a journal to a block device.
//!
//! 1. load     the newest version's record and tail
//! 2. recover  the journal: follow it in place, copy it, or create one
//! 3. name     it in the catalog, where several hosts share a folder of journals
//! 4. assemble the owner; start its background jobs
//!
//! What to do with a journal is decided by [`JournalSource::choose`] and
//! [`JournalUse::choose`], which do no I/O.

use std::path::Path;
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
use super::map_preload::MapPreload;
use super::reader::Reader;
use super::volume::{Counters, Env, TailPages, Volume};
use crate::catalog::{Catalog, CatalogError, Lease, Leftovers, StoredVersion};
use crate::clean;
use crate::journal::{
    Claim, Journal, JournalError, JournalLocation, JournalSlot, JournalSpec, ReplayedWrite, replay,
    replay_from,
};
use crate::lease_term::LeaseTerm;
use crate::map::{Entry, Overlay, PAGE_BYTES, PageBudget, PageCache, Root};
use crate::scatter::{
    CacheView, Layout, Ledger, Piece, Placer, PlacerConfig, Progress, ReadError, Serials, Store,
    read_pieces_through,
};
use crate::seal::{Address, Keyring, SequenceSource};
use crate::version::{BadRecord, BadTail, Record, decode_tail_page};

/// Everything that opening a volume takes.
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
    /// Where the journal lies; it is created if it does not exist. Another host
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

/// What the journal holds beyond the newest version.
struct JournalWrites {
    active: Overlay<JournalSlot>,
    last_sequence: Sequence,
}

/// How the journal of an earlier lease is read.
#[derive(Debug, PartialEq, Eq)]
enum JournalSource<'a> {
    /// There is none that this lease continues.
    None,
    /// Another host may have it open: it is copied.
    Copied(&'a Path),
    /// Only this host ever has it: it is continued in place.
    InPlace(&'a Path),
}

/// What is done once the earlier journal has been read, if there is one.
#[derive(Debug, PartialEq, Eq)]
enum JournalUse {
    /// The log continues in it.
    Continue,
    /// A new file takes its place: it is empty, and has another size.
    Replace,
    /// There is none: a new one is created.
    Create,
    /// The catalog names one that is not there: flushed writes would be lost.
    Missing,
}

/// What an earlier journal turned out to be.
#[derive(Debug, Clone, Copy)]
struct FormerJournal {
    /// How many records follow the newest version.
    records: u64,
    ring_bytes: u64,
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
                    .swept(env.volume, env.epoch)
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
            width: self.config.scatter_width,
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

impl JournalWrites {
    fn add(&mut self, write: ReplayedWrite) {
        match write {
            ReplayedWrite::Data { block, placed } => {
                self.last_sequence = self.last_sequence.max(placed.sequence);
                self.active.insert(block.0, placed);
            }
            ReplayedWrite::Zero {
                block,
                count,
                sequence,
            } => {
                self.last_sequence = self.last_sequence.max(sequence);
                self.active.zero(block.0..block.0 + count);
            }
        }
    }
}

impl<'a> JournalSource<'a> {
    /// A journal is continued in place only if no other host can have it open.
    fn choose(location: &'a JournalLocation, taken_over: bool, is_unlimited: bool) -> Self {
        match &location.former {
            None => Self::None,
            Some(former) if taken_over || !is_unlimited || *former != location.path => {
                Self::Copied(former)
            }
            Some(former) => Self::InPlace(former),
        }
    }
}

impl JournalUse {
    /// `must_exist`: the catalog names the journal that was looked for.
    fn choose(former: Option<FormerJournal>, ring_bytes: u64, must_exist: bool) -> Self {
        match former {
            Some(former) if former.records > 0 || former.ring_bytes == ring_bytes => Self::Continue,
            Some(_) => Self::Replace,
            None if must_exist => Self::Missing,
            None => Self::Create,
        }
    }
}

/// The lease's journal: the earlier one, whose writes after `after` are added to
/// `writes`, or a new one.
fn recover_journal(
    params: &OpenParams,
    after: Sequence,
    writes: &mut JournalWrites,
) -> Result<Journal, OpenError> {
    let (lease, location) = (&params.lease, &params.journal);
    let (volume, position) = (lease.volume, lease.journal_next);
    let spec = |position| JournalSpec::new(volume, lease.block_size, position);
    let claim = Claim {
        epoch: lease.epoch,
        term: params.term.clone(),
    };
    let ring_bytes = params.config.journal_bytes.next_multiple_of(4096);
    let create = |position| {
        Journal::create(
            &params.world,
            &location.path,
            spec(position),
            ring_bytes,
            &claim,
        )
    };
    let opened = open_former(params, spec(position), &claim, after, writes)?;
    let former = opened.as_ref().map(|(journal, records)| FormerJournal {
        records: *records,
        ring_bytes: journal.ring_bytes(),
    });
    let named_folder = lease.journal.map(|named| named.folder);
    let must_exist = named_folder.is_some_and(|folder| Some(folder) == location.folder)
        && location.former.is_some();
    let action = JournalUse::choose(former, ring_bytes, must_exist);
    match (action, opened) {
        (JournalUse::Continue, Some((journal, records))) => {
            if records > 0 {
                tracing::info!(%volume, records, bytes = journal.used_bytes(), "replayed the journal");
            }
            Ok(journal)
        }
        (JournalUse::Replace, Some((journal, _))) => Ok(create(journal.head())?),
        (JournalUse::Missing, _) => {
            let path = location.former.as_deref().map(Path::display);
            let path = path.map_or_else(String::new, |path| path.to_string());
            Err(JournalError::Missing { path }.into())
        }
        _ => {
            if position > 0 && lease.journal.is_none() && location.folder.is_none() {
                tracing::warn!(
                    %volume, journal = %location.path.display(),
                    "no journal found: unless the last host closed the volume, what it flushed after the newest version is lost"
                );
            }
            Ok(create(position)?)
        }
    }
}

/// Reads the journal of an earlier lease, if there is one; returns it with the
/// number of records that follow `after`.
fn open_former(
    params: &OpenParams,
    spec: JournalSpec,
    claim: &Claim,
    after: Sequence,
    writes: &mut JournalWrites,
) -> Result<Option<(Journal, u64)>, JournalError> {
    let (world, keyring) = (&params.world, &params.keyring);
    let is_unlimited = params.term.is_unlimited();
    match JournalSource::choose(&params.journal, params.taken_over, is_unlimited) {
        JournalSource::None => Ok(None),
        JournalSource::Copied(former) => {
            let from = former.display().to_string();
            let copy = |file: &dyn File, journal: &mut Journal| {
                replay_from(file, &from, journal, keyring, after, |write| {
                    writes.add(write);
                })
            };
            Journal::take_over(world, former, &params.journal.path, spec, claim, copy)
        }
        JournalSource::InPlace(former) => {
            let Some(mut journal) = Journal::open(world, former, spec)? else {
                return Ok(None);
            };
            let records = replay(&mut journal, keyring, after, |write| writes.add(write))?;
            Ok(Some((journal, records)))
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_is_continued_in_place_only_by_the_one_host_that_has_it() {
        let own = Path::new("/host/journal");
        let location = |former: Option<&Path>| JournalLocation {
            path: own.to_owned(),
            former: former.map(Path::to_owned),
            folder: None,
        };
        let none = location(None);
        assert_eq!(
            JournalSource::choose(&none, false, true),
            JournalSource::None
        );
        let same = location(Some(own));
        assert_eq!(
            JournalSource::choose(&same, false, true),
            JournalSource::InPlace(own)
        );
        for (taken_over, is_unlimited) in [(true, true), (false, false), (true, false)] {
            let source = JournalSource::choose(&same, taken_over, is_unlimited);
            assert_eq!(source, JournalSource::Copied(own));
        }
        let elsewhere = Path::new("/shared/journal");
        let moved = location(Some(elsewhere));
        assert_eq!(
            JournalSource::choose(&moved, false, true),
            JournalSource::Copied(elsewhere)
        );
    }

    #[test]
    fn a_journal_with_records_is_never_replaced_and_a_named_one_must_exist() {
        let former = |records, ring_bytes| {
            Some(FormerJournal {
                records,
                ring_bytes,
            })
        };
        for (former, must_exist, expected) in [
            (former(1, 4096), false, JournalUse::Continue),
            (former(0, 8192), false, JournalUse::Continue),
            (former(0, 4096), true, JournalUse::Replace),
            (None, false, JournalUse::Create),
            (None, true, JournalUse::Missing),
        ] {
            assert_eq!(JournalUse::choose(former, 8192, must_exist), expected);
        }
    }
}
