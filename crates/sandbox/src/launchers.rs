//! How out-of-process filters are started: one [`Launcher`] for each place where a filter may
//! run. Starting may wait, so it happens on the pool.

use std::io;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};

use chain::FilterContext;
use chain_policy::{Limits, OutOfProcess, RemoteConfig};
use net::Channel;
use world::Endpoint;
use world::real::{Listener, Stream};

use crate::confinement::can_assign_users;
use crate::connection::{BelowConnection, LaunchedFilter, RequestConnection};
use crate::process::{FilterProcess, ProcessOptions, raw_socket_pair};
use crate::process_output::OutputReader;
use crate::remote::connect;
use crate::socket_folder::SocketFolder;
use crate::users::{FilterUser, FilterUsers};
use crate::{ExternalFilter, HostIdentity, OutOfProcessOptions, Spec};

/// Starts a filter, as often as it is needed.
pub(crate) trait Launcher: Send {
    /// Begins to start the filter. The filter's thread is woken when the result has arrived.
    fn launch(&self) -> Receiver<io::Result<LaunchedFilter>>;
}

/// What every launcher needs.
#[derive(Clone)]
pub(crate) struct LaunchContext {
    pub options: OutOfProcessOptions,
    /// The filter's name.
    pub name: Arc<str>,
    pub settings: OutOfProcess,
    pub filter: FilterContext,
}

impl LaunchContext {
    /// Runs `launch` on the pool.
    fn run(
        &self,
        launch: impl FnOnce() -> io::Result<LaunchedFilter> + Send + 'static,
    ) -> Receiver<io::Result<LaunchedFilter>> {
        let (sender, receiver) = mpsc::channel();
        let wake = self.filter.attachment.wake.clone();
        self.filter.host.pool.run(Box::new(move || {
            // A filter that was given up meanwhile has dropped the receiver.
            let _ = sender.send(launch());
            wake.wake();
        }));
        receiver
    }

    fn start_process(
        &self,
        user: Option<FilterUser>,
        arguments: Vec<String>,
        stdin: Stdio,
        stdout: Stdio,
    ) -> io::Result<FilterProcess> {
        let filter_context = &self.filter;
        // The policy's limit, as far as the host's operator allows it.
        let memory_bytes = self
            .settings
            .limits
            .memory_bytes
            .min(filter_context.attachment.memory_max);
        let options = ProcessOptions {
            program: &self.options.program,
            user,
            limits: Limits {
                memory_bytes,
                ..self.settings.limits
            },
            arguments,
            stdin,
            stdout,
        };
        let (process, stderr) = FilterProcess::start(
            options,
            &filter_context.host.pool,
            &filter_context.host.clock,
        )?;
        let reader = OutputReader {
            attribution: Arc::clone(&filter_context.attachment.attribution),
            name: Arc::clone(&self.name),
            events: Arc::clone(&filter_context.attachment.events),
            clock: Arc::clone(&filter_context.host.clock),
        };
        reader.start(stderr)?;
        Ok(process)
    }
}

/// Takes a user that no other filter of the machine has, if this process may assign users.
fn take_user() -> io::Result<Option<FilterUser>> {
    static USERS: FilterUsers = FilterUsers::new();
    can_assign_users().then(|| USERS.take()).transpose()
}

/// Starts a process of Scree that runs one filter.
pub(crate) struct ScreeProcess {
    pub context: LaunchContext,
    /// The name of the key that the filter needs.
    pub key: Option<String>,
}

impl Launcher for ScreeProcess {
    fn launch(&self) -> Receiver<io::Result<LaunchedFilter>> {
        let (context, key) = (self.context.clone(), self.key.clone());
        self.context.run(move || {
            let filter_context = &context.filter;
            let mut spec = Spec::new(
                &context.settings.standalone_policy,
                &filter_context.attachment.attribution,
            );
            if let Some(name) = key {
                let passphrase = filter_context
                    .attachment
                    .keys
                    .passphrase(&name)
                    .map_err(io::Error::other)?;
                spec.add_key(&name, &passphrase);
            }
            let (requests, stdin) = raw_socket_pair()?;
            let (below, stdout) = raw_socket_pair()?;
            let user = take_user()?;
            let process = context.start_process(user, Vec::new(), stdin.into(), stdout.into())?;
            let mut requests = Stream::from(requests);
            spec.send(&mut requests).map_err(io::Error::other)?;
            Ok(LaunchedFilter {
                requests: RequestConnection::Open(Channel::new(requests)),
                below: BelowConnection::Open(Channel::new(below.into())),
                process: Some(process),
            })
        })
    }
}

/// Starts an external program of the host's operator.
pub(crate) struct ExternalProcess {
    pub context: LaunchContext,
    pub program: ExternalFilter,
}

impl Launcher for ExternalProcess {
    fn launch(&self) -> Receiver<io::Result<LaunchedFilter>> {
        let (context, program) = (self.context.clone(), self.program.clone());
        self.context.run(move || {
            let folder = context.options.sockets.as_deref();
            let folder = folder.ok_or_else(|| {
                io::Error::other("this host has no folder for sockets of external programs")
            })?;
            let user = take_user()?;
            let own = SocketFolder::make(folder, user.as_ref().map(FilterUser::number))?;
            let (socket, below) = (own.path().join("filter"), own.path().join("below"));
            let listener = Listener::bind(&Endpoint::Unix(below.clone()), 0o666)?;
            let mut arguments = vec!["--".to_owned()];
            arguments.extend(program.command(&socket, &below));
            let mut process =
                context.start_process(user, arguments, Stdio::null(), Stdio::null())?;
            process.keep_sockets(own);
            Ok(LaunchedFilter {
                requests: RequestConnection::Socket(Endpoint::Unix(socket)),
                below: BelowConnection::Listening(listener),
                process: Some(process),
            })
        })
    }
}

/// Connects to a filter on a machine of the tenant's.
pub(crate) struct RemoteFilterLauncher {
    pub context: LaunchContext,
    pub config: RemoteConfig,
    pub host: Arc<dyn HostIdentity>,
}

impl Launcher for RemoteFilterLauncher {
    fn launch(&self) -> Receiver<io::Result<LaunchedFilter>> {
        let (context, config) = (self.context.clone(), self.config.clone());
        let host = Arc::clone(&self.host);
        self.context.run(move || {
            let filter_context = &context.filter;
            connect(
                &config,
                &context.name,
                &filter_context.attachment.attribution,
                &*host,
                &*filter_context.host.random,
            )
        })
    }
}
