//! `scree up`, `scree controller` and `scree agent`: a controller, an agent, or
//! both in one process, until SIGTERM.
//!
//! 1. open D, 2. listen, 3. serve what was served, 4. say that it is ready,
//! 5. wait for a signal, 6. refuse requests, 7. destage everything, 8. end.
//!
//! A second signal ends it at once: nothing that was acknowledged is lost by
//! that, the next start replays the journals. One that comes within a second
//! of the first is taken for the same: `timeout` signals the process, and then
//! its group. SIGHUP ends nothing; a terminal that closes sends it.
//!
//! SIGQUIT leaves out the destaging and ends it well: volumes are back as soon
//! as the next start has replayed the journals, so VMs wait the least. It is
//! for a restart, such as that of an upgrade.
//!
//! What standard output or standard error do not take is lost, and the service
//! goes on.

use std::io::{self, IsTerminal as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agent::Agent;
use agent::folder::traces;
use agent::keys::{KeyEntry, Passphrase};
use agent::vm::VmOptions;
use api::size::exact_bytes;
use api::{Client, Profile};
use catalog::RESTORE_SKIPS_BYTES;
use catalog::retention::Retention;
use control::database::{AddressError, PostgresUrl};
use control::folder::{LookForRemains, Remains, api_socket};
use control::http::https::HttpsListener;
use control::{Control, http};
use frontend::nbd::ServerTls;
use monitor::Monitor;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing_subscriber::EnvFilter;
use volume::VolumeConfig;
use world::{World, host};

use crate::args::{
    AgentArguments, ControllerArguments, KeepArguments, ServeArguments, UpArguments,
};
use crate::commands::Failure;
use crate::monitoring;
use crate::output::{shell_word, write_out};
use crate::tls_files::{ApiTls, READ_EVERY};

/// Threads for work that waits: destages, reads that miss, syncs.
const POOL_THREADS_MAX: usize = 32;

/// A smaller journal could not take one large write and its destage.
const JOURNAL_BYTES_MIN: u64 = 8 << 20;

/// A quarter of what the log's positions skip when a volume goes back to an
/// earlier version ([`RESTORE_SKIPS_BYTES`]): what lies in a journal from
/// before must never look like the log from after.
const JOURNAL_BYTES_MAX: u64 = RESTORE_SKIPS_BYTES / 4;

/// Certificates hold for a day, and are renewed so often.
const RENEW_EVERY: Duration = Duration::from_secs(8 * 60 * 60);

/// A renewal that failed is tried again after so long, and then after twice as
/// long each time, up to [`RENEW_EVERY`].
const RENEW_AGAIN: Duration = Duration::from_secs(60);

/// How long requests under way may take to end once a signal came.
const GOODBYE: Duration = Duration::from_secs(2);

/// A signal within this time of the first one repeats it.
const REPEATS: Duration = Duration::from_secs(1);

/// The longest path that a Unix socket can have, in bytes.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// What a folder that a start made, and did not get through with, may hold.
const OURS: [&str; 15] = [
    "lock",
    "database",
    "authority.key",
    "authority.pem",
    "identity.toml",
    "agent.lock",
    "keys",
    "units",
    "journal",
    "vm",
    "api.sock",
    "nbd.sock",
    "scree.db-wal",
    "scree.db-shm",
    "lost+found",
];

/// The environment variable with the URL of a controller's database.
const DATABASE: &str = "SCREE_DATABASE";

/// The environment variable with a passphrase.
const PASSPHRASE: &str = "SCREE_PASSPHRASE";

/// Folder units of a new D, if nothing is said.
const UNITS_DEFAULT: usize = 8;

/// Where an agent keeps who it is.
const IDENTITY: &str = "identity.toml";

/// Runs `scree up`.
pub fn run(folder: &Path, arguments: UpArguments) -> Result<(), Failure> {
    begin(folder, |world| {
        let client = Client::unix(&api_socket(folder));
        let mut agent = agent_settings(world, folder, client, &arguments.serve)?;
        agent.units = arguments.units.map(usize::from);
        agent.units_default = UNITS_DEFAULT;
        // Whoever asks for a volume here has the key.
        agent.allows_unsealed = true;
        Ok(Settings {
            // There is only one host.
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
        let path = folder.join(IDENTITY);
        let mut identity = Profile::read(world, &path).map_err(|error| {
            let text = base::with_causes(&error);
            Failure::new(format!("{text}; enrol this host with `scree host enrol`"))
        })?;
        let read = identity.read_again(world);
        read.map_err(|error| Failure::of(&error))?;
        let client = identity.client().map_err(|error| Failure::of(&error))?;
        let mut agent = agent_settings(world, folder, client.clone(), &arguments.serve)?;
        agent.units = arguments.units.map(usize::from);
        agent.allows_unsealed = arguments.allow_unsealed;
        agent.journals = arguments.journals;
        Ok(Settings {
            control: None,
            agent: Some(agent),
            listen: None,
            listen_metrics: arguments.monitor.listen_metrics,
            identity: Some(Identity {
                profile: identity,
                path,
                client,
            }),
        })
    })
}

/// Where the agent in `folder` keeps who it is.
pub fn identity_of(folder: &Path) -> PathBuf {
    folder.join(IDENTITY)
}

fn begin(
    folder: &Path,
    settings: impl FnOnce(&World) -> Result<Settings, Failure>,
) -> Result<(), Failure> {
    tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .with_env_filter(
            EnvFilter::try_from_env("SCREE_LOG").unwrap_or_else(|_| EnvFilter::new("info")),
        )
        .with_target(false)
        // That the log cannot be written is nothing to panic about.
        .log_internal_errors(false)
        .init();
    // Before anything asks how many there may be.
    if let Err(error) = world::real::raise_open_files() {
        tracing::warn!(%error, "the limit of open files could not be raised");
    }
    let world = World::real(POOL_THREADS_MAX);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    // Clients take hold of the runtime that they are made in.
    let entered = runtime.enter();
    let settings = settings(&world)?;
    drop(entered);
    check_folder(folder)?;
    let mut is_abandoned = false;
    let ended = runtime.block_on(serve(world, settings, &mut is_abandoned));
    if is_abandoned {
        // Threads that are still at work would stumble over its end.
        std::mem::forget(runtime);
    } else {
        // What is left are requests that wait for something that will not come.
        runtime.shutdown_timeout(Duration::from_millis(100));
    }
    ended
}

/// Who an agent is, and where that is kept.
struct Identity {
    profile: Profile,
    path: PathBuf,
    client: Client,
}

/// Which parts are to run, and how.
struct Settings {
    control: Option<control::Settings>,
    agent: Option<agent::Settings>,
    /// Where the API is served over TLS, and how.
    listen: Option<(SocketAddr, ApiTls)>,
    /// Where those who watch are answered.
    listen_metrics: Option<SocketAddr>,
    /// Who the agent is, if its controllers are elsewhere.
    identity: Option<Identity>,
}

fn control_settings(
    world: &World,
    folder: &Path,
    keep: &KeepArguments,
    lease: Option<Duration>,
) -> control::Settings {
    control::Settings {
        folder: folder.to_owned(),
        remains: remains(world, folder),
        retention: Retention {
            count_max: keep.retain_count,
            age_max_ms: i64::try_from(keep.retain_age.as_millis()).unwrap_or(i64::MAX),
        },
        grace: keep.grace,
        lease,
        overcommit: keep.overcommit,
        restored_database: keep.restored_database,
        new_authority: false,
        database: None,
    }
}

/// The database that a controller was told of. Nothing that is said of it quotes
/// it.
fn database(
    world: &World,
    arguments: &ControllerArguments,
) -> Result<Option<PostgresUrl>, Failure> {
    let failed = |error: AddressError| Failure::of(&error);
    match (&arguments.database, &arguments.database_file) {
        (Some(text), _) => {
            let url: PostgresUrl = text.parse().map_err(failed)?;
            if url.has_password() {
                tracing::warn!(
                    "the password in --database can be read by every user of this machine; put \
                     the URL in a private file, and give that with --database-file"
                );
            }
            Ok(Some(url))
        }
        (None, Some(path)) => PostgresUrl::read(world, path).map(Some).map_err(failed),
        (None, None) => std::env::var(DATABASE)
            .ok()
            .filter(|text| !text.is_empty())
            .map(|text| text.parse().map_err(failed))
            .transpose(),
    }
}

fn agent_settings(
    world: &World,
    folder: &Path,
    client: Client,
    arguments: &ServeArguments,
) -> Result<agent::Settings, Failure> {
    if arguments.journal_size < JOURNAL_BYTES_MIN {
        return Err(Failure::new(format!(
            "--journal-size {} is too small; give at least {}",
            exact_bytes(arguments.journal_size),
            exact_bytes(JOURNAL_BYTES_MIN)
        )));
    }
    if arguments.journal_size > JOURNAL_BYTES_MAX {
        return Err(Failure::new(format!(
            "--journal-size {} is too large; give at most {}",
            exact_bytes(arguments.journal_size),
            exact_bytes(JOURNAL_BYTES_MAX)
        )));
    }
    let key = match (&arguments.key_file, &arguments.passphrase_file) {
        (Some(path), _) => Some(KeyEntry::File { path: path.clone() }),
        (None, Some(path)) => Some(KeyEntry::Passphrase { path: path.clone() }),
        (None, None) => std::env::var(PASSPHRASE)
            .ok()
            .filter(|passphrase| !passphrase.is_empty())
            .map(|passphrase| KeyEntry::Given(Passphrase::new(passphrase))),
    };
    Ok(agent::Settings {
        folder: folder.to_owned(),
        client,
        units: None,
        units_default: 0,
        key,
        keys_file: arguments.keys_file.clone(),
        allows_unsealed: false,
        listen_nbd: arguments.listen_nbd,
        nbd_tls: tls(world, arguments)?,
        vm: VmOptions::default(),
        journals: None,
        vm_user: arguments.vm_user,
        volume: VolumeConfig {
            journal_bytes: arguments.journal_size,
            destage_after: arguments.destage_after,
            ..VolumeConfig::default()
        },
    })
}

fn remains(world: &World, folder: &Path) -> LookForRemains {
    let (world, folder) = (world.clone(), folder.to_owned());
    Box::new(move || {
        let (certain, likely) = traces(&world, &folder)?;
        Ok(Remains { certain, likely })
    })
}

fn tls(world: &World, arguments: &ServeArguments) -> Result<Option<ServerTls>, Failure> {
    let (Some(ca), Some(cert), Some(key)) = (
        &arguments.nbd_tls_ca,
        &arguments.nbd_tls_cert,
        &arguments.nbd_tls_key,
    ) else {
        return Ok(None);
    };
    check_private(key)?;
    ServerTls::read(&*world.disk, ca, cert, key)
        .map(Some)
        .map_err(|error| Failure::of(&error))
}

/// Refuses a key that others than its owner can read. That there is none, its
/// reader will say.
pub fn check_private(key: &Path) -> Result<(), Failure> {
    match host::mode_for_others(key) {
        Ok(Some(mode)) => {
            let (path, word) = (key.display(), shell_word(key));
            Err(Failure::new(format!(
                "{path} can be read by others (mode {mode:03o}); run `chmod 600 {word}`, and \
                 consider its content known"
            )))
        }
        _ => Ok(()),
    }
}

/// Looks, before anything is made, whether `folder` can be one to serve: new,
/// empty, or served before. What cannot be read is left to its opening.
fn check_folder(folder: &Path) -> Result<(), Failure> {
    let path = folder.display();
    let socket = api_socket(&whole_path(folder)?);
    let bytes = socket.as_os_str().len();
    if bytes > SOCKET_PATH_BYTES_MAX {
        return Err(Failure::new(format!(
            "{path} is too long a path: {socket} would have {bytes} bytes, and a Unix socket's \
             has at most {SOCKET_PATH_BYTES_MAX}; give a folder closer to the root",
            socket = socket.display()
        )));
    }
    let names = match host::names(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
            return Err(Failure::new(format!(
                "{path} is not a folder; give a folder that is empty or new, or one that was \
                 served before"
            )));
        }
        Err(_) => return Ok(()),
        Ok(names) => names,
    };
    let mut other = None;
    for name in names {
        if name == "scree.db" {
            return Ok(());
        }
        if OURS.iter().all(|ours| name != *ours) {
            other = Some(name);
        }
    }
    match other {
        Some(name) => Err(Failure::new(format!(
            "{path} holds {name:?} and no scree.db: it is somebody else's; give a folder that is \
             empty or new, or one that was served before"
        ))),
        None => Ok(()),
    }
}

/// `folder` as it will be called once it is there: absolute, without links.
fn whole_path(folder: &Path) -> io::Result<PathBuf> {
    let absolute = std::path::absolute(folder)?;
    let mut missing = Vec::new();
    for there in absolute.ancestors() {
        match host::resolve(there) {
            Ok(path) => {
                return Ok(missing
                    .iter()
                    .rev()
                    .fold(path, |path, part| path.join(part)));
            }
            Err(_) => missing.extend(there.file_name()),
        }
    }
    Ok(absolute)
}

/// Sets `is_abandoned` if it ends while volumes are open.
async fn serve(world: World, settings: Settings, is_abandoned: &mut bool) -> Result<(), Failure> {
    // Before anything is opened: a signal that comes early counts too.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut quit = signal(SignalKind::quit())?;
    // Taken, so that it does nothing.
    let _hangup = signal(SignalKind::hangup())?;

    let clock = Arc::clone(&world.clock);
    let parts = [
        settings.control.as_ref().map(|_| "controller"),
        settings.agent.as_ref().map(|_| "agent"),
    ];
    let parts: Vec<&str> = parts.into_iter().flatten().collect();
    let monitor = monitoring::monitor(&world, &parts);
    let metrics = monitoring::listen(settings.listen_metrics, &monitor)?;
    let Up {
        control,
        agent,
        mut api,
        address,
        stop,
    } = Up::start(world, settings, &monitor).await?;
    let mut running = tokio::spawn({
        let agent = agent.clone();
        async move {
            match agent {
                Some(agent) => agent.run().await,
                None => std::future::pending().await,
            }
        }
    });
    say_ready(control.as_ref(), agent.as_ref(), address, metrics).await?;

    tokio::select! {
        _ = terminate.recv() => tracing::info!("SIGTERM"),
        _ = interrupt.recv() => tracing::info!("SIGINT"),
        _ = quit.recv() => {
            *is_abandoned = agent.is_some();
            end_at_once(agent);
            return Ok(());
        }
        ended = api.join_next(), if !api.is_empty() => {
            tracing::error!(?ended, "the API ended by itself");
        }
        ended = &mut running => {
            tracing::error!(?ended, "the agent ended by itself");
        }
    }
    running.abort();
    tell_init("STOPPING=1");
    let end = async {
        if let Some(control) = &control {
            control.set_open(false);
        }
        let unclean = match &agent {
            Some(agent) => agent.shut_down().await,
            None => 0,
        };
        stop.send_replace(true);
        let ended = async { while api.join_next().await.is_some() {} };
        let _ = host::within(GOODBYE, ended).await;
        if let Some(control) = &control {
            control.shut_down().await;
        }
        unclean
    };
    let first = clock.monotonic();
    let insisted = async {
        loop {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
                _ = quit.recv() => break,
            }
            if clock.monotonic() - first >= REPEATS {
                break;
            }
        }
    };
    let unclean = tokio::select! {
        unclean = end => unclean,
        () = insisted => {
            *is_abandoned = agent.is_some();
            return Err(Failure::new("ended at once by a second signal"));
        }
    };
    if unclean > 0 {
        // Not even closing a file on a unit that hangs would come to an end.
        std::mem::forget(agent);
        *is_abandoned = true;
        return Err(Failure::new(format!(
            "{unclean} volumes could not be destaged; their journals have what is missing, and \
             the next start goes on with them"
        )));
    }
    if agent.is_some() {
        tracing::info!("everything is on the units; goodbye");
    }
    Ok(())
}

/// Leaves everything as a crash would: the journals have what was acknowledged.
fn end_at_once(agent: Option<Agent>) {
    tell_init("STOPPING=1");
    tracing::info!("SIGQUIT: nothing is destaged; the next start goes on with the journals");
    // Closing would take its time.
    std::mem::forget(agent);
}

/// What runs in this process.
struct Up {
    control: Option<Control>,
    agent: Option<Agent>,
    /// Those who serve the API, and who renew certificates, until `stop` says
    /// so.
    api: JoinSet<()>,
    /// Where the API is served over TLS.
    address: Option<SocketAddr>,
    stop: watch::Sender<bool>,
}

impl Up {
    async fn start(world: World, settings: Settings, monitor: &Monitor) -> Result<Self, Failure> {
        let mut up = Self {
            control: None,
            agent: None,
            api: JoinSet::new(),
            address: None,
            stop: watch::Sender::new(false),
        };
        if let Some(settings) = settings.control {
            let control = Control::start(world.clone(), settings)
                .await
                .map_err(|error| Failure::of(&error))?;
            up.serve_here(&control)?;
            monitor.add(Arc::new(control.clone()));
            up.control = Some(control);
        }
        if let Some(identity) = settings.identity {
            monitoring::note_identity(monitor, &identity.profile);
            up.api
                .spawn(keep_renewed(world.clone(), identity, monitor.clone()));
        }
        if let Some(settings) = settings.agent {
            let agent = Agent::start(world.clone(), settings).await;
            let agent = agent.map_err(|error| Failure::of(&error))?;
            monitor.add(Arc::new(agent.clone()));
            up.agent = Some(agent);
        }
        if let Some(control) = up.control.clone() {
            control.set_open(true);
            if let Some((at, tls)) = settings.listen {
                up.serve_elsewhere(world, control, (at, tls), monitor.clone())?;
            }
        }
        Ok(up)
    }

    fn stopped(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut stop = self.stop.subscribe();
        async move {
            let _ = stop.wait_for(|stop| *stop).await;
        }
    }

    /// On D's socket.
    fn serve_here(&mut self, control: &Control) -> Result<(), Failure> {
        let socket = control.folder().api_socket();
        let listener = http::listen(&socket).map_err(|error| {
            Failure::new(format!("cannot listen at {}: {error}", socket.display()))
        })?;
        let serving = http::serve(control.clone(), listener, self.stopped());
        self.api.spawn(async {
            if let Err(error) = serving.await {
                tracing::error!(%error, "the API ended");
            }
        });
        Ok(())
    }

    /// Over TLS, with a certificate that is renewed in time.
    fn serve_elsewhere(
        &mut self,
        world: World,
        control: Control,
        (at, api_tls): (SocketAddr, ApiTls),
        monitor: Monitor,
    ) -> Result<(), Failure> {
        let listener = HttpsListener::bind(at)
            .map_err(|error| Failure::new(format!("cannot listen at {at}: {error}")))?;
        self.address = Some(listener.address());
        let clock = Arc::clone(&world.clock);
        let every = api_tls.renew_every(RENEW_EVERY);
        let make = move |control: &Control| {
            let made = control.parties().server_tls(&api_tls.read(&world)?);
            made.map_err(|error| Failure::of(&error))
        };
        let (first, ends) = make(&control)?;
        monitor.set_certificate("server", ends);
        let (tls, newest) = watch::channel(first);
        let router = http::router(control.clone());
        let serving = listener.serve(router, newest, clock, self.stopped());
        self.api.spawn(async move {
            let renewing = async {
                let mut ticks = host::ticks(every);
                ticks.tick().await;
                loop {
                    ticks.tick().await;
                    match make(&control) {
                        Ok((config, ends)) => {
                            tls.send_replace(config);
                            monitor.set_certificate("server", ends);
                        }
                        Err(error) => tracing::error!(%error, "no new server certificate"),
                    }
                }
            };
            tokio::select! {
                () = serving => {}
                () = renewing => {}
            }
        });
        Ok(())
    }
}

/// Has an agent's certificate renewed, long before it ends.
async fn keep_renewed(world: World, mut identity: Identity, monitor: Monitor) {
    let is_brought = identity.profile.is_brought();
    let every = if is_brought { READ_EVERY } else { RENEW_EVERY };
    let mut pause = Duration::ZERO;
    let mut again = RENEW_AGAIN;
    loop {
        host::pause(pause).await;
        let mut profile = identity.profile.clone();
        let renewed = async {
            if is_brought {
                profile.read_again(&world)?;
            } else {
                profile.renew(&identity.client).await?;
            }
            profile.write(&world, &identity.path)?;
            profile.tls()
        };
        match renewed.await {
            Ok(tls) => {
                identity.client.renew(tls);
                identity.profile = profile;
                monitoring::note_identity(&monitor, &identity.profile);
                tracing::info!(expires = identity.profile.expires, "certificate renewed");
                (pause, again) = (every, RENEW_AGAIN);
            }
            Err(error) => {
                tracing::warn!(%error, "the certificate was not renewed; it is tried again");
                pause = again.min(every);
                again *= 2;
            }
        }
    }
}

/// One line on standard output, for people and for scripts that wait for it.
async fn say_ready(
    control: Option<&Control>,
    agent: Option<&Agent>,
    address: Option<SocketAddr>,
    metrics: Option<SocketAddr>,
) -> Result<(), Failure> {
    let at = |what: &str, address: Option<SocketAddr>| {
        address.map_or_else(String::new, |address| format!("{what} at {address}; "))
    };
    let line = match (control, agent) {
        (Some(control), _) => {
            let report = control
                .report()
                .await
                .map_err(|error| Failure::of(&error))?;
            for problem in &report.problems {
                tracing::warn!("{problem}");
            }
            let folder = control.folder().path();
            format!(
                "scree is ready: {} ({} units, {} volumes, {} exported); {}{}export SCREE_DIR={}\n",
                folder.display(),
                report.units,
                report.volumes,
                report.exported,
                at("API", address),
                at("metrics", metrics),
                shell_word(folder)
            )
        }
        (None, Some(agent)) => {
            let folder = agent.folder().path().display();
            let metrics = metrics.map(|address| format!("; metrics at {address}"));
            format!(
                "scree agent is ready: {folder}{}\n",
                metrics.unwrap_or_default()
            )
        }
        (None, None) => return Ok(()),
    };
    if let Err(error) = write_out(line.as_bytes()) {
        tracing::warn!("{error}");
    }
    tell_init("READY=1");
    Ok(())
}

/// Tells the service manager, if there is one (sd_notify(3)).
fn tell_init(state: &str) {
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::net::{SocketAddr, UnixDatagram};
    let Ok(name) = std::env::var("NOTIFY_SOCKET") else {
        return;
    };
    let address = match name.strip_prefix('@') {
        Some(hidden) => SocketAddr::from_abstract_name(hidden),
        None => SocketAddr::from_pathname(&name),
    };
    #[expect(clippy::disallowed_methods, reason = "one word to one socket")]
    let told = address
        .and_then(|address| UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address));
    if let Err(error) = told {
        tracing::warn!(%error, name, "the service manager was not told");
    }
}
