//! Attaching volumes: from a row in the database to a device that is served,
//! and back.
//!
//! ```text
//!  1. note      volumes.attached: the journal may be newer than the head
//!  2. lease     a new epoch; whoever had the volume is fenced
//!  3. open      replay the journal
//!  4. serve     over NBD
//!  5. stop      no more requests
//!  6. close     destage everything
//!  7. note      the head is the volume's state again
//! ```
//!
//! A crash anywhere in between leaves `attached` set: the next open replays.
//! All of it happens behind the volume's door.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use base::{BlockDevice, IoError, VolumeId};
use frontend::nbd::{Export, ExportGone, ExportOptions, ExportThread, SpawnError};
use tokio::task::JoinSet;
use volume::catalog::CatalogError;
use volume::seal::{KeyError, Keyring};
use volume::{OpenError, OpenParams, Volume, VolumeStatus};
use world::{Clock, Wake};

use crate::control::{Control, Inner, blocking, lock};
use crate::database::{Access, DatabaseError, VolumeRow};
use crate::error::ControlError;

/// How often a volume that is closing, and has no owner's loop any more, is
/// polled.
const CLOSE_TICK: Duration = Duration::from_millis(1);

/// A close that has got nowhere for so long, because no unit takes what it
/// has, is given up: the journal keeps it.
const CLOSE_STALL_MAX: Duration = Duration::from_secs(15);

/// A volume that is attached here, and served.
pub struct Attached {
    pub(crate) access: Access,
    pub(crate) name: String,
    pub(crate) thread: ExportThread<Volume>,
}

impl Attached {
    /// The door for connections.
    pub(crate) fn export(&self) -> Export {
        self.thread.export()
    }
}

