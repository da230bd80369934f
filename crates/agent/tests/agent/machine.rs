//! Real parts of a machine: NBD servers, QEMU, and a Linux guest that reports its disks.

use std::fs::File;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use agent::vm::qmp::Monitor;
use agent::vm::{Disk, RECONNECT_DELAY_SECONDS, Vm, VmAddress, VmOptions};
use serde_json::{Value, json};
use tempfile::TempDir;

/// The pause between checks of a condition.
const CHECK_EVERY: Duration = Duration::from_millis(20);

/// The most checks; then the test fails.
const CHECKS_MAX: u32 = 2000;

/// Waits until `holds` returns true.
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..CHECKS_MAX {
        if holds() {
            return;
        }
        thread::park_timeout(CHECK_EVERY);
    }
    panic!("never came true: {what}");
}

/// Runs a future to completion.
pub fn run<T>(what: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(what)
}

/// Uid of a user without rights, for programs that must not run as root.
const UNPRIVILEGED_UID: &str = "65534";

fn is_root() -> bool {
    rustix::process::getuid().is_root()
}

/// `program`, run by the unprivileged user if this is root.
pub fn as_unprivileged(program: &str) -> Command {
    let mut command;
    if is_root() {
        command = Command::new("setpriv");
        command
            .args([
                "--reuid",
                UNPRIVILEGED_UID,
                "--regid",
                "nogroup",
                "--clear-groups",
            ])
            .args(["--", program]);
    } else {
        command = Command::new(program);
    }
    command.env("LC_ALL", "C").stdin(Stdio::null());
    command
}

/// A folder that programs of [`as_unprivileged`] may write to.
pub fn unprivileged_folder() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    give_to_unprivileged(folder.path());
    folder
}

/// Allows programs of [`as_unprivileged`] to write to a folder and everything in it.
pub fn give_to_unprivileged(folder: &Path) {
    if is_root() {
        let given = Command::new("chown")
            .args(["-R", UNPRIVILEGED_UID])
            .arg(folder)
            .status();
        assert!(given.expect("chown runs").success());
    }
}

/// A process that ends with its test.
pub struct Process(Child);

impl Process {
    pub fn start(command: &mut Command) -> Self {
        let started = command.spawn();
        Self(started.unwrap_or_else(|error| {
            panic!("cannot start {command:?}: {error}; run `tools/packages guest test`")
        }))
    }

    /// Kills the process (`kill -9`).
    pub fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }

    /// Ends the process with SIGTERM.
    pub fn stop(&mut self) {
        if let Some(pid) = rustix::process::Pid::from_raw(self.0.id().cast_signed()) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let _ = self.0.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// An NBD server with 32 MiB of memory, for any export name.
pub struct Nbd {
    pub socket: PathBuf,
    server: Process,
}

impl Nbd {
    pub fn start(folder: &Path) -> Self {
        let socket = folder.join("nbd.sock");
        let server = Self::serve(&socket);
        Self { socket, server }
    }

    fn serve(socket: &Path) -> Process {
        let mut nbdkit = as_unprivileged("nbdkit");
        nbdkit
            .args(["--foreground", "--exit-with-parent", "--unix"])
            .arg(socket)
            .args(["memory", "32M"]);
        let server = Process::start(&mut nbdkit);
        wait_until("nbdkit listens", || socket.exists());
        server
    }

    pub fn kill(&mut self) {
        self.server.kill();
        std::fs::remove_file(&self.socket).expect("removed");
    }

    /// Serves again after a kill.
    pub fn restart(&mut self) {
        self.server = Self::serve(&self.socket);
    }

    pub fn disk(&self, name: &str, serial: &str, is_read_only: bool) -> Disk {
        Disk {
            name: name.parse().expect("a name"),
            socket: self.socket.clone(),
            export: "an export & its <name>".into(),
            is_read_only,
            serial: serial.parse().expect("a serial"),
            reconnect_delay_seconds: RECONNECT_DELAY_SECONDS,
        }
    }
}

/// A file of the guest built by `tools/guest`.
pub fn guest_file(name: &str) -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent();
    let path = target.expect("target").join("guest").join(name);
    assert!(
        path.exists(),
        "{} is missing; run `tools/guest`",
        path.display()
    );
    path
}

/// The script that the guest's kernel runs. It prints `GUEST up`, and lists its virtio disks
/// whenever they change: the serial of each, whether it is write-protected, and whether it accepts
/// a write. It has no double quotes, because it is an argument on the kernel's command line.
const GUEST: &str = "b=/bin/busybox; $b --install -s /bin; \
     mount -t devtmpfs dev /dev; mount -t proc proc /proc; mount -t sysfs sys /sys; \
     while read m; do insmod /modules/$m.ko; done </modules/order 2>/dev/null; \
     echo GUEST up; was=; while :; do now=; \
     for d in /sys/block/vd*; do [ -e $d/serial ] || continue; w=refused; \
     dd if=/dev/zero of=/dev/${d##*/} bs=512 count=1 conv=fsync 2>/dev/null && w=taken; \
     now=$now,$(cat $d/serial):ro=$(cat $d/ro):write=$w; done; \
     [ x$now = x$was ] || echo GUEST disks$now; was=$now; sleep 0.1; done";

