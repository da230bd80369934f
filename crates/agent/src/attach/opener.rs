//! [`VolumeOpener`]: acquires a lease, opens and serves a volume under it, and closes the volume.
//!
//! ```text
//!  1. lease     a new epoch, which is noted on the units; the host that had the volume
//!               is fenced. From now on its journal may be newer than the head
//!  2. key       created by the first host that opens the volume
//!  3. open      replay the journal
//!  4. serve     over NBD, through the filters of its chain: clients are admitted when all
//!               filters have started
//!  5. stop      no more requests
//!  6. close     destage everything: the head is the volume's whole state again
//! ```
//!
//! After a crash in between, the attachment has an epoch, and the next open replays the journal.
//!
//! Must not know: the desired state; the worker decides by it.

use std::sync::Arc;

use api::host::catalog_calls::SetKey;
use api::host::{Access, Assignment};
use base::VolumeId;
use catalog::{Catalog as _, Lease};
use nbd::ExportOptions;
use volume::VolumeConfig;
use world::Wake;

use super::AttachError;
use super::opening::{LeasedVolume, config, new_key, open, serve, serve_read_only, view};
use crate::background::VersionReader;
use crate::cache::Caching;
use crate::context::{HostContext, Shutdown, blocking};
use crate::controller::Controller;
use crate::export::{
    AttachmentLease, Closer, NbdServer, OpenVolume, Opened, VolumeCache, VolumeError,
};
use crate::filters::{FilterNoteError, Filters};
use crate::journals::SharedJournals;
use crate::lease::{AcquireError, DatabaseAge, Leases};
use crate::vm::Plugging;

/// The parts of the agent that a [`VolumeOpener`] uses.
#[derive(Clone)]
pub(crate) struct OpenerParts {
    pub context: Arc<HostContext>,
    pub controller: Controller,
    pub shutdown: Shutdown,
    /// The keys, the store and the memory for map pages.
    pub reader: VersionReader,
    pub caching: Arc<Caching>,
    /// The shared folder of journals; `None`: journals are in the data directory.
    pub shared_journals: Option<Arc<SharedJournals>>,
    pub leases: Arc<Leases>,
    pub age: Arc<DatabaseAge>,
    pub filters: Arc<Filters>,
    pub server: Arc<NbdServer>,
    pub plugging: Arc<Plugging>,
    /// Unencrypted volumes may be written.
    pub allows_unencrypted: bool,
    /// The default configuration of a volume.
    pub volume_config: VolumeConfig,
}

/// Opens and closes volumes. Cheap to clone.
#[derive(Clone)]
pub(crate) struct VolumeOpener {
    parts: Arc<OpenerParts>,
}

impl VolumeOpener {
    pub fn new(parts: OpenerParts) -> Self {
        Self {
            parts: Arc::new(parts),
        }
    }

    /// Runs steps 1 to 4, or 3 and 4 for a read-only attachment. The volume starts with the filters
    /// through which its clients know it.
    ///
    /// # Errors
    /// [`AttachError`].
    pub async fn open_and_serve(
        &self,
        assignment: &Assignment,
    ) -> Result<Arc<OpenVolume>, AttachError> {
        let parts = &self.parts;
        if parts.shutdown.has_begun() {
            return Err(AttachError::ShuttingDown);
        }
        let assignment = &Assignment {
            chain: parts.filters.notes().first_chain(assignment).await?,
            ..assignment.clone()
        };
        // The disk of a VM keeps its name when the volume is renamed.
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
        let open_volume = Arc::new(OpenVolume::new(id, volume, name, opened));
        if let Err(error) = self.begin_filters(assignment, &open_volume).await {
            self.abandon(open_volume).await?;
            return Err(error);
        }
        self.offer(assignment, open_volume).await
    }

