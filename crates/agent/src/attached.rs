//! [`Attached`]: an open volume, served in a thread of its own, and what is asked of it there.
//! `opening`: how it comes to be, and ends; `image`: what of it is a base image's.

mod image;
mod opening;

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use api::host::{ImageOf, WantedChain};
use base::{AttachmentId, VolumeId};
use chain::{Chain, Exchange};
use nbd::{Export, ExportGone, ExportThread, Watcher};
use volume::{ReadOnlyVolume, Volume, VolumeStatus};
use world::{Clock, Wake};

use crate::agent::{Agent, blocking};
use crate::capability_cache::Kept;
use crate::closer::Closer;
use crate::events::EventLog;

pub(crate) use image::VolumeCache;
pub use opening::AttachError;

/// A volume that is attached here, and served.
pub struct Attached {
    pub(crate) name: String,
    id: AttachmentId,
    volume: VolumeId,
    /// Its lease's epoch, if it can be written.
    pub(crate) epoch: Option<u32>,
    /// How often it had gone back to a version by then, if the controllers say.
    pub(crate) restores: Option<u64>,
    /// The door for connections.
    pub(crate) export: Export,
    /// What its filters tell, since there were any.
    pub(crate) events: OnceLock<Arc<EventLog>>,
    /// Since which one this host has had all leases up to its own, and let nobody in.
    pub(crate) since: Option<u32>,
    /// The number of the chain that it is served through, of whatever filters or none; 0: none
    /// was put in place yet.
    pub(crate) chain_turn: AtomicU64,
    /// That chain.
    pub(crate) chain: Mutex<Option<WantedChain>>,
    /// Its thread, until it is told to stop.
    served: RwLock<Option<Served>>,
    /// Its way through the host's cache.
    cache: VolumeCache,
    /// What is read without a lease, on unit daemons.
    _kept: Option<Kept>,
}

/// What is served, in a thread of its own.
enum Served {
    Writable {
        thread: ExportThread<Chain<Volume>>,
        closer: Closer,
        watcher: Watcher,
    },
    ReadOnly(ExportThread<Chain<ReadOnlyVolume>>, Watcher),
}

impl Served {
    fn export(&self) -> Export {
        match self {
            Self::Writable { thread, .. } => thread.export(),
            Self::ReadOnly(thread, _) => thread.export(),
        }
    }
}

impl Attached {
    fn new(
        (id, volume): (AttachmentId, VolumeId),
        (epoch, since, restores): (Option<u32>, Option<u32>, Option<u64>),
        name: String,
        (served, kept, cache): (Served, Option<Kept>, VolumeCache),
    ) -> Self {
        Self {
            name,
            id,
            volume,
            epoch,
            restores,
            since,
            export: served.export(),
            events: OnceLock::new(),
            chain_turn: AtomicU64::new(0),
            chain: Mutex::default(),
            served: RwLock::new(Some(served)),
            cache,
            _kept: kept,
        }
    }

    /// Which one it is.
    pub(crate) fn volume(&self) -> VolumeId {
        self.volume
    }

    /// It is a clone of this image, or this image, from now on.
    pub(crate) fn follow_image(&self, image: Option<ImageOf>) {
        self.cache.follow(image);
    }

    fn with<T>(&self, ask: impl FnOnce(&Served) -> Result<T, ExportGone>) -> Result<T, ExportGone> {
        let served = self.served.read().unwrap_or_else(PoisonError::into_inner);
        ask(served.as_ref().ok_or(ExportGone)?)
    }

