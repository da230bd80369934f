//! Real parts of a machine: NBD servers, QEMU, and a Linux guest that says what
//! disks it has.

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

/// How often a condition is looked at that is waited for.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// So often; then the test has failed.
const LOOKS_MAX: u32 = 2000;

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

/// Runs what is asynchronous.
pub fn run<T>(what: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(what)
}

/// A user that may do nothing, for programs that root should not be.
const NOBODY: &str = "nobody";

fn is_root() -> bool {
    rustix::process::getuid().is_root()
}

/// `program`, as `nobody` if this is root.
pub fn as_nobody(program: &str) -> Command {
    let mut command;
    if is_root() {
        command = Command::new("setpriv");
        command
            .args(["--reuid", NOBODY, "--regid", "nogroup", "--clear-groups"])
            .args(["--", program]);
    } else {
        command = Command::new(program);
    }
    command.env("LC_ALL", "C").stdin(Stdio::null());
    command
}

/// A folder that [`as_nobody`]'s programs may write to.
pub fn folder_of_nobody() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    give_to_nobody(folder.path());
    folder
}

/// Lets [`as_nobody`]'s programs write to a folder and all that is in it.
pub fn give_to_nobody(folder: &Path) {
    if is_root() {
        let given = Command::new("chown")
            .args(["-R", NOBODY])
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

    /// kill -9.
    pub fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }

    /// SIGTERM, and the end.
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

/// 32 MiB of memory as an NBD server, whose exports have any name.
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
        let mut nbdkit = as_nobody("nbdkit");
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

    /// Serves again, what was killed.
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

/// A file of the guest that `tools/guest` makes.
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

/// The guest's kernel runs this. It says `GUEST up`, and which virtio disks
/// there are whenever that changes: each by its serial, whether it says to be
/// write-protected, and whether it takes a write. Without double quotes: it is
/// an argument on a kernel's command line.
const GUEST: &str = "b=/bin/busybox; $b --install -s /bin; \
     mount -t devtmpfs dev /dev; mount -t proc proc /proc; mount -t sysfs sys /sys; \
     while read m; do insmod /modules/$m.ko; done </modules/order 2>/dev/null; \
     echo GUEST up; was=; while :; do now=; \
     for d in /sys/block/vd*; do [ -e $d/serial ] || continue; w=refused; \
     dd if=/dev/zero of=/dev/${d##*/} bs=512 count=1 conv=fsync 2>/dev/null && w=taken; \
     now=$now,$(cat $d/serial):ro=$(cat $d/ro):write=$w; done; \
     [ x$now = x$was ] || echo GUEST disks$now; was=$now; sleep 0.1; done";

/// The guest's kernel's command line.
pub fn guest_arguments() -> String {
    format!("console=ttyS0 quiet panic=-1 rdinit=/bin/busybox -- sh -c \"{GUEST}\"")
}

/// What a guest says on its serial line, in a file.
pub struct Console(pub PathBuf);

impl Console {
    pub fn wait_for_boot(&self) {
        wait_until("the guest has booted", || {
            self.lines().any(|line| line == "GUEST up")
        });
    }

    /// Waits until the guest has these disks and no others.
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

    /// Whether the guest has ever seen a disk like this.
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
    /// Without a guest: it stays in its firmware.
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
        let folder = folder_of_nobody();
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

    /// Scree's view of it. Guests have `unplug_within` to let go of a disk.
    pub fn vm(&self, unplug_within: Duration) -> Vm {
        let options = VmOptions {
            answer_within: Duration::from_secs(20),
            unplug_within,
            ..VmOptions::default()
        };
        Vm::new(VmAddress::Qmp(self.socket("scree.qmp")), options)
    }

    /// Asks it something on the test's monitor.
    pub fn ask(&self, command: &'static str, arguments: Value) -> Value {
        run(async {
            let patience = Duration::from_secs(20);
            let monitor = Monitor::connect(&self.socket("test.qmp"), patience).await;
            let mut monitor = monitor.expect("the test's monitor");
            let reply = monitor.execute(command, arguments).await;
            reply.expect("a reply")
        })
    }

    /// How many block nodes it has.
    pub fn nodes(&self) -> usize {
        let nodes = self.ask("query-named-block-nodes", json!({ "flat": true }));
        nodes.as_array().expect("a list").len()
    }
}
