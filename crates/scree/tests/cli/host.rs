//! One `scree up` on a data directory of its own, and commands against it.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

pub const SCREE: &str = env!("CARGO_BIN_EXE_scree");

/// Interval at which an awaited condition is checked.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Number of checks until the test fails.
const LOOKS_MAX: u32 = 1500;

/// A process that is killed when it is dropped.
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A data directory, and the process that serves it unless it was stopped.
pub struct Host {
    pub folder: TempDir,
    up: Option<Child>,
    options: Vec<String>,
    /// Arguments of `ulimit` before it starts.
    pub limit: &'static str,
    /// Additional environment variables.
    pub environment: Vec<(&'static str, String)>,
}

/// Output and exit code of a command.
pub struct CommandOutput {
    pub code: i32,
    pub out: String,
    pub error: String,
}

impl CommandOutput {
    pub fn of(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8(output.stdout).expect("UTF-8"),
            error: String::from_utf8(output.stderr).expect("UTF-8"),
        }
    }

    /// The JSON that fio has printed after its notes.
    pub fn of_fio(&self) -> Value {
        let json = self.out.find('{').map(|at| &self.out[at..]);
        serde_json::from_str(json.expect("JSON")).expect("JSON")
    }
}

/// Runs `scree` without a data directory.
pub fn scree(arguments: &[&str]) -> CommandOutput {
    scree_into(Stdio::piped(), arguments)
}

/// As [`scree`], with another standard output.
pub fn scree_into(out: Stdio, arguments: &[&str]) -> CommandOutput {
    let mut command = Command::new(SCREE);
    command
        .args(arguments)
        .env_remove("SCREE_DIR")
        .env_remove("SCREE_PASSPHRASE")
        .env_remove("SCREE_PROFILE")
        .env("SCREE_CONFIG", "/nonexistent")
        .stdout(out);
    CommandOutput::of(command.output().expect("scree runs"))
}

/// Waits until `holds`.
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..LOOKS_MAX {
        if holds() {
            return;
        }
        thread::park_timeout(LOOK_AGAIN);
    }
    panic!("never came true: {what}");
}

impl Host {
    /// A new data directory, served.
    pub fn new() -> Self {
        Self::with(&[])
    }

    /// As [`Host::new`], with more options of `up`.
    pub fn with(options: &[&str]) -> Self {
        let mut host = Self::idle(options);
        host.start();
        host
    }

    /// A new data directory that is not served yet.
    pub fn idle(options: &[&str]) -> Self {
        // Close to the root: the path of a socket has at most 107 bytes.
        let folder = tempfile::Builder::new().prefix("scree-").tempdir_in("/tmp");
        let mut all = vec!["--journal-size".to_owned(), "16M".to_owned()];
        all.extend(options.iter().map(|&option| option.to_owned()));
        Self {
            folder: folder.expect("a folder"),
            up: None,
            options: all,
            limit: "-S -c 0",
            environment: Vec::new(),
        }
    }

