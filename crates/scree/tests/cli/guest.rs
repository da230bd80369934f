//! A running QEMU: with a Linux guest and a shell on its serial line, or without a guest.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use crate::host::wait_until;

/// The command that the guest's kernel runs: it ends in a shell that reads the serial line. It has
/// no double quotes, since it is an argument on a kernel's command line.
const GUEST: &str = "b=/bin/busybox; $b --install -s /bin; \
     mount -t devtmpfs dev /dev; mount -t proc proc /proc; mount -t sysfs sys /sys; \
     while read m; do insmod /modules/$m.ko; done </modules/order 2>/dev/null; \
     stty -echo; export PS1=; echo GUEST up; exec sh";

/// A function for the guest's shell: `disk SERIAL` prints the device with that serial, once there
/// is one.
const DISK: &str = "disk() { while :; do for d in /sys/block/vd*; do \
     [ x$(cat $d/serial 2>/dev/null) = x$1 ] && echo /dev/${d##*/} && return; done; \
     sleep 0.1; done; }";

pub struct Guest {
    folder: TempDir,
    command: Command,
    qemu: Child,
    said: u32,
}

/// A file that `tools/guest` builds.
fn guest_file(name: &str) -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent();
    let path = target.expect("target").join("guest").join(name);
    assert!(
        path.exists(),
        "{} is missing; run `tools/guest`",
        path.display()
    );
    path
}

impl Guest {
    /// Boots a guest with room for three disks.
    pub fn boot() -> Self {
        Self::start(3, |command| {
            command
                .args(["-serial", "stdio"])
                .arg("-kernel")
                .arg(guest_file("vmlinuz"))
                .arg("-initrd")
                .arg(guest_file("initrd"))
                .arg("-append")
                .arg(format!(
                    "console=ttyS0 quiet panic=-1 rdinit=/bin/busybox -- sh -c \"{GUEST}\""
                ))
        })
    }

    /// A QEMU whose guest does not run: only QEMU answers.
    pub fn paused(ports: usize) -> Self {
        Self::start(ports, |command| command.arg("-S"))
    }

    fn start(ports: usize, more: impl FnOnce(&mut Command) -> &mut Command) -> Self {
        let folder = tempfile::Builder::new().prefix("vm-").tempdir_in("/tmp");
        let folder = folder.expect("a folder");
        let monitor = folder.path().join("qmp");
        let mut command = Command::new("qemu-system-x86_64");
        command
            .args(["-accel", "tcg", "-m", "160", "-machine", "q35"])
            .args(["-nodefaults", "-display", "none"])
            .arg("-qmp")
            .arg(format!("unix:{},server=on,wait=off", monitor.display()));
        for port in 1..=ports {
            let port = format!("pcie-root-port,id=port{port},chassis={port}");
            command.args(["-device", &port]);
        }
        let console = File::create(folder.path().join("console"));
        more(&mut command)
            .stdin(Stdio::piped())
            .stdout(console.expect("made"));
        let qemu = command
            .spawn()
            .expect("QEMU starts; `tools/packages guest test` installs it");
        let guest = Self {
            folder,
            command,
            qemu,
            said: 0,
        };
        guest.wait_for_monitor();
        guest
    }

    fn wait_for_monitor(&self) {
        let monitor = self.folder.path().join("qmp");
        wait_until("QEMU listens", || UnixStream::connect(&monitor).is_ok());
    }

    /// Sends QEMU a signal, such as `-STOP`.
    pub fn signal(&self, signal: &str) {
        let sent = Command::new("kill")
            .args([signal, &self.qemu.id().to_string()])
            .status();
        assert!(sent.expect("kill runs").success());
    }

    /// Kills QEMU.
    pub fn kill(&mut self) {
        self.qemu.kill().expect("it exists");
        self.qemu.wait().expect("it ends");
    }

    /// Starts QEMU again at the same address.
    pub fn start_again(&mut self) {
        self.qemu = self.command.spawn().expect("QEMU starts");
        self.wait_for_monitor();
    }

    /// Waits until the shell reads.
    pub fn wait_for_boot(&mut self) {
        wait_until("the guest has booted", || {
            self.console().contains("GUEST up")
        });
        self.shell(DISK);
    }

    /// The address of the VM for `scree`.
    pub fn address(&self) -> String {
        format!("qmp:{}", self.folder.path().join("qmp").display())
    }

    fn console(&self) -> String {
        let text = std::fs::read(self.folder.path().join("console"));
        String::from_utf8_lossy(&text.unwrap_or_default()).replace('\r', "")
    }

    /// Runs a command in the guest. Returns its output and whether it succeeded.
    pub fn shell(&mut self, command: &str) -> (bool, String) {
        self.said += 1;
        let (begin, end) = (
            format!("BEGIN-{}\n", self.said),
            format!("END-{} ", self.said),
        );
        let line = format!(
            "echo BEGIN-{said}; {command}; echo END-{said} $?.\n",
            said = self.said
        );
        let serial = self.qemu.stdin.as_mut().expect("piped");
        serial.write_all(line.as_bytes()).expect("it listens");
        serial.flush().expect("it listens");
        let mut answer = None;
        wait_until(&format!("the guest has run {command:?}"), || {
            let console = self.console();
            let said = console.split_once(&begin).map(|(_, said)| said);
            answer = said
                .and_then(|said| said.split_once(&end))
                .and_then(|(said, rest)| Some((rest.split_once('.')?.0 == "0", said.to_owned())));
            answer.is_some()
        });
        answer.expect("it has answered")
    }

    /// Runs a command that must succeed.
    pub fn does(&mut self, command: &str) -> String {
        let (is_done, said) = self.shell(command);
        assert!(is_done, "{command:?} failed: {said}");
        said.trim().to_owned()
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}
