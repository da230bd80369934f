//! [`VolumeOpener`]: opens volumes, from a lease to a device that is served, and closes them.
//!
//! ```text
//!  1. lease     a new epoch, which is noted on the units; the host that had the volume
//!               is fenced. From now on its journal may be newer than the head
//!  2. key       brought by the first host that opens the volume
//!  3. open      replay the journal
//!  4. serve     over NBD, through the filters of its chain: no client is let in before they
//!               have begun
//!  5. stop      no more requests
//!  6. close     destage everything: the head is the volume's state again
//! ```
//!
//! A crash anywhere in between leaves an attachment with an epoch: the next
//! open replays.
//!
//! Must not know: what is desired next; the worker decides that.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::{Arc, mpsc};

use api::host::catalog_calls::SetKey;
use api::host::{Access, Assignment, Encryption};
use base::{KeyId, Lineage, VolumeId, with_causes};
use catalog::{Catalog as _, JOURNAL_BYTES_MAX, JOURNAL_BYTES_MIN, Lease, WrappedKey};
use chain::Chain;
use nbd::{ExportEnded, ExportOptions, ExportThread};
use volume::journal::{JournalLocation, SharedFolder};
use volume::scatter::CacheView;
use volume::seal::DataKey;
use volume::{
    LeaseTerm, OpenError, OpenParams, ReadOnlyParams, ReadOnlyVolume, Volume, VolumeConfig,
};
use world::Wake;

use super::AttachError;
use crate::background::VersionReader;
use crate::cache::Caching;
use crate::context::{HostContext, Shutdown, blocking};
use crate::controller::Controller;
use crate::export::{
    Attached, AttachedLease, Closer, NbdServer, Opened, Served, VolumeCache, VolumeError,
};
use crate::filters::{FilterNoteError, Filters};
use crate::journals::SharedJournals;
use crate::keys::KeyProvider as _;
use crate::lease::{AcquireError, DatabaseAge, Leases};
use crate::vm::Plugging;

/// What a [`VolumeOpener`] is given.
#[derive(Clone)]
pub(crate) struct OpenerParts {
    pub context: Arc<HostContext>,
    pub controller: Controller,
    pub shutdown: Shutdown,
    /// The keys, the store and the memory for map pages.
    pub reader: VersionReader,
    pub caching: Arc<Caching>,
    /// The shared folder of journals, if this host's are not in D.
    pub shared_journals: Option<Arc<SharedJournals>>,
    pub leases: Arc<Leases>,
    pub age: Arc<DatabaseAge>,
    pub filters: Arc<Filters>,
    pub server: Arc<NbdServer>,
    pub plugging: Arc<Plugging>,
    /// Volumes may be written unencrypted, if their owner wants that.
    pub allows_unencrypted: bool,
    /// The sizes and times of each volume, unless it has its own.
    pub volume_config: VolumeConfig,
}

/// Opens and closes volumes. Cheap to clone.
#[derive(Clone)]
pub(crate) struct VolumeOpener {
    parts: Arc<OpenerParts>,
}

/// A lease that was just acquired, and what a volume is opened with under it.
struct LeasedVolume {
    lease: Lease,
    term: LeaseTerm,
    /// The first of the leases that this host had one after the other without letting a client in.
    since: u32,
    /// Another host had the volume last.
    is_taken_over: bool,
    config: VolumeConfig,
    cache: CacheView,
}

impl VolumeOpener {
    pub fn new(parts: OpenerParts) -> Self {
        Self {
            parts: Arc::new(parts),
        }
    }

