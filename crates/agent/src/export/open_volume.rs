//! [`OpenVolume`]: an open volume that a thread of its own serves, and requests to that thread.

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
pub struct OpenVolume {
    name: String,
    id: AttachmentId,
    volume: VolumeId,
    lease: Option<AttachmentLease>,
    export: Export,
    /// The events of its filters; set when it first has filters.
    events: OnceLock<Arc<EventLog>>,
    /// The number of the chain through which it is served, also of an empty chain; 0: none is
    /// installed yet.
    chain_turn: AtomicU64,
    /// The chain through which it is served.
    chain: Mutex<Option<DesiredChain>>,
    /// The thread that serves it, until it is stopped.
    served: RwLock<Option<Served>>,
    cache: VolumeCache,
    /// Capabilities of a volume without a lease.
    _kept: Option<KeptCapabilities>,
}

/// The lease under which an attachment writes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AttachmentLease {
    pub epoch: u32,
    /// How often the volume had been restored to a version when the lease was granted, if the
    /// controllers report that.
    pub restores: Option<u64>,
    /// Epoch of the first of the consecutive leases, up to this one, of this host under which no
    /// client was admitted.
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

/// A newly opened volume.
pub(crate) struct Opened {
    pub served: Served,
    pub cache: VolumeCache,
    /// The lease of a writable volume.
    pub lease: Option<AttachmentLease>,
    /// Capabilities of a volume without a lease.
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

impl OpenVolume {
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

    /// The lease of a writable volume.
    pub(crate) fn lease(&self) -> Option<AttachmentLease> {
        self.lease
    }

    /// The epoch of the lease of a writable volume.
    pub(crate) fn epoch(&self) -> Option<u32> {
        self.lease.map(|lease| lease.epoch)
    }

    /// The events of its filters; `None` if it never had filters.
    pub(crate) fn events(&self) -> Option<&Arc<EventLog>> {
        self.events.get()
    }

    /// The events of its filters; `start` creates the log if there is none.
    pub(crate) fn events_or_start(&self, start: impl FnOnce() -> EventLog) -> &Arc<EventLog> {
        self.events.get_or_init(|| Arc::new(start()))
    }

    /// The number of the chain through which it is served.
    pub(crate) fn chain_turn(&self) -> u64 {
        self.chain_turn.load(Ordering::Acquire)
    }

    pub(crate) fn set_chain_turn(&self, turn: u64) {
        self.chain_turn.store(turn, Ordering::Release);
    }

    /// The chain through which it is served.
    pub(crate) fn chain(&self) -> Option<DesiredChain> {
        self.chain.lock().clone()
    }

    pub(crate) fn set_chain(&self, chain: Option<DesiredChain>) {
        *self.chain.lock() = chain;
    }

    /// Sets the image that the volume is a clone of, or is itself.
    pub(crate) fn follow_image(&self, image: Option<BaseImage>) {
        self.cache.follow(image);
    }

    fn with<T>(
        &self,
        action: impl FnOnce(&Served) -> Result<T, ExportEnded>,
    ) -> Result<T, ExportEnded> {
        let served = self.served.read();
        action(served.as_ref().ok_or(ExportEnded)?)
    }

    /// Begins a hot swap of its filters, in its thread. Waits for the begin, not for the end.
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

    /// The watcher of file descriptors for its filters, in its thread.
    pub(crate) fn watcher(&self) -> Result<Watcher, ExportEnded> {
        self.with(|served| match served {
            Served::Writable { watcher, .. } | Served::ReadOnly { watcher, .. } => {
                Ok(watcher.clone())
            }
        })
    }

    /// Publishes the geometry of the disk to new clients after a hot swap. Blocks.
    pub(crate) fn publish(&self) -> Result<(), ExportEnded> {
        self.with(|served| match served {
            Served::Writable { thread, .. } => thread.call(|_| ()),
            Served::ReadOnly { thread, .. } => thread.call(|_| ()),
        })
    }

    fn take(&self) -> Result<Served, ExportEnded> {
        self.served.write().take().ok_or(ExportEnded)
    }

    /// The writes of its filters that the volume is missing, as a sentence; `None` if it has all.
    pub(crate) async fn missing_writes(self: &Arc<Self>) -> Result<Option<String>, VolumeError> {
        self.blocking(|open_volume| {
            open_volume.with(|served| match served {
                Served::Writable { thread, .. } => thread.call(|chain| chain.check_removable()),
                Served::ReadOnly { .. } => Ok(Ok(())),
            })
        })
        .await
        .map(Result::err)
    }

    /// Runs `action` on a writable volume, in its thread.
    pub(crate) async fn on_volume<T: Send + 'static>(
        self: &Arc<Self>,
        action: impl FnOnce(&mut Volume) -> T + Send + 'static,
    ) -> Result<T, VolumeError> {
        self.blocking(|open_volume| {
            open_volume.with(|served| match served {
                Served::Writable { thread, .. } => thread.call(|chain| action(chain.bottom())),
                Served::ReadOnly { .. } => Err(ExportEnded),
            })
        })
        .await
    }

    /// The status of its engine.
    pub(crate) async fn engine_status(self: &Arc<Self>) -> Result<VolumeStatus, VolumeError> {
        self.blocking(|open_volume| {
            open_volume.with(|served| match served {
                Served::Writable { thread, .. } => thread.call(|chain| chain.bottom().status()),
                Served::ReadOnly { thread, .. } => thread.call(|chain| chain.bottom().status()),
            })
        })
        .await
    }

    /// Whether its filters hide that the volume has grown.
    pub(crate) async fn hides_growth(self: &Arc<Self>) -> Result<bool, VolumeError> {
        self.blocking(|open_volume| {
            open_volume.with(|served| match served {
                Served::Writable { thread, .. } => thread.call(|chain| chain.hides_growth()),
                Served::ReadOnly { .. } => Ok(false),
            })
        })
        .await
    }

    async fn blocking<T: Send + 'static>(
        self: &Arc<Self>,
        action: impl FnOnce(&Self) -> Result<T, ExportEnded> + Send + 'static,
    ) -> Result<T, VolumeError> {
        let open_volume = Arc::clone(self);
        Ok(blocking(move || action(&open_volume)).await??)
    }

    /// Stops serving the volume, and drops it: its journal holds the writes that are not destaged.
    /// Waits for calls in progress.
    pub(crate) fn drop_volume(&self) -> Result<(), VolumeError> {
        match self.take()? {
            Served::Writable { thread, .. } => thread.stop(|chain, _| drop(chain))?,
            Served::ReadOnly { thread, .. } => thread.stop(|chain, _| drop(chain))?,
        }
        Ok(())
    }

    /// Stops serving the volume, and destages everything. Does not destage if the volume is missing
    /// writes of its filters, unless `is_forced`. Waits for calls in progress and for the destage.
    pub(crate) fn stop(&self, is_forced: bool, clock: Arc<dyn Clock>) -> Result<(), VolumeError> {
        match self.take()? {
            Served::Writable { thread, closer, .. } => thread.stop(move |chain, stopped| {
                if let Err(error) = stopped.flushed {
                    tracing::warn!(%error, "agent could not flush volume a last time");
                }
                // The last flush may have failed for that reason.
                if let (Err(why), false) = (chain.check_removable(), is_forced) {
                    return Err(VolumeError::Incomplete(why));
                }
                closer.close(chain.into_bottom(), &*clock)
            })?,
            Served::ReadOnly { thread, .. } => Ok(thread.stop(|chain, _| drop(chain))?),
        }
    }
}
