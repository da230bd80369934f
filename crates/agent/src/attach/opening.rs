//! Opening the engine of a volume, on the thread that serves it: steps 3 and 4 of `opener`. All
//! functions that say so block.
//!
//! Must not know: how a lease is acquired, when clients are admitted.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::{Arc, mpsc};

use api::host::{Assignment, Encryption};
use base::{KeyId, Lineage, VolumeId, with_causes};
use catalog::{JOURNAL_BYTES_MAX, JOURNAL_BYTES_MIN, Lease, WrappedKey};
use chain::Chain;
use nbd::{ExportEnded, ExportOptions, ExportThread};
use volume::journal::{JournalLocation, SharedFolder};
use volume::scatter::CacheView;
use volume::seal::DataKey;
use volume::{
    LeaseTerm, OpenError, OpenParams, ReadOnlyParams, ReadOnlyVolume, Volume, VolumeConfig,
};
use world::Wake;

use super::{AttachError, OpenerParts};
use crate::export::{Closer, Opened, Served, VolumeCache};
use crate::keys::KeyProvider as _;

/// An acquired lease, and what opening a volume under it needs.
pub(super) struct LeasedVolume {
    pub lease: Lease,
    pub term: LeaseTerm,
    /// Epoch of the first of the consecutive leases of this host under which no client was
    /// admitted.
    pub since: u32,
    /// Another host had the volume last.
    pub is_taken_over: bool,
    pub config: VolumeConfig,
    pub cache: CacheView,
}

/// Runs step 3. Blocks.
pub(super) fn open(
    parts: &OpenerParts,
    leased: LeasedVolume,
    wake: Wake,
) -> Result<Volume, AttachError> {
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

/// Removes the journals in the shared folder and the data directory that are obsolete since the
/// journal of lease `epoch` was named; or that journal, if the lease was lost before. The next open
/// removes what is left.
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
            tracing::warn!(path = %path.display(), %error, "agent could not remove journal");
        }
        _ => {}
    };
    match opened {
        Ok(_) => {
            if let Err(error) = shared.remove_before(world, volume, epoch) {
                let error = with_causes(&error);
                tracing::warn!(%volume, error, "agent could not remove older journals");
            }
            remove(&parts.context.folder.journal(volume));
        }
        Err(OpenError::Catalog(error)) if error.is_fenced() => {
            remove(&shared.journal(volume, epoch));
        }
        // The catalog may name the journal, or it does not exist.
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

/// Runs steps 3 and 4. Blocks.
pub(super) fn serve(
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

/// Serves a version read-only, without a lease and a journal.
pub(super) fn serve_read_only(
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

/// The configuration of a volume: the host's default with the volume's own settings.
pub(super) fn config(parts: &OpenerParts, assignment: &Assignment) -> VolumeConfig {
    let mut config = parts.volume_config;
    if let Some(bytes) = assignment.journal_bytes {
        config.journal_bytes = bytes.clamp(JOURNAL_BYTES_MIN, JOURNAL_BYTES_MAX);
    }
    config
}

/// A volume's view of this host's cache.
pub(super) fn view(parts: &OpenerParts, assignment: &Assignment) -> CacheView {
    CacheView::new(Arc::clone(parts.caching.cache()), assignment.volume)
}

/// Creates the data key of a lineage, or the mark that it has none. Returns it wrapped, with the id
/// of the wrapping key. Blocks.
pub(super) fn new_key(
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