    /// Steps 1 to 4; of a read-only attachment, the last two. The volume begins with the filters
    /// that its clients know it through.
    ///
    /// # Errors
    /// [`AttachError`].
    pub async fn open_and_serve(
        &self,
        assignment: &Assignment,
    ) -> Result<Arc<Attached>, AttachError> {
        let parts = &self.parts;
        if parts.shutdown.has_begun() {
            return Err(AttachError::Ending);
        }
        let assignment = &Assignment {
            chain: parts.filters.notes().first_chain(assignment).await?,
            ..assignment.clone()
        };
        // A VM's disk keeps its name, also if the volume is renamed.
        let name = match assignment.vm {
            Some(_) => assignment.id.to_string(),
            None => assignment.name.clone(),
        };
        let options = ExportOptions {
            description: assignment.volume.to_string(),
            read_only: assignment.access == Access::ReadOnly,
            ..ExportOptions::new(name.clone(), Arc::clone(&parts.context.world.clock))
        };
        let opened = match assignment.access {
            Access::ReadWrite => self.open_writable(assignment, options).await?,
            Access::ReadOnly => self.open_read_only(assignment, options).await?,
        };
        let (id, volume) = (assignment.id, assignment.volume);
        let attached = Arc::new(Attached::new(id, volume, name, opened));
        if let Err(error) = self.begin_filters(assignment, &attached).await {
            self.abandon(attached).await?;
            return Err(error);
        }
        self.offer(assignment, attached).await
    }

    /// Steps 1 to 3.
    async fn open_writable(
        &self,
        assignment: &Assignment,
        options: ExportOptions,
    ) -> Result<Opened, AttachError> {
        let (leased, cache) = self.lease(assignment).await?;
        let lease = AttachedLease {
            epoch: leased.lease.epoch,
            restores: leased.lease.restores,
            since: leased.since,
        };
        let parts = Arc::clone(&self.parts);
        let served = blocking(move || serve(parts, leased, options)).await;
        if !matches!(served, Ok(Ok(_))) {
            self.parts.leases.release(assignment.id, Some(lease.epoch));
        }
        Ok(Opened {
            served: served??,
            cache,
            lease: Some(lease),
            kept: None,
        })
    }

    /// Step 3, of a version that stays as it is: without a lease and a journal.
    async fn open_read_only(
        &self,
        assignment: &Assignment,
        options: ExportOptions,
    ) -> Result<Opened, AttachError> {
        let (parts, assignment) = (Arc::clone(&self.parts), assignment.clone());
        blocking(move || serve_read_only(&parts, &assignment, options)).await?
    }

    /// Puts the first filters in place.
    async fn begin_filters(
        &self,
        assignment: &Assignment,
        attached: &Arc<Attached>,
    ) -> Result<(), AttachError> {
        let filters = &self.parts.filters;
        if attached.epoch().is_some() {
            let quarantined = filters.journals().quarantine_unowned(assignment).await?;
            quarantined.map_err(FilterNoteError::Journals)?;
        }
        filters.begin(assignment, attached).await?;
        attached.set_chain(assignment.chain.clone());
        let noted = filters.notes().note_served(attached, None).await?;
        noted.map_err(FilterNoteError::Note)?;
        if let Some(epoch) = attached.epoch() {
            let volume = assignment.volume;
            let noted = filters.notes().note_let_in(volume, epoch).await?;
            noted.map_err(FilterNoteError::Note)?;
        }
        Ok(())
    }

    /// Lets clients in.
    async fn offer(
        &self,
        assignment: &Assignment,
        attached: Arc<Attached>,
    ) -> Result<Arc<Attached>, AttachError> {
        let (server, export) = (&self.parts.server, attached.export().clone());
        if assignment.vm.is_none() {
            server.offer(assignment.id, export);
            return Ok(attached);
        }
        let socket = self.parts.context.folder.vm_socket(assignment.id);
        if let Err(error) = server.offer_alone(assignment.id, export, &socket) {
            // What it replayed is still in its journal.
            self.abandon(attached).await?;
            return Err(error.into());
        }
        // A VM that had the disk waits for it; if it cannot connect, plugging says why.
        if let Err(error) = self.parts.plugging.let_in(assignment, &socket) {
            tracing::warn!(attachment = %assignment.id, %error, "VM cannot connect to its disk");
        }
        Ok(attached)
    }

