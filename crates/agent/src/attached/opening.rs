//! Open volumes: from a lease to a device that is served, and back.
//!
//! ```text
//!  1. lease     a new epoch, of which the units are told; whoever had the
//!               volume is fenced. From now on its journal may be newer than
//!               the head
//!  2. key       brought by the first host that opens the volume
//!  3. open      replay the journal
//!  4. serve     over NBD, through the filters of its chain: nobody is let in before they
//!               have begun
//!  5. stop      no more requests
//!  6. close     destage everything: the head is the volume's state again
//! ```
//!
//! A crash anywhere in between leaves an attachment with an epoch: the next
//! open replays.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};

use api::host::{Access, Assignment, Encryption, Want};
use base::{IoError, KeyId, Lineage, VolumeId, with_causes};
use catalog::{CatalogError, JOURNAL_BYTES_MAX, JOURNAL_BYTES_MIN, Lease, WrappedKey};
use chain::{Chain, SizeRule};
use nbd::{ExportGone, ExportOptions, ExportThread, SpawnError};
use volume::journal::{JournalLocation, SharedFolder};
use volume::scatter::CacheView;
use volume::seal::{DataKey, KeyError};
use volume::{
    LeaseTerm, OpenError, OpenParams, ReadOnlyParams, ReadOnlyVolume, Volume, VolumeConfig,
};
use world::Wake;

use super::{Attached, Served, VolumeCache};
use crate::agent::{Agent, Inner, TaskEnded, blocking, lock};
use crate::capability_cache::Kept;
use crate::chains::ChainError;
use crate::closer::Closer;
use crate::database_age::OlderDatabase;
use crate::filter_files::Keepers;
use crate::host_keys::HostKeyError;
use crate::journals::JournalsError;
use crate::keys::KeyProvider as _;
use crate::serving::ServingError;

