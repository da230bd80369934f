//! A PostgreSQL server of the test's own, in a folder that goes with it.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use sqlx::{Connection as _, Executor as _, PgConnection};

/// The user that Debian's package makes; the server refuses to run as root.
const USER: &str = "postgres";

/// A running server.
pub struct Postgres {
    server: Child,
    folder: tempfile::TempDir,
    databases: AtomicU64,
}

/// Where the distribution keeps the server's programs, the newest of them.
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

/// `program`, run as the server's user if this is root.
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

impl Postgres {
    /// Makes a server that listens on a socket in its folder only. It syncs
    /// nothing: no test cuts its power.
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
        let mut command = as_server(&programs.join("postgres"));
        command
            .arg("-D")
            .arg(&data)
            .arg("-k")
            .arg(folder.path())
            .args(["-c", "listen_addresses=", "-c", "fsync=off"])
            .args(["-c", "max_connections=200"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0);
        let server = Self {
            server: command.spawn().expect("the server starts"),
            folder,
            databases: AtomicU64::new(0),
        };
        let ready = std::iter::repeat_with(|| {
            as_server(&programs.join("pg_isready"))
                .args(["--quiet", "--timeout=10", "-d", "postgres", "-h"])
                .arg(server.folder.path())
                .status()
                .expect("pg_isready runs")
                .success()
        });
        assert!(
            ready.take(200).any(|is_ready| is_ready),
            "it never got ready"
        );
        server
    }

    /// The URL of a new, empty database on it.
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

    fn url(&self, database: &str) -> String {
        let folder = self.folder.path().to_str().expect("UTF-8");
        let host = folder.replace('/', "%2F");
        format!("postgres://scree@{host}/{database}")
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // The whole group: `setpriv` has become the server, which has children.
        let group = rustix::process::Pid::from_child(&self.server);
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        let _ = self.server.wait();
    }
}
