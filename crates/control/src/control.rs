//! [`Control`]: what one `scree up` does, without the command line around it.
//!
//! It owns D: the database, the units, the keys in memory, and the volumes
//! that are attached here. Requests come from the HTTP edge, one future each.
//! Work on one volume is serialised by its *door*, so that a state read behind
//! the door holds until it is left; everything that must survive a crash is a
//! transaction of the database, made before (or, for a volume's opening and
//! closing, around) what it describes.
//!
//! Lifecycle: 1. start (lock D, open the database and the keys, mount the
//! units, serve again what was served), 2. requests, 3. shut down (destage
//! everything), which a `kill -9` may leave out at the price of a replay.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::{ClusterId, VolumeId};
use catalog::Catalog;
use catalog::retention::Retention;
use frontend::nbd::ServerTls;
use tokio::runtime::Handle;
use tokio::sync::OwnedMutexGuard;
use tokio::task::{JoinError, JoinSet};
use volume::clean::Cleaner;
use volume::seal::{KeyEncryptionKey, Keyring};
use volume::{Store, VolumeConfig};
use world::World;

use crate::attach::Attached;
use crate::database::{ClusterRow, Database, DatabaseError, EngineCatalog};
use crate::error::ControlError;
use crate::folder::{Folder, FolderError};
use crate::keys::{self, KeyInput, KeyInputError};
use crate::ownership::{self, Claim};
use crate::serving::{Serving, ServingError};
use crate::units::{Mounted, UnitsError};
use world::host;

/// How `scree up` was asked to run.
pub struct Settings {
    /// D.
    pub folder: PathBuf,
    /// How many folder units to make if D is new.
    pub units: Option<usize>,
    /// Where the key is, if not in D's keys folder.
    pub key: Option<KeyInput>,
    /// Serve NBD over TCP here as well.
    pub listen_nbd: Option<SocketAddr>,
    /// TLS for that.
    pub nbd_tls: Option<ServerTls>,
    /// Each attached volume's sizes and times.
    pub volume: VolumeConfig,
    /// How many automatic versions are kept, and how long.
    pub retention: Retention,
    /// How long the slots of a removed version stay, against mistakes.
    pub grace: Duration,
    /// The database was put back from a backup, and what is younger is lost.
    pub restored_database: bool,
}

/// Why it does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// D cannot be used.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The database cannot be used.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// There is no key to work with.
    #[error(transparent)]
    Key(#[from] KeyInputError),
    /// The units cannot be used.
    #[error(transparent)]
    Units(#[from] UnitsError),
    /// D is a copy.
    #[error(
        "{folder} is a copy of {was}; two copies that are served destroy \
         each other's data on the units. Serve the original; or, if that is gone for good, start \
         this one once with `scree up --restored-database`",
        folder = folder.display(),
        was = was.display()
    )]
    Copied {
        /// D.
        folder: PathBuf,
        /// Where the database was served before.
        was: PathBuf,
    },
    /// D is another folder than before, at the same path.
    #[error(
        "{folder} was made anew since its database was last served, so it may be a copy; two \
         copies that are served destroy each other's data on the units. Serve the other one, \
         if there is one; or, if that is gone for good, start this one once with \
         `scree up --restored-database`",
        folder = folder.display()
    )]
    Renewed {
        /// D.
        folder: PathBuf,
    },
    /// D cannot be told from its copies.
    #[error("cannot look when {folder} was made: {source}", folder = folder.display())]
    Place {
        /// D.
        folder: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// NBD cannot be served.
    #[error(transparent)]
    Serving(#[from] ServingError),
}

/// A shutdown takes no longer: the 30 s in which an export may finish what
/// clients have asked for, the 60 s in which a destage must get on, and some.
pub const SHUT_DOWN_WITHIN: Duration = Duration::from_secs(100);

/// How much of that the database has, when the volumes are closed.
const DATABASE_WITHIN: Duration = Duration::from_secs(5);

/// See the module's head. Cheap to clone.
#[derive(Clone)]
pub struct Control {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub world: World,
    pub folder: Folder,
    pub database: Database,
    pub cluster: ClusterId,
    /// As whom the units are used.
    pub claim: Claim,
    pub catalog: Arc<dyn Catalog>,
    pub store: Arc<Store>,
    pub key: Arc<KeyEncryptionKey>,
    pub units: Mutex<Vec<Mounted>>,
    /// One unit at a time is added, so that copysets are planned in order.
    pub units_door: tokio::sync::Mutex<()>,
    pub serving: Serving,
    pub attached: Mutex<HashMap<VolumeId, Arc<Attached>>>,
    pub volume_config: VolumeConfig,
    pub retention: Retention,
    pub grace: Duration,
    /// Rung when there may be something to clean.
    pub cleaning_wanted: tokio::sync::Notify,
    /// Why cleaning does not get on, if it does not.
    pub removal_problem: Mutex<Option<String>>,
    /// Why freeing does not get on, if it does not.
    pub freeing_problem: Mutex<Option<String>>,
    doors: Mutex<HashMap<VolumeId, Arc<tokio::sync::Mutex<()>>>>,
    /// No more volumes are opened.
    pub is_ending: AtomicBool,
}

/// Locks a mutex whose content stays sound if a thread panics in between.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs what waits on a thread where it may.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ControlError> {
    tokio::task::spawn_blocking(work).await.map_err(ended_early)
}

