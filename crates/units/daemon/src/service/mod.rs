//! What `scree unit` runs, without the terminal: a folder D, the unit in it, a
//! server to that, and what controllers say of the cluster, asked again and again.
//!
//! ```text
//!   begin ──► open or make D/unit ──► keep the answer ──► open the server
//!                                                              │
//!                        ┌──── every 30 s ◄──── begin, with the URL
//!                        └──────────────────────────►┘
//!      and soon, when a host asks for a unit that is not known
//! ```
//!
//! Invariants:
//!
//! * Where a controller has once told a daemon of its cluster, it starts and
//!   serves without one.
//! * `cluster.json` is there only if the unit is made. So a unit that is not
//!   there then, because it is not mounted, is never made anew.
//! * What is heeded is of the cluster and the unit that the folder was made for,
//!   and of no database that was replaced ([`ConfigRejected`]).

mod controller_config;
mod folder;
mod health;
mod opening;
mod restoring;

pub use controller_config::ConfigRejected;
pub use folder::FolderError;
pub use opening::StartError;
pub use restoring::{RestoreError, restore};

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use api::unit::{BeginUnit, UnitCluster};
use api::{Client, ClientError, Profile, ProfileError};
use base::{UnitId, with_causes};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use unit_folder::Keeping;
use world::{Millis, World, host};

use crate::{Keeper, Limits, Server, ServerConfig};
use folder::Folder;
use health::Looks;

/// How often controllers are asked, in earnest.
pub const BEGIN_EVERY: Duration = Duration::from_secs(30);

/// How often for a unit that a host asks for and that is not known.
const BEGIN_AGAIN: Duration = Duration::from_secs(2);

/// A controller that is there answers within this.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// How often the folder is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Clocks that are further apart are a mistake, in milliseconds.
const CLOCKS_APART_MS: u64 = 30_000;

/// How a daemon is run.
pub struct Settings {
    /// D.
    pub folder: PathBuf,
    /// Where it listens. Port 0 asks for any free port.
    pub listen: SocketAddr,
    /// Where hosts reach that, if not there.
    pub address: Option<SocketAddr>,
    /// Asks controllers in the name of the unit.
    pub client: Client,
    /// Who it is: each certificate in turn.
    pub profile: watch::Receiver<Arc<Profile>>,
    /// As [`Limits::connections_max`].
    pub connections_max: usize,
    /// How long, and how much of, what hosts free is kept.
    pub keeping: Keeping,
    /// How often controllers are asked: [`BEGIN_EVERY`], but for tests.
    pub begin_every: Duration,
}

/// A unit daemon that runs. Cheap to clone.
#[derive(Clone)]
pub struct Service {
    inner: Arc<Inner>,
}

struct Inner {
    world: World,
    folder: Folder,
    client: Client,
    profile: watch::Receiver<Arc<Profile>>,
    connections_max: usize,
    begin_every: Duration,
    /// Rung when a host has asked for a unit that is not known.
    unknown: Arc<Notify>,
    /// By which address hosts reach it.
    own: IpAddr,
    url: String,
    /// Which of those it is that may have this identity.
    place: String,
    keeper: Arc<Keeper>,
    /// None once it is closed.
    server: Mutex<Option<Server>>,
    /// What is heeded.
    cluster: Mutex<UnitCluster>,
    /// Not kept for the next start: that failed.
    is_unkept: AtomicBool,
    /// When a controller was heeded last, by the monotonic clock; or when this
    /// began, if none was.
    heard: Mutex<Duration>,
    /// Why none was heeded the last time.
    trouble: Mutex<Option<String>>,
    are_clocks_apart: AtomicBool,
    looks: Looks,
}

/// What came of asking a controller.
#[derive(Debug, thiserror::Error)]
enum FetchConfigError {
    #[error("no controller has said anything: {0}")]
    Unheard(ClientError),
    #[error("a controller says: {0}")]
    Refused(ClientError),
    #[error(transparent)]
    ConfigRejected(#[from] ConfigRejected),
    #[error("the cluster's authority cannot be used")]
    Authority(#[from] ProfileError),
}

impl From<ClientError> for FetchConfigError {
    fn from(error: ClientError) -> Self {
        match error.may_pass() {
            true => Self::Unheard(error),
            false => Self::Refused(error),
        }
    }
}

/// What a controller says of the cluster, and its clock when that came.
async fn ask(
    world: &World,
    client: &Client,
    begin: &BeginUnit,
) -> Result<(UnitCluster, Millis), ClientError> {
    let asked = world.clock.monotonic();
    let answer = client.post("/v1/unit/begin", begin);
    let answer: UnitCluster = Client::within(ANSWER_WITHIN, answer).await?;
    let took = world.clock.monotonic().saturating_sub(asked);
    // It was half of the way ago, as far as anybody knows.
    let since = i64::try_from(took.as_millis() / 2).unwrap_or_default();
    let now = Millis(answer.now.0.saturating_add(since));
    Ok((answer, now))
}

impl Service {
    /// Opens D and the server, and tells a controller of it, if there is one. To
    /// be called within a runtime.
    ///
    /// # Errors
    /// [`StartError`].
    pub async fn start(world: World, settings: Settings) -> Result<Self, StartError> {
        let service = opening::open(world, settings).await?;
        // One that is away was just waited for.
        if service.inner.trouble.lock().is_none() {
            match service.fetch_config().await {
                // Hosts would look for it elsewhere.
                Err(FetchConfigError::Refused(source)) => {
                    let url = service.url().to_owned();
                    service.shut_down().await;
                    return Err(StartError::NotTaken { url, source });
                }
                outcome => service.note(outcome),
            }
        }
        Ok(service)
    }

    /// Asks controllers, looks after the folder, and takes new certificates into
    /// use; until it is dropped.
    pub async fn run(&self) {
        let begin = async {
            let mut ticks = host::ticks(self.inner.begin_every);
            // It has just been done.
            ticks.tick().await;
            loop {
                tokio::select! {
                    _ = ticks.tick() => {}
                    () = self.inner.unknown.notified() => host::sleep(BEGIN_AGAIN).await,
                }
                self.begin().await;
            }
        };
        let look = async {
            let mut ticks = host::ticks(LOOK_EVERY);
            loop {
                ticks.tick().await;
                self.look();
            }
        };
        tokio::join!(begin, look, self.heed_profile());
    }

    /// Closes the server and all connections.
    pub async fn shut_down(&self) {
        let server = self.inner.server.lock().take();
        // It waits for threads.
        blocking(move || drop(server)).await;
    }

    /// D, absolute.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.inner.folder.path()
    }

    /// Which unit it keeps.
    #[must_use]
    pub fn unit(&self) -> UnitId {
        self.inner.keeper.id()
    }

    /// Where hosts reach it.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.inner.url
    }