/// Why a volume could not be attached, or closed.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The lease was not to be had.
    #[error("no lease: {0}")]
    Lease(CatalogError),
    /// The catalog did not answer as it should.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// The database is not the one that the data belongs to.
    #[error(transparent)]
    Older(#[from] OlderDatabase),
    /// No unit took note of the lease.
    #[error("no unit could be told of its lease: {0}")]
    Untold(String),
    /// The keys do not open.
    #[error("{}", with_causes(.0))]
    Key(#[from] KeyError),
    /// There is no wrapping key for its key.
    #[error("{}", with_causes(.0))]
    HostKey(#[from] HostKeyError),
    /// The database names a key that is not this volume's, or another salt
    /// than the one it was given.
    #[error(
        "the database names another volume's key, or an old one; it was altered: restore \
         it from a backup"
    )]
    ForeignKey,
    /// It was written by a program that knew no keys of leases.
    #[error(
        "it was written by an earlier Scree, before each lease had a key of its own, and cannot be \
         read by this one; read it with that one, and copy it into a new volume"
    )]
    BeforeLeaseKeys,
    /// Where its journal should be, it cannot be.
    #[error(transparent)]
    Journals(#[from] JournalsError),
    /// The engine could not open it.
    #[error("{}", with_causes(.0))]
    Open(#[from] OpenError),
    /// What another host's lease has made old is in the way.
    #[error("its old journal cannot be put aside: {0}")]
    PutAside(std::io::Error),
    /// The filters of its chain do not begin.
    #[error("its chain: {}", with_causes(.0))]
    Chain(#[from] ChainError),
    /// What a filter had acknowledged may be nowhere else.
    #[error(
        "the journal of filter {0} is gone, or is none any more, and the volume is in use through \
         it: what it had acknowledged and not carried out is lost, unless it is put back; \
         `scree detach --force` gives that up"
    )]
    FilterJournalLost(String),
    /// Through which filters it was served.
    #[error("what is noted of its filters cannot be read, or kept: {0}")]
    Noted(std::io::Error),
    /// What journals among its filters have cannot be looked for, or put aside.
    #[error("the journals of its filters cannot be looked through: {0}")]
    FilterJournals(std::io::Error),
    /// Nobody can connect to it.
    #[error(transparent)]
    Serving(#[from] ServingError),
    /// No thread could be had for it.
    #[error("no thread could be started for it: {0}")]
    Thread(std::io::Error),
    /// The engine had to stop.
    #[error("the engine stopped: {0}")]
    Stopped(#[from] IoError),
    /// It has not all that was written through its filters; who has, for people.
    #[error("{0}")]
    Lacks(String),
    /// No unit takes what it has.
    #[error("it cannot destage: {0}")]
    Stalled(String),
    /// A unit keeps what it was asked to itself.
    #[error("nothing was put on any unit for {0} s and nothing failed: a unit does not answer")]
    Unresponsive(u64),
    /// Its thread ended.
    #[error(transparent)]
    Gone(#[from] ExportGone),
    /// It is to be written in the clear, and this host does not do that.
    #[error("it is not to be sealed, and this host writes nothing in the clear")]
    Unsealed,
    /// It was written, and its key is not in the database.
    #[error("the database has lost its key; restore it from a backup")]
    KeyLost,
    /// A task ended before its time.
    #[error(transparent)]
    Task(#[from] TaskEnded),
    /// The process is ending.
    #[error("this host's agent is ending")]
    Ending,
}

impl AttachError {
    /// What was flushed last cannot be had, though it should be there: only
    /// somebody's word gives it up.
    pub(crate) fn is_journal_lost(&self, inner: &Inner) -> bool {
        match self {
            Self::Lease(CatalogError::JournalAway { .. }) => true,
            // One that is this host's alone, its operator moves away.
            Self::Open(OpenError::Journal(error)) => inner.journals.is_some() && error.is_loss(),
            _ => false,
        }
    }
}

/// Step 3. `is_first` if another host had the volume last. Waits.
fn open(
    inner: &Inner,
    (lease, term): (Lease, LeaseTerm),
    is_first: bool,
    (config, cache): (VolumeConfig, CacheView),
    wake: Wake,
) -> Result<Volume, AttachError> {
    if !is_head_keyed(&lease) {
        return Err(AttachError::BeforeLeaseKeys);
    }
    let keyring = Arc::new(inner.keys.keyring(&lease.keys)?);
    let shared = match &inner.journals {
        Some(journals) => Some(journals.verified(&inner.world)?),
        None => None,
    };
    let (volume, epoch) = (lease.volume, lease.epoch);
    let journal = JournalLocation::of(&lease, &inner.folder.journal(volume), shared);
    let opened = Volume::open(OpenParams {
        world: inner.world.clone(),
        wake,
        store: Arc::clone(&inner.store),
        catalog: Arc::clone(&inner.catalog),
        journal,
        taken_over: is_first,
        term,
        lease,
        keyring,
        config,
        pages: Arc::clone(&inner.pages),
        cache: Some(cache),
    });
    if let Some(shared) = shared {
        clear_away(inner, shared, volume, epoch, &opened);
    }
    Ok(opened?)
}

/// Removes the journals that are of no use since the one of lease `epoch` was
/// named, in the folder and in D; or that one, if the lease was lost before.
/// What is left, the next open removes.
fn clear_away(
    inner: &Inner,
    shared: &SharedFolder,
    volume: VolumeId,
    epoch: u32,
    opened: &Result<Volume, OpenError>,
) {
    let disk = &inner.world.disk;
    let remove = |path: &Path| match disk.remove(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            tracing::warn!(path = %path.display(), %error, "not removed");
        }
        _ => {}
    };
    match opened {
        Ok(_) => {
            if let Err(error) = shared.remove_before(&inner.world, volume, epoch) {
                tracing::warn!(%volume, error = with_causes(&error), "older journals stay");
            }
            remove(&inner.folder.journal(volume));
        }
        Err(OpenError::Catalog(error)) if error.is_fenced() => {
            remove(&shared.journal(volume, epoch));
        }
        // It may be named, or is not there.
        Err(_) => {}
    }
}

/// Whether the lease that wrote the volume's head has left its salt.
fn is_head_keyed(lease: &Lease) -> bool {
    let Some(head) = &lease.head else { return true };
    let mut keys = lease.keys.iter();
    let has_salt = |(epoch, _): &(u32, _)| *epoch == head.epoch;
    keys.find(|key| key.lineage == head.lineage)
        .is_none_or(|key| key.salts.iter().any(has_salt))
}

/// Steps 3 and 4. Waits.
fn serve(
    inner: &Arc<Inner>,
    lease: (Lease, LeaseTerm),
    is_first: bool,
    how: (VolumeConfig, CacheView),
    options: ExportOptions,
) -> Result<Served, AttachError> {
    let closer = Closer::default();
    let (wakes, inner) = (closer.clone(), Arc::clone(inner));
    let (tell, told) = mpsc::channel();
    let thread = ExportThread::spawn_watching(options, move |wake, watcher| {
        // Whoever has stopped waiting needs none.
        let _ = tell.send(watcher);
        let wake = wakes.wake(wake);
        let volume = open(&inner, lease, is_first, how, wake.clone())?;
        Ok::<_, AttachError>(Chain::new(volume, Arc::clone(&inner.world.clock), wake))
    })?;
    let watcher = told.recv().map_err(|_| ExportGone)?;
    Ok(Served::Writable {
        thread,
        closer,
        watcher,
    })
}

/// As [`serve`], of a version that stays as it is: without lease and journal.
fn serve_read_only(
    inner: &Inner,
    wish: &Assignment,
    options: ExportOptions,
) -> Result<(Served, Option<Kept>, VolumeCache), AttachError> {
    let (mut kept, mut lines) = (None, Vec::new());
    let version = match wish.version {
        None => None,
        Some(key) => {
            let version = inner.catalog.version(key)?;
            let lineage = version.lineage;
            kept = Some(
                inner
                    .controller
                    .capability_cache()
                    .keep(vec![Want::Read { lineage }]),
            );
            let keys = inner.catalog.keys(version.lineage)?;
            let keyring = Arc::new(inner.keys.keyring(&keys)?);
            lines = keys;
            Some((version, keyring))
        }
    };
    let (store, pages) = (Arc::clone(&inner.store), Arc::clone(&inner.pages));
    let (size_bytes, block_size) = (wish.size_bytes, wish.block_size);
    let clock = Arc::clone(&inner.world.clock);
    let cache = VolumeCache::new(view(inner, wish), &lines, wish.image);
    let seen = cache.view.clone();
    let (tell, told) = mpsc::channel();
    let thread = ExportThread::spawn_watching(options, move |wake, watcher| {
        // Whoever has stopped waiting needs none.
        let _ = tell.send(watcher);
        let opened = ReadOnlyVolume::open(ReadOnlyParams {
            wake: wake.clone(),
            clock: Arc::clone(&clock),
            store,
            version,
            size_bytes,
            block_size,
            pages,
            cache: Some(seen),
        });
        Ok::<_, AttachError>(Chain::new(opened?, clock, wake))
    })?;
    let watcher = told.recv().map_err(|_| ExportGone)?;
    Ok((Served::ReadOnly(thread, watcher), kept, cache))
}

/// A volume's sizes and times: this host's, but for what is said of the volume itself.
fn config(inner: &Inner, wish: &Assignment) -> VolumeConfig {
    let mut config = inner.volume_config;
    if let Some(bytes) = wish.journal_bytes {
        config.journal_bytes = bytes.clamp(JOURNAL_BYTES_MIN, JOURNAL_BYTES_MAX);
    }
    config
}

/// A volume's way through this host's cache.
fn view(inner: &Inner, wish: &Assignment) -> CacheView {
    CacheView::new(Arc::clone(&inner.caching.cache), wish.volume)
}

/// A key for a lineage, or the word that it has none, and which wrapping key
/// wrapped it. Waits.
fn new_key(
    inner: &Inner,
    lineage: Lineage,
    encryption: Encryption,
) -> Result<(KeyId, WrappedKey), AttachError> {
    if encryption == Encryption::None && !inner.allows_unencrypted {
        return Err(AttachError::Unsealed);
    }
    let (id, key) = inner.keys.newest()?;
    let wrapped = match encryption {
        Encryption::Aes256Gcm => key.wrap(lineage, &DataKey::generate(&*inner.world.random))?,
        Encryption::None => key.wrap_none(lineage)?,
    };
    Ok((id, wrapped))
}

impl From<SpawnError<Self>> for AttachError {
    fn from(error: SpawnError<Self>) -> Self {
        match error {
            SpawnError::Device(error) => error,
            SpawnError::Thread(error) => Self::Thread(error),
        }
    }
}

impl Agent {
    /// Steps 1 to 4; of a read-only attachment, the last two. It begins with the filters that
    /// whoever has it knows it through.
    pub(crate) async fn open_and_serve(
        &self,
        wish: &Assignment,
    ) -> Result<Arc<Attached>, AttachError> {
        if self.is_ending() {
            return Err(AttachError::Ending);
        }
        let wish = &Assignment {
            chain: self.filters_to_begin_with(wish).await?,
            ..wish.clone()
        };
        // To a VM it has one name for ever, also if the volume gets another.
        let name = match wish.vm {
            Some(_) => wish.id.to_string(),
            None => wish.name.clone(),
        };
        let options = ExportOptions {
            description: wish.volume.to_string(),
            read_only: wish.access == Access::ReadOnly,
            ..ExportOptions::new(name.clone(), Arc::clone(&self.inner.world.clock))
        };
        let inner = Arc::clone(&self.inner);
        let (mut epoch, mut since, mut restores) = (None, None, None);
        let served = match wish.access {
            Access::ReadWrite => {
                let (lease, first) = self.leased(wish).await?;
                (epoch, restores) = (Some(lease.0.epoch), lease.0.restores);
                since = Some(first);
                let is_first = wish.fenced.is_some();
                let cache = VolumeCache::new(view(&inner, wish), &lease.0.keys, wish.image);
                let how = (config(&inner, wish), cache.view.clone());
                let served = blocking(move || serve(&inner, lease, is_first, how, options)).await;
                if !matches!(served, Ok(Ok(_))) {
                    self.release(wish.id, epoch);
                }
                served?.map(|served| (served, None, cache))
            }
            Access::ReadOnly => {
                let wish = wish.clone();
                blocking(move || serve_read_only(&inner, &wish, options)).await?
            }
        };
        let attached = Arc::new(Attached::new(
            (wish.id, wish.volume),
            (epoch, since, restores),
            name,
            served?,
        ));
        if let Err(error) = self.begin_filters(wish, &attached).await {
            self.abandon(attached).await?;
            return Err(error);
        }
        let (serving, export) = (&self.inner.serving, attached.export.clone());
        if wish.vm.is_none() {
            serving.offer(wish.id, export);
            return Ok(attached);
        }
        let socket = self.inner.folder.vm_socket(wish.id);
        let offered = serving.offer_alone(wish.id, export, &socket);
        if let Err(error) = offered {
            // What it replayed is in its journal still.
            self.abandon(attached).await?;
            return Err(error.into());
        }
        // A VM that had it waits for it; what is wrong, plugging it will say.
        if let Err(error) = self.let_vm_in(wish) {
            tracing::warn!(attachment = %wish.id, %error);
        }
        Ok(attached)
    }

    /// Puts the filters in place that somebody is to be let in through.
    async fn begin_filters(
        &self,
        wish: &Assignment,
        attached: &Arc<Attached>,
    ) -> Result<(), AttachError> {
        if attached.epoch.is_some() {
            let put = self.put_filter_journals_aside(wish).await?;
            put.map_err(AttachError::FilterJournals)?;
        }
        if wish.chain.is_none() {
            // Whichever filters come later, it was written without them before.
            attached
                .chain_turn
                .store(self.new_turn(), Ordering::Release);
            if attached.epoch.is_some() {
                self.tidy_filters(wish.volume, Keepers::default()).await;
            }
        } else {
            self.put_chain(wish, attached, SizeRule::First).await?;
        }
        lock(&attached.chain).clone_from(&wish.chain);
        let noted = self.note_filters(wish, attached, None).await?;
        noted.map_err(AttachError::Noted)?;
        if let Some(epoch) = attached.epoch {
            let noted = self.note_let_in(wish.volume, epoch).await?;
            noted.map_err(AttachError::Noted)?;
        }
        Ok(())
    }

    /// Steps 5 and 6. On an error the journal keeps what was not destaged, and
    /// the next open replays it.
    pub(crate) async fn stop_and_close(
        &self,
        attached: Arc<Attached>,
        is_forced: bool,
    ) -> Result<(), AttachError> {
        self.inner.serving.withdraw(attached.id, &attached.name);
        let clock = Arc::clone(&self.inner.world.clock);
        let (id, epoch, volume) = (attached.id, attached.epoch, attached.volume);
        let stopped = blocking(move || attached.stop(is_forced, clock)).await;
        self.release(id, epoch);
        stopped??;
        match epoch {
            Some(_) if !is_forced => self.filters_hold_nothing(volume).await,
            _ => Ok(()),
        }
    }

    /// Whether the journals of a volume's filters are empty.
    pub(crate) async fn filters_hold_nothing(&self, volume: VolumeId) -> Result<(), AttachError> {
        let left = self.filter_journals_left(volume).await?;
        let left = left.map_err(AttachError::FilterJournals)?;
        match left.is_empty() {
            true => Ok(()),
            false => Err(AttachError::Lacks(format!(
                "what was acknowledged by its filters ({}) is not carried out",
                left.join(", ")
            ))),
        }
    }

    /// Serves a volume no more. What it has not destaged stays in its journal.
    pub(crate) async fn abandon(&self, attached: Arc<Attached>) -> Result<(), AttachError> {
        self.inner.serving.withdraw(attached.id, &attached.name);
        let (id, epoch) = (attached.id, attached.epoch);
        // A volume whose lease has run out would wait for it.
        self.lose(id, epoch);
        let dropped = blocking(move || attached.drop_volume()).await;
        self.release(id, epoch);
        dropped?
    }

    /// Makes the head of a volume that is not to be served its whole state:
    /// replays and destages a journal that a crash left.
    /// Returns the lease it did that under.
    pub(crate) async fn settle(&self, wish: &Assignment) -> Result<u32, AttachError> {
        let (lease, _) = self.leased(wish).await?;
        let epoch = lease.0.epoch;
        let inner = Arc::clone(&self.inner);
        let cache = VolumeCache::new(view(&inner, wish), &lease.0.keys, wish.image);
        let config = config(&inner, wish);
        let settled = blocking(move || {
            let closer = Closer::default();
            let wake = closer.wake(Wake::noop());
            let opened = open(&inner, lease, false, (config, cache.view), wake)?;
            closer.close(opened, &*inner.world.clock)
        })
        .await;
        self.release(wish.id, Some(epoch));
        settled?.map(|()| epoch)
    }

    /// Steps 1 and 2, until when the lease holds, and since which one this host has had all.
    async fn leased(&self, wish: &Assignment) -> Result<((Lease, LeaseTerm), u32), AttachError> {
        // It is counted from before it was asked for.
        let asked = self.inner.world.clock.monotonic();
        let lease = self.keyed(wish).await?;
        let since = self.note_lease(wish.volume, lease.epoch).await?;
        let since = since.map_err(AttachError::Noted)?;
        let term = self.hold(wish, lease.epoch, asked);
        Ok(((lease, term), since))
    }

    /// Steps 1 and 2.
    async fn keyed(&self, wish: &Assignment) -> Result<Lease, AttachError> {
        // Without its keys there is no use for a lease, nor for having fenced
        // whoever had it.
        let (inner, lineage) = (Arc::clone(&self.inner), wish.lineage);
        blocking(move || {
            let keys = inner.catalog.keys(lineage)?;
            Ok::<_, AttachError>(inner.keys.check(&keys)?)
        })
        .await??;
        let mut lease = self.acquire(wish.volume).await?;
        let Some(own) = lease.keys.first_mut() else {
            return Err(AttachError::ForeignKey);
        };
        if own.wrapped.is_some() {
            return Ok(lease);
        }
        // Only what nobody ever wrote to has no key yet.
        if lease
            .head
            .as_ref()
            .is_some_and(|head| head.lineage == own.lineage)
        {
            return Err(AttachError::KeyLost);
        }
        let (inner, lineage, encryption) = (Arc::clone(&self.inner), own.lineage, wish.encryption);
        let (key, wrapped) = blocking(move || new_key(&inner, lineage, encryption)).await??;
        let controller = &self.inner.controller;
        controller
            .set_key(wish.volume, lineage, key, wrapped.clone())
            .await?;
        own.wrapped = Some(wrapped);
        own.wrapped_by = Some(key);
        Ok(lease)
    }
}