fn ended_early(error: JoinError) -> ControlError {
    ControlError::Internal {
        reason: format!("a task ended before its time: {error}; see the log"),
    }
}

impl Control {
    /// Opens D and serves again what was served when it was last closed.
    ///
    /// # Errors
    /// [`StartError`].
    pub async fn start(world: World, settings: Settings) -> Result<Self, StartError> {
        let folder = Folder::lock(&world, &settings.folder)?;
        folder.check_database(&world)?;
        let database = Database::open(&folder.database()).await?;
        let input = settings
            .key
            .unwrap_or_else(|| KeyInput::File(folder.key_file()));
        let (cluster, key) = cluster_of(&world, &folder, &database, &input).await?;
        let restored = settings.restored_database;
        let claim = ownership::claim(&world, &database, folder.path(), restored).await?;
        let catalog: Arc<dyn Catalog> =
            Arc::new(EngineCatalog::new(database.clone(), Handle::current()));
        let store = Store::new(Arc::clone(&world.pool));
        let serving = Serving::start(
            &world,
            &folder.nbd_socket(),
            settings.listen_nbd,
            settings.nbd_tls,
        )?;
        let control = Self {
            inner: Arc::new(Inner {
                world,
                folder,
                database,
                cluster: cluster.id,
                claim,
                catalog,
                store,
                key: Arc::new(key),
                units: Mutex::default(),
                units_door: tokio::sync::Mutex::default(),
                serving,
                attached: Mutex::default(),
                volume_config: settings.volume,
                retention: settings.retention,
                grace: settings.grace,
                cleaning_wanted: tokio::sync::Notify::new(),
                removal_problem: Mutex::default(),
                freeing_problem: Mutex::default(),
                doors: Mutex::default(),
                is_ending: AtomicBool::new(false),
            }),
        };
        control.mount_units(settings.units).await?;
        control.check_database_age(restored).await?;
        let lost = control.inner.database.fail_lost_snapshots().await?;
        if lost > 0 {
            tracing::warn!(lost, "pending snapshots were lost with the last process");
        }
        control.serve_again().await?;
        Ok(control)
    }

    /// Closes every attached volume, also one that is just being opened: all
    /// that was written is in versions on the units then. They are served
    /// again on the next start. Returns how many could not be closed; their
    /// journals have what is missing. Ends within [`SHUT_DOWN_WITHIN`],
    /// whatever units do.
    pub async fn shut_down(&self) -> usize {
        self.inner.is_ending.store(true, Ordering::Relaxed);
        let mut closing = self.close_all();
        let mut unclean = closing.len();
        let closed = async {
            while let Some(closed) = closing.join_next().await {
                unclean -= usize::from(matches!(closed, Ok(Ok(()))));
            }
        };
        let wait = SHUT_DOWN_WITHIN - DATABASE_WITHIN;
        if host::within(wait, closed).await.is_none() {
            tracing::error!(seconds = wait.as_secs(), "volumes do not close");
        }
        let closed = self.inner.database.close();
        if host::within(DATABASE_WITHIN, closed).await.is_none() {
            tracing::error!("the database does not close; the next start mends it");
        }
        unclean
    }