    /// Where it listens; `None` once it was shut down.
    #[must_use]
    pub fn endpoint(&self) -> Option<world::Endpoint> {
        let server = self.inner.server.lock();
        server.as_ref().map(|server| server.endpoint().clone())
    }

    /// Tells a controller where this listens, and heeds what it says. What goes
    /// wrong is logged when it begins and when it is over.
    async fn begin(&self) {
        let outcome = self.fetch_config().await;
        self.note(outcome);
    }

    fn note(&self, outcome: Result<(), FetchConfigError>) {
        let why = outcome.err().map(|error| with_causes(&error));
        let before = std::mem::replace(&mut *self.inner.trouble.lock(), why.clone());
        match (before, why) {
            (Some(_), None) => tracing::info!("a controller has answered again"),
            (before, Some(why)) if before.as_ref() != Some(&why) => {
                tracing::warn!(why, "going on with what is known; it is asked again");
            }
            _ => {}
        }
    }

    async fn fetch_config(&self) -> Result<(), FetchConfigError> {
        let inner = &self.inner;
        let begin = BeginUnit {
            url: Some(inner.url.clone()),
            folder: Some(inner.place.clone()),
        };
        let (answer, now) = ask(&inner.world, &inner.client, &begin).await?;
        let known = inner.cluster.lock().clone();
        controller_config::check(&known, &answer)?;
        let cluster = controller_config::lasting(&answer);
        inner.set_server(inner.server_config(&cluster)?);
        inner
            .keeper
            .set_config(controller_config::keeper_config(&cluster));
        inner.heard(now);
        if cluster != known || inner.is_unkept.load(Ordering::Relaxed) {
            *inner.cluster.lock() = cluster.clone();
            let keeping = Arc::clone(inner);
            let kept = blocking(move || keeping.folder.keep(&keeping.world, &cluster)).await;
            inner.is_unkept.store(kept.is_err(), Ordering::Relaxed);
            if let Err(error) = kept {
                let why = with_causes(&error);
                tracing::error!(
                    why,
                    "what the controller says cannot be kept for the next start"
                );
            }
        }
        Ok(())
    }

    /// Shows each new certificate from the next connection on.
    async fn heed_profile(&self) {
        let mut profile = self.inner.profile.clone();
        while profile.changed().await.is_ok() {
            let inner = &self.inner;
            let cluster = inner.cluster.lock().clone();
            match inner.server_config(&cluster) {
                Ok(config) => inner.set_server(config),
                Err(error) => {
                    let why = with_causes(&error);
                    tracing::error!(why, "the new certificate cannot be used");
                }
            }
        }
        // Nobody renews it any more.
        std::future::pending().await
    }
}

impl Inner {
    fn server_config(&self, cluster: &UnitCluster) -> Result<ServerConfig, ProfileError> {
        let most = self.connections_max;
        server_config(cluster, &self.profile, most, self.own, &self.unknown)
    }

    fn set_server(&self, config: ServerConfig) {
        if let Some(server) = &*self.server.lock() {
            server.set_config(config);
        }
    }

    /// A controller has said that it is `now`.
    fn heard(&self, now: Millis) {
        *self.heard.lock() = self.world.clock.monotonic();
        self.keeper.set_time(now);
        let offset_ms = self.keeper.clock_offset_ms();
        let are_apart = offset_ms.unsigned_abs() > CLOCKS_APART_MS;
        if are_apart && !self.are_clocks_apart.swap(are_apart, Ordering::Relaxed) {
            tracing::warn!(
                offset_ms,
                "the controllers' clock and this machine's are far apart: look at both"
            );
        }
        self.are_clocks_apart.store(are_apart, Ordering::Relaxed);
    }
}

fn server_config(
    cluster: &UnitCluster,
    profile: &watch::Receiver<Arc<Profile>>,
    connections_max: usize,
    own: IpAddr,
    unknown: &Arc<Notify>,
) -> Result<ServerConfig, ProfileError> {
    let profile = Arc::clone(&profile.borrow());
    Ok(ServerConfig {
        tls: Arc::new(profile.server_tls(&cluster.authority)?),
        others: controller_config::others(cluster, own, unknown),
        limits: Limits::of(connections_max),
    })
}

/// Does what may wait for a disk where that harms nobody.
async fn blocking<T: Send + 'static>(what: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(what).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime is ending, and this with it.
            Err(_) => std::future::pending().await,
        },
    }
}
