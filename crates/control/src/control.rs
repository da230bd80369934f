//! [`Control`]: a controller, without the command line around it.
//!
//! It has no state of its own: what must survive it, or be seen by another controller, is a
//! transaction in the database. Requests to hosts are rows there, and their reports are waited for.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use api::host::{LeaseCountKey, Owner};
use auth::SigningKey;
use auth::{Authority, Kind};
use base::{ClusterId, PartyId};
use catalog::Copyset;
use catalog::retention::Retention;
use tokio::task::JoinError;
use world::{World, host};

use crate::authority::{self, AuthorityFileError, Expect};
use crate::database::{Database, DatabaseError, PostgresUrl};
use crate::error::ControlError;
use crate::folder::{FindLeftovers, Folder};
use crate::health::state::Health;
use crate::ownership::{self, Claim};
use crate::parties::Parties;
use crate::reception::Reception;
use crate::start_error::StartError;
use crate::turns::HostTurns;

/// How a controller runs.
#[derive(Clone)]
pub struct Settings {
    /// The data directory.
    pub folder: PathBuf,
    /// The PostgreSQL database; `None`: SQLite in the data directory.
    pub database: Option<PostgresUrl>,
    /// Looks for files in the data directory that only a used database leaves.
    pub remains: FindLeftovers,
    /// How many versions are kept, and for how long.
    pub retention: Retention,
    /// How long the slots of a removed version are kept, as a protection against mistakes.
    pub grace: Duration,
    /// How long leases hold after a host's last report; `None`: forever, which is right for a
    /// single host.
    pub lease: Option<Duration>,
    /// By which factor volumes may exceed the free space on the units.
    pub overcommit: u32,
    /// The number of other units with which a unit shares segments.
    pub scatter_width: usize,
    /// How long a unit may be missing before it is replaced; zero: forever.
    pub replace_after: Duration,
    /// Whether the database was restored from a backup, and what is newer is lost.
    pub restored_database: bool,
    /// Whether the authority in the data directory, or a new one, replaces the cluster's authority.
    pub new_authority: bool,
}

/// The default number of other units with which a unit shares segments.
pub const SCATTER_WIDTH: usize = catalog::copysets::SCATTER_WIDTH;

/// The default factor by which volumes may exceed the free space: volumes take space only as they
/// are written, and most are never filled.
pub const OVERCOMMIT: u32 = 100;

/// The default time that leases hold where there are several hosts.
pub const LEASE: Duration = Duration::from_secs(10);

/// How long closing the database may take.
const DATABASE_WITHIN: Duration = Duration::from_secs(5);

/// A controller: the database, the parties and the settings, behind which there is no state that
/// another controller could not have. It answers requests of hosts and unit daemons itself; those
/// of users go through [`AuthorizedRequest`](crate::AuthorizedRequest). Cheap to clone.
#[derive(Clone)]
pub struct Control {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub world: World,
    pub folder: Folder,
    pub database: Database,
    pub cluster: ClusterId,
    pub lease_count_key: LeaseCountKey,
    /// The owner as which hosts use the units.
    pub claim: Claim,
    pub retention: Retention,
    pub grace: Duration,
    /// The parties that may send requests.
    pub parties: Parties,
    /// The key that signs capabilities for unit daemons.
    pub signing: SigningKey,
    pub lease: Option<Duration>,
    pub overcommit: u32,
    pub scatter_width: usize,
    pub replace_after: Duration,
    /// Health and metrics.
    pub health: Health,
    /// The host of this machine.
    pub local: PartyId,
    pub turns: HostTurns,
    /// Since when reports of hosts are received without a gap.
    pub reception: Reception,
    /// Whether requests of users are served.
    is_open: AtomicBool,
}

fn ended_early(error: JoinError) -> ControlError {
    ControlError::Internal {
        reason: format!("a task ended unexpectedly: {error}; see the log"),
    }
}

impl Control {
    /// Opens the data directory and the database, and starts.
    ///
    /// # Errors
    /// [`StartError`].
    pub async fn start(world: World, settings: Settings) -> Result<Self, StartError> {
        let folder = Folder::lock(&world, &settings.folder)?;
        let database = match &settings.database {
            None => {
                folder.check_own(&world)?;
                folder.check_database(&world, &settings.remains)?;
                Database::open(&folder.database()).await?
            }
            Some(url) => {
                folder.check_elsewhere(&world)?;
                Database::connect(url).await?
            }
        };
        let (cluster, lease_count_key) =
            cluster_of(&world, &folder, &database, &settings.remains).await?;
        let restored = settings.restored_database;
        let claim = ownership::claim(&world, &database, folder.path(), restored).await?;
        let authority = authority_of(&world, &folder, &database, cluster, &settings).await?;
        if let Some(url) = &settings.database {
            folder.note_elsewhere(&world, &url.to_string())?;
            tracing::info!(%url, "controller uses database");
        }
        let signing = SigningKey::derive(&authority.secret());
        let parties = Parties::new(world.clone(), database.clone(), Arc::new(authority));
        parties.make_local(Kind::User).await?;
        let local = parties.make_local(Kind::Host).await?;
        let reception = Reception::new(world.clock.monotonic());
        Ok(Self {
            inner: Arc::new(Inner {
                world,
                folder,
                database,
                cluster,
                lease_count_key,
                claim,
                retention: settings.retention,
                grace: settings.grace,
                parties,
                signing,
                lease: settings.lease,
                overcommit: settings.overcommit,
                scatter_width: settings.scatter_width,
                replace_after: settings.replace_after,
                health: Health::default(),
                local,
                turns: HostTurns::default(),
                reception,
                is_open: AtomicBool::new(false),
            }),
        })
    }

