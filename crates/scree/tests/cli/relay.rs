//! `scree relay` between QEMU's client and nbdkit.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::host::{CommandOutput, Running, scree, wait_until};

const SCREE: &str = env!("CARGO_BIN_EXE_scree");

fn qemu_nbd(folder: &Path) -> Running {
    let (image, socket) = (folder.join("image"), folder.join("server"));
    let server = Command::new("qemu-nbd")
        .args(["-t", "-e", "8", "-f", "raw", "-x", "disk", "-k"])
        .args([&socket, &image])
        .spawn();
    let server = Running(server.expect("qemu-nbd is installed"));
    wait_until("the server listens", || socket.exists());
    server
}

fn relay(folder: &Path, more: &[&str]) -> Running {
    relay_saying(folder, more, Stdio::inherit())
}

/// A process with this standard error.
fn relay_saying(folder: &Path, more: &[&str], error: Stdio) -> Running {
    let to = format!(
        "nbd+unix:///disk?socket={}",
        folder.join("server").display()
    );
    let listen = format!("unix:{}", folder.join("relay").display());
    let mut child = Command::new(SCREE)
        .args(["relay", "--listen", &listen, "--to", &to])
        .args(more)
        .stdout(Stdio::piped())
        .stderr(error)
        .spawn()
        .expect("scree runs");
    let mut line = String::new();
    let out = child.stdout.take().expect("piped");
    BufReader::new(out).read_line(&mut line).expect("readable");
    assert!(
        line.starts_with("scree relay is ready: disk of"),
        "it said {line:?}"
    );
    Running(child)
}

/// The error of a relay that does not start.
fn refused(folder: &Path, more: &[&str]) -> String {
    let to = uri(folder, "server");
    let words = ["relay", "--listen", "unix:/tmp/none", "--to", &to];
    let said = scree(&[&words[..], more].concat());
    assert_eq!(said.code, 1);
    said.error
}

fn qemu_io(uri: &str, commands: &[&str]) {
    let mut command = Command::new("qemu-io");
    command.args(["-f", "raw", uri]);
    for one in commands {
        command.args(["-c", one]);
    }
    let said = CommandOutput::of(command.output().expect("qemu-io is installed"));
    assert_eq!(said.code, 0, "{commands:?}: {}", said.error);
    assert!(!said.out.contains("failed"), "{commands:?}: {}", said.out);
}

fn uri(folder: &Path, socket: &str) -> String {
    format!("nbd+unix:///disk?socket={}", folder.join(socket).display())
}

fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let image = std::fs::File::create(folder.path().join("image")).expect("a file");
    image.set_len(64 << 20).expect("room");
    folder
}

#[test]
fn a_passive_relay_shows_the_disk_of_the_server() {
    let folder = folder();
    let folder = folder.path();
    let _server = qemu_nbd(folder);
    let policy = folder.join("policy");
    let text = "volume = \"disk\"\n[[filter]]\nkind = \"rate\"\niops = 100000\n";
    std::fs::write(&policy, text).expect("room");
    let relay = relay(folder, &["--policy", policy.to_str().expect("text")]);
    qemu_io(
        &uri(folder, "relay"),
        &["write -P 1 0 1M", "write -f -P 2 3M 5k"],
    );
    // The server has the write already: a passive relay holds nothing.
    qemu_io(
        &uri(folder, "server"),
        &["read -P 1 0 1M", "read -P 2 3M 5k"],
    );
    let trims = ["write -z -u 0 512k", "discard 512k 512k", "flush"];
    qemu_io(&uri(folder, "relay"), &trims);
    qemu_io(
        &uri(folder, "relay"),
        &["read -P 0 0 512k", "read -P 0 4M 1M"],
    );
    drop(relay);
    let other = [
        "relay",
        "--listen",
        "unix:/tmp/none",
        "--to",
        &uri(folder, "server"),
    ];
    let other = [&other[..], &["--volume", "other", "--policy"]].concat();
    let said = scree(&[&other[..], &[policy.to_str().expect("text")]].concat());
    assert_eq!(said.code, 1);
    assert!(
        said.error.contains("it is for the volume"),
        "{}",
        said.error
    );
}