    /// Steps 5 and 6. On an error the journal keeps what was not destaged, and
    /// the next open replays it.
    ///
    /// # Errors
    /// [`AttachError`].
    pub async fn stop_and_close(
        &self,
        attached: Arc<Attached>,
        is_forced: bool,
    ) -> Result<(), AttachError> {
        self.parts.server.withdraw(attached.id(), attached.name());
        let clock = Arc::clone(&self.parts.context.world.clock);
        let (id, epoch, volume) = (attached.id(), attached.epoch(), attached.volume());
        let stopped = blocking(move || attached.stop(is_forced, clock)).await;
        self.parts.leases.release(id, epoch);
        stopped??;
        match epoch {
            Some(_) if !is_forced => self.check_filters_empty(volume).await,
            _ => Ok(()),
        }
    }

    /// Checks that the journals of a volume's filters are empty.
    ///
    /// # Errors
    /// [`VolumeError::Incomplete`], if they are not.
    pub async fn check_filters_empty(&self, volume: VolumeId) -> Result<(), AttachError> {
        let left = self.parts.filters.journals().with_content(volume).await?;
        let left = left.map_err(FilterNoteError::Journals)?;
        match left.is_empty() {
            true => Ok(()),
            false => Err(VolumeError::Incomplete(format!(
                "what was acknowledged by its filters ({}) is not carried out",
                left.join(", ")
            ))
            .into()),
        }
    }

    /// Stops to serve a volume. What it has not destaged stays in its journal.
    ///
    /// # Errors
    /// [`AttachError`].
    pub async fn abandon(&self, attached: Arc<Attached>) -> Result<(), AttachError> {
        self.parts.server.withdraw(attached.id(), attached.name());
        let (id, epoch) = (attached.id(), attached.epoch());
        // A volume whose lease has run out would wait for it.
        self.parts.leases.lose(id, epoch);
        let dropped = blocking(move || attached.drop_volume()).await;
        self.parts.leases.release(id, epoch);
        Ok(dropped??)
    }

    /// Makes the head of a volume that is not to be served its whole state:
    /// replays and destages a journal that a crash left. Returns the epoch of the lease it did
    /// that under.
    ///
    /// # Errors
    /// [`AttachError`].
    pub async fn settle(&self, assignment: &Assignment) -> Result<u32, AttachError> {
        let (leased, _) = self.lease(assignment).await?;
        let leased = LeasedVolume {
            is_taken_over: false,
            ..leased
        };
        let epoch = leased.lease.epoch;
        let parts = Arc::clone(&self.parts);
        let settled = blocking(move || {
            let closer = Closer::default();
            let wake = closer.wake(Wake::noop());
            let opened = open(&parts, leased, wake)?;
            Ok::<_, AttachError>(closer.close(opened, &*parts.context.world.clock)?)
        })
        .await;
        self.parts.leases.release(assignment.id, Some(epoch));
        settled?.map(|()| epoch)
    }

    /// Steps 1 and 2.
    async fn lease(
        &self,
        assignment: &Assignment,
    ) -> Result<(LeasedVolume, VolumeCache), AttachError> {
        let parts = &self.parts;
        // The lease is counted from before it was asked for.
        let asked = parts.context.world.clock.monotonic();
        let lease = self.acquire_with_key(assignment).await?;
        let epoch = lease.epoch;
        let since = parts
            .filters
            .notes()
            .note_lease(assignment.volume, epoch)
            .await?;
        let since = since.map_err(FilterNoteError::Note)?;
        let view = view(parts, assignment);
        let cache = VolumeCache::new(view, &lease.keys, assignment.image);
        let leased = LeasedVolume {
            term: parts.leases.hold(assignment, epoch, asked),
            lease,
            since,
            is_taken_over: assignment.fenced.is_some(),
            config: config(parts, assignment),
            cache: cache.view.clone(),
        };
        Ok((leased, cache))
    }