    /// Refuses to open a volume that would not be closed. Asked behind the
    /// volume's door.
    pub(crate) fn refuse_if_ending(&self) -> Result<(), ControlError> {
        // After the door, whose lock orders the two: either it is seen here,
        // or `close_all` waits for whoever is behind the door.
        if !self.inner.is_ending.load(Ordering::Relaxed) {
            return Ok(());
        }
        Err(ControlError::Unavailable {
            reason: "`scree up` is ending; ask again when it is started again".to_owned(),
        })
    }

    /// Goes through every door: a volume is attached behind its own only.
    fn close_all(&self) -> JoinSet<Result<(), ControlError>> {
        let doors: Vec<VolumeId> = lock(&self.inner.doors).keys().copied().collect();
        let mut closing = JoinSet::new();
        for volume in doors {
            let control = self.clone();
            closing.spawn(async move {
                let _door = control.door(volume).await;
                control
                    .detach(volume)
                    .await
                    .inspect_err(|error| tracing::error!(%volume, %error))
            });
        }
        closing
    }

    /// Runs an operation to its end, whether or not the caller waits for it: a
    /// client that hangs up must not leave the operation half way, and its
    /// door open while the rest of it still runs.
    pub(crate) async fn to_its_end<T, F>(
        &self,
        operation: impl FnOnce(Self) -> F,
    ) -> Result<T, ControlError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, ControlError>> + Send + 'static,
    {
        tokio::spawn(operation(self.clone()))
            .await
            .map_err(ended_early)?
    }

    /// The door of a volume; nobody else is behind it until it is dropped.
    pub(crate) async fn door(&self, volume: VolumeId) -> OwnedMutexGuard<()> {
        let door = Arc::clone(lock(&self.inner.doors).entry(volume).or_default());
        door.lock_owned().await
    }

    /// Forgets the door of a volume that is gone.
    pub(crate) fn forget_door(&self, volume: VolumeId) {
        lock(&self.inner.doors).remove(&volume);
    }

    /// The volume, if it is attached here.
    pub(crate) fn attached(&self, volume: VolumeId) -> Option<Arc<Attached>> {
        lock(&self.inner.attached).get(&volume).cloned()
    }

    /// What removes versions and frees their slots.
    pub(crate) fn cleaner(&self) -> Cleaner {
        let key = Arc::clone(&self.inner.key);
        Cleaner::new(
            Arc::clone(&self.inner.store),
            Arc::clone(&self.inner.catalog),
            Arc::new(move |keys| Keyring::unwrap(keys, &key)),
        )
    }

    /// The database.
    #[must_use]
    pub fn database(&self) -> &Database {
        &self.inner.database
    }

    /// D.
    #[must_use]
    pub fn folder(&self) -> &Folder {
        &self.inner.folder
    }
}

/// The cluster of `database`, founded if it is new, and its key.
async fn cluster_of(
    world: &World,
    folder: &Folder,
    database: &Database,
    input: &KeyInput,
) -> Result<(ClusterRow, KeyEncryptionKey), StartError> {
    if let Some(cluster) = database.cluster().await? {
        let key = keys::open(world, input, &cluster.key_source, &cluster.key_verifier)?;
        return Ok((cluster, key));
    }
    folder.check_new(world)?;
    // The key is made after the database: see `Folder::check_database`.
    folder.sync(world)?;
    let (key, key_source, key_verifier) = keys::found(world, input)?;
    let cluster = ClusterRow {
        id: ClusterId::from_random(world.random.u128()),
        created: world.clock.wall(),
        key_source,
        key_verifier,
    };
    database.found(&cluster).await?;
    Ok((cluster, key))
}
