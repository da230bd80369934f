//! A controller and an agent as separate processes, which authenticate by certificates.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::host::{CommandOutput, wait_until};

const SCREE: &str = env!("CARGO_BIN_EXE_scree");

/// A process that serves, with the port of its API if it has one.
pub struct Process {
    child: Child,
    port: Option<u16>,
    /// The port of its metrics.
    pub metrics: Option<u16>,
}

impl Process {
    pub fn start(arguments: &[&str]) -> Self {
        let mut child = Command::new(SCREE)
            .args(arguments)
            .env_remove("SCREE_DIR")
            .env_remove("SCREE_PASSPHRASE")
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let out = child.stdout.take().expect("piped");
        let mut line = String::new();
        BufReader::new(out).read_line(&mut line).expect("readable");
        assert!(line.contains("is ready"), "it said {line:?}");
        let port = |what: &str| {
            let (_, rest) = line.split_once(&format!("{what} at 127.0.0.1:"))?;
            let port = rest.split([';', '\n']).next().expect("a first part");
            Some(port.parse().expect("a port"))
        };
        Self {
            port: port("API"),
            metrics: port("metrics"),
            child,
        }
    }

    pub fn kill(&mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it ends");
    }

    pub fn signal(&self, name: &str) {
        let (pid, name) = (self.child.id().to_string(), format!("-{name}"));
        let sent = Command::new("kill").args([name, pid]).status();
        assert!(sent.expect("kill runs").success());
    }

    pub fn stop(self) {
        self.end_by("TERM");
    }