    /// Runs steps 1 to 3.
    async fn open_writable(
        &self,
        assignment: &Assignment,
        options: ExportOptions,
    ) -> Result<Opened, AttachError> {
        let (leased, cache) = self.lease(assignment).await?;
        let lease = AttachmentLease {
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

    /// Runs step 3 for a read-only version, without a lease and a journal.
    async fn open_read_only(
        &self,
        assignment: &Assignment,
        options: ExportOptions,
    ) -> Result<Opened, AttachError> {
        let (parts, assignment) = (Arc::clone(&self.parts), assignment.clone());
        blocking(move || serve_read_only(&parts, &assignment, options)).await?
    }

    /// Starts the first filters.
    async fn begin_filters(
        &self,
        assignment: &Assignment,
        open_volume: &Arc<OpenVolume>,
    ) -> Result<(), AttachError> {
        let filters = &self.parts.filters;
        if open_volume.epoch().is_some() {
            let quarantined = filters.journals().quarantine_unowned(assignment).await?;
            quarantined.map_err(FilterNoteError::Journals)?;
        }
        filters.begin(assignment, open_volume).await?;
        open_volume.set_chain(assignment.chain.clone());
        let noted = filters.notes().note_served(open_volume, None).await?;
        noted.map_err(FilterNoteError::Note)?;
        if let Some(epoch) = open_volume.epoch() {
            let volume = assignment.volume;
            let noted = filters.notes().note_admission(volume, epoch).await?;
            noted.map_err(FilterNoteError::Note)?;
        }
        Ok(())
    }

    /// Admits clients.
    async fn offer(
        &self,
        assignment: &Assignment,
        open_volume: Arc<OpenVolume>,
    ) -> Result<Arc<OpenVolume>, AttachError> {
        let (server, export) = (&self.parts.server, open_volume.export().clone());
        if assignment.vm.is_none() {
            server.offer(assignment.id, export);
            return Ok(open_volume);
        }
        let socket = self.parts.context.folder.vm_socket(assignment.id);
        if let Err(error) = server.offer_alone(assignment.id, export, &socket) {
            // The writes that it replayed are still in its journal.
            self.abandon(open_volume).await?;
            return Err(error.into());
        }
        // A VM that had the disk waits for it. If it cannot connect, plugging reports why.
        if let Err(error) = self.parts.plugging.allow_vm(assignment, &socket) {
            tracing::warn!(attachment = %assignment.id, %error, "VM cannot connect to its disk");
        }
        Ok(open_volume)
    }

    /// Runs steps 5 and 6. After an error the journal holds the writes that are not destaged, and
    /// the next open replays it.
    ///
    /// # Errors
    /// [`AttachError`].
    pub async fn stop_and_close(
        &self,
        open_volume: Arc<OpenVolume>,
        is_forced: bool,
    ) -> Result<(), AttachError> {
        self.parts
            .server
            .withdraw(open_volume.id(), open_volume.name());
        let clock = Arc::clone(&self.parts.context.world.clock);
        let (id, epoch, volume) = (open_volume.id(), open_volume.epoch(), open_volume.volume());
        let stopped = blocking(move || open_volume.stop(is_forced, clock)).await;
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
    /// [`VolumeError::Incomplete`] if one is not empty.
    pub async fn check_filters_empty(&self, volume: VolumeId) -> Result<(), AttachError> {
        let left = self.parts.filters.journals().with_content(volume).await?;
        let left = left.map_err(FilterNoteError::Journals)?;
        match left.is_empty() {
            true => Ok(()),
            false => Err(VolumeError::Incomplete(format!(
                "writes that its filters acknowledged ({}) are not applied",
                left.join(", ")
            ))
            .into()),
        }
    }

    /// Stops serving a volume. Writes that it has not destaged stay in its journal.
    ///
    /// # Errors
    /// [`AttachError`].
    pub async fn abandon(&self, open_volume: Arc<OpenVolume>) -> Result<(), AttachError> {
        self.parts
            .server
            .withdraw(open_volume.id(), open_volume.name());
        let (id, epoch) = (open_volume.id(), open_volume.epoch());
        // A volume whose lease has expired would wait for the next one.
        self.parts.leases.lose(id, epoch);
        let dropped = blocking(move || open_volume.drop_volume()).await;
        self.parts.leases.release(id, epoch);
        Ok(dropped??)
    }

    /// Makes the head of a closed volume its whole state: replays and destages a journal that a
    /// crash left. Returns the epoch of the lease used for that.
    ///
    /// # Errors
    /// [`AttachError`].
    pub async fn destage_journal(&self, assignment: &Assignment) -> Result<u32, AttachError> {
        let (leased, _) = self.lease(assignment).await?;
        let leased = LeasedVolume {
            is_taken_over: false,
            ..leased
        };
        let epoch = leased.lease.epoch;
        let parts = Arc::clone(&self.parts);
        let destaged = blocking(move || {
            let closer = Closer::default();
            let wake = closer.wake(Wake::noop());
            let opened = open(&parts, leased, wake)?;
            Ok::<_, AttachError>(closer.close(opened, &*parts.context.world.clock)?)
        })
        .await;
        self.parts.leases.release(assignment.id, Some(epoch));
        destaged?.map(|()| epoch)
    }

    /// Runs steps 1 and 2.
    async fn lease(
        &self,
        assignment: &Assignment,
    ) -> Result<(LeasedVolume, VolumeCache), AttachError> {
        let parts = &self.parts;
        // The lease is counted from before the request.
        let requested = parts.context.world.clock.monotonic();
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
            term: parts.leases.hold(assignment, epoch, requested),
            lease,
            since,
            is_taken_over: assignment.fenced.is_some(),
            config: config(parts, assignment),
            cache: cache.view.clone(),
        };
        Ok((leased, cache))
    }

    /// Acquires a lease of a volume that has a key, or creates its key.
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
        let (key_parts, lineage) = (Arc::clone(parts), own.lineage);
        let encryption = assignment.encryption;
        let (key, wrapped) = blocking(move || new_key(&key_parts, lineage, encryption)).await??;
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
