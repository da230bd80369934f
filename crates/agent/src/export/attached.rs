//! [`Attached`]: an open volume, served in a thread of its own, and what is asked of it there.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use api::host::{BaseImage, DesiredChain};
use base::{AttachmentId, VolumeId};
use chain::{Chain, HotSwap};
use nbd::{Export, ExportEnded, ExportThread, Watcher};
use parking_lot::{Mutex, RwLock};
use volume::{ReadOnlyVolume, Volume, VolumeStatus};
use world::{Clock, Wake};

use super::{Closer, EventLog, VolumeCache, VolumeError};
use crate::context::blocking;
use crate::controller::KeptCapabilities;

/// An open volume of an attachment.
pub struct Attached {
    name: String,
    id: AttachmentId,
    volume: VolumeId,
    lease: Option<AttachedLease>,
    export: Export,
    /// The events of its filters, since there were any.
    events: OnceLock<Arc<EventLog>>,
    /// The number of the chain that it is served through, of whatever filters or none; 0: none was
    /// put in place yet.
    chain_turn: AtomicU64,
    /// That chain.
    chain: Mutex<Option<DesiredChain>>,
    /// Its thread, until it is stopped.
    served: RwLock<Option<Served>>,
    cache: VolumeCache,
    /// The capabilities of a volume without a lease.
    _kept: Option<KeptCapabilities>,
}

/// The lease that an attachment writes under.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AttachedLease {
    pub epoch: u32,
    /// How often the volume had gone back to a version by then, if the controllers say.
    pub restores: Option<u64>,
    /// The first of the leases, up to this one, that this host had one after the other without
    /// letting a client in.
    pub since: u32,
}

/// The thread that serves a volume.
pub(crate) enum Served {
    Writable {
        thread: ExportThread<Chain<Volume>>,
        closer: Closer,
        watcher: Watcher,
    },
    ReadOnly {
        thread: ExportThread<Chain<ReadOnlyVolume>>,
        watcher: Watcher,
    },
}

/// A volume that was just opened.
pub(crate) struct Opened {
    pub served: Served,
    pub cache: VolumeCache,
    /// The lease, if the volume can be written.
    pub lease: Option<AttachedLease>,
    /// The capabilities of a volume without a lease.
    pub kept: Option<KeptCapabilities>,
}

impl Served {
    fn export(&self) -> Export {
        match self {
            Self::Writable { thread, .. } => thread.export(),
            Self::ReadOnly { thread, .. } => thread.export(),
        }
    }
}

impl Attached {
    /// The open volume of the attachment `id`, which clients know by `name`.
    pub(crate) fn new(id: AttachmentId, volume: VolumeId, name: String, opened: Opened) -> Self {
        Self {
            name,
            id,
            volume,
            lease: opened.lease,
            export: opened.served.export(),
            events: OnceLock::new(),
            chain_turn: AtomicU64::new(0),
            chain: Mutex::default(),
            served: RwLock::new(Some(opened.served)),
            cache: opened.cache,
            _kept: opened.kept,
        }
    }

    pub(crate) fn id(&self) -> AttachmentId {
        self.id
    }

    pub(crate) fn volume(&self) -> VolumeId {
        self.volume
    }

