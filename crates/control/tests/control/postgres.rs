//! A PostgreSQL server for one test, in a folder that is deleted with it.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::process::{Pid, Signal};
use sqlx::{Connection as _, Executor as _, PgConnection};

/// The user that Debian's package creates. The server refuses to run as root.
const USER: &str = "postgres";

/// The time between two checks of whether the server is ready, and the number of checks.
const READY_CHECK_EVERY: std::time::Duration = std::time::Duration::from_millis(50);
const READY_CHECKS_MAX: usize = 600;

/// A running server.
pub struct Postgres {
    server: Child,
    folder: tempfile::TempDir,
    databases: AtomicU64,
}

/// The folder with the newest version of the server's programs.
fn programs() -> PathBuf {
    let installed = std::fs::read_dir("/usr/lib/postgresql").map(|found| {
        let folders = found.filter_map(|entry| Some(entry.ok()?.path().join("bin")));
        folders
            .filter(|folder| folder.join("postgres").is_file())
            .max()
    });
    match installed {
        Ok(Some(folder)) => folder,
        _ => panic!("PostgreSQL is not installed; run `tools/packages test`"),
    }
}

/// A command that runs `program`, as the server's user if this process is root.
fn as_server(program: &Path) -> Command {
    let is_root = rustix::process::getuid().is_root();
    let mut command = if is_root {
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid", USER, "--regid", USER, "--clear-groups", "--"])
            .arg(program);
        command
    } else {
        Command::new(program)
    };
    command.env("LC_ALL", "C").current_dir("/");
    command
}

/// The server's process.
fn running(folder: &tempfile::TempDir) -> Child {
    let mut command = as_server(&programs().join("postgres"));
    command
        .arg("-D")
        .arg(folder.path().join("data"))
        .arg("-k")
        .arg(folder.path())
        .args(["-c", "listen_addresses=", "-c", "fsync=off"])
        .args(["-c", "max_connections=200"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0);
    command.spawn().expect("the server starts")
}

impl Postgres {
    /// Starts a server that listens only on a socket in its folder. It never syncs, since no test
    /// cuts the power.
    pub fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        if rustix::process::getuid().is_root() {
            let given = Command::new("chown").arg(USER).arg(folder.path()).status();
            assert!(given.expect("chown runs").success());
        }
        let programs = programs();
        let data = folder.path().join("data");
        let made = as_server(&programs.join("initdb"))
            .args(["--auth=trust", "--no-sync", "--username=scree", "-D"])
            .arg(&data)
            .stdout(Stdio::null())
            .status();
        assert!(made.expect("initdb runs").success());
        let server = Self {
            server: running(&folder),
            folder,
            databases: AtomicU64::new(0),
        };
        server.wait();
        server
    }

    fn wait(&self) {
        let ready = std::iter::repeat_with(|| {
            as_server(&programs().join("pg_isready"))
                .args(["--quiet", "--timeout=10", "-d", "postgres", "-h"])
                .arg(self.folder.path())
                .status()
                .expect("pg_isready runs")
                .success()
        });
        let mut some = ready.take(READY_CHECKS_MAX).inspect(|is_ready| {
            if !is_ready {
                std::thread::park_timeout(READY_CHECK_EVERY);
            }
        });
        assert!(some.any(|is_ready| is_ready), "it never got ready");
    }

    /// Kills the server and all its processes (SIGKILL).
    pub fn kill(&mut self) {
        let children = self.children();
        for process in children.into_iter().chain([self.pid()]) {
            // Some end by themselves when the first one does.
            let _ = rustix::process::kill_process(process, Signal::KILL);
        }
        self.server.wait().expect("it ends");
    }

    /// Starts the server again.
    pub fn restart(&mut self) {
        self.server = running(&self.folder);
        self.wait();
    }

    /// Stops or continues all its processes.
    pub fn freeze(&self, is_frozen: bool) {
        let signal = if is_frozen {
            Signal::STOP
        } else {
            Signal::CONT
        };
        for process in self.children().into_iter().chain([self.pid()]) {
            let _ = rustix::process::kill_process(process, signal);
        }
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.server)
    }

    fn children(&self) -> Vec<Pid> {
        let pid = self.pid().as_raw_nonzero();
        let path = format!("/proc/{pid}/task/{pid}/children");
        let children = std::fs::read_to_string(path).expect("Linux tells a process's children");
        let children = children.split_whitespace();
        children
            .filter_map(|child| Pid::from_raw(child.parse().ok()?))
            .collect()
    }

    /// Runs statements on a database of this server, as its superuser.
    pub async fn execute(&self, database: &str, statements: &str) {
        let mut connection = PgConnection::connect(&self.url(database))
            .await
            .expect("it is ready");
        connection.execute(statements).await.expect("done");
    }

    /// The URL of a new, empty database.
    pub fn database(&self, runtime: &tokio::runtime::Runtime) -> String {
        let name = format!("scree{}", self.databases.fetch_add(1, Ordering::Relaxed));
        runtime.block_on(async {
            let mut connection = PgConnection::connect(&self.url("postgres"))
                .await
                .expect("it is ready");
            let create = format!("CREATE DATABASE {name}");
            connection.execute(&*create).await.expect("made");
        });
        self.url(&name)
    }

    /// The URL of the database with this name.
    pub fn url(&self, database: &str) -> String {
        let folder = self.folder.path().to_str().expect("UTF-8");
        let host = folder.replace('/', "%2F");
        format!("postgres://scree@{host}/{database}")
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // The whole process group: `setpriv` has become the server, which has children.
        let _ = rustix::process::kill_process_group(self.pid(), Signal::KILL);
        let _ = self.server.wait();
    }
}
