//! `scree up`, `scree controller` and `scree agent`: a controller, an agent, or both in one
//! process, until SIGTERM. Unit daemons (`unit`) and relays (`relay`) are simpler.
//!
//! 1. open the data directory,
//! 2. listen,
//! 3. open the volumes that were open,
//! 4. report readiness,
//! 5. wait for a signal,
//! 6. refuse requests,
//! 7. destage everything,
//! 8. exit.
//!
//! A second signal exits immediately. No acknowledged write is lost, since the next start replays
//! the journals. A signal within a second of the first one counts as the same: `timeout` signals
//! the process and then its group. SIGHUP is ignored; a closing terminal sends it.
//!
//! SIGQUIT exits immediately with code 0 without destaging; the next start replays the journals.
//! VMs wait least that way, as in the restart of an upgrade.
//!
//! If standard output or standard error cannot be written, the text is lost and the process
//! continues.

mod filter_process;
mod filter_server;
mod folder;
mod parts;
mod readiness;
mod relay;
mod relay_filters;
mod renewal;
mod serving;
mod settings;
mod unit;

use std::io::{self, IsTerminal as _};
use std::path::Path;

use api::Client;
use auth::Kind;
use control::folder::api_socket;
use tokio::runtime::Runtime;
use tracing_subscriber::EnvFilter;
use world::World;

use crate::args::{AgentArguments, ControllerArguments, UpArguments};
use crate::commands::Failure;
use crate::tls_files::ApiTls;
use folder::{check_folder, check_no_party};
use serving::serve;
use settings::{Identity, Settings, UNITS_DEFAULT, agent_settings, control_settings, database};

pub use filter_process::run_filter_process;
pub use filter_server::run_filter_server;
pub use folder::described_party_folder;
pub use relay::run_relay;
pub use settings::{check_private, environment_passphrase, identity_of};
pub use unit::run_unit;

/// Threads for blocking work: destages, cache misses, syncs.
const POOL_THREADS_MAX: usize = 32;

/// Runs `scree up`.
pub fn run(folder: &Path, arguments: UpArguments) -> Result<(), Failure> {
    check_no_party(folder)?;
    begin(folder, |world| {
        let client = Client::unix(&api_socket(folder));
        let mut agent = agent_settings(world, folder, client, &arguments.serve)?;
        agent.units = arguments.units.map(usize::from);
        agent.units_default = UNITS_DEFAULT;
        // The owner of the data directory has the key, too.
        agent.allows_unencrypted = true;
        Ok(Settings {
            // Leases do not end: there is no other host that could take over.
            control: Some(control_settings(world, folder, &arguments.keep, None)),
            agent: Some(agent),
            listen: arguments
                .listen_api
                .map(|at| (at, ApiTls::own(arguments.api_name))),
            listen_metrics: arguments.monitor.listen_metrics,
            identity: None,
        })
    })
}

/// Runs `scree controller`.
pub fn run_controller(folder: &Path, arguments: ControllerArguments) -> Result<(), Failure> {
    check_no_party(folder)?;
    begin(folder, |world| {
        let mut control = control_settings(world, folder, &arguments.keep, Some(arguments.lease));
        control.database = database(world, &arguments)?;
        control.new_authority = arguments.new_authority;
        Ok(Settings {
            control: Some(control),
            agent: None,
            listen: Some((arguments.listen, ApiTls::of(arguments.name, arguments.tls))),
            listen_metrics: arguments.monitor.listen_metrics,
            identity: None,
        })
    })
}

/// Runs `scree agent`.
pub fn run_agent(folder: &Path, arguments: AgentArguments) -> Result<(), Failure> {
    begin(folder, |world| {
        let identity = Identity::read(world, folder, Kind::Host)?;
        let client = identity.client.clone();
        let mut agent = agent_settings(world, folder, client, &arguments.serve)?;
        agent.units = arguments.units.map(usize::from);
        agent.allows_unencrypted = arguments.allow_unencrypted;
        agent.journals = arguments.journals;
        Ok(Settings {
            control: None,
            agent: Some(agent),
            listen: None,
            listen_metrics: arguments.monitor.listen_metrics,
            identity: Some(identity),
        })
    })
}

/// The executable of this process, even if an upgrade replaces the file.
fn this_program() -> io::Result<std::path::PathBuf> {
    std::env::current_exe()
}

/// Sets up the log, the world and the runtime of a process that serves.
fn prepare() -> Result<(World, Runtime), Failure> {
    tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .with_env_filter(
            EnvFilter::try_from_env(crate::environment::LOG.name)
                .unwrap_or_else(|_| EnvFilter::new("info")),
        )
        .with_target(false)
        // A log that cannot be written must not end the process.
        .log_internal_errors(false)
        .init();
    // Raised before anything reads the limit.
    if let Err(error) = world::real::raise_open_files() {
        tracing::warn!(%error, "process cannot raise its limit of open files");
    }
    let world = World::real(POOL_THREADS_MAX);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    Ok((world, runtime))
}

/// Runs a process with these settings on a data directory until it ends.
fn begin(
    folder: &Path,
    settings: impl FnOnce(&World) -> Result<Settings, Failure>,
) -> Result<(), Failure> {
    let (world, runtime) = prepare()?;
    // A client belongs to the runtime that it is created in.
    let entered = runtime.enter();
    let settings = settings(&world)?;
    drop(entered);
    check_folder(folder)?;
    let ended = runtime.block_on(serve(world, settings));
    // All required work is finished. Threads of cleaning and repair would fail if the runtime ended
    // before them.
    std::mem::forget(runtime);
    ended
}