    /// As [`Host::with`], with these arguments of `ulimit`.
    pub fn limited(limit: &'static str, options: &[&str]) -> Self {
        let mut host = Self::idle(options);
        host.limit = limit;
        host.start();
        host
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    pub fn unit(&self, number: u32) -> PathBuf {
        self.path().join("units").join(format!("u{number}"))
    }

    /// The command `scree up`, not started.
    pub fn up_command(&self) -> Command {
        let mut command = Command::new("sh");
        let limited = format!("ulimit {} && exec \"$@\"", self.limit);
        command
            .args(["-c", &limited, "sh", SCREE])
            .arg("up")
            .arg("--dir")
            .arg(self.path())
            .args(&self.options)
            .env_remove("SCREE_PASSPHRASE")
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdout(Stdio::piped());
        command
    }

    /// Starts it and waits until it reports readiness.
    pub fn start(&mut self) {
        let mut up = self.up_command().spawn().expect("scree up starts");
        let mut line = String::new();
        let out = up.stdout.take().expect("piped");
        BufReader::new(out).read_line(&mut line).expect("readable");
        assert!(line.starts_with("scree is ready"), "it said {line:?}");
        self.up = Some(up);
    }

    /// The id of the running process.
    pub fn pid(&self) -> u32 {
        self.up.as_ref().expect("it runs").id()
    }

    /// Starts it, which has to fail, and returns its output.
    pub fn refused_start(&self) -> CommandOutput {
        let said = CommandOutput::of(
            self.up_command()
                .stderr(Stdio::piped())
                .output()
                .expect("runs"),
        );
        assert_eq!(said.code, 1, "{}", said.error);
        said
    }

    /// Sends SIGTERM and returns the exit code.
    pub fn stop(&mut self) -> i32 {
        let mut up = self.up.take().expect("it runs");
        let pid = up.id().to_string();
        assert!(
            Command::new("kill")
                .arg(&pid)
                .status()
                .expect("kill runs")
                .success()
        );
        up.wait().expect("it ends").code().expect("not by a signal")
    }

    /// Waits for the process and returns its exit code.
    pub fn wait(&mut self) -> i32 {
        let mut up = self.up.take().expect("it runs");
        up.wait().expect("it ends").code().expect("not by a signal")
    }

    /// Sends SIGKILL.
    pub fn kill(&mut self) {
        let mut up = self.up.take().expect("it runs");
        up.kill().expect("killed");
        up.wait().expect("it ends");
    }

    /// Runs a command against it.
    pub fn run(&self, arguments: &[&str]) -> CommandOutput {
        let mut command = Command::new(SCREE);
        command.args(arguments).env("SCREE_DIR", self.path());
        CommandOutput::of(command.output().expect("scree runs"))
    }

    /// Writes a policy for a volume and applies it.
    pub fn apply_chain(&self, volume: &str, filters: &str) -> CommandOutput {
        let file = self.path().join("policy.toml");
        std::fs::write(&file, format!("volume = {volume:?}\n{filters}")).expect("written");
        self.run(&["chain", "apply", file.to_str().expect("text")])
    }

    /// Stores a passphrase for filters of the only tenant.
    pub fn filter_key(&self, name: &str, passphrase: &str) -> PathBuf {
        let keys = self.path().join("filter-keys/local");
        std::fs::create_dir_all(&keys).expect("made");
        let key = keys.join(name);
        std::fs::write(&key, passphrase).expect("written");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&key, mode).expect("set");
        key
    }

    /// Runs a command that must succeed, and returns its JSON.
    pub fn json(&self, arguments: &[&str]) -> Value {
        let said = self.run(&[arguments, &["-o", "json"]].concat());
        assert_eq!(said.code, 0, "{arguments:?}: {}", said.error);
        serde_json::from_str(&said.out).expect("JSON")
    }

    /// Runs a command that must fail with `code` and each of `words` in its error, and must change
    /// nothing that can be listed.
    pub fn refuses(&self, code: i32, arguments: &[&str], words: &[&str]) {
        let before = self.everything();
        let said = self.run(arguments);
        assert_eq!(
            said.code, code,
            "{arguments:?} said {} {}",
            said.out, said.error
        );
        for word in words {
            assert!(
                said.error.contains(word),
                "{arguments:?} said {:?}",
                said.error
            );
        }
        assert_eq!(self.everything(), before, "{arguments:?} changed something");
    }

    fn everything(&self) -> [Value; 3] {
        [["volume", "list"], ["snapshot", "list"], ["unit", "list"]].map(|list| {
            let mut list = self.json(&list);
            for item in list.as_array_mut().into_iter().flatten() {
                // Destages continue meanwhile.
                let moving = [
                    "segments",
                    "bytes",
                    "free_bytes",
                    "read_bytes",
                    "written_bytes",
                ];
                for field in moving {
                    item.as_object_mut().expect("an object").remove(field);
                }
            }
            list
        })
    }

    /// The state of a volume.
    pub fn state(&self, volume: &str) -> String {
        self.json(&["volume", "show", volume])["state"]
            .as_str()
            .expect("text")
            .to_owned()
    }

    /// Exports a volume and runs commands of qemu-io on it.
    pub fn qemu_io(&self, volume: &str, commands: &[&str]) {
        let uri = self.json(&["volume", "export", volume])["uri"].clone();
        self.qemu_io_at(uri.as_str().expect("text"), commands);
    }

    /// Runs commands of qemu-io; a pattern that does not match is a failure.
    pub fn qemu_io_at(&self, uri: &str, commands: &[&str]) {
        let mut qemu = Command::new("qemu-io");
        qemu.args(["-f", "raw", uri]);
        for command in commands {
            qemu.args(["-c", command]);
        }
        let output = qemu
            .output()
            .expect("qemu-io is installed (Debian: qemu-utils)");
        let said = CommandOutput::of(output);
        let good = said.code == 0
            && !said.out.contains("verification failed")
            && !said.out.contains("failed:");
        assert!(good, "{commands:?} said {} {}", said.out, said.error);
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Some(mut up) = self.up.take() {
            let _ = up.kill();
            let _ = up.wait();
        }
    }
}
