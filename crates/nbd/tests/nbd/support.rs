//! A server to test, and how to run a tool against it.

use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Duration;

use nbd::memory::{Manners, MemoryDevice};
use nbd::{ExportOptions, ExportTable, ExportThread, Limits, ListenOptions, Server, ServerOptions};
use tempfile::TempDir;
use world::real::RealClock;
use world::{Clock, Endpoint};

use crate::client::Client;

pub const MIB: usize = 1 << 20;

/// A server on a Unix socket in a folder of its own.
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

    /// Serves a memory device of `size` bytes as `name`.
    pub fn export(&self, name: &str, size: usize) -> ExportThread<MemoryDevice> {
        self.export_with(self.options(name), size, Manners::default())
    }

    pub fn export_with(
        &self,
        options: ExportOptions,
        size: usize,
        manners: Manners,
    ) -> ExportThread<MemoryDevice> {
        let make = move |wake| MemoryDevice::new(size).with(manners, wake).ok();
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

/// How a device behaves that takes every request and holds back the answers.
pub fn holding() -> Manners {
    Manners {
        pending_one_in: 1,
        holds_answers: true,
        ..Manners::default()
    }
}

pub fn small_limits() -> Limits {
    Limits {
        requests_max: 16,
        bytes_max: 1 << 20,
        operations_max: 32,
    }
}

/// Waits for `condition`, which another thread is about to make true.
pub fn eventually(what: &str, condition: impl Fn() -> bool) {
    let clock = RealClock::new();
    while !condition() {
        assert!(
            clock.monotonic() < Duration::from_secs(20),
            "it never happens: {what}"
        );
        std::thread::yield_now();
    }
}

/// Runs a foreign tool; fails if it is not installed.
pub fn run(tool: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(tool);
    // Debian's nbdsh needs Debian's Python, whatever else is installed.
    command
        .env("PATH", "/usr/bin:/bin:/usr/local/bin")
        .args(arguments);
    match command.output() {
        Ok(output) => output,
        Err(error) => panic!("{tool} cannot be run ({error}): this test needs it installed"),
    }
}

/// The same, and it must succeed. Returns what it printed.
pub fn must_run(tool: &str, arguments: &[&str]) -> String {
    let output = run(tool, arguments);
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{tool} {arguments:?} fails: {}\n{printed}\n{complained}",
        output.status
    );
    printed
}