    /// A lease of a volume that has a key.
    async fn acquire_with_key(&self, assignment: &Assignment) -> Result<Lease, AttachError> {
        let parts = &self.parts;
        // Without the keys a lease is useless, and would fence the host that has the volume.
        let (reader, lineage) = (parts.reader.clone(), assignment.lineage);
        blocking(move || {
            let keys = reader.controller.keys(lineage)?;
            Ok::<_, AttachError>(reader.keys.check(&keys)?)
        })
        .await??;
        let journals = parts.shared_journals.as_ref().map(|shared| shared.id());
        let mut lease = parts.age.acquire(assignment.volume, journals).await?;
        let Some(own) = lease.keys.first_mut() else {
            return Err(AcquireError::ForeignKey.into());
        };
        if own.wrapped.is_some() {
            return Ok(lease);
        }
        // Only a volume that was never written has no key yet.
        let head = lease.head.as_ref();
        if head.is_some_and(|head| head.lineage == own.lineage) {
            return Err(AttachError::KeyLost);
        }
        let (given, lineage) = (Arc::clone(parts), own.lineage);
        let encryption = assignment.encryption;
        let (key, wrapped) = blocking(move || new_key(&given, lineage, encryption)).await??;
        let set = SetKey {
            volume: assignment.volume,
            lineage,
            key,
            wrapped: wrapped.clone(),
        };
        parts.controller.catalog(set).await?;
        own.wrapped = Some(wrapped);
        own.wrapped_by = Some(key);
        Ok(lease)
    }
}

/// Step 3. Waits.
fn open(parts: &OpenerParts, leased: LeasedVolume, wake: Wake) -> Result<Volume, AttachError> {
    let LeasedVolume { lease, term, .. } = leased;
    if !has_head_salt(&lease) {
        return Err(AttachError::SaltLost);
    }
    let world = &parts.context.world;
    let keyring = Arc::new(parts.reader.keys.keyring(&lease.keys)?);
    let shared = match &parts.shared_journals {
        Some(journals) => Some(journals.verified()?),
        None => None,
    };
    let (volume, epoch) = (lease.volume, lease.epoch);
    let local = parts.context.folder.journal(volume);
    let opened = Volume::open(OpenParams {
        world: world.clone(),
        wake,
        store: Arc::clone(&parts.reader.store),
        catalog: Arc::new(parts.controller.clone()),
        journal: JournalLocation::of(&lease, &local, shared),
        taken_over: leased.is_taken_over,
        term,
        lease,
        keyring,
        config: leased.config,
        pages: Arc::clone(&parts.reader.pages),
        cache: Some(leased.cache),
    });
    if let Some(shared) = shared {
        remove_unneeded_journals(parts, shared, volume, epoch, &opened);
    }
    Ok(opened?)
}

/// Removes the journals that are not needed since the one of lease `epoch` was
/// named, in the shared folder and in D; or that one, if the lease was lost before.
/// What is left, the next open removes.
fn remove_unneeded_journals(
    parts: &OpenerParts,
    shared: &SharedFolder,
    volume: VolumeId,
    epoch: u32,
    opened: &Result<Volume, OpenError>,
) {
    let world = &parts.context.world;
    let remove = |path: &Path| match world.disk.remove(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            tracing::warn!(path = %path.display(), %error, "journal was not removed");
        }
        _ => {}
    };
    match opened {
        Ok(_) => {
            if let Err(error) = shared.remove_before(world, volume, epoch) {
                let error = with_causes(&error);
                tracing::warn!(%volume, error, "older journals were not removed");
            }
            remove(&parts.context.folder.journal(volume));
        }
        Err(OpenError::Catalog(error)) if error.is_fenced() => {
            remove(&shared.journal(volume, epoch));
        }
        // It may be named, or does not exist.
        Err(_) => {}
    }
}

/// Whether the database has the salt of the lease that wrote the volume's head.
fn has_head_salt(lease: &Lease) -> bool {
    let Some(head) = &lease.head else { return true };
    let mut keys = lease.keys.iter();
    let has_salt = |(epoch, _): &(u32, _)| *epoch == head.epoch;
    keys.find(|key| key.lineage == head.lineage)
        .is_none_or(|key| key.salts.iter().any(has_salt))
}

