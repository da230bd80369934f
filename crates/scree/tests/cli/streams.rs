//! Standard output, standard error and signals.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::host::{Host, scree, scree_into, wait_until};

/// A full device: no write to it succeeds.
fn full() -> File {
    let full = OpenOptions::new().write(true).open("/dev/full");
    full.expect("Linux has it")
}

/// A pipe without a reader.
fn closed_pipe() -> Stdio {
    let (reader, writer) = io::pipe().expect("a pipe");
    drop(reader);
    writer.into()
}

fn signal(pid: u32, signals: &[&str]) {
    let kills: Vec<String> = signals
        .iter()
        .map(|signal| format!("kill -{signal} {pid}"))
        .collect();
    let sent = Command::new("sh")
        .args(["-c", &kills.join(" && ")])
        .status();
    assert!(sent.expect("sh runs").success());
}

/// Once the process was aborted when its log could not be written.
#[test]
fn an_unwritable_log_does_not_stop_the_process() {
    for error in [Stdio::from(full()), closed_pipe()] {
        let host = Host::idle(&["--units", "2"]);
        let mut up = host.up_command().stderr(error).spawn().expect("starts");
        let mut line = String::new();
        let out = up.stdout.take().expect("piped");
        BufReader::new(out).read_line(&mut line).expect("readable");
        assert!(line.starts_with("scree is ready"), "it said {line:?}");
        host.json(&["volume", "create", "disk", "--size", "8M"]);
        host.qemu_io("disk", &["write -P 1 0 1M", "flush"]);
        signal(up.id(), &["TERM"]);
        assert_eq!(up.wait().expect("ends").code(), Some(0));
    }
}

#[test]
fn up_serves_without_standard_output() {
    let host = Host::idle(&["--units", "2"]);
    let mut up = host.up_command().stdout(full()).spawn().expect("starts");
    wait_until("it answers", || host.run(&["status"]).code == 0);
    signal(up.id(), &["TERM"]);
    assert_eq!(up.wait().expect("ends").code(), Some(0));
}

#[test]
fn a_closed_pipe_is_no_failure_and_a_full_device_is() {
    let host = Host::new();
    let folder = host.path().to_str().expect("text");
    for arguments in [
        &["completions", "bash"][..],
        &["--dir", folder, "status"],
        &["--dir", folder, "unit", "list", "-o", "json"],
    ] {
        let said = scree_into(closed_pipe(), arguments);
        assert_eq!((said.code, &*said.error), (0, ""), "{arguments:?}");
        let said = scree_into(full().into(), arguments);
        assert_eq!(said.code, 1, "{arguments:?} said {}", said.error);
        assert!(said.error.contains("standard output"), "{}", said.error);
    }
}

/// `timeout` signals the process and then its group.
#[test]
fn a_repeated_signal_counts_once() {
    let mut host = Host::new();
    host.json(&["volume", "create", "disk", "--size", "64M"]);
    host.qemu_io("disk", &["write -P 7 0 12M"]);
    signal(host.pid(), &["TERM", "INT", "TERM"]);
    assert_eq!(host.wait(), 0, "everything is destaged");
}

/// A restart that destages first makes VMs wait as long as units take.
#[test]
fn sigquit_exits_without_destaging_and_the_next_start_replays() {
    let mut host = Host::with(&["--destage-after", "1h"]);
    host.json(&["volume", "create", "disk", "--size", "64M"]);
    host.qemu_io("disk", &["write -P 7 0 4M", "flush"]);
    let versions = host.json(&["volume", "versions", "disk"]);
    signal(host.pid(), &["QUIT"]);
    assert_eq!(host.wait(), 0, "that is a good end");
    host.start();
    assert_eq!(
        host.json(&["volume", "versions", "disk"]),
        versions,
        "nothing was destaged"
    );
    host.qemu_io("disk", &["read -P 7 0 4M"]);
    // The same while a destage keeps the process from exiting.
    signal(host.pid(), &["TERM", "QUIT"]);
    host.wait();
    host.start();
    host.qemu_io("disk", &["read -P 7 0 4M"]);
}

/// Once only the owner could enter the folder of sockets, so that a VM of another user could not
/// reach its disk.
#[test]
fn every_user_can_reach_the_sockets_of_vms() {
    let host = Host::new();
    let mode = |part: &str| {
        let folder = std::fs::metadata(host.path().join(part)).expect("it exists");
        folder.permissions().mode() & 0o777
    };
    assert_eq!(mode("vm"), 0o711);
    for part in ["keys", "journal", "units"] {
        assert_eq!(mode(part), 0o700, "{part}");
    }
}

#[test]
fn a_closing_terminal_does_not_end_the_process() {
    let mut host = Host::new();
    signal(host.pid(), &["HUP"]);
    assert_eq!(host.run(&["status"]).code, 0);
    assert_eq!(host.stop(), 0);
}

#[test]
fn failures_are_json_if_results_are() {
    let host = Host::new();
    let error = |said: crate::host::CommandOutput| -> Value {
        assert_eq!((said.code, &*said.out), (1, ""));
        let document: Value = serde_json::from_str(&said.error).expect("JSON");
        document["error"].clone()
    };
    let missing = error(host.run(&["volume", "show", "nothing", "-o", "json"]));
    assert_eq!(missing["code"], "not_found");
    let message = missing["message"].as_str().expect("text");
    assert!(message.contains("does not exist"), "{message}");
    let unserved = scree(&["--dir", "/nonexistent", "status", "-o", "json"]);
    let message = error(unserved)["message"].to_string();
    assert!(message.contains("scree up --dir"), "{message}");
}
