//! [`Control`]: a controller, without the command line around it.
//!
//! It has no state but the database's: whatever must survive it, or be seen by
//! another instance, is a transaction there. What hosts are to do is written
//! down, and what they have done is waited for.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use api::host::{Cluster, Owner};
use auth::SigningKey;
use auth::{Authority, Kind};
use base::{ClusterId, PartyId};
use catalog::retention::Retention;
use catalog::{Copyset, WrappedKey};
use tokio::task::JoinError;
use world::{World, host};

use crate::authority::{self, AuthorityFileError, Expect};
use crate::database::{Database, DatabaseError, PostgresUrl};
use crate::error::ControlError;
use crate::folder::{Folder, FolderError, LookForRemains};
use crate::health::Health;
use crate::jobs::Listening;
use crate::ownership::{self, Claim};
use crate::parties::Parties;
use crate::turns::HostTurns;

/// How a controller was asked to run.
pub struct Settings {
    /// D.
    pub folder: PathBuf,
    /// The database, if it is not D's own.
    pub database: Option<PostgresUrl>,
    /// Looks for what lies in D beside the database.
    pub remains: LookForRemains,
    /// How many automatic versions are kept, and how long.
    pub retention: Retention,
    /// How long the slots of a removed version stay, against mistakes.
    pub grace: Duration,
    /// How long leases hold after a host was last heard of; for ever, if there
    /// is only one host.
    pub lease: Option<Duration>,
    /// How many times the free room on the units may be promised to volumes.
    pub overcommit: u32,
    /// With how many others a unit shares segments, unless there are fewer.
    pub scatter_width: usize,
    /// After so long a missing unit is replaced; zero: never.
    pub replace_after: Duration,
    /// The database was put back from a backup, and what is younger is lost.
    pub restored_database: bool,
    /// The authority in D, or a new one, takes the place of the cluster's.
    pub new_authority: bool,
}

/// With how many others a unit shares segments, unless said otherwise.
pub const SCATTER_WIDTH: usize = catalog::copysets::SCATTER_WIDTH;

/// Why it does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// D cannot be used.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The database cannot be used.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// There is no authority to sign users and hosts.
    #[error(transparent)]
    Authority(#[from] AuthorityFileError),
    /// D is a copy.
    #[error(
        "{folder} is a copy of {was}; two copies that are served destroy \
         each other's data on the units. Serve the original; or, if that is gone for good, start \
         this one once with `--restored-database`",
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
         `--restored-database`",
        folder = folder.display()
    )]
    Renewed {
        /// D.
        folder: PathBuf,
    },
    /// The database is another one than it was, by what no copy has in common
    /// with it.
    #[error(
        "the database was served as {was}, and is {is} now: it is a copy (a dump that was \
         restored, or one made from a template), or its server was made anew (pg_upgrade); two \
         copies that are served destroy each other's data on the units. Serve the original; or, if \
         that is gone for good, stop every controller and start this one once with \
         --restored-database"
    )]
    Moved {
        /// Where it was served before.
        was: String,
        /// Where it is now.
        is: String,
    },
    /// D cannot be told from its copies.
    #[error("cannot look when {folder} was made: {source}", folder = folder.display())]
    Place {
        /// D.
        folder: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
}

/// How many times the free room may be promised, if nobody says: volumes take
/// room only as they are written, and most are never filled.
pub const OVERCOMMIT: u32 = 100;

/// How long leases hold where there are several hosts, if nobody says.
pub const LEASE: Duration = Duration::from_secs(10);

/// How much time the database has to close.
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
    pub vouch: WrappedKey,
    /// As whom hosts use the units.
    pub claim: Claim,
    pub retention: Retention,
    pub grace: Duration,
    /// Who may ask.
    pub parties: Parties,
    /// Signs what hosts may do on unit daemons.
    pub signing: SigningKey,
    pub lease: Option<Duration>,
    pub overcommit: u32,
    pub scatter_width: usize,
    pub replace_after: Duration,
    /// For those who watch.
    pub health: Health,
    /// The host that is this machine.
    pub local: PartyId,
    pub turns: HostTurns,
    /// Since when hosts are heard.
    pub listening: Listening,
    /// Whether owners are served.
    is_open: AtomicBool,
}

fn ended_early(error: JoinError) -> ControlError {
    ControlError::Internal {
        reason: format!("a task ended before its time: {error}; see the log"),
    }
}

