//! Attaching volumes: from a row in the database to a device that is served,
//! and back.
//!
//! ```text
//!  1. note      volumes.attached: the journal may be newer than the head
//!  2. lease     a new epoch, of which the units are told; whoever had the
//!               volume is fenced
//!  3. open      replay the journal
//!  4. serve     over NBD
//!  5. stop      no more requests
//!  6. close     destage everything
//!  7. note      the head is the volume's state again
//! ```
//!
//! A crash anywhere in between leaves `attached` set: the next open replays.
//! All of it happens behind the volume's door.

use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::thread::{self, Thread};
use std::time::Duration;

use base::{BlockDevice, IoError, VolumeId, with_causes};
use catalog::{CatalogError, Lease};
use frontend::nbd::{Export, ExportGone, ExportOptions, ExportThread, SpawnError};
use tokio::task::JoinSet;
use volume::seal::{KeyError, Keyring};
use volume::{OpenError, OpenParams, Volume, VolumeStatus};
use world::{Clock, Wake};

use crate::control::{Control, Inner, blocking, lock};
use crate::database::{Access, DatabaseError, VolumeRow};
use crate::error::ControlError;
use crate::leases::OlderDatabase;

/// A close that has got nowhere for so long, because no unit takes what it
/// has, is given up: the journal keeps it.
const CLOSE_STALL_MAX: Duration = Duration::from_secs(15);

/// One that has put nothing anywhere for so long is given up, too, though
/// nothing has failed: a unit keeps a call for ever.
const CLOSE_SILENCE_MAX: Duration = Duration::from_secs(60);

/// How often a close looks at the clock where nothing else happens.
const CLOSE_TICK: Duration = Duration::from_millis(200);

/// A volume that is attached here, and served.
pub struct Attached {
    pub(crate) access: Access,
    pub(crate) name: String,
    /// The door for connections.
    pub(crate) export: Export,
    /// Its thread, until it is told to stop.
    thread: RwLock<Option<ExportThread<Volume>>>,
    closer: Closer,
}

impl Attached {
    fn new(access: Access, name: String, thread: ExportThread<Volume>, closer: Closer) -> Self {
        Self {
            access,
            name,
            export: thread.export(),
            thread: RwLock::new(Some(thread)),
            closer,
        }
    }

    /// Runs `action` on the volume, in its thread. Waits.
    fn call<T: Send + 'static>(
        &self,
        action: impl FnOnce(&mut Volume) -> T + Send + 'static,
    ) -> Result<T, ExportGone> {
        let thread = self.thread.read().unwrap_or_else(PoisonError::into_inner);
        thread.as_ref().ok_or(ExportGone)?.call(action)
    }

    /// Steps 5 and 6. Waits: for calls under way, and for the destage.
    fn stop(&self, clock: Arc<dyn Clock>) -> Result<(), AttachError> {
        let thread = self
            .thread
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
            .ok_or(ExportGone)?;
        let closer = self.closer.clone();
        thread.stop(move |volume, stopped| {
            if let Err(error) = stopped.flushed {
                tracing::warn!(%error, "the last flush failed");
            }
            closer.close(volume, &*clock)
        })?
    }
}

/// The thread in which a volume is closed. Until then, the loop that serves it
/// hears of jobs that end; afterwards this thread does.
#[derive(Clone, Default)]
struct Closer(Arc<OnceLock<Thread>>);

impl Closer {
    /// A wake for both.
    fn wake(&self, serving: Wake) -> Wake {
        let thread = Arc::clone(&self.0);
        Wake::new(move || {
            serving.wake();
            if let Some(thread) = thread.get() {
                thread.unpark();
            }
        })
    }

    /// Step 6. Waits for the destage, as long as it gets on.
    fn close(&self, mut volume: Volume, clock: &dyn Clock) -> Result<(), AttachError> {
        // From here on no job's end is missed: those before are polled below.
        self.0.get_or_init(thread::current);
        let mut completions = Vec::new();
        let mut committed = Lately::new(clock.monotonic());
        let mut placed = Lately::new(clock.monotonic());
        volume.begin_close();
        loop {
            volume.poll(&mut completions);
            completions.clear();
            volume.commit()?;
            if let Some(closed) = volume.close_state() {
                return Ok(closed?);
            }
            let status = volume.status();
            let now = clock.monotonic();
            let since_commit = committed.since(status.journal_used_bytes, now);
            let since_put = placed.since(status.pieces_placed, now);
            match status.destage_error {
                // Each attempt may put something before it fails.
                Some(why) if since_commit > CLOSE_STALL_MAX => {
                    return Err(AttachError::Stalled(why));
                }
                _ if since_put.min(since_commit) > CLOSE_SILENCE_MAX => {
                    return Err(AttachError::Silent(CLOSE_SILENCE_MAX.as_secs()));
                }
                _ => {}
            }
            let timer = volume.next_timer().unwrap_or(CLOSE_TICK);
            #[expect(clippy::disallowed_methods, reason = "a job that ends wakes it before")]
            thread::park_timeout(timer.min(CLOSE_TICK));
        }
    }
}

/// A number, and since when it is what it is.
struct Lately {
    number: Option<u64>,
    since: Duration,
}

impl Lately {
    fn new(now: Duration) -> Self {
        Self {
            number: None,
            since: now,
        }
    }

    /// For how long it has been `number`.
    fn since(&mut self, number: u64, now: Duration) -> Duration {
        if self.number != Some(number) {
            self.number = Some(number);
            self.since = now;
        }
        now.saturating_sub(self.since)
    }
}