    /// Starts or stops serving requests of users. While they are refused, at the start and the end
    /// of the process, hosts are still served.
    pub fn set_open(&self, is_open: bool) {
        self.inner.is_open.store(is_open, Ordering::Relaxed);
    }

    pub(crate) fn is_open(&self) -> bool {
        self.inner.is_open.load(Ordering::Relaxed)
    }

    /// Closes the database.
    pub async fn shut_down(&self) {
        let closed = self.inner.database.close();
        if host::timeout(DATABASE_WITHIN, closed).await.is_none() {
            tracing::error!("database did not close in time; the next start repairs it");
        }
    }

    /// Runs an operation to completion even if the caller is canceled: a client that disconnects
    /// must not leave an operation half done.
    pub(crate) async fn to_completion<T, F>(
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

    /// Calls `look` at every change until it finds something. Returns `None` when `wait` has
    /// passed.
    pub(crate) async fn until<T, F>(
        &self,
        wait: Duration,
        mut look: impl FnMut() -> F,
    ) -> Result<Option<T>, ControlError>
    where
        F: Future<Output = Result<Option<T>, ControlError>>,
    {
        let mut changes = self.inner.database.changes();
        let found = async {
            loop {
                changes.mark_unchanged();
                let found = look().await?;
                if found.is_some() || changes.changed().await.is_err() {
                    return Ok(found);
                }
            }
        };
        host::timeout(wait, found).await.unwrap_or(Ok(None))
    }

    /// The owner as which the units are used.
    pub(crate) async fn owner(&self) -> Result<Owner, ControlError> {
        let owner = self.inner.database.cluster().owner().await?;
        let owner = owner.ok_or_else(|| ControlError::Internal {
            reason: "the database has lost the record of which copy it is".to_owned(),
        })?;
        Ok(Owner {
            database: owner.id,
            generation: owner.generation,
            location: self.inner.claim.place.clone(),
        })
    }

    /// All copysets.
    pub(crate) async fn copysets(&self) -> Result<Vec<Copyset>, ControlError> {
        Ok(self.inner.database.units().copysets().await?)
    }

    /// The database.
    #[must_use]
    pub fn database(&self) -> &Database {
        &self.inner.database
    }

    /// The data directory.
    #[must_use]
    pub fn folder(&self) -> &Folder {
        &self.inner.folder
    }

    /// The parties that may send requests.
    #[must_use]
    pub fn parties(&self) -> &Parties {
        &self.inner.parties
    }

    /// The host of this machine.
    #[must_use]
    pub fn local_host(&self) -> PartyId {
        self.inner.local
    }
}

/// The cluster of `database`, created if the database is new.
async fn cluster_of(
    world: &World,
    folder: &Folder,
    database: &Database,
    remains: &FindLeftovers,
) -> Result<(ClusterId, LeaseCountKey), StartError> {
    if let Some(cluster) = database.cluster().get().await? {
        return Ok((cluster.id, cluster.lease_count_key));
    }
    folder.check_new(remains)?;
    folder.sync(world)?;
    let id = ClusterId::from_u128(world.random.u128());
    let mut lease_count_key = LeaseCountKey([0; 32]);
    world.random.fill(&mut lease_count_key.0);
    database
        .cluster()
        .create(id, &lease_count_key, world.clock.wall())
        .await?;
    // Another controller may have created it first.
    let created = database.cluster().get().await?;
    let created = created.ok_or_else(|| DatabaseError::Damaged {
        what: "the cluster that was just created is missing".to_owned(),
    })?;
    Ok((created.id, created.lease_count_key))
}

/// The cluster's authority. Where there may be several controllers, it must be the recorded one; a
/// data directory with its own database may bring another one.
async fn authority_of(
    world: &World,
    folder: &Folder,
    database: &Database,
    cluster: ClusterId,
    settings: &Settings,
) -> Result<Authority, StartError> {
    let known = database.cluster().authority().await?;
    let expect = match &known {
        Some(known) if settings.database.is_some() && !settings.new_authority => Expect::The(known),
        _ => Expect::Any,
    };
    let path = folder.path();
    let (authority, found) = authority::open_expected(world, path, &cluster.to_string(), expect)?;
    if known.as_ref() == Some(&found) {
        return Ok(authority);
    }
    if let Some(known) = &known {
        tracing::warn!(
            was = known,
            is = found,
            "cluster authority changed; all parties must join again"
        );
    }
    let noted = database
        .cluster()
        .set_authority(known.as_deref(), &found)
        .await?;
    match noted {
        Some(noted) if noted == found => Ok(authority),
        // Another controller recorded its own first.
        noted => Err(AuthorityFileError::Other {
            path: path.join("authority.pem"),
            found,
            expected: noted.unwrap_or_default(),
        }
        .into()),
    }
}

/// A controller on a new database in `folder`, whose host's leases never end.
#[cfg(test)]
pub(crate) async fn started_in(folder: &std::path::Path) -> Control {
    let settings = Settings {
        folder: folder.to_owned(),
        database: None,
        remains: Arc::new(|| Ok(crate::folder::Leftovers::default())),
        retention: Retention::default(),
        grace: Duration::ZERO,
        lease: None,
        overcommit: OVERCOMMIT,
        scatter_width: catalog::copysets::SCATTER_WIDTH,
        replace_after: Duration::ZERO,
        restored_database: false,
        new_authority: false,
    };
    let control = Control::start(World::real(1), settings).await;
    control.expect("starts")
}