/// A relay's acknowledged writes without a flush may be only in its journal: its process and the
/// server are killed.
#[test]
fn a_killed_active_relay_loses_no_acknowledged_write() {
    let folder = folder();
    let folder = folder.path();
    let journal = folder.join("journal");
    let journal = journal.to_str().expect("text");
    let mut server = Some(qemu_nbd(folder));
    for (round, flush) in ["through", "journal", "through", "journal"]
        .into_iter()
        .enumerate()
    {
        let active = ["--active", "--journal", journal, "--journal-size", "8M"];
        let mut relay = relay(folder, &[&active[..], &["--flush", flush]].concat());
        let pattern = round + 1;
        if flush == "journal" {
            // The server is unavailable: only the journal can have the write.
            drop(server.take());
        }
        let mut writes = Vec::new();
        let mut reads = Vec::new();
        for number in 0..40 {
            let at = (round * 40 + number) * 60;
            writes.push(format!("write -P {pattern} {at}k 50k"));
            reads.push(format!("read -P {pattern} {at}k 50k"));
        }
        // They are acknowledged before qemu-io ends; its flush at the end waits for the server,
        // unless the journal answers it.
        writes.push("abort".to_owned());
        let mut command = Command::new("qemu-io");
        command.args(["-f", "raw", &uri(folder, "relay")]);
        for write in &writes {
            command.args(["-c", write]);
        }
        let said = command.output().expect("qemu-io is installed");
        let out = String::from_utf8_lossy(&said.stdout);
        // Its unprinted output is lost with it.
        let wrote = out.matches("wrote 51200/51200").count();
        assert!(wrote >= 30, "{out}");
        reads.truncate(wrote);
        relay.0.kill().expect("killed");
        drop(relay);
        if server.is_none() {
            let _ = std::fs::remove_file(folder.join("server"));
            server = Some(qemu_nbd(folder));
        }
        let relay = self::relay(folder, &active);
        let reads: Vec<&str> = reads.iter().map(String::as_str).collect();
        qemu_io(&uri(folder, "relay"), &reads);
        // Its journal is replayed before it is ready.
        qemu_io(&uri(folder, "server"), &reads);
        drop(relay);
    }
}

#[test]
fn a_journal_has_one_relay_and_is_empty_after_a_clean_exit() {
    let folder = folder();
    let folder = folder.path();
    let _server = qemu_nbd(folder);
    let journal = folder.join("journal");
    let active = ["--active", "--journal", journal.to_str().expect("text")];
    let active = [&active[..], &["--journal-size", "8M"]].concat();
    let mut first = relay(folder, &active);
    let error = refused(folder, &active);
    assert!(error.contains("another relay uses it"), "{error}");
    qemu_io(&uri(folder, "relay"), &["write -P 1 0 1M"]);
    let pid = first.0.id().to_string();
    let killed = Command::new("kill").arg(&pid).status().expect("kill runs");
    assert!(killed.success());
    assert_eq!(first.0.wait().expect("it ends").code(), Some(0));
    // The journal does not overwrite later writes that were made without it.
    qemu_io(&uri(folder, "server"), &["write -P 2 0 1M"]);
    let _again = relay(folder, &active);
    qemu_io(&uri(folder, "relay"), &["read -P 2 0 1M"]);
}

/// Once a relay whose server accepted connections and did not answer ignored signals for 10 s, and
/// one that emptied its journal for up to an hour.
#[test]
fn a_relay_ends_at_a_signal_while_it_opens_the_server() {
    let folder = folder();
    let folder = folder.path();
    let listener = UnixListener::bind(folder.join("server")).expect("a free name");
    let listen = format!("unix:{}", folder.join("relay").display());
    let child = Command::new(SCREE)
        .args(["relay", "--listen", &listen, "--to"])
        .arg(uri(folder, "server"))
        .spawn();
    let mut relay = Running(child.expect("scree runs"));
    let (_silent, _) = listener.accept().expect("the relay connects");
    let pid = relay.0.id().to_string();
    let killed = Command::new("kill").arg(&pid).status().expect("kill runs");
    assert!(killed.success());
    assert_eq!(relay.0.wait().expect("it ends").code(), Some(0));
}

/// A server that refuses writes as long as a file exists, and that file.
fn troubled(folder: &Path) -> (Running, PathBuf) {
    let (socket, trouble) = (folder.join("server"), folder.join("trouble"));
    let server = Command::new("nbdkit")
        .args(["-f", "--filter=error", "-e", "disk", "-U"])
        .arg(&socket)
        .args(["memory", "64M", "error-pwrite=EIO", "error-pwrite-rate=1"])
        .arg(format!("error-pwrite-file={}", trouble.display()))
        .spawn();
    let server = Running(server.expect("nbdkit is installed"));
    wait_until("the server listens", || socket.exists());
    (server, trouble)
}

/// Once a server that failed for a moment was never used again, and its relay did not answer any
/// more.
#[test]
fn writes_that_a_server_refuses_for_a_moment_are_not_lost() {
    let folder = folder();
    let folder = folder.path();
    let (_server, trouble) = troubled(folder);
    let journal = folder.join("journal");
    let active = ["--active", "--journal", journal.to_str().expect("text")];
    let active = [&active[..], &["--journal-size", "8M", "--flush", "journal"]].concat();
    let mut relay = relay(folder, &active);
    let at = uri(folder, "relay");
    qemu_io(&at, &["write -P 1 0 1M"]);
    fs::write(&trouble, "").expect("written");
    qemu_io(&at, &["write -P 2 1M 1M", "write -P 3 512k 1M"]);
    fs::remove_file(&trouble).expect("removed");
    let reads = [
        "read -P 1 0 512k",
        "read -P 3 512k 1M",
        "read -P 2 1536k 512k",
    ];
    qemu_io(&at, &reads);
    let pid = relay.0.id().to_string();
    let killed = Command::new("kill").arg(&pid).status().expect("kill runs");
    assert!(killed.success());
    assert_eq!(relay.0.wait().expect("it ends").code(), Some(0));
    qemu_io(&uri(folder, "server"), &reads);
}

