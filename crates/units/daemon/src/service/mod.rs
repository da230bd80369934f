//! The daemon as a process, without the terminal: a data directory, the unit in it, a server,
//! and the configuration that is fetched from controllers regularly.
//!
//! ```text
//!   fetch ──► open or create the unit ──► store the configuration ──► open the server
//!                                                                        │
//!                            ┌──── every 30 s ◄──── fetch, and report the URL
//!                            └──────────────────────────►┘
//!      and soon, when a host requests a unit that is not known
//! ```
//!
//! Invariants:
//!
//! * Once a daemon has a configuration, it starts and serves without a controller.
//! * `cluster.json` exists only if the unit was created. So a unit that is missing then, because
//!   it is not mounted, is never created again.
//! * A configuration is applied only if it is for the cluster and the unit of the data
//!   directory, and not from a database that has been replaced ([`ConfigRejected`]).

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
use unit_folder::UndeletePolicy;
use world::{Millis, World, host};

use crate::{Keeper, Limits, Server, ServerConfig};
use folder::Folder;
use health::Checks;

/// Interval of reports to controllers, outside of tests.
pub const REPORT_EVERY: Duration = Duration::from_secs(30);

/// Time from a request for an unknown unit to the next report.
const REPORT_SOON: Duration = Duration::from_secs(2);

/// Time within which a controller must answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// Interval of checks of the folder.
const CHECK_EVERY: Duration = Duration::from_secs(5);

/// Difference of clocks from which the daemon warns, in milliseconds.
const CLOCK_OFFSET_MS_MAX: u64 = 30_000;

/// Settings of a daemon.
pub struct Settings {
    /// The data directory.
    pub folder: PathBuf,
    /// The address to listen on. Port 0 chooses a free port.
    pub listen: SocketAddr,
    /// The address at which hosts reach the daemon, if it is another one.
    pub address: Option<SocketAddr>,
    /// The client for controllers, with the unit's certificate.
    pub client: Client,
    /// The current certificate.
    pub profile: watch::Receiver<Arc<Profile>>,
    /// As [`Limits::connections_max`].
    pub connections_max: usize,
    /// How long, and how much of, what hosts free is stored.
    pub undelete: UndeletePolicy,
    /// Interval of reports to controllers: [`REPORT_EVERY`], except in tests.
    pub report_every: Duration,
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
    report_every: Duration,
    /// Notified when a host has requested a unit that is not known.
    unknown: Arc<Notify>,
    /// The address at which hosts reach the daemon.
    own: IpAddr,
    url: String,
    /// The mark of the data directory, which distinguishes daemons with the same identity.
    place: String,
    keeper: Arc<Keeper>,
    /// `None` once it is closed.
    server: Mutex<Option<Server>>,
    /// The configuration that is applied.
    cluster: Mutex<UnitCluster>,
    /// Whether storing the configuration failed.
    is_unstored: AtomicBool,
    /// When a configuration was applied last, by the monotonic clock; when the daemon started, if
    /// none was.
    configured_at: Mutex<Duration>,
    /// Why the last fetch failed.
    fetch_error: Mutex<Option<String>>,
    are_clocks_apart: AtomicBool,
    checks: Checks,
}

/// Why no configuration was applied.
#[derive(Debug, thiserror::Error)]
enum FetchConfigError {
    #[error("no controller answered: {0}")]
    Unanswered(ClientError),
    #[error("a controller refused the report: {0}")]
    Refused(ClientError),
    #[error(transparent)]
    ConfigRejected(#[from] ConfigRejected),
    #[error("the cluster's authority cannot be used")]
    Authority(#[from] ProfileError),
}

impl From<ClientError> for FetchConfigError {
    fn from(error: ClientError) -> Self {
        match error.may_pass() {
            true => Self::Unanswered(error),
            false => Self::Refused(error),
        }
    }
}

/// Reports to a controller. Returns the configuration and the controller's time when it
/// arrived.
async fn report(
    world: &World,
    client: &Client,
    begin: &BeginUnit,
) -> Result<(UnitCluster, Millis), ClientError> {
    let begun = world.clock.monotonic();
    let answer = client.post("/v1/unit/begin", begin);
    let answer: UnitCluster = Client::within(ANSWER_WITHIN, answer).await?;
    let took = world.clock.monotonic().saturating_sub(begun);
    // The answer is estimated to be half a round trip old.
    let since = i64::try_from(took.as_millis() / 2).unwrap_or_default();
    let now = Millis(answer.now.0.saturating_add(since));
    Ok((answer, now))
}

impl Service {
    /// Opens the data directory and the server, and reports the URL to a controller, if one is
    /// available. Must be called within a runtime.
    ///
    /// # Errors
    /// [`StartError`].
    pub async fn start(world: World, settings: Settings) -> Result<Self, StartError> {
        let service = opening::open(world, settings).await?;
        // If the first fetch failed, another would only wait again.
        if service.inner.fetch_error.lock().is_none() {
            match service.fetch_config().await {
                // Hosts would look for the unit at another address.
                Err(FetchConfigError::Refused(source)) => {
                    let url = service.url().to_owned();
                    service.shut_down().await;
                    return Err(StartError::ReportRefused { url, source });
                }
                outcome => service.record(outcome),
            }
        }
        Ok(service)
    }

    /// Fetches the configuration, checks the folder, and applies new certificates, until it is
    /// dropped.
    pub async fn run(&self) {
        let report = async {
            let mut ticks = host::ticks(self.inner.report_every);
            // `start` has just done it.
            ticks.tick().await;
            loop {
                tokio::select! {
                    _ = ticks.tick() => {}
                    () = self.inner.unknown.notified() => host::sleep(REPORT_SOON).await,
                }
                let outcome = self.fetch_config().await;
                self.record(outcome);
            }
        };
        let check = async {
            let mut ticks = host::ticks(CHECK_EVERY);
            loop {
                ticks.tick().await;
                self.check_folder();
            }
        };
        tokio::join!(report, check, self.apply_certificates());
    }

    /// Closes the server and all connections.
    pub async fn shut_down(&self) {
        let server = self.inner.server.lock().take();
        // Dropping waits for threads.
        blocking(move || drop(server)).await;
    }

    /// The data directory, absolute.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.inner.folder.path()
    }

    /// The unit of the daemon.
    #[must_use]
    pub fn unit(&self) -> UnitId {
        self.inner.keeper.id()
    }

    /// The URL at which hosts reach it.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.inner.url
    }

