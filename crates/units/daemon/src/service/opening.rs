//! Starting a daemon: from a data directory to an open server.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use api::unit::{BeginUnit, UnitCluster};
use api::{ClientError, ProfileError};
use base::{UnitId, with_causes};
use parking_lot::Mutex;
use unit::{Unit as _, UnitError};
use unit_folder::{FolderUnit, UndeletePolicy};
use unit_remote::url_of_address;
use world::{Endpoint, Millis, World};

use super::controller_config::{self, ConfigRejected};
use super::folder::{Folder, FolderError};
use super::health::Checks;
use super::{FetchConfigError, Inner, Service, Settings, blocking, report, server_config};
use crate::{Keeper, Server};

/// Why a daemon does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A controller refuses the URL of the daemon.
    #[error("a controller refused this daemon at {url}: {source}")]
    ReportRefused {
        /// The URL.
        url: String,
        /// The error of the controller.
        #[source]
        source: ClientError,
    },
    /// There is no address to report.
    #[error(
        "the daemon listens on all addresses of this machine, at {listen}: give the one at which \
         hosts reach it with --address IP:PORT"
    )]
    NoAddress {
        /// The address to listen on.
        listen: SocketAddr,
    },
    /// Hosts cannot reach the given address.
    #[error("hosts cannot reach {address}; give an address of this machine, and a port")]
    BadAddress {
        /// The given address.
        address: SocketAddr,
    },
    /// The unit was created in another folder.
    #[error(
        "{unit} was created elsewhere than in {folder}: mount it there, or, if it is lost for good, \
         disable this daemon and join another one under a new name", folder = folder.display()
    )]
    MadeElsewhere {
        /// The unit.
        unit: UnitId,
        /// The folder where it should be.
        folder: PathBuf,
    },
    /// The data directory cannot be used.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// There is no configuration yet and no controller answers.
    #[error(
        "no controller answers ({source}), and {folder} has no configuration yet: the first start \
         needs a controller", folder = folder.display()
    )]
    NoController {
        /// The data directory.
        folder: PathBuf,
        /// The error of the client.
        source: ClientError,
    },
    /// The controller refuses the daemon.
    #[error("the controller refused this daemon: {0}")]
    Refused(ClientError),
    /// The configuration is for another daemon.
    #[error("{folder} cannot be used: {source}", folder = folder.display())]
    Rejected {
        /// The data directory.
        folder: PathBuf,
        /// Why it was rejected.
        source: ConfigRejected,
    },
    /// The unit cannot be used.
    #[error("{}{hint}", with_causes(source))]
    Unit {
        /// The error of the unit.
        source: UnitError,
        /// What to do about it.
        hint: &'static str,
    },
    /// The newest leases cannot be read.
    #[error("the unit's file `fences` cannot be read")]
    Fences(#[source] io::Error),
    /// Its certificate, or the cluster's authority, cannot be used.
    #[error(transparent)]
    Tls(#[from] ProfileError),
    /// The server cannot listen.
    #[error("cannot listen at {listen}")]
    Listen {
        /// The address.
        listen: SocketAddr,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
}

/// The configuration at the start.
struct StartConfig {
    cluster: UnitCluster,
    /// Whether the unit may be claimed from another copy of the database.
    takes_over: bool,
    /// The time of the controller, if one has answered.
    now: Option<Millis>,
    /// Why none has.
    fetch_error: Option<String>,
    /// Whether the unit was created before.
    is_created: bool,
}

pub(super) async fn open(world: World, settings: Settings) -> Result<Service, StartError> {
    check_address(&settings)?;
    let DataDirectory {
        folder,
        config,
        mark,
    } = lock_folder(&world, &settings).await?;
    let config = fetch_config(&world, &settings, &folder, config).await?;
    let (folder, start, keeper) = {
        let (world, undelete) = (world.clone(), settings.undelete);
        let opened = blocking(move || {
            let keeper = open_keeper(&world, &folder, &config, undelete)?;
            if config.now.is_some() {
                folder.store_config(&world, &config.cluster)?;
            }
            Ok::<_, StartError>((folder, config, keeper))
        });
        opened.await?
    };
    let unknown = Arc::default();
    let connections_max = settings.connections_max;
    let own = settings.address.unwrap_or(settings.listen).ip();
    let profile = &settings.profile;
    let config = server_config(&start.cluster, profile, connections_max, own, &unknown)?;
    let listen = Endpoint::Tcp(settings.listen);
    let server = Server::open(&world, &listen, [Arc::clone(&keeper)], config);
    let server = server.map_err(|source| StartError::Listen {
        listen: settings.listen,
        source,
    })?;
    let inner = Inner {
        own,
        place: mark,
        is_unstored: AtomicBool::new(false),
        url: url_of_address(reachable_at(&settings, &server)),
        checks: Checks::new(&*world.clock),
        configured_at: Mutex::new(world.clock.monotonic()),
        fetch_error: Mutex::new(start.fetch_error),
        are_clocks_apart: AtomicBool::new(false),
        cluster: Mutex::new(start.cluster),
        server: Mutex::new(Some(server)),
        connections_max,
        unknown,
        report_every: settings.report_every,
        profile: settings.profile,
        client: settings.client,
        folder,
        keeper,
        world,
    };
    if let Some(now) = start.now {
        inner.record_configured(now);
    }
    Ok(Service {
        inner: Arc::new(inner),
    })
}

/// The locked data directory, and what is stored there.
struct DataDirectory {
    folder: Folder,
    /// The configuration of the last start; `None` before the first one.
    config: Option<UnitCluster>,
    /// The random mark of the directory.
    mark: String,
}

async fn lock_folder(world: &World, settings: &Settings) -> Result<DataDirectory, FolderError> {
    let (world, path) = (world.clone(), settings.folder.clone());
    let locked = blocking(move || {
        let folder = Folder::lock(&world, &path)?;
        let config = folder.load_config(&world)?;
        let mark = folder.mark(&world)?;
        Ok(DataDirectory {
            folder,
            config,
            mark,
        })
    });
    locked.await
}

fn check_address(settings: &Settings) -> Result<(), StartError> {
    match settings.address {
        Some(address) if address.port() == 0 || address.ip().is_unspecified() => {
            Err(StartError::BadAddress { address })
        }
        None if settings.listen.ip().is_unspecified() => Err(StartError::NoAddress {
            listen: settings.listen,
        }),
        _ => Ok(()),
    }
}

fn reachable_at(settings: &Settings, server: &Server) -> SocketAddr {
    match (settings.address, server.endpoint()) {
        (Some(address), _) => address,
        (None, Endpoint::Tcp(address)) => *address,
        (None, Endpoint::Unix(_)) => settings.listen,
    }
}

/// Fetches the configuration from a controller. If none answers, the stored one is used.
async fn fetch_config(
    world: &World,
    settings: &Settings,
    folder: &Folder,
    stored: Option<UnitCluster>,
) -> Result<StartConfig, StartError> {
    match (
        report(world, &settings.client, &BeginUnit::default()).await,
        stored,
    ) {
        (Ok((answer, now)), stored) => {
            if let Some(stored) = &stored {
                controller_config::check(stored, &answer).map_err(|source| {
                    StartError::Rejected {
                        folder: folder.path().to_owned(),
                        source,
                    }
                })?;
            }
            Ok(StartConfig {
                cluster: controller_config::lasting(&answer),
                takes_over: answer.takes_over,
                now: Some(now),
                fetch_error: None,
                is_created: stored.is_some(),
            })
        }
        (Err(error), Some(cluster)) => {
            let why = with_causes(&FetchConfigError::from(error));
            tracing::warn!(error = why, "daemon starts with its stored configuration");
            Ok(StartConfig {
                cluster,
                takes_over: false,
                now: None,
                fetch_error: Some(why),
                is_created: true,
            })
        }
        (Err(source), None) if source.may_pass() => Err(StartError::NoController {
            folder: folder.path().to_owned(),
            source,
        }),
        (Err(error), None) => Err(StartError::Refused(error)),
    }
}

fn open_keeper(
    world: &World,
    folder: &Folder,
    config: &StartConfig,
    undelete: UndeletePolicy,
) -> Result<Arc<Keeper>, StartError> {
    let path = folder.unit();
    let (cluster, owner) = (&config.cluster, controller_config::owner(&config.cluster));
    let unit = FolderUnit::open(world, &path, cluster.id, cluster.unit)
        .with_owner(owner, config.takes_over)
        .with_undelete(undelete);
    let opened = match config.is_created {
        true => match unit.probe() {
            // It can still be read.
            Err(
                error @ (UnitError::Full { .. }
                | UnitError::ReadOnly { .. }
                | UnitError::Io { .. }
                | UnitError::Tampered { .. }),
            ) => {
                tracing::warn!(error = with_causes(&error), "unit accepts no writes");
                Ok(unit)
            }
            other => other.map(|()| unit),
        },
        false => {
            let is_known = cluster.units.iter().any(|known| known.id == cluster.unit);
            let is_absent = |probed| {
                matches!(
                    probed,
                    Err(UnitError::Missing { .. } | UnitError::Foreign { .. })
                )
            };
            if is_known && is_absent(unit.probe()) {
                return Err(StartError::MadeElsewhere {
                    unit: cluster.unit,
                    folder: path,
                });
            }
            unit.created()
        }
    };
    let unit = opened.map_err(|source| StartError::Unit {
        hint: hint(&source),
        source,
    })?;
    complete_restore(&unit);
    let keeper = Keeper::open(
        world,
        unit,
        &path,
        controller_config::keeper_config(cluster),
    );
    Ok(Arc::new(keeper.map_err(StartError::Fences)?))
}

/// Completes an interrupted restore. If that fails, the daemon starts all the same: until the
/// restore is complete, nothing that is stored for undelete expires.
fn complete_restore(unit: &FolderUnit) {
    match unit.complete_restore() {
        Ok(report) if report.is_complete() => {}
        Ok(report) => {
            let logs = report.unreadable_logs;
            tracing::warn!(
                logs,
                "daemon completed a restore with failures: stop it and run `scree unit restore` again"
            );
        }
        Err(error) => tracing::warn!(
            why = with_causes(&error),
            "daemon failed to complete a restore: fix the cause, stop the daemon, and run \
             `scree unit restore` again as its user"
        ),
    }
}

/// What to do about a unit that cannot be used.
fn hint(error: &UnitError) -> &'static str {
    match error {
        UnitError::Missing { .. } | UnitError::Unavailable { .. } => {
            "; mount it, if it is not mounted; if it is lost for good, disable this daemon and \
             join another one in a new folder"
        }
        UnitError::Held { .. } => {
            "; stop that one, or, if it is lost for good, start one controller once with \
             `--restored-database`"
        }
        _ => "",
    }
}
