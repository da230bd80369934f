//! [`OutOfProcessFilters`]: makes the out-of-process filters of a chain.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use chain::{BackendFactory, FilterBackend, FilterContext, PendingQueue};
use chain_policy::{ExternalConfig, FilterKind, FilterPolicy, RemoteConfig};
use nbd::Watcher;
use world::Disk;

use crate::confinement::can_assign_users;
use crate::connection::{EXPORT, FilterConnection};
use crate::launchers::{
    ExternalProcess, LaunchContext, Launcher, RemoteFilterLauncher, ScreeProcess,
};
use crate::{ExternalFilter, HostIdentity};

/// The settings that all out-of-process filters of a host share.
#[derive(Clone)]
pub struct OutOfProcessOptions {
    /// The path of this program, which is started again as the process of a filter.
    pub program: PathBuf,
    /// The folder in which the host's operator describes external programs; `None` allows none.
    pub external_programs: Option<PathBuf>,
    /// The folder for the sockets of external programs.
    pub sockets: Option<PathBuf>,
    /// The disk that holds these folders.
    pub disk: Arc<dyn Disk>,
    /// The identity with which this host connects to filter servers; `None` allows no remote
    /// filters.
    pub host: Option<Arc<dyn HostIdentity>>,
    /// Decides whether filters may use a network address, or says why not.
    pub may_reach: Arc<dyn Fn(SocketAddr) -> Result<(), String> + Send + Sync>,
}

/// A factory of the out-of-process filters of one disk.
pub struct OutOfProcessFilters {
    options: OutOfProcessOptions,
    watcher: Watcher,
}

impl OutOfProcessFilters {
    /// A factory for one disk. `watcher` belongs to the thread of the disk.
    #[must_use]
    pub fn new(options: OutOfProcessOptions, watcher: Watcher) -> Self {
        Self { options, watcher }
    }

    fn remote(
        &self,
        context: LaunchContext,
        config: &RemoteConfig,
    ) -> Result<RemoteFilterLauncher, String> {
        let host = self.options.host.clone();
        let host = host.ok_or("this host has no identity for remote filters")?;
        (self.options.may_reach)(config.address)?;
        Ok(RemoteFilterLauncher {
            context,
            config: config.clone(),
            host,
        })
    }

    fn external(
        &self,
        context: LaunchContext,
        config: &ExternalConfig,
    ) -> Result<ExternalProcess, String> {
        let folder = self.options.external_programs.as_deref();
        let folder = folder.ok_or("this host has no external programs for filters")?;
        if !can_assign_users() {
            // With the agent's own user, the program could open the agent's files.
            return Err(
                "an external program needs a user of its own: run the agent as root, or give it \
                 the capabilities that \"Filters\" in the operations manual names"
                    .to_owned(),
            );
        }
        let program = ExternalFilter::read(&*self.options.disk, folder, &config.program);
        let program = program.map_err(|error| base::with_causes(&error))?;
        Ok(ExternalProcess { context, program })
    }
}

impl BackendFactory for OutOfProcessFilters {
    fn make(
        &self,
        of: &FilterPolicy,
        context: &FilterContext,
        queue: PendingQueue,
    ) -> Result<Box<dyn FilterBackend>, String> {
        let Some(settings) = &of.out_of_process else {
            return Err(format!("the filter {} runs inline", of.name));
        };
        let launch = LaunchContext {
            options: self.options.clone(),
            name: of.name.as_str().into(),
            settings: settings.clone(),
            filter: context.clone(),
        };
        let mut export = EXPORT.to_owned();
        let launcher: Box<dyn Launcher> = match &of.kind {
            FilterKind::Remote(config) => Box::new(self.remote(launch, config)?),
            FilterKind::External(config) => {
                let launcher = self.external(launch, config)?;
                launcher.program.export.clone_into(&mut export);
                Box::new(launcher)
            }
            kind => Box::new(ScreeProcess {
                context: launch,
                key: match kind {
                    FilterKind::Encrypt(config) => Some(config.key.clone()),
                    _ => None,
                },
            }),
        };
        let clock = Arc::clone(&context.host.clock);
        let watcher = self.watcher.clone();
        let connection = FilterConnection::new(queue, launcher, &export, clock, watcher);
        Ok(Box::new(connection))
    }
}
