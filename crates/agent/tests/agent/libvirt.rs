//! Plug, unplug and look, through a libvirt daemon of the test and a real guest.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use agent::vm::{Unplugged, Vm, VmAddress, VmError, VmOptions};
use tempfile::TempDir;

use crate::machine::{
    Console, Nbd, Process, as_unprivileged, give_to_unprivileged, guest_arguments, guest_file, run,
    wait_until,
};

const ENOUGH: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_millis(300);

const WRITABLE: &str = "vol0123456789abcdef0:ro=0:write=taken";
const READ_ONLY: &str = "vol0123456789abcdef1:ro=1:write=refused";

/// A daemon for one user, with all its files in a temporary folder.
struct Libvirt {
    daemon: Process,
    folder: TempDir,
}

impl Libvirt {
    fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let config = folder.path().join("config/libvirt");
        fs::create_dir_all(&config).expect("made");
        // Otherwise another daemon is started for logs, and stays.
        fs::write(config.join("qemu.conf"), "stdio_handler = \"file\"\n").expect("written");
        give_to_unprivileged(folder.path());
        let path = std::env::var_os("PATH").expect("a path");
        let mut command = as_unprivileged("libvirtd");
        command.env_clear().env("PATH", path).env("LC_ALL", "C");
        for (name, part) in [
            ("HOME", "."),
            ("XDG_RUNTIME_DIR", "run"),
            ("XDG_CONFIG_HOME", "config"),
            ("XDG_CACHE_HOME", "cache"),
            ("XDG_DATA_HOME", "data"),
        ] {
            command.env(name, folder.path().join(part));
        }
        let log = fs::File::create(folder.path().join("log")).expect("made");
        command.stderr(log);
        let daemon = Process::start(&mut command);
        let libvirt = Self { daemon, folder };
        wait_until("libvirtd listens", || libvirt.socket().exists());
        libvirt
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("run/libvirt/libvirt-sock")
    }

    fn uri(&self) -> String {
        format!("qemu:///session?socket={}", self.socket().display())
    }

    fn virsh(&self, arguments: &[&str]) -> bool {
        let uri = self.uri();
        let virsh = Command::new("virsh")
            .args(["--quiet", "--connect", &uri])
            .args(arguments)
            .output();
        virsh.expect("virsh runs").status.success()
    }

    /// Starts a domain with two ports. It is forgotten when it ends.
    fn domain(&self, name: &str) -> Console {
        let console = Console(self.folder.path().join("console"));
        // Where the user of the domain can read them.
        let copy = |file: &str| {
            let path = self.folder.path().join(file);
            fs::copy(guest_file(file), &path).expect("copied");
            path.to_str().expect("UTF-8").to_owned()
        };
        let (kernel, initrd) = (copy("vmlinuz"), copy("initrd"));
        let arguments = guest_arguments().replace('&', "&amp;").replace('<', "&lt;");
        let console_path = console.0.to_str().expect("UTF-8");
        let port = "<controller type='pci' model='pcie-root-port'/>";
        let xml = format!(
            "<domain type='qemu'><name>{name}</name><memory unit='MiB'>160</memory>\
             <os><type arch='x86_64' machine='q35'>hvm</type>\
             <kernel>{kernel}</kernel><initrd>{initrd}</initrd><cmdline>{arguments}</cmdline></os>\
             <features><acpi/></features><devices>\
             <emulator>/usr/bin/qemu-system-x86_64</emulator>\
             <controller type='pci' model='pcie-root'/>{port}{port}\
             <controller type='usb' model='none'/><memballoon model='none'/>\
             <serial type='file'><source path='{console_path}'/></serial>\
             </devices></domain>"
        );
        let path = self.folder.path().join("domain.xml");
        fs::write(&path, xml).expect("written");
        assert!(self.virsh(&["create", path.to_str().expect("UTF-8")]));
        console.wait_for_boot();
        console
    }

    fn vm(&self, name: &str, unplug_within: Duration) -> Vm {
        let options = VmOptions {
            answer_within: Duration::from_secs(20),
            unplug_within,
            libvirt_uri: self.uri(),
            ..VmOptions::default()
        };
        Vm::new(VmAddress::Libvirt(name.into()), options)
    }
}

