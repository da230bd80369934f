//! `scree up`: everything in one process, until SIGTERM.
//!
//! 1. open D, 2. serve what was served, 3. listen, 4. say that it is ready,
//! 5. wait for a signal, 6. refuse requests, 7. destage everything, 8. end.
//!
//! A second signal ends it at once: nothing that was acknowledged is lost by
//! that, the next start replays the journals. One that comes within a second
//! of the first is taken for the same: `timeout` signals the process, and then
//! its group. SIGHUP ends nothing; a terminal that closes sends it.
//!
//! What standard output or standard error do not take is lost, and the service
//! goes on.

use std::io::{self, IsTerminal as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agent::Agent;
use agent::cluster_key::{KeyInput, Passphrase};
use agent::folder::traces;
use api::Client;
use api::size::exact_bytes;
use catalog::RESTORE_SKIPS_BYTES;
use catalog::retention::Retention;
use control::folder::{LookForRemains, Remains, api_socket};
use control::{Control, http};
use frontend::nbd::ServerTls;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tracing_subscriber::EnvFilter;
use volume::VolumeConfig;
use world::{World, host};

use crate::args::UpArguments;
use crate::commands::Failure;
use crate::output::{shell_word, write_out};

/// Threads for work that waits: destages, reads that miss, syncs.
const POOL_THREADS_MAX: usize = 32;

/// A smaller journal could not take one large write and its destage.
const JOURNAL_BYTES_MIN: u64 = 8 << 20;

/// A quarter of what the log's positions skip when a volume goes back to an
/// earlier version ([`RESTORE_SKIPS_BYTES`]): what lies in a journal from
/// before must never look like the log from after.
const JOURNAL_BYTES_MAX: u64 = RESTORE_SKIPS_BYTES / 4;

/// How long requests under way may take to end once a signal came.
const GOODBYE: Duration = Duration::from_secs(2);

/// A signal within this time of the first one repeats it.
const REPEATS: Duration = Duration::from_secs(1);

/// The longest path that a Unix socket can have, in bytes.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// What a folder that a start made, and did not get through with, may hold.
const OURS: [&str; 10] = [
    "lock",
    "agent.lock",
    "keys",
    "units",
    "journal",
    "api.sock",
    "nbd.sock",
    "scree.db-wal",
    "scree.db-shm",
    "lost+found",
];

/// The environment variable with a passphrase.
const PASSPHRASE: &str = "SCREE_PASSPHRASE";

/// Runs it.
pub fn run(folder: &Path, arguments: UpArguments) -> Result<(), Failure> {
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
    let settings = settings(&world, folder, &arguments)?;
    check_folder(folder)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let ended = runtime.block_on(serve(world, settings));
    // What is left are requests that wait for something that will not come.
    runtime.shutdown_timeout(Duration::from_millis(100));
    ended
}

/// How both parts are to run.
struct Settings {
    control: control::Settings,
    agent: agent::Settings,
}

fn settings(world: &World, folder: &Path, arguments: &UpArguments) -> Result<Settings, Failure> {
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
        (Some(path), _) => Some(KeyInput::File(path.clone())),
        (None, Some(path)) => {
            let passphrase = Passphrase::read(world, path).map_err(|error| Failure::of(&error))?;
            Some(KeyInput::Passphrase(passphrase))
        }
        (None, None) => std::env::var(PASSPHRASE)
            .ok()
            .filter(|passphrase| !passphrase.is_empty())
            .map(|passphrase| KeyInput::Passphrase(Passphrase::new(passphrase))),
    };
    Ok(Settings {
        control: control::Settings {
            folder: folder.to_owned(),
            remains: remains(world, folder),
            retention: Retention {
                count_max: arguments.retain_count,
                age_max_ms: i64::try_from(arguments.retain_age.as_millis()).unwrap_or(i64::MAX),
            },
            grace: arguments.grace,
            restored_database: arguments.restored_database,
        },
        agent: agent::Settings {
            folder: folder.to_owned(),
            client: Client::unix(&api_socket(folder)),
            units: arguments.units.map(usize::from),
            key,
            // Whoever asks for a volume here has the key.
            allows_unsealed: true,
            listen_nbd: arguments.listen_nbd,
            nbd_tls: tls(world, arguments)?,
            volume: VolumeConfig {
                journal_bytes: arguments.journal_size,
                destage_after: arguments.destage_after,
                ..VolumeConfig::default()
            },
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

fn tls(world: &World, arguments: &UpArguments) -> Result<Option<ServerTls>, Failure> {
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
fn check_private(key: &Path) -> Result<(), Failure> {
    match host::mode(key) {
        Ok(mode) if mode & 0o077 != 0 => {
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

async fn serve(world: World, settings: Settings) -> Result<(), Failure> {
    // Before anything is opened: a signal that comes early counts too.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    // Taken, so that it does nothing.
    let _hangup = signal(SignalKind::hangup())?;

    let clock = Arc::clone(&world.clock);
    let up = Up::start(world, settings).await?;
    let mut agent = tokio::spawn(up.agent.clone().run());
    let mut api = up.api;
    say_ready(&up.control).await?;

    tokio::select! {
        _ = terminate.recv() => tracing::info!("SIGTERM"),
        _ = interrupt.recv() => tracing::info!("SIGINT"),
        ended = &mut api => {
            tracing::error!(?ended, "the API ended by itself");
        }
        ended = &mut agent => {
            tracing::error!(?ended, "the agent ended by itself");
        }
    }
    agent.abort();
    tell_init("STOPPING=1");
    let end = async {
        up.control.begin_end();
        let unclean = up.agent.shut_down().await;
        let _ = up.stop.send(());
        let _ = host::within(GOODBYE, &mut api).await;
        up.control.shut_down().await;
        unclean
    };
    let first = clock.monotonic();
    let insisted = async {
        loop {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            if clock.monotonic() - first >= REPEATS {
                break;
            }
        }
    };
    let unclean = tokio::select! {
        unclean = end => unclean,
        () = insisted => return Err(Failure::new("ended at once by a second signal")),
    };
    if unclean > 0 {
        // Not even closing a file on a unit that hangs would come to an end.
        std::mem::forget(up.agent);
        return Err(Failure::new(format!(
            "{unclean} volumes could not be destaged; their journals have what is missing, and \
             the next start goes on with them"
        )));
    }
    tracing::info!("everything is on the units; goodbye");
    Ok(())
}

/// A controller and an agent, on one folder.
struct Up {
    control: Control,
    agent: Agent,
    /// Serves the API until it is told to stop.
    api: JoinHandle<io::Result<()>>,
    stop: oneshot::Sender<()>,
}

impl Up {
    async fn start(world: World, settings: Settings) -> Result<Self, Failure> {
        let control = Control::start(world.clone(), settings.control)
            .await
            .map_err(|error| Failure::of(&error))?;
        let socket = control.folder().api_socket();
        let listener = http::listen(&socket).map_err(|error| {
            Failure::new(format!("cannot listen at {}: {error}", socket.display()))
        })?;
        let (stop, stopped) = oneshot::channel::<()>();
        let api = tokio::spawn(http::serve(control.clone(), listener, async {
            let _ = stopped.await;
        }));
        let agent = Agent::start(world, settings.agent)
            .await
            .map_err(|error| Failure::of(&error))?;
        Ok(Self {
            control,
            agent,
            api,
            stop,
        })
    }
}

/// One line on standard output, for people and for scripts that wait for it.
async fn say_ready(control: &Control) -> Result<(), Failure> {
    let report = control
        .report()
        .await
        .map_err(|error| Failure::of(&error))?;
    for problem in &report.problems {
        tracing::warn!("{problem}");
    }
    let folder = control.folder().path();
    let line = format!(
        "scree is ready: {} ({} units, {} volumes, {} exported); export SCREE_DIR={}\n",
        folder.display(),
        report.units,
        report.volumes,
        report.exported,
        shell_word(folder)
    );
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