impl Control {
    /// Opens D.
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
        let (cluster, vouch) = cluster_of(&world, &folder, &database, &settings.remains).await?;
        let restored = settings.restored_database;
        let claim = ownership::claim(&world, &database, folder.path(), restored).await?;
        let authority = authority_of(&world, &folder, &database, cluster, &settings).await?;
        if let Some(url) = &settings.database {
            folder.note_elsewhere(&world, &url.to_string())?;
            tracing::info!("{url}");
        }
        let signing = SigningKey::derive(&authority.secret());
        let parties = Parties::new(world.clone(), database.clone(), Arc::new(authority));
        parties.make_local(Kind::User).await?;
        let local = parties.make_local(Kind::Host).await?;
        let listening = Listening::new(world.clock.monotonic());
        Ok(Self {
            inner: Arc::new(Inner {
                world,
                folder,
                database,
                cluster,
                vouch,
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
                listening,
                is_open: AtomicBool::new(false),
            }),
        })
    }

    /// From now on owners' requests are carried out, or refused. Before, and
    /// after, only hosts are heard: they have something to begin, or to finish.
    pub fn set_open(&self, is_open: bool) {
        self.inner.is_open.store(is_open, Ordering::Relaxed);
    }

    pub(crate) fn is_open(&self) -> bool {
        self.inner.is_open.load(Ordering::Relaxed)
    }

    /// Closes the database.
    pub async fn shut_down(&self) {
        let closed = self.inner.database.close();
        if host::within(DATABASE_WITHIN, closed).await.is_none() {
            tracing::error!("the database does not close; the next start repairs it");
        }
    }

    /// Runs an operation to its end, whether or not the caller waits for it: a
    /// client that hangs up must not leave the operation half way.
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

    /// Waits until `look` finds something, or `wait` has passed: then what it
    /// finds is `None`. It looks whenever something has changed.
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
        host::within(wait, found).await.unwrap_or(Ok(None))
    }

    /// Nothing is open on `host`, since it begins or ends. Answers with what it
    /// has to know of the cluster.
    ///
    /// # Errors
    /// [`ControlError`].
    pub async fn begin(&self, host: PartyId) -> Result<Cluster, ControlError> {
        let inner = &self.inner;
        inner.database.attachments().nothing_open(host).await?;
        Ok(Cluster {
            id: inner.cluster,
            owner: self.owner().await?,
            takes_over: inner.claim.takes_over,
            vouch: inner.vouch.clone(),
            lease_ms: inner
                .lease
                .map(|lease| u64::try_from(lease.as_millis()).unwrap_or(u64::MAX)),
            keys: self.wrapping_keys().await?,
        })
    }

    /// As whom the units are used.
    pub(crate) async fn owner(&self) -> Result<Owner, ControlError> {
        let owner = self.inner.database.cluster().owner().await?;
        let owner = owner.ok_or_else(|| ControlError::Internal {
            reason: "the database does not know any more which copy it is".to_owned(),
        })?;
        Ok(Owner {
            database: owner.id,
            generation: owner.generation,
            place: self.inner.claim.place.clone(),
        })
    }

    /// The table of copysets.
    pub(crate) async fn copysets(&self) -> Result<Vec<Copyset>, ControlError> {
        Ok(self.inner.database.units().copysets().await?)
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

    /// Who may ask.
    #[must_use]
    pub fn parties(&self) -> &Parties {
        &self.inner.parties
    }

    /// The host that is this machine.
    #[must_use]
    pub fn local_host(&self) -> PartyId {
        self.inner.local
    }
}

/// The cluster of `database`, founded if it is new.
async fn cluster_of(
    world: &World,
    folder: &Folder,
    database: &Database,
    remains: &LookForRemains,
) -> Result<(ClusterId, WrappedKey), StartError> {
    if let Some(cluster) = database.cluster().get().await? {
        return Ok((cluster.id, cluster.vouch));
    }
    folder.check_new(remains)?;
    folder.sync(world)?;
    let id = ClusterId::from_u128(world.random.u128());
    let mut vouch = vec![0; 32];
    world.random.fill(&mut vouch);
    database
        .cluster()
        .create(id, &vouch, world.clock.wall())
        .await?;
    // Another controller may have been faster.
    let founded = database.cluster().get().await?;
    let founded = founded.ok_or_else(|| DatabaseError::Damaged {
        what: "the cluster that was just founded is not there".to_owned(),
    })?;
    Ok((founded.id, founded.vouch))
}

/// The cluster's authority. Where there may be several controllers, it must be
/// the one that the others have; a folder with its database has its authority,
/// too.
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
            "another authority: everybody joins anew"
        );
    }
    let noted = database
        .cluster()
        .set_authority(known.as_deref(), &found)
        .await?;
    match noted {
        Some(noted) if noted == found => Ok(authority),
        // Another controller was faster.
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
        remains: Box::new(|| Ok(crate::folder::Remains::default())),
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