/// Why a volume could not be attached, or closed.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The lease was not to be had.
    #[error("no lease: {0}")]
    Lease(#[from] CatalogError),
    /// The database is not the one that the data belongs to.
    #[error(transparent)]
    Older(#[from] OlderDatabase),
    /// No unit took note of the lease.
    #[error("no unit could be told of its lease: {0}")]
    Untold(String),
    /// The keys do not open.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The database names a key that is not this volume's, or another salt
    /// than the one it was given.
    #[error(
        "the database names another volume's key, or an old one; it was altered: restore \
         scree.db from a backup"
    )]
    ForeignKey,
    /// It was written by a program that knew no keys of leases.
    #[error(
        "it was written by an earlier Scree, before each lease had a key of its own, and cannot be \
         read by this one; read it with that one, and copy it into a new volume"
    )]
    BeforeLeaseKeys,
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
    /// A unit keeps what it was asked to itself.
    #[error("nothing was put on any unit for {0} s and nothing failed: a unit does not answer")]
    Silent(u64),
    /// Its thread ended.
    #[error(transparent)]
    Gone(#[from] ExportGone),
}

/// Step 3. Waits.
fn open(inner: &Inner, lease: Lease, wake: Wake) -> Result<Volume, AttachError> {
    if !is_head_keyed(&lease) {
        return Err(AttachError::BeforeLeaseKeys);
    }
    let keyring = Arc::new(Keyring::unwrap(&lease.keys, &inner.key)?);
    Ok(Volume::open(OpenParams {
        world: inner.world.clone(),
        wake,
        store: Arc::clone(&inner.store),
        catalog: Arc::clone(&inner.catalog),
        journal: inner.folder.journal(lease.volume),
        lease,
        keyring,
        config: inner.volume_config,
    })?)
}

/// Whether the lease that wrote the volume's head has left its salt.
fn is_head_keyed(lease: &Lease) -> bool {
    let Some(head) = &lease.head else { return true };
    let mut keys = lease.keys.iter();
    let has_salt = |(epoch, _): &(u32, _)| *epoch == head.epoch;
    keys.find(|key| key.lineage == head.lineage)
        .is_none_or(|key| key.salts.iter().any(has_salt))
}

impl Control {
    /// Steps 1 to 4. The caller is behind the volume's door, and the volume is
    /// not attached here.
    pub(crate) async fn attach(
        &self,
        row: &VolumeRow,
        access: Access,
    ) -> Result<Arc<Attached>, ControlError> {
        self.refuse_if_ending()?;
        let (volume, name) = (row.id, row.name.clone());
        self.inner.database.set_attached(volume).await?;
        match self.open_and_serve(volume, name, access).await? {
            Ok(attached) => {
                let attached = Arc::new(attached);
                self.inner.serving.offer(attached.export.clone());
                lock(&self.inner.attached).insert(volume, Arc::clone(&attached));
                tracing::info!(%volume, name = attached.name, %access, "attached");
                Ok(attached)
            }
            Err(error) => Err(self.attach_failed(row, &error).await),
        }
    }

    /// Steps 2 and 3, and the thread for step 4.
    async fn open_and_serve(
        &self,
        volume: VolumeId,
        name: String,
        access: Access,
    ) -> Result<Result<Attached, AttachError>, ControlError> {
        let lease = match self.acquire(volume).await {
            Ok(lease) => lease,
            Err(error) => return Ok(Err(error)),
        };
        let inner = Arc::clone(&self.inner);
        blocking(move || {
            let options = ExportOptions {
                description: volume.to_string(),
                read_only: access == Access::ReadOnly,
                ..ExportOptions::new(name.clone(), Arc::clone(&inner.world.clock))
            };
            let closer = Closer::default();
            let wakes = closer.clone();
            let thread =
                ExportThread::spawn(options, move |wake| open(&inner, lease, wakes.wake(wake)))
                    .map_err(|error| match error {
                        SpawnError::Device(error) => error,
                        SpawnError::Thread(error) => AttachError::Thread(error),
                    })?;
            Ok(Attached::new(access, name, thread, closer))
        })
        .await
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
            AttachError::Older(_) | AttachError::BeforeLeaseKeys => {
                return ControlError::conflict(format!("volume {name:?} cannot be opened: {why}"));
            }
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
        let closed = blocking(move || attached.stop(clock)).await?;
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
        self.refuse_if_ending()?;
        let inner = Arc::clone(&self.inner);
        let settled = match self.acquire(row.id).await {
            Ok(lease) => {
                blocking(move || {
                    let closer = Closer::default();
                    let opened = open(&inner, lease, closer.wake(Wake::silent()))?;
                    closer.close(opened, &*inner.world.clock)
                })
                .await?
            }
            Err(error) => Err(error),
        };
        match settled {
            Ok(()) => Ok(self.inner.database.set_detached(row.id).await?),
            Err(error) => Err(self.attach_failed(row, &error).await),
        }
    }

    /// Runs `action` on an attached volume, in its thread.
    pub(crate) async fn on_volume<T: Send + 'static>(
        &self,
        attached: Arc<Attached>,
        action: impl FnOnce(&mut Volume) -> T + Send + 'static,
    ) -> Result<T, ControlError> {
        blocking(move || attached.call(action))
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
        let volumes = self.inner.database.volumes().await?;
        for volume in &volumes.damaged {
            let (id, name, why) = (&volume.id, &volume.name, &volume.reason);
            tracing::error!(volume = id, name, why, "cannot be served");
        }
        for row in volumes.rows {
            let Some(access) = row.exported.filter(|_| !row.deleting) else {
                continue;
            };
            let control = self.clone();
            opening.spawn(async move {
                let _door = control.door(row.id).await;
                // A volume that cannot be opened is logged and shown as such,
                // and does not keep the others from being served.
                let _ = control.attach(&row, access).await;
            });
        }
        while opening.join_next().await.is_some() {}
        Ok(())
    }
}