/// Why a volume could not be attached, or closed.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The lease was not to be had.
    #[error("no lease: {0}")]
    Lease(#[from] CatalogError),
    /// The keys do not open.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The engine could not open it.
    #[error("{}", with_causes(.0))]
    Open(#[from] OpenError),
    /// No thread could be had for it.
    #[error("no thread could be started for it: {0}")]
    Thread(std::io::Error),
    /// The engine had to stop.
    #[error("the engine stopped: {0}")]
    Stopped(#[from] IoError),
    /// No unit takes what it has.
    #[error("it cannot destage: {0}")]
    Stalled(String),
    /// Its thread ended.
    #[error(transparent)]
    Gone(#[from] ExportGone),
}

/// An error and what it came from, in one line.
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

/// Steps 2 and 3. Waits.
fn open(inner: &Inner, volume: VolumeId, wake: Wake) -> Result<Volume, AttachError> {
    let lease = inner.catalog.acquire(volume)?;
    let keyring = Arc::new(Keyring::unwrap(&lease.keys, &inner.key)?);
    Ok(Volume::open(OpenParams {
        world: inner.world.clone(),
        wake,
        store: Arc::clone(&inner.store),
        catalog: Arc::clone(&inner.catalog),
        lease,
        keyring,
        journal: inner.folder.journal(volume),
        config: inner.volume_config,
    })?)
}

/// Step 6. Waits for the destage.
fn close(mut volume: Volume, clock: &dyn Clock) -> Result<(), AttachError> {
    let mut completions = Vec::new();
    let mut left_bytes = u64::MAX;
    let mut moved = clock.monotonic();
    volume.begin_close();
    loop {
        volume.poll(&mut completions);
        completions.clear();
        volume.commit()?;
        if let Some(closed) = volume.close_state() {
            return Ok(closed?);
        }
        let status = volume.status();
        if status.journal_used_bytes < left_bytes {
            left_bytes = status.journal_used_bytes;
            moved = clock.monotonic();
        } else if let Some(why) = status.destage_error
            && clock.monotonic() - moved > CLOSE_STALL_MAX
        {
            return Err(AttachError::Stalled(why));
        }
        // Jobs that end wake a loop that is gone: ask again soon.
        thread::park_timeout(CLOSE_TICK);
    }
}

impl Control {
    /// Steps 1 to 4. The caller is behind the volume's door, and the volume is
    /// not attached here.
    pub(crate) async fn attach(
        &self,
        row: &VolumeRow,
        access: Access,
    ) -> Result<Arc<Attached>, ControlError> {
        let inner = Arc::clone(&self.inner);
        let (volume, name) = (row.id, row.name.clone());
        self.inner.database.set_attached(volume).await?;
        let opened = blocking(move || {
            let options = ExportOptions {
                description: volume.to_string(),
                read_only: access == Access::ReadOnly,
                ..ExportOptions::new(name.clone(), Arc::clone(&inner.world.clock))
            };
            let thread = ExportThread::spawn(options, move |wake| open(&inner, volume, wake))
                .map_err(|error| match error {
                    SpawnError::Device(error) => error,
                    SpawnError::Thread(error) => AttachError::Thread(error),
                })?;
            Ok(Attached {
                access,
                name,
                thread,
            })
        });
        match opened.await? {
            Ok(attached) => {
                let attached = Arc::new(attached);
                self.inner.serving.offer(attached.export());
                lock(&self.inner.attached).insert(volume, Arc::clone(&attached));
                tracing::info!(%volume, name = attached.name, %access, "attached");
                Ok(attached)
            }
            Err(error) => Err(self.attach_failed(row, &error).await),
        }
    }

    async fn attach_failed(&self, row: &VolumeRow, error: &AttachError) -> ControlError {
        let why = error.to_string();
        tracing::error!(volume = %row.id, name = row.name, why, "cannot be opened");
        if !row.attached {
            // Nothing was written, so nothing can be lost by forgetting it.
            if let Err(error) = self.inner.database.set_detached(row.id).await {
                tracing::error!(volume = %row.id, %error, "not noted as detached");
            }
        }
        if let Err(error) = self.inner.database.set_failure(row.id, &why).await {
            tracing::error!(volume = %row.id, %error, "the failure was not noted");
        }
        let name = &row.name;
        let hint = match error {
            AttachError::Open(OpenError::Journal(_)) => {
                "without its journal it opens at its newest version"
            }
            _ => "`scree unit list` and `scree status` show what is missing",
        };
        ControlError::Unavailable {
            reason: format!(
                "volume {name:?} cannot be opened: {why}; {hint}, and `scree volume export \
                 {name}` tries again"
            ),
        }
    }

    /// Steps 5 to 7, if it is attached here. On an error the journal keeps
    /// what was not destaged, and the next attach replays it.
    pub(crate) async fn detach(&self, volume: VolumeId) -> Result<(), ControlError> {
        let Some(attached) = lock(&self.inner.attached).remove(&volume) else {
            return Ok(());
        };
        self.inner.serving.withdraw(&attached.name);
        let name = attached.name.clone();
        let clock = Arc::clone(&self.inner.world.clock);
        let closed = blocking(move || {
            // Others only borrow it for a call; this ends in a moment.
            let mut shared = attached;
            let attached = loop {
                match Arc::try_unwrap(shared) {
                    Ok(attached) => break attached,
                    Err(still_shared) => shared = still_shared,
                }
                thread::park_timeout(CLOSE_TICK);
            };
            attached
                .thread
                .stop(move |volume, stopped| {
                    if let Err(error) = stopped.flushed {
                        tracing::warn!(%error, "the last flush failed");
                    }
                    close(volume, &*clock)
                })
                .unwrap_or_else(|gone| Err(AttachError::from(gone)))
        })
        .await?;
        match closed {
            Ok(()) => {
                self.inner.database.set_detached(volume).await?;
                tracing::info!(%volume, name, "detached");
                Ok(())
            }
            Err(error) => {
                let why = error.to_string();
                self.inner.database.set_failure(volume, &why).await?;
                Err(ControlError::Unavailable {
                    reason: format!(
                        "volume {name:?} was not closed cleanly: {why}; what it acknowledged is \
                         in its journal, and `scree volume export {name}` replays it"
                    ),
                })
            }
        }
    }

    /// Makes the head of a volume that nobody serves its whole state: replays
    /// and destages a journal that a crash left. Behind the volume's door.
    pub(crate) async fn settle(&self, row: &VolumeRow) -> Result<(), ControlError> {
        if !row.attached {
            return Ok(());
        }
        let inner = Arc::clone(&self.inner);
        let volume = row.id;
        let settled = blocking(move || {
            let opened = open(&inner, volume, Wake::silent())?;
            close(opened, &*inner.world.clock)
        });
        match settled.await? {
            Ok(()) => Ok(self.inner.database.set_detached(volume).await?),
            Err(error) => Err(self.attach_failed(row, &error).await),
        }
    }

    /// Runs `action` on an attached volume, in its thread.
    pub(crate) async fn on_volume<T: Send + 'static>(
        &self,
        attached: Arc<Attached>,
        action: impl FnOnce(&mut Volume) -> T + Send + 'static,
    ) -> Result<T, ControlError> {
        blocking(move || attached.thread.call(action))
            .await?
            .map_err(|error| ControlError::Unavailable {
                reason: error.to_string(),
            })
    }

    /// How an attached volume's engine is doing.
    pub(crate) async fn engine_status(
        &self,
        attached: Arc<Attached>,
    ) -> Result<VolumeStatus, ControlError> {
        self.on_volume(attached, |volume| volume.status()).await
    }

    /// Serves again what was served when the last process ended, each volume
    /// as soon as its journal is replayed.
    pub(crate) async fn serve_again(&self) -> Result<(), DatabaseError> {
        let mut opening = JoinSet::new();
        for row in self.inner.database.volumes().await? {
            let Some(access) = row.exported.filter(|_| !row.deleting) else {
                continue;
            };
            let control = self.clone();
            opening.spawn(async move {
                let _door = control.door(row.id).await;
                // A volume that cannot be opened is shown as such, and does
                // not keep the others from being served.
                let _ = control.attach(&row, access).await;
            });
        }
        while opening.join_next().await.is_some() {}
        Ok(())
    }
}
