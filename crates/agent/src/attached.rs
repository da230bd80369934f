//! Open volumes: from a lease to a device that is served, and back.
//!
//! ```text
//!  1. lease     a new epoch, of which the units are told; whoever had the
//!               volume is fenced. From now on its journal may be newer than
//!               the head
//!  2. key       brought by the first host that opens the volume
//!  3. open      replay the journal
//!  4. serve     over NBD
//!  5. stop      no more requests
//!  6. close     destage everything: the head is the volume's state again
//! ```
//!
//! A crash anywhere in between leaves an attachment with an epoch: the next
//! open replays.

use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::thread::{self, Thread};
use std::time::Duration;

use api::host::{Access, Assignment, Seal};
use base::{BlockDevice, IoError, Lineage, with_causes};
use catalog::{CatalogError, Lease, WrappedKey};
use frontend::nbd::{Export, ExportGone, ExportOptions, ExportThread, SpawnError};
use volume::seal::{DataKey, KeyError, Keyring};
use volume::{LeaseTerm, OpenError, OpenParams, Volume, VolumeStatus};
use world::{Clock, Wake};

use crate::agent::{Agent, Inner, TaskEnded, blocking};
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
    pub(crate) name: String,
    /// The door for connections.
    pub(crate) export: Export,
    /// Its thread, until it is told to stop.
    thread: RwLock<Option<ExportThread<Volume>>>,
    closer: Closer,
}

impl Attached {
    fn new(name: String, thread: ExportThread<Volume>, closer: Closer) -> Self {
        Self {
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

    fn take_thread(&self) -> Result<ExportThread<Volume>, ExportGone> {
        let mut thread = self.thread.write().unwrap_or_else(PoisonError::into_inner);
        thread.take().ok_or(ExportGone)
    }

    /// Step 5, and no more. Waits for calls under way.
    fn drop_volume(&self) -> Result<(), AttachError> {
        Ok(self.take_thread()?.stop(|volume, _| drop(volume))?)
    }

    /// Steps 5 and 6. Waits: for calls under way, and for the destage.
    fn stop(&self, clock: Arc<dyn Clock>) -> Result<(), AttachError> {
        let thread = self.take_thread()?;
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
    /// It is to be written in the clear, and this host does not do that.
    #[error("it is not to be sealed, and this host writes nothing in the clear")]
    Unsealed,
    /// It was written, and its key is not in the database.
    #[error("the database has lost its key; restore scree.db from a backup")]
    KeyLost,
    /// A task ended before its time.
    #[error(transparent)]
    Task(#[from] TaskEnded),
    /// The process is ending.
    #[error("this host's agent is ending")]
    Ending,
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
        // One process has the folder, and nobody else may have the volume.
        taken_over: false,
        term: LeaseTerm::unlimited(),
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

impl Agent {
    /// Steps 1 to 4.
    pub(crate) async fn open_and_serve(&self, wish: &Assignment) -> Result<Attached, AttachError> {
        let lease = self.keyed(wish).await?;
        let inner = Arc::clone(&self.inner);
        let (volume, access, name) = (wish.volume, wish.access, wish.name.clone());
        let attached = blocking(move || {
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
            Ok::<_, AttachError>(Attached::new(name, thread, closer))
        })
        .await??;
        self.inner.serving.offer(attached.export.clone());
        Ok(attached)
    }

    /// Steps 5 and 6. On an error the journal keeps what was not destaged, and
    /// the next open replays it.
    pub(crate) async fn stop_and_close(&self, attached: Arc<Attached>) -> Result<(), AttachError> {
        self.inner.serving.withdraw(&attached.name);
        let clock = Arc::clone(&self.inner.world.clock);
        blocking(move || attached.stop(clock)).await?
    }

    /// Serves a volume no more. What it has not destaged stays in its journal.
    pub(crate) async fn abandon(&self, attached: Arc<Attached>) -> Result<(), AttachError> {
        self.inner.serving.withdraw(&attached.name);
        blocking(move || attached.drop_volume()).await?
    }

    /// Makes the head of a volume that is not to be served its whole state:
    /// replays and destages a journal that a crash left.
    pub(crate) async fn settle(&self, wish: &Assignment) -> Result<(), AttachError> {
        let lease = self.keyed(wish).await?;
        let inner = Arc::clone(&self.inner);
        blocking(move || {
            let closer = Closer::default();
            let opened = open(&inner, lease, closer.wake(Wake::silent()))?;
            closer.close(opened, &*inner.world.clock)
        })
        .await?
    }

    /// Steps 1 and 2.
    async fn keyed(&self, wish: &Assignment) -> Result<Lease, AttachError> {
        if self.is_ending() {
            return Err(AttachError::Ending);
        }
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
        let wrapped = self.new_key(own.lineage, wish.seal)?;
        let controller = &self.inner.controller;
        controller
            .set_key(wish.volume, own.lineage, wrapped.clone())
            .await?;
        own.wrapped = Some(wrapped);
        Ok(lease)
    }

    /// A key for a lineage, or the word that it has none.
    fn new_key(&self, lineage: Lineage, seal: Seal) -> Result<WrappedKey, AttachError> {
        let random = &*self.inner.world.random;
        match seal {
            Seal::Aes256Gcm => {
                let key = DataKey::generate(random);
                Ok(self.inner.key.wrap(lineage, &key, random))
            }
            Seal::None if self.inner.allows_unsealed => {
                Ok(self.inner.key.wrap_none(lineage, random))
            }
            Seal::None => Err(AttachError::Unsealed),
        }
    }

    /// Runs `action` on an open volume, in its thread.
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
        self.on_volume(attached, |volume| volume.status()).await
    }
}
