//! A server to test, and functions to run tools against it.

use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Duration;

use nbd::{ExportOptions, ExportTable, ExportThread, Limits, ListenOptions, Server, ServerOptions};
use tempfile::TempDir;
use testkit::memory_device::{MemoryDevice, Misbehavior};
use world::real::RealClock;
use world::{Clock, Endpoint};

use crate::client::Client;

pub const MIB: usize = 1 << 20;

/// A server on a Unix socket in its own folder.
pub struct Fixture {
    pub server: Server,
    pub table: Arc<ExportTable>,
    pub folder: TempDir,
    pub clock: Arc<dyn Clock>,
}

impl Fixture {
    pub fn new() -> Self {
        Self::with(|_| {}, |_| {})
    }

    pub fn with(
        adjust_server: impl FnOnce(&mut ServerOptions),
        adjust_listen: impl FnOnce(&mut ListenOptions),
    ) -> Self {
        let clock: Arc<dyn Clock> = Arc::new(RealClock::new());
        let mut options = ServerOptions::new(clock.clone());
        adjust_server(&mut options);
        let server = Server::start(options).expect("a thread");
        let table = Arc::new(ExportTable::new());
        let fixture = Self {
            server,
            table,
            folder: tempfile::tempdir().expect("a folder"),
            clock,
        };
        let mut listen = ListenOptions::new(fixture.table.clone());
        adjust_listen(&mut listen);
        let endpoint = Endpoint::Unix(fixture.socket());
        fixture
            .server
            .listen(&endpoint, listen)
            .expect("a free name");
        fixture
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    pub fn uri(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.socket().display())
    }

    pub fn options(&self, name: &str) -> ExportOptions {
        ExportOptions::new(name, self.clock.clone())
    }

    /// Serves a memory device of `size` bytes as the export `name`.
    pub fn export(&self, name: &str, size: usize) -> ExportThread<MemoryDevice> {
        self.export_with(self.options(name), size, Misbehavior::default())
    }

    pub fn export_with(
        &self,
        options: ExportOptions,
        size: usize,
        misbehavior: Misbehavior,
    ) -> ExportThread<MemoryDevice> {
        let make = move |wake| MemoryDevice::new(size).with(misbehavior, wake).ok();
        let thread = ExportThread::spawn(options, make).expect("a thread");
        self.table.add(thread.export());
        thread
    }

    /// A client that has opened `export`.
    pub fn client(&self, export: &str) -> Client {
        let mut client = Client::connect(&self.socket());
        client.structured();
        client.go(export);
        client
    }
}

/// Makes every request pending until completions are released.
pub fn holding() -> Misbehavior {
    Misbehavior {
        pending_one_in: 1,
        holds_completions: true,
        ..Misbehavior::default()
    }
}

pub fn small_limits() -> Limits {
    Limits {
        requests_max: 16,
        bytes_max: 1 << 20,
        operations_max: 32,
    }
}

/// Waits until another thread makes `condition` true.
pub fn eventually(what: &str, condition: impl Fn() -> bool) {
    let clock = RealClock::new();
    while !condition() {
        assert!(
            clock.monotonic() < Duration::from_secs(20),
            "timed out: {what}"
        );
        std::thread::yield_now();
    }
}

/// Runs a foreign tool, which has to be installed.
pub fn run(tool: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(tool);
    // Debian's nbdsh needs Debian's Python, also where another one is installed.
    command
        .env("PATH", "/usr/bin:/bin:/usr/local/bin")
        .args(arguments);
    match command.output() {
        Ok(output) => output,
        Err(error) => panic!("cannot run {tool}, which this test needs: {error}"),
    }
}

/// Runs a foreign tool, which has to succeed. Returns its standard output.
pub fn must_run(tool: &str, arguments: &[&str]) -> String {
    let output = run(tool, arguments);
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{tool} {arguments:?} fails: {}\n{printed}\n{errors}",
        output.status
    );
    printed
}