    /// The name of its export.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn export(&self) -> &Export {
        &self.export
    }

    /// The lease, if the volume can be written.
    pub(crate) fn lease(&self) -> Option<AttachedLease> {
        self.lease
    }

    /// The lease's epoch, if the volume can be written.
    pub(crate) fn epoch(&self) -> Option<u32> {
        self.lease.map(|lease| lease.epoch)
    }

    /// The events of its filters, if it had any.
    pub(crate) fn events(&self) -> Option<&Arc<EventLog>> {
        self.events.get()
    }

    /// The events of its filters; `start` begins to log them.
    pub(crate) fn events_or_start(&self, start: impl FnOnce() -> EventLog) -> &Arc<EventLog> {
        self.events.get_or_init(|| Arc::new(start()))
    }

    /// The number of the chain that it is served through.
    pub(crate) fn chain_turn(&self) -> u64 {
        self.chain_turn.load(Ordering::Acquire)
    }

    pub(crate) fn set_chain_turn(&self, turn: u64) {
        self.chain_turn.store(turn, Ordering::Release);
    }

    /// The chain that it is served through.
    pub(crate) fn chain(&self) -> Option<DesiredChain> {
        self.chain.lock().clone()
    }

    pub(crate) fn set_chain(&self, chain: Option<DesiredChain>) {
        *self.chain.lock() = chain;
    }

    /// From now on it is a clone of this image, or the image itself.
    pub(crate) fn follow_image(&self, image: Option<BaseImage>) {
        self.cache.follow(image);
    }

    fn with<T>(
        &self,
        ask: impl FnOnce(&Served) -> Result<T, ExportEnded>,
    ) -> Result<T, ExportEnded> {
        let served = self.served.read();
        ask(served.as_ref().ok_or(ExportEnded)?)
    }

    /// Begins a hot swap of its filters, in its thread. Waits for the beginning, not for the end.
    pub(crate) fn hot_swap(
        &self,
        swap: impl FnOnce(Wake) -> HotSwap + Send + 'static,
    ) -> Result<(), ExportEnded> {
        self.with(|served| match served {
            Served::Writable { thread, .. } => {
                thread.call(|chain| chain.hot_swap(swap(chain.wake())))
            }
            Served::ReadOnly { thread, .. } => {
                thread.call(|chain| chain.hot_swap(swap(chain.wake())))
            }
        })
    }

    /// Watches descriptors for its filters, in its thread.
    pub(crate) fn watcher(&self) -> Result<Watcher, ExportEnded> {
        self.with(|served| match served {
            Served::Writable { watcher, .. } | Served::ReadOnly { watcher, .. } => {
                Ok(watcher.clone())
            }
        })
    }

    /// Publishes the geometry of the disk to new clients after a hot swap. Waits.
    pub(crate) fn publish(&self) -> Result<(), ExportEnded> {
        self.with(|served| match served {
            Served::Writable { thread, .. } => thread.call(|_| ()),
            Served::ReadOnly { thread, .. } => thread.call(|_| ()),
        })
    }

    fn take(&self) -> Result<Served, ExportEnded> {
        self.served.write().take().ok_or(ExportEnded)
    }

    /// Why the volume may not be used without its filters, if it may not.
    pub(crate) async fn missing_writes(self: &Arc<Self>) -> Result<Option<String>, VolumeError> {
        self.blocking(|attached| {
            attached.with(|served| match served {
                Served::Writable { thread, .. } => thread.call(|chain| chain.check_removable()),
                Served::ReadOnly { .. } => Ok(Ok(())),
            })
        })
        .await
        .map(Result::err)
    }

    /// Runs `action` on a volume that is open for writing, in its thread.
    pub(crate) async fn on_volume<T: Send + 'static>(
        self: &Arc<Self>,
        action: impl FnOnce(&mut Volume) -> T + Send + 'static,
    ) -> Result<T, VolumeError> {
        self.blocking(|attached| {
            attached.with(|served| match served {
                Served::Writable { thread, .. } => thread.call(|chain| action(chain.bottom())),
                Served::ReadOnly { .. } => Err(ExportEnded),
            })
        })
        .await
    }

    /// The status of its engine.
    pub(crate) async fn engine_status(self: &Arc<Self>) -> Result<VolumeStatus, VolumeError> {
        self.blocking(|attached| {
            attached.with(|served| match served {
                Served::Writable { thread, .. } => thread.call(|chain| chain.bottom().status()),
                Served::ReadOnly { thread, .. } => thread.call(|chain| chain.bottom().status()),
            })
        })
        .await
    }

    /// Whether its filters hide that the volume has grown.
    pub(crate) async fn hides_growth(self: &Arc<Self>) -> Result<bool, VolumeError> {
        self.blocking(|attached| {
            attached.with(|served| match served {
                Served::Writable { thread, .. } => thread.call(|chain| chain.hides_growth()),
                Served::ReadOnly { .. } => Ok(false),
            })
        })
        .await
    }

    async fn blocking<T: Send + 'static>(
        self: &Arc<Self>,
        ask: impl FnOnce(&Self) -> Result<T, ExportEnded> + Send + 'static,
    ) -> Result<T, VolumeError> {
        let attached = Arc::clone(self);
        Ok(blocking(move || ask(&attached)).await??)
    }

    /// Stops to serve the volume, and drops it: its journal keeps what was not destaged. Waits for
    /// calls under way.
    pub(crate) fn drop_volume(&self) -> Result<(), VolumeError> {
        match self.take()? {
            Served::Writable { thread, .. } => thread.stop(|chain, _| drop(chain))?,
            Served::ReadOnly { thread, .. } => thread.stop(|chain, _| drop(chain))?,
        }
        Ok(())
    }

    /// Stops to serve the volume, and destages everything; does not destage if the volume is
    /// missing writes that its filters have, unless `is_forced`. Waits for calls under way, and
    /// for the destage.
    pub(crate) fn stop(&self, is_forced: bool, clock: Arc<dyn Clock>) -> Result<(), VolumeError> {
        match self.take()? {
            Served::Writable { thread, closer, .. } => thread.stop(move |chain, stopped| {
                if let Err(error) = stopped.flushed {
                    tracing::warn!(%error, "last flush of a volume failed");
                }
                // The last flush may be what it could not carry out.
                if let (Err(why), false) = (chain.check_removable(), is_forced) {
                    return Err(VolumeError::Incomplete(why));
                }
                closer.close(chain.into_bottom(), &*clock)
            })?,
            Served::ReadOnly { thread, .. } => Ok(thread.stop(|chain, _| drop(chain))?),
        }
    }
}