    /// Runs `action` on a volume that is open for writing, in its thread.
    /// Waits.
    fn call<T: Send + 'static>(
        &self,
        action: impl FnOnce(&mut Volume) -> T + Send + 'static,
    ) -> Result<T, ExportGone> {
        self.with(|served| match served {
            Served::Writable { thread, .. } => thread.call(|chain| action(chain.bottom())),
            Served::ReadOnly(..) => Err(ExportGone),
        })
    }

    /// How its engine is doing. Waits.
    fn status(&self) -> Result<VolumeStatus, ExportGone> {
        self.with(|served| match served {
            Served::Writable { thread, .. } => thread.call(|chain| chain.bottom().status()),
            Served::ReadOnly(thread, _) => thread.call(|chain| chain.bottom().status()),
        })
    }

    /// Begins to exchange its filters, in its thread. Waits for that, and not for the end.
    pub(crate) fn exchange(
        &self,
        exchange: impl FnOnce(Wake) -> Exchange + Send + 'static,
    ) -> Result<(), ExportGone> {
        self.with(|served| match served {
            Served::Writable { thread, .. } => {
                thread.call(|chain| chain.exchange(exchange(chain.wake())))
            }
            Served::ReadOnly(thread, _) => {
                thread.call(|chain| chain.exchange(exchange(chain.wake())))
            }
        })
    }

    /// Whether the volume has all that was written through its filters; if not, why. Waits.
    pub(crate) fn may_leave(&self) -> Result<Result<(), String>, ExportGone> {
        self.with(|served| match served {
            Served::Writable { thread, .. } => thread.call(|chain| chain.may_leave()),
            Served::ReadOnly(..) => Ok(Ok(())),
        })
    }

    /// Whether its filters do not show that it has grown. Waits.
    fn hides_growth(&self) -> Result<bool, ExportGone> {
        self.with(|served| match served {
            Served::Writable { thread, .. } => thread.call(|chain| chain.hides_growth()),
            Served::ReadOnly(..) => Ok(false),
        })
    }

    /// Watches descriptors for its filters, in its thread.
    pub(crate) fn watcher(&self) -> Result<Watcher, ExportGone> {
        self.with(|served| match served {
            Served::Writable { watcher, .. } | Served::ReadOnly(_, watcher) => Ok(watcher.clone()),
        })
    }

    /// Lets new clients know what the disk is like after an exchange. Waits.
    pub(crate) fn publish(&self) -> Result<(), ExportGone> {
        self.with(|served| match served {
            Served::Writable { thread, .. } => thread.call(|_| ()),
            Served::ReadOnly(thread, _) => thread.call(|_| ()),
        })
    }

    fn take(&self) -> Result<Served, ExportGone> {
        let mut served = self.served.write().unwrap_or_else(PoisonError::into_inner);
        served.take().ok_or(ExportGone)
    }

    /// Step 5, and no more. Waits for calls under way.
    fn drop_volume(&self) -> Result<(), AttachError> {
        match self.take()? {
            Served::Writable { thread, .. } => thread.stop(|chain, _| drop(chain))?,
            Served::ReadOnly(thread, _) => thread.stop(|chain, _| drop(chain))?,
        }
        Ok(())
    }

    /// Steps 5 and 6; not 6 if the volume lacks what its filters have, unless `is_forced`.
    /// Waits: for calls under way, and for the destage.
    fn stop(&self, is_forced: bool, clock: Arc<dyn Clock>) -> Result<(), AttachError> {
        match self.take()? {
            Served::Writable { thread, closer, .. } => thread.stop(move |chain, stopped| {
                if let Err(error) = stopped.flushed {
                    tracing::warn!(%error, "the last flush failed");
                }
                // It may have been the last flush that it could not carry out.
                if let (Err(why), false) = (chain.may_leave(), is_forced) {
                    return Err(AttachError::Lacks(why));
                }
                closer.close(chain.into_bottom(), &*clock)
            })?,
            Served::ReadOnly(thread, _) => Ok(thread.stop(|chain, _| drop(chain))?),
        }
    }
}

impl Agent {
    /// Why the volume may not be used without its filters, if it may not.
    pub(crate) async fn lacking(
        &self,
        attached: &Arc<Attached>,
    ) -> Result<Option<String>, AttachError> {
        let attached = Arc::clone(attached);
        Ok(blocking(move || attached.may_leave()).await??.err())
    }

    /// Runs `action` on a volume that is open for writing, in its thread.
    pub(crate) async fn on_volume<T: Send + 'static>(
        &self,
        attached: &Arc<Attached>,
        action: impl FnOnce(&mut Volume) -> T + Send + 'static,
    ) -> Result<T, AttachError> {
        let attached = Arc::clone(attached);
        Ok(blocking(move || attached.call(action)).await??)
    }

    /// How an open volume's engine is doing.
    pub(crate) async fn engine_status(
        &self,
        attached: &Arc<Attached>,
    ) -> Result<VolumeStatus, AttachError> {
        let attached = Arc::clone(attached);
        Ok(blocking(move || attached.status()).await??)
    }

    /// Whether the filters of a volume do not show that it has grown.
    pub(crate) async fn hides_growth(&self, attached: &Arc<Attached>) -> Result<bool, AttachError> {
        let attached = Arc::clone(attached);
        Ok(blocking(move || attached.hides_growth()).await??)
    }
}