/// Steps 3 and 4. Waits.
fn serve(
    parts: Arc<OpenerParts>,
    leased: LeasedVolume,
    options: ExportOptions,
) -> Result<Served, AttachError> {
    let closer = Closer::default();
    let wakes = closer.clone();
    let (send, receive) = mpsc::channel();
    let thread = ExportThread::spawn_watching(options, move |wake, watcher| {
        // The receiver may have stopped waiting.
        let _ = send.send(watcher);
        let wake = wakes.wake(wake);
        let volume = open(&parts, leased, wake.clone())?;
        let clock = Arc::clone(&parts.context.world.clock);
        Ok::<_, AttachError>(Chain::new(volume, clock, wake))
    })?;
    let watcher = receive.recv().map_err(|_| ExportEnded)?;
    Ok(Served::Writable {
        thread,
        closer,
        watcher,
    })
}

/// As [`serve`], of a version that stays as it is: without a lease and a journal.
fn serve_read_only(
    parts: &OpenerParts,
    assignment: &Assignment,
    options: ExportOptions,
) -> Result<Opened, AttachError> {
    let (mut kept, mut keys) = (None, Vec::new());
    let version = match assignment.version {
        None => None,
        Some(key) => {
            let found = parts.reader.find(key)?;
            (kept, keys) = (Some(found.kept), found.keys);
            Some((found.version, found.keyring))
        }
    };
    let reader = &parts.reader;
    let (store, pages) = (Arc::clone(&reader.store), Arc::clone(&reader.pages));
    let (size_bytes, block_size) = (assignment.size_bytes, assignment.block_size);
    let clock = Arc::clone(&parts.context.world.clock);
    let cache = VolumeCache::new(view(parts, assignment), &keys, assignment.image);
    let view = cache.view.clone();
    let (send, receive) = mpsc::channel();
    let thread = ExportThread::spawn_watching(options, move |wake, watcher| {
        // The receiver may have stopped waiting.
        let _ = send.send(watcher);
        let opened = ReadOnlyVolume::open(ReadOnlyParams {
            wake: wake.clone(),
            clock: Arc::clone(&clock),
            store,
            version,
            size_bytes,
            block_size,
            pages,
            cache: Some(view),
        });
        Ok::<_, AttachError>(Chain::new(opened?, clock, wake))
    })?;
    let watcher = receive.recv().map_err(|_| ExportEnded)?;
    Ok(Opened {
        served: Served::ReadOnly { thread, watcher },
        cache,
        lease: None,
        kept,
    })
}

/// The sizes and times of a volume: this host's, unless it has its own.
fn config(parts: &OpenerParts, assignment: &Assignment) -> VolumeConfig {
    let mut config = parts.volume_config;
    if let Some(bytes) = assignment.journal_bytes {
        config.journal_bytes = bytes.clamp(JOURNAL_BYTES_MIN, JOURNAL_BYTES_MAX);
    }
    config
}

/// A volume's view of this host's cache.
fn view(parts: &OpenerParts, assignment: &Assignment) -> CacheView {
    CacheView::new(Arc::clone(parts.caching.cache()), assignment.volume)
}

/// A new data key of a lineage, or the mark that it has none, and the wrapping key that wraps it.
/// Waits.
fn new_key(
    parts: &OpenerParts,
    lineage: Lineage,
    encryption: Encryption,
) -> Result<(KeyId, WrappedKey), AttachError> {
    if encryption == Encryption::None && !parts.allows_unencrypted {
        return Err(AttachError::Unencrypted);
    }
    let (id, key) = parts.reader.keys.newest()?;
    let random = &*parts.context.world.random;
    let wrapped = match encryption {
        Encryption::Aes256Gcm => key.wrap(lineage, &DataKey::generate(random))?,
        Encryption::None => key.wrap_none(lineage)?,
    };
    Ok((id, wrapped))
}