    /// The endpoint that it listens on; `None` once it was shut down.
    #[must_use]
    pub fn endpoint(&self) -> Option<world::Endpoint> {
        let server = self.inner.server.lock();
        server.as_ref().map(|server| server.endpoint().clone())
    }

    /// Logs when fetching the configuration begins to fail and when it succeeds again.
    fn record(&self, outcome: Result<(), FetchConfigError>) {
        let why = outcome.err().map(|error| with_causes(&error));
        let before = std::mem::replace(&mut *self.inner.fetch_error.lock(), why.clone());
        match (before, why) {
            (Some(_), None) => tracing::info!("daemon fetched its configuration again"),
            (before, Some(why)) if before.as_ref() != Some(&why) => {
                tracing::warn!(
                    error = why,
                    "daemon failed to fetch its configuration and keeps the last one"
                );
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
        let (answer, now) = report(&inner.world, &inner.client, &begin).await?;
        let known = inner.cluster.lock().clone();
        controller_config::check(&known, &answer)?;
        let cluster = controller_config::lasting(&answer);
        inner.set_server(inner.server_config(&cluster)?);
        inner
            .keeper
            .set_config(controller_config::keeper_config(&cluster));
        inner.record_configured(now);
        if cluster != known || inner.is_unstored.load(Ordering::Relaxed) {
            *inner.cluster.lock() = cluster.clone();
            let storing = Arc::clone(inner);
            let store = move || storing.folder.store_config(&storing.world, &cluster);
            let stored = blocking(store).await;
            inner.is_unstored.store(stored.is_err(), Ordering::Relaxed);
            if let Err(error) = stored {
                let why = with_causes(&error);
                tracing::error!(error = why, "daemon failed to store its configuration");
            }
        }
        Ok(())
    }

    /// Uses each new certificate from the next connection on.
    async fn apply_certificates(&self) {
        let mut profile = self.inner.profile.clone();
        while profile.changed().await.is_ok() {
            let inner = &self.inner;
            let cluster = inner.cluster.lock().clone();
            match inner.server_config(&cluster) {
                Ok(config) => inner.set_server(config),
                Err(error) => {
                    let why = with_causes(&error);
                    tracing::error!(error = why, "daemon cannot use its new certificate");
                }
            }
        }
        // The certificate is not renewed any more.
        std::future::pending().await
    }
}

impl Inner {
    fn server_config(&self, cluster: &UnitCluster) -> Result<ServerConfig, ProfileError> {
        let connections_max = self.connections_max;
        server_config(
            cluster,
            &self.profile,
            connections_max,
            self.own,
            &self.unknown,
        )
    }

    fn set_server(&self, config: ServerConfig) {
        if let Some(server) = &*self.server.lock() {
            server.set_config(config);
        }
    }

    /// Records that a configuration was applied; `now` is the controller's time.
    fn record_configured(&self, now: Millis) {
        *self.configured_at.lock() = self.world.clock.monotonic();
        self.keeper.set_time(now);
        let offset_ms = self.keeper.clock_offset_ms();
        let are_apart = offset_ms.unsigned_abs() > CLOCK_OFFSET_MS_MAX;
        if are_apart && !self.are_clocks_apart.swap(are_apart, Ordering::Relaxed) {
            tracing::warn!(
                offset_ms,
                "clocks of the controllers and of this machine differ: check both"
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

/// Runs `act`, which may wait for a disk, on a thread for that.
async fn blocking<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(act).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime is shutting down.
            Err(_) => std::future::pending().await,
        },
    }
}