/// The command line of the guest's kernel.
pub fn guest_arguments() -> String {
    format!("console=ttyS0 quiet panic=-1 rdinit=/bin/busybox -- sh -c \"{GUEST}\"")
}

/// The serial output of a guest, in a file.
pub struct Console(pub PathBuf);

impl Console {
    pub fn wait_for_boot(&self) {
        wait_until("the guest has booted", || {
            self.lines().any(|line| line == "GUEST up")
        });
    }

    /// Waits until the guest has exactly these disks.
    pub fn wait_for_disks(&self, disks: &[&str]) {
        wait_until(&format!("the guest has {disks:?}"), || {
            let seen = self.lines().filter_map(|line| {
                let disks = line.strip_prefix("GUEST disks")?;
                Some(disks.split(',').skip(1).map(String::from).collect())
            });
            let mut seen: Vec<String> = seen.last().unwrap_or_default();
            seen.sort();
            seen == disks
        });
    }

    /// Whether the guest has ever seen this disk.
    pub fn has_seen(&self, disk: &str) -> bool {
        self.lines().any(|line| line.contains(disk))
    }

    fn lines(&self) -> impl Iterator<Item = String> {
        let text = std::fs::read(&self.0).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        let lines: Vec<String> = text.lines().map(|line| line.trim().into()).collect();
        lines.into_iter()
    }
}

/// A QEMU, with a monitor for Scree and one for the test.
pub struct Qemu {
    pub folder: TempDir,
    pub process: Process,
    pub nbd: Nbd,
    pub console: Console,
}

impl Qemu {
    /// Without a guest: QEMU stays in its firmware.
    pub fn start(arguments: &[&str]) -> Self {
        Self::start_with(arguments, &[])
    }

    /// With the guest, booted.
    pub fn boot(arguments: &[&str]) -> Self {
        let (kernel, initrd) = (guest_file("vmlinuz"), guest_file("initrd"));
        let append = guest_arguments();
        let guest = [
            "-kernel",
            kernel.to_str().expect("UTF-8"),
            "-initrd",
            initrd.to_str().expect("UTF-8"),
            "-append",
            &append,
        ];
        let qemu = Self::start_with(arguments, &guest);
        qemu.console.wait_for_boot();
        qemu
    }

    fn start_with(arguments: &[&str], guest: &[&str]) -> Self {
        let folder = unprivileged_folder();
        let nbd = Nbd::start(folder.path());
        let console = Console(folder.path().join("console"));
        let mut command = Command::new("qemu-system-x86_64");
        command
            .args(["-accel", "tcg", "-m", "160", "-nodefaults"])
            .args(["-display", "none", "-serial", "stdio"])
            .args(arguments)
            .args(guest)
            .stdin(Stdio::null())
            .stdout(File::create(&console.0).expect("made"));
        for monitor in ["scree.qmp", "test.qmp"] {
            let socket = folder.path().join(monitor);
            let socket = socket.to_str().expect("UTF-8");
            command.args(["-qmp", &format!("unix:{socket},server=on,wait=off")]);
        }
        let process = Process::start(&mut command);
        let qemu = Self {
            folder,
            process,
            nbd,
            console,
        };
        wait_until("QEMU has its monitors", || {
            qemu.socket("scree.qmp").exists() && qemu.socket("test.qmp").exists()
        });
        qemu
    }

    pub fn socket(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The VM. Guests have `unplug_within` to release a disk.
    pub fn vm(&self, unplug_within: Duration) -> Vm {
        let options = VmOptions {
            answer_within: Duration::from_secs(20),
            unplug_within,
            ..VmOptions::default()
        };
        Vm::new(VmAddress::Qmp(self.socket("scree.qmp")), options)
    }

    /// Sends a command to the test's monitor.
    pub fn execute(&self, command: &'static str, arguments: Value) -> Value {
        run(async {
            let timeout = Duration::from_secs(20);
            let monitor = Monitor::connect(&self.socket("test.qmp"), timeout).await;
            let mut monitor = monitor.expect("the test's monitor");
            let reply = monitor.execute(command, arguments).await;
            reply.expect("a reply")
        })
    }

    /// The number of its block nodes.
    pub fn nodes(&self) -> usize {
        let nodes = self.execute("query-named-block-nodes", json!({ "flat": true }));
        nodes.as_array().expect("a list").len()
    }
}
