//! The context of a relay's filters: keys and a state folder in `--filter-dir`, servers by any URI,
//! and standard output for events.
//!
//! ```text
//!   DIR/keys/NAME      private to this user; the passphrase is its first line
//!   DIR/state/         state of filters for recovery
//!   DIR/programs/      external filters
//! ```

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use agent::{Connected, FilterKeys};
use base::{NbdUri, UriTls, with_causes};
use chain::{
    AttachmentContext, Attribution, BackendFactory, ChainHistory, DiskLimits, FilterContext,
    HostContext, KEY_DERIVATIONS_MAX, KeyDerivations, KeySource, NoKeys, RemoteDisk, StateFolder,
    Targets, UnlimitedLease,
};
use chain_policy::{Policy, ReplicaLocation};
use nbd::Watcher;
use nbd::client::{ClientOptions, ClientTls, NbdClient, OrphanedConnections, Target};
use sandbox::{EventLines, OutOfProcessFilters, OutOfProcessOptions};
use world::real::ThreadPool;
use world::{Clock, Disk, Wake, World, host};

use crate::commands::Failure;

/// The part of the context that does not depend on the serving thread.
pub(super) struct Filters {
    world: World,
    folder: Option<PathBuf>,
    state: Option<PathBuf>,
    attribution: Arc<Attribution>,
    events: Arc<EventLines>,
    orphaned: Arc<OrphanedConnections>,
    /// The executable of this process.
    program: PathBuf,
}

impl Filters {
    /// The context of a disk of `whose`; the state of its filters is in `state` below the folder.
    pub fn new(
        world: &World,
        folder: Option<&Path>,
        state: &Path,
        attribution: Attribution,
    ) -> Result<Self, Failure> {
        let state = folder.map(|folder| folder.join("state").join(state));
        if let Some(state) = &state {
            let made = host::make_folders(&*world.disk, state);
            made.map_err(|error| Failure::new(format!("{}: {error}", state.display())))?;
        }
        Ok(Self {
            state,
            world: world.clone(),
            folder: folder.map(Path::to_owned),
            attribution: Arc::new(attribution),
            events: Arc::new(EventLines::start(io::stdout())?),
            orphaned: Arc::default(),
            program: super::this_program()?,
        })
    }

    /// The context of all filters of the relay.
    pub fn context(&self, wake: Wake, watcher: &Watcher) -> FilterContext {
        let state = self.state.as_ref().map(|path| StateFolder {
            disk: Arc::clone(&self.world.disk),
            path: path.clone(),
        });
        let keys: Arc<dyn KeySource> = match &self.folder {
            None => Arc::new(NoKeys),
            Some(folder) => Arc::new(FilterKeys::in_folder(&self.world, &folder.join("keys"))),
        };
        FilterContext {
            host: HostContext {
                clock: Arc::clone(&self.world.clock),
                pool: Arc::clone(&self.world.pool),
                key_derivations: Arc::new(KeyDerivations::new(Arc::new(ThreadPool::new(
                    KEY_DERIVATIONS_MAX,
                )))),
                random: Arc::clone(&self.world.random),
                backends: self.backends(watcher),
            },
            attachment: AttachmentContext {
                // The user of a relay has written its policy.
                memory_max: u64::MAX,
                wake,
                attribution: Arc::clone(&self.attribution),
                events: Arc::clone(&self.events) as _,
                keys,
                targets: Arc::new(Anywhere {
                    watcher: watcher.clone(),
                    orphaned: Arc::clone(&self.orphaned),
                    clock: Arc::clone(&self.world.clock),
                    disk: Arc::clone(&self.world.disk),
                }),
                // Other clients may have written to the server's disk meanwhile.
                history: ChainHistory::default(),
                lease: Arc::new(UnlimitedLease),
                disk_limits: DiskLimits::UNLIMITED,
                state,
            },
        }
    }

    /// Starts filters that do not run in this process.
    fn backends(&self, watcher: &Watcher) -> Arc<dyn BackendFactory> {
        let options = OutOfProcessOptions {
            program: self.program.clone(),
            external_programs: self.folder.as_ref().map(|folder| folder.join("programs")),
            sockets: self
                .folder
                .as_ref()
                .map(|folder| sandbox::sockets_folder(folder)),
            disk: Arc::clone(&self.world.disk),
            host: None,
            may_reach: Arc::new(|_| Ok(())),
        };
        Arc::new(OutOfProcessFilters::new(options, watcher.clone()))
    }
}

/// Reads a policy for a volume; the volume `*` stands for all.
pub(super) fn policy_of(world: &World, path: &Path, volume: &str) -> Result<Policy, Failure> {
    let name = path.display();
    let failed = |reason: String| Failure::new(format!("the policy {name}: {reason}"));
    let longest = chain_policy::TEXT_BYTES_MAX as u64;
    let bytes = host::read_small(&*world.disk, path, longest)
        .map_err(|error| failed(with_causes(&error)))?;
    let text = str::from_utf8(&bytes).map_err(|_| failed("it is not UTF-8 text".to_owned()))?;
    let policy = Policy::parse(text).map_err(|error| failed(error.to_string()))?;
    let checked = policy.check_locations(false);
    checked.map_err(|error| failed(error.to_string()))?;
    if policy.volume != "*" && policy.volume != volume {
        let words = format!(
            "it is for the volume {:?}, and this is {volume:?}: set `volume` in it to {volume:?} or \"*\"",
            policy.volume
        );
        return Err(failed(words));
    }
    Ok(policy)
}

/// A relay may connect to everything that its user can reach.
struct Anywhere {
    watcher: Watcher,
    orphaned: Arc<OrphanedConnections>,
    clock: Arc<dyn Clock>,
    disk: Arc<dyn Disk>,
}

impl Targets for Anywhere {
    fn open(&self, place: &ReplicaLocation) -> Result<Box<dyn RemoteDisk>, String> {
        let ReplicaLocation::Uri(uri) = place else {
            return Err(format!(
                "{place}: only filters on hosts can name volumes; give an NBD URI"
            ));
        };
        let NbdUri { at, export, tls } = uri.parse().map_err(|why| format!("{uri}: {why}"))?;
        let mut options = ClientOptions::new(export, Arc::clone(&self.clock));
        options.orphaned = Arc::clone(&self.orphaned);
        if let Some(UriTls {
            certificates,
            server,
        }) = tls
        {
            let read = ClientTls::read(&*self.disk, &certificates, &server);
            options.tls = Some(read.map_err(|error| with_causes(&error))?);
        }
        let client = NbdClient::new(Target::Endpoint(at), options, self.watcher.clone());
        Ok(Box::new(Connected(client)))
    }
}