/// Once the final error did not mention that a policy's journal has the missing writes.
#[test]
fn a_relay_that_exits_reports_writes_that_only_its_journal_has() {
    let folder = folder();
    let folder = folder.path();
    let (_server, trouble) = troubled(folder);
    let policy = folder.join("policy.toml");
    let text = "volume = '*'\n[[filter]]\nkind = 'journal'\nsize = '8M'\nflush = 'journal'\n";
    fs::write(&policy, text).expect("written");
    let path = |name: &str| folder.join(name).to_str().expect("text").to_owned();
    let (filters, policy, journal) = (path("filters"), path("policy.toml"), path("journal"));
    let with: [&[&str]; 2] = [
        &["--policy", &policy, "--filter-dir", &filters],
        &[
            "--active",
            "--journal",
            &journal,
            "--journal-size",
            "8M",
            "--flush",
            "journal",
        ],
    ];
    for with in with {
        let mut relay = relay_saying(folder, with, Stdio::piped());
        fs::write(&trouble, "").expect("written");
        qemu_io(&uri(folder, "relay"), &["write -P 1 0 1M"]);
        let pid = relay.0.id().to_string();
        let killed = Command::new("kill").arg(&pid).status().expect("kill runs");
        assert!(killed.success());
        let mut error = String::new();
        let said = relay.0.stderr.take().expect("piped");
        BufReader::new(said)
            .read_to_string(&mut error)
            .expect("text");
        assert_eq!(relay.0.wait().expect("it ends").code(), Some(1), "{error}");
        assert!(error.contains("the journal has them"), "{error}");
        fs::remove_file(&trouble).expect("removed");
    }
}

/// Once each error of a journal named --journal-size.
#[test]
fn an_unusable_journal_is_named_by_its_folder() {
    let folder = folder();
    let folder = folder.path();
    let _server = qemu_nbd(folder);
    let journal = folder.join("journal");
    let active = ["--active", "--journal", journal.to_str().expect("text")];
    let named = format!("--journal {}: ", journal.display());
    let error = refused(
        folder,
        &[&active[..], &["--journal-size", "4000T"]].concat(),
    );
    assert!(error.contains(&named), "{error}");
    assert!(error.contains("--journal-size"), "{error}");
    fs::write(journal.join("relay.journal"), [7; 9000]).expect("written");
    let error = refused(folder, &active);
    assert!(error.contains(&named), "{error}");
    assert!(!error.contains("--journal-size"), "{error}");
}

/// The state of filters belongs to one disk, and a chain has one journal.
#[test]
fn filters_with_state_have_one_relay() {
    let folder = folder();
    let folder = folder.path();
    let _server = qemu_nbd(folder);
    let policy = folder.join("policy.toml");
    let text = "volume = '*'\n[[filter]]\nkind = 'journal'\nsize = '8M'\n";
    fs::write(&policy, text).expect("written");
    let filters = folder.join("filters");
    let path = |path: &Path| path.to_str().expect("text").to_owned();
    let with = [
        "--policy".to_owned(),
        path(&policy),
        "--filter-dir".to_owned(),
        path(&filters),
    ];
    let with: Vec<&str> = with.iter().map(String::as_str).collect();
    let _first = relay(folder, &with);
    let error = refused(folder, &with);
    assert!(error.contains("another relay uses it"), "{error}");
    let journal = path(&folder.join("journal"));
    let active = ["--active", "--journal", &journal];
    let error = refused(folder, &[&with[..], &active].concat());
    assert!(error.contains("--active adds a second one"), "{error}");
}

/// A client without a minimal block size sends requests that the server refuses.
#[test]
fn a_relay_announces_the_block_sizes_of_its_server() {
    let folder = folder();
    let folder = folder.path();
    let socket = folder.join("server");
    let server = Command::new("nbdkit")
        .args(["-f", "--filter=blocksize-policy", "-e", "disk", "-U"])
        .arg(&socket)
        .args(["memory", "64M", "blocksize-minimum=4096"])
        .args(["blocksize-preferred=64k", "blocksize-maximum=32M"])
        .args(["blocksize-error-policy=error"])
        .spawn();
    let _server = Running(server.expect("nbdkit is installed"));
    wait_until("the server listens", || socket.exists());
    let _relay = relay(folder, &[]);
    let shown = Command::new("nbdinfo")
        .args(["--json", &uri(folder, "relay")])
        .output();
    let shown = CommandOutput::of(shown.expect("nbdinfo is installed"));
    assert_eq!(shown.code, 0, "{}", shown.error);
    let shown: serde_json::Value = serde_json::from_str(&shown.out).expect("JSON");
    let export = &shown["exports"][0];
    assert_eq!(export["block_size_minimum"], 4096, "{export}");
    // QEMU handles smaller requests by itself.
    qemu_io(
        &uri(folder, "relay"),
        &["write -P 5 512 512", "read -P 5 512 512"],
    );
}