impl Drop for Libvirt {
    fn drop(&mut self) {
        // Domains outlive their daemon.
        self.virsh(&["destroy", "one"]);
        self.daemon.stop();
    }
}

#[test]
fn a_domains_guest_sees_disks_come_and_go() {
    let libvirt = Libvirt::start();
    let nbd = Nbd::start(libvirt.folder.path());
    let console = libvirt.domain("one");
    let vm = libvirt.vm("one", ENOUGH);
    let one = nbd.disk("att-1", "vol-0123456789abcdef0", false);
    let two = nbd.disk("att-2", "vol-0123456789abcdef1", true);
    let three = nbd.disk("att-3", "vol-0123456789abcdef2", false);

    assert_eq!(run(vm.disks()).expect("seen"), []);
    let plugged = run(vm.plug(&one)).expect("plugged");
    assert!(!plugged.was_there);
    console.wait_for_disks(&[WRITABLE]);
    run(vm.plug(&two)).expect("plugged");
    console.wait_for_disks(&[WRITABLE, READ_ONLY]);
    let again = run(vm.plug(&two)).expect("plugged");
    assert!(again.was_there && again.waits_for_server == plugged.waits_for_server);
    let seen = run(vm.disks()).expect("seen");
    assert!(seen.len() == 2 && seen.iter().all(|disk| disk.is_plugged));
    assert_eq!(seen[1].serial, Some(two.serial.clone()));
    assert!(seen[1].is_read_only && !seen[0].is_read_only);
    let mut other = two.clone();
    other.is_read_only = false;
    let conflict = run(vm.plug(&other)).expect_err("a conflict");
    assert!(matches!(conflict, VmError::Conflict { .. }), "{conflict}");

    let full = run(vm.plug(&three)).expect_err("it is full");
    assert!(matches!(full, VmError::NoFreePort { .. }), "{full}");
    assert!(full.to_string().contains("pcie-root-port"), "{full}");

    // A paused guest cannot release a disk until it is resumed.
    assert!(libvirt.virsh(&["suspend", "one"]));
    for _ in 0..2 {
        match run(libvirt.vm("one", SHORT).unplug(&one.name)).expect("asked") {
            Unplugged::Busy { reason } => assert!(reason.contains("paused"), "{reason}"),
            other => panic!("it is not busy: {other:?}"),
        }
    }
    // Then it releases the disk. (libvirt 9.0 may crash if it is asked at that moment.)
    assert!(libvirt.virsh(&["resume", "one"]));
    console.wait_for_disks(&[READ_ONLY]);
    assert_eq!(
        run(vm.unplug(&one.name)).expect("asked"),
        Unplugged::Removed
    );
    assert_eq!(
        run(vm.unplug(&one.name)).expect("asked"),
        Unplugged::Removed
    );
    run(vm.plug(&one)).expect("plugged");
    console.wait_for_disks(&[WRITABLE, READ_ONLY]);

    // libvirt takes a name of digits as a number first.
    let number = libvirt.vm("1", SHORT);
    let error = run(number.unplug(&one.name)).expect_err("another domain");
    assert!(matches!(error, VmError::OtherDomain { .. }), "{error}");

    assert!(libvirt.virsh(&["destroy", "one"]));
    assert!(matches!(run(vm.disks()), Err(VmError::Ended { .. })));
    let error = run(vm.plug(&one)).expect_err("no VM");
    assert!(matches!(error, VmError::Ended { .. }), "{error}");
    let ended = run(vm.unplug(&one.name)).expect("asked");
    assert_eq!(ended, Unplugged::VmEnded);
}