    pub fn end_by(mut self, signal: &str) {
        self.signal(signal);
        assert!(self.child.wait().expect("it ends").success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Folders of a controller, an agent, and the profiles of users.
pub struct Site {
    folder: TempDir,
    port: u16,
    /// Additional options of the controller.
    options: Vec<String>,
}

impl Site {
    pub fn new() -> (Self, Process) {
        Self::with(|_| Vec::new())
    }

    /// A site whose controller has these options, which may name files in the folder of the site.
    pub fn with(options: impl FnOnce(&Path) -> Vec<String>) -> (Self, Process) {
        let folder = tempfile::Builder::new().prefix("scree-").tempdir_in("/tmp");
        let mut site = Self {
            folder: folder.expect("a folder"),
            port: 0,
            options: Vec::new(),
        };
        site.options = options(site.folder.path());
        let controller = site.controller();
        site.port = controller.port.expect("it serves TLS");
        (site, controller)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn text(&self, name: &str) -> String {
        self.path(name).to_str().expect("UTF-8").to_owned()
    }

    /// Starts a controller, at the same port each time.
    pub fn controller(&self) -> Process {
        let listen = format!("127.0.0.1:{}", self.port);
        let folder = self.text("c");
        let mut words = vec!["controller", "--dir", &folder, "--listen", &listen];
        words.extend(["--listen-metrics", "127.0.0.1:0"]);
        words.extend(self.options.iter().map(String::as_str));
        Process::start(&words)
    }

    pub fn agent(&self) -> Process {
        self.agent_in("a")
    }

    /// Starts the agent of another host.
    pub fn agent_in(&self, folder: &str) -> Process {
        self.agent_with(folder, &[])
    }

    /// Starts an agent with more options.
    pub fn agent_with(&self, folder: &str, options: &[&str]) -> Process {
        let folder = self.text(folder);
        let sizes = ["--units", "2", "--journal-size", "16M"];
        let metrics = ["--listen-metrics", "127.0.0.1:0"];
        let words = [&["agent", "--dir", &folder], &sizes[..], &metrics, options];
        Process::start(&words.concat())
    }

    pub fn url(&self) -> String {
        format!("https://localhost:{}", self.port)
    }

    /// Runs a command with this site's profiles.
    pub fn try_scree(&self, arguments: &[&str]) -> CommandOutput {
        let output = Command::new(SCREE)
            .args(arguments)
            .env_remove("SCREE_DIR")
            .env_remove("SCREE_PROFILE")
            .env("SCREE_CONFIG", self.path("profiles"))
            .output()
            .expect("scree runs");
        CommandOutput {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8(output.stdout).expect("UTF-8"),
            error: String::from_utf8(output.stderr).expect("UTF-8"),
        }
    }

    pub fn scree(&self, arguments: &[&str]) -> Value {
        let said = self.try_scree(&[arguments, &["-o", "json"]].concat());
        assert_eq!(said.code, 0, "{arguments:?}: {}", said.error);
        serde_json::from_str(&said.out).expect("JSON")
    }

    /// Runs a command on the controller's machine, as its operator.
    pub fn locally(&self, arguments: &[&str]) -> Value {
        self.scree(&[&["--dir", &self.text("c")], arguments].concat())
    }

    /// The arguments with which an invited party joins: the URL and the options.
    fn invitation(&self, invited: &Value) -> Vec<String> {
        let text = |field: &str| invited[field].as_str().expect("a text").to_owned();
        let (token, authority) = (text("token"), text("authority"));
        let words = [self.url(), "--token".to_owned(), token];
        [&words[..], &["--authority".to_owned(), authority]].concat()
    }

    pub fn login(&self, profile: &str, invited: &Value) -> CommandOutput {
        self.login_with(&["--profile", profile], invited)
    }

    pub fn login_with(&self, options: &[&str], invited: &Value) -> CommandOutput {
        let words = self.invitation(invited);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        self.try_scree(&[&["login"], options, &words[..]].concat())
    }

    pub fn join_host(&self, invited: &Value) -> CommandOutput {
        self.join_host_in("a", invited)
    }

    pub fn join_host_in(&self, folder: &str, invited: &Value) -> CommandOutput {
        self.join_in("host", folder, invited)
    }

    pub fn join_unit_in(&self, folder: &str, invited: &Value) -> CommandOutput {
        self.join_in("unit", folder, invited)
    }

    fn join_in(&self, kind: &str, folder: &str, invited: &Value) -> CommandOutput {
        let words = self.invitation(invited);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let folder = self.text(folder);
        self.try_scree(&[&[kind, "join", "--dir", &folder], &words[..]].concat())
    }
}

/// Runs `qemu-io` commands against an export of the agent in `folder`.
pub fn qemu_io(folder: &Path, export: &str, commands: &[&str]) -> bool {
    let socket = folder.join("nbd.sock");
    let uri = format!("nbd+unix:///{export}?socket={}", socket.display());
    let mut command = Command::new("qemu-io");
    command.args(["-f", "raw"]);
    for one in commands {
        command.args(["-c", one]);
    }
    let output = command.arg(uri).output().expect("qemu-io runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    output.status.success() && !said.contains("failed")
}

/// The first five minutes of an operator and of a user, and then both processes are killed.
#[test]
fn a_volume_is_served_on_a_host_that_has_joined() {
    let (site, mut controller) = Site::new();
    let invited = site.locally(&["host", "add", "h1"]);
    assert_eq!(site.join_host(&invited).code, 0);
    let mut agent = site.agent();
    let invited = site.locally(&["user", "add", "root", "--administrator"]);
    assert_eq!(site.login("default", &invited).code, 0);

    assert_eq!(site.scree(&["whoami"])["name"], "root");
    site.scree(&["volume", "create", "disk", "--size", "64M"]);
    let uri = site.scree(&["volume", "export", "disk"]);
    let expected = format!("nbd+unix:///root/disk?socket={}/nbd.sock", site.text("a"));
    assert_eq!(uri["uri"], expected);
    let folder = site.path("a");
    assert!(qemu_io(&folder, "root/disk", &["write -P 7 0 1M", "flush"]));

    // The agent is killed: the next one serves the flushed writes.
    agent.kill();
    let agent = site.agent();
    assert!(qemu_io(&folder, "root/disk", &["read -P 7 0 1M"]));

    // The controller is killed: the volume continues without it.
    controller.kill();
    assert!(qemu_io(
        &folder,
        "root/disk",
        &["write -P 8 0 1M", "flush", "read -P 8 0 1M"]
    ));
    let controller = site.controller();
    wait_until("the agent finds the controller again", || {
        let said = site.try_scree(&["volume", "unexport", "disk"]);
        said.code == 0 || said.error.contains("is not exported")
    });
    let shown = site.scree(&["volume", "show", "disk"]);
    assert_eq!(shown["state"], "available");
    site.scree(&["volume", "export", "disk"]);
    assert!(qemu_io(&folder, "root/disk", &["read -P 8 0 1M"]));
    let units = site.scree(&["unit", "list"]);
    let units = units.as_array().expect("a list");
    assert!(units.len() == 2 && units.iter().all(|unit| unit["state"] == "healthy"));
    agent.stop();
    controller.stop();
}

#[test]
fn unknown_callers_and_missing_rights_are_refused() {
    let (site, _controller) = Site::new();
    let alice = site.locally(&["user", "add", "alice"]);

    let mut forged = alice.clone();
    forged["authority"] = format!("sha256:{}", "0".repeat(64)).into();
    let said = site.login("alice", &forged);
    assert!(
        said.code == 1 && said.error.contains("the connection is intercepted"),
        "{}",
        said.error
    );
    assert_eq!(site.login("alice", &alice).code, 0);
    let said = site.login("again", &alice);
    assert!(
        said.code == 1 && said.error.contains("a token can be used once"),
        "{}",
        said.error
    );

    let refused = |arguments: &[&str], why: &str| {
        let said = site.try_scree(&[&["--profile", "alice"], arguments].concat());
        assert!(said.code == 1 && said.error.contains(why), "{}", said.error);
    };
    assert_eq!(
        site.scree(&["--profile", "alice", "whoami"])["name"],
        "alice"
    );
    for arguments in [
        &["status"][..],
        &["user", "list"],
        &["project", "add", "red"],
        &["audit"],
        &["unit", "list"],
    ] {
        refused(arguments, "is not an administrator");
    }
    site.locally(&["user", "disable", "alice"]);
    refused(&["whoami"], "is disabled");
    site.locally(&["user", "enable", "alice"]);
    assert_eq!(
        site.scree(&["--profile", "alice", "whoami"])["name"],
        "alice"
    );

    let audit = site.locally(&["audit"]);
    let done: Vec<&str> = audit
        .as_array()
        .expect("a list")
        .iter()
        .map(|line| line["action"].as_str().expect("a word"))
        .collect();
    for action in ["add", "invite", "join", "disable", "enable"] {
        assert!(done.contains(&action), "{action} of {done:?}");
    }
    let said = site.try_scree(&["--profile", "stranger", "whoami"]);
    assert!(
        said.code == 1 && said.error.contains("scree login"),
        "{}",
        said.error
    );
    let said = site.try_scree(&["agent", "--dir", &site.text("a")]);
    assert!(
        said.code == 1 && said.error.contains("scree host join"),
        "{}",
        said.error
    );
}
