//! From a folder to a server that is open.

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
use super::health::Looks;
use super::{FetchConfigError, Inner, Service, Settings, ask, blocking, server_config};
use crate::{Keeper, Server};

/// Why a daemon does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A controller refuses it.
    #[error("a controller does not take this daemon at {url}: {source}")]
    NotTaken {
        /// Where it is.
        url: String,
        /// Why not.
        #[source]
        source: ClientError,
    },
    /// Nobody can be told where it is.
    #[error(
        "it listens on all addresses of this machine, at {listen}: say with --address IP:PORT \
         by which one hosts reach it"
    )]
    NoAddress {
        /// Where it is to listen.
        listen: SocketAddr,
    },
    /// Hosts cannot reach that.
    #[error("hosts cannot reach {address}; give an address of this machine, and a port")]
    BadAddress {
        /// Where it is said to be.
        address: SocketAddr,
    },
    /// It was made in another folder.
    #[error(
        "the cluster has {unit}, and it was made elsewhere than in {folder}: mount it there, or, \
         if it is lost for good, disable this daemon and join another one under a new name: an \
         empty unit would be taken for the full one", folder = folder.display()
    )]
    MadeElsewhere {
        /// Which.
        unit: UnitId,
        /// Where it should be.
        folder: PathBuf,
    },
    /// D cannot be used.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// It knows nothing of its cluster.
    #[error(
        "no controller answers ({source}), and {folder} has not been told of a cluster yet: the \
         first start needs a controller", folder = folder.display()
    )]
    Unheard {
        /// D.
        folder: PathBuf,
        /// What came instead of an answer.
        source: ClientError,
    },
    /// The controller does not let it begin.
    #[error("the controller does not let this daemon begin: {0}")]
    Refused(ClientError),
    /// The controller takes it for another one.
    #[error("{folder} cannot be used: {source}", folder = folder.display())]
    Other {
        /// D.
        folder: PathBuf,
        /// What it says.
        source: ConfigRejected,
    },
    /// The unit cannot be used.
    #[error("{}{hint}", with_causes(source))]
    Unit {
        /// What is wrong with it.
        source: UnitError,
        /// What there is to do.
        hint: &'static str,
    },
    /// The leases that it was shown cannot be read.
    #[error("the unit's file `fences` cannot be read")]
    Fences(#[source] io::Error),
    /// Its certificate, or the cluster's authority, cannot be used.
    #[error(transparent)]
    Tls(#[from] ProfileError),
    /// It cannot listen.
    #[error("cannot listen at {listen}")]
    Listen {
        /// Where.
        listen: SocketAddr,
        /// What the operating system said.
        #[source]
        source: io::Error,
    },
}

/// What is known of the cluster when it starts.
struct Known {
    cluster: UnitCluster,
    /// The operator has said that whoever else has the unit is gone.
    takes_over: bool,
    /// The controllers' clock, if one has answered.
    now: Option<Millis>,
    /// Why none has.
    trouble: Option<String>,
    /// The unit was made before.
    is_made: bool,
}

pub(super) async fn open(world: World, settings: Settings) -> Result<Service, StartError> {
    check_address(&settings)?;
    let (folder, kept, mark) = {
        let (world, path) = (world.clone(), settings.folder.clone());
        let locked = blocking(move || {
            let folder = Folder::lock(&world, &path)?;
            let kept = folder.kept(&world)?;
            let mark = folder.mark(&world)?;
            Ok::<_, FolderError>((folder, kept, mark))
        });
        locked.await?
    };
    let known = learn(&world, &settings, &folder, kept).await?;
    let (folder, known, keeper) = {
        let (world, keeping) = (world.clone(), settings.undelete);
        let opened = blocking(move || {
            let keeper = open_keeper(&world, &folder, &known, keeping)?;
            if known.now.is_some() {
                folder.keep(&world, &known.cluster)?;
            }
            Ok::<_, StartError>((folder, known, keeper))
        });
        opened.await?
    };
    let unknown = Arc::default();
    let most = settings.connections_max;
    let own = settings.address.unwrap_or(settings.listen).ip();
    let config = server_config(&known.cluster, &settings.profile, most, own, &unknown)?;
    let listen = Endpoint::Tcp(settings.listen);
    let server = Server::open(&world, &listen, [Arc::clone(&keeper)], config);
    let server = server.map_err(|source| StartError::Listen {
        listen: settings.listen,
        source,
    })?;
    let inner = Inner {
        own,
        place: mark,
        is_unkept: AtomicBool::new(false),
        url: url_of_address(reached_at(&settings, &server)),
        looks: Looks::new(&*world.clock),
        heard: Mutex::new(world.clock.monotonic()),
        trouble: Mutex::new(known.trouble),
        are_clocks_apart: AtomicBool::new(false),
        cluster: Mutex::new(known.cluster),
        server: Mutex::new(Some(server)),
        connections_max: most,
        unknown,
        begin_every: settings.begin_every,
        profile: settings.profile,
        client: settings.client,
        folder,
        keeper,
        world,
    };
    if let Some(now) = known.now {
        inner.heard(now);
    }
    Ok(Service {
        inner: Arc::new(inner),
    })
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

fn reached_at(settings: &Settings, server: &Server) -> SocketAddr {
    match (settings.address, server.endpoint()) {
        (Some(address), _) => address,
        (None, Endpoint::Tcp(address)) => *address,
        (None, Endpoint::Unix(_)) => settings.listen,
    }
}

/// Asks a controller; if none answers, what one said last does.
async fn learn(
    world: &World,
    settings: &Settings,
    folder: &Folder,
    kept: Option<UnitCluster>,
) -> Result<Known, StartError> {
    match (
        ask(world, &settings.client, &BeginUnit::default()).await,
        kept,
    ) {
        (Ok((answer, now)), kept) => {
            if let Some(kept) = &kept {
                controller_config::check(kept, &answer).map_err(|source| StartError::Other {
                    folder: folder.path().to_owned(),
                    source,
                })?;
            }
            Ok(Known {
                cluster: controller_config::lasting(&answer),
                takes_over: answer.takes_over,
                now: Some(now),
                trouble: None,
                is_made: kept.is_some(),
            })
        }
        (Err(error), Some(cluster)) => {
            let why = with_causes(&FetchConfigError::from(error));
            tracing::warn!(why, "starting with what a controller said last");
            Ok(Known {
                cluster,
                takes_over: false,
                now: None,
                trouble: Some(why),
                is_made: true,
            })
        }
        (Err(source), None) if source.may_pass() => Err(StartError::Unheard {
            folder: folder.path().to_owned(),
            source,
        }),
        (Err(error), None) => Err(StartError::Refused(error)),
    }
}

fn open_keeper(
    world: &World,
    folder: &Folder,
    known: &Known,
    undelete: UndeletePolicy,
) -> Result<Arc<Keeper>, StartError> {
    let path = folder.unit();
    let (cluster, owner) = (&known.cluster, controller_config::owner(&known.cluster));
    let unit = FolderUnit::open(world, &path, cluster.id, cluster.unit)
        .with_owner(owner, known.takes_over)
        .with_undelete(keeping);
    let opened = match known.is_made {
        true => match unit.probe() {
            // What is there can be read.
            Err(
                error @ (UnitError::Full { .. }
                | UnitError::ReadOnly { .. }
                | UnitError::Io { .. }
                | UnitError::Tampered { .. }),
            ) => {
                tracing::warn!(why = with_causes(&error), "the unit takes no writes");
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
    end_restore(&unit);
    let keeper = Keeper::open(
        world,
        unit,
        &path,
        controller_config::keeper_config(cluster),
    );
    Ok(Arc::new(keeper.map_err(StartError::Fences)?))
}

/// Does a restore that was cut short to its end. Hosts do not wait for one that cannot
/// be ended: until it is, nothing that is held goes because its time is over.
fn end_restore(unit: &FolderUnit) {
    match unit.complete_restore() {
        Ok(ended) if ended.is_whole() => {}
        Ok(ended) => {
            let logs = ended.unreadable_logs;
            tracing::warn!(
                logs,
                "a restore was ended, and not everything was brought back: stop this daemon and \
                 say it again"
            );
        }
        Err(error) => tracing::warn!(
            why = with_causes(&error),
            "a restore is not through: when that is repaired, stop this daemon and say it again, \
             as the user whose daemon it is"
        ),
    }
}

/// What there is to do about a unit that cannot be used.
fn hint(error: &UnitError) -> &'static str {
    match error {
        UnitError::Missing { .. } | UnitError::Unavailable { .. } => {
            "; mount it, if it is not mounted; if it is lost for good, disable this daemon and \
             join another one in a new folder"
        }
        UnitError::Held { .. } => {
            "; stop that one, or, if it is gone for good, start one controller once with \
             `--restored-database`"
        }
        _ => "",
    }
}
