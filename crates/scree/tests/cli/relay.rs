//! `scree relay` between foreign clients and a foreign server.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::host::{CommandOutput, scree, wait_until};

const SCREE: &str = env!("CARGO_BIN_EXE_scree");

/// A process that ends with its test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

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

/// One whose standard error is this.
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

/// A relay that does not begin; why.
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
fn a_passive_relay_is_the_disk_that_the_server_has() {
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
    // It is there already: nothing is on the way.
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

/// What a relay has acknowledged without a flush is in its journal, and nowhere else maybe:
/// its process is killed, and the server with it.
#[test]
fn an_active_relay_that_is_killed_loses_nothing_that_it_acknowledged() {
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
            // The server is away: nothing but the journal can have it.
            drop(server.take());
        }
        let mut writes = Vec::new();
        let mut reads = Vec::new();
        for number in 0..40 {
            let at = (round * 40 + number) * 60;
            writes.push(format!("write -P {pattern} {at}k 50k"));
            reads.push(format!("read -P {pattern} {at}k 50k"));
        }
        // They are acknowledged before qemu-io ends; it flushes only at its end, which waits
        // for the server, unless the journal answers.
        writes.push("abort".to_owned());
        let mut command = Command::new("qemu-io");
        command.args(["-f", "raw", &uri(folder, "relay")]);
        for write in &writes {
            command.args(["-c", write]);
        }
        let said = command.output().expect("qemu-io is installed");
        let out = String::from_utf8_lossy(&said.stdout);
        // What it was about to print goes with it.
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
        // Its journal is carried out before it is ready.
        qemu_io(&uri(folder, "server"), &reads);
        drop(relay);
    }
}

#[test]
fn a_journal_has_one_relay_and_a_clean_end_leaves_nothing_in_it() {
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
    // What is written without it is not overwritten by the journal later.
    qemu_io(&uri(folder, "server"), &["write -P 2 0 1M"]);
    let _again = relay(folder, &active);
    qemu_io(&uri(folder, "relay"), &["read -P 2 0 1M"]);
}

/// A server that refuses to write while there is a file, which is returned as well.
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

/// A server that was in trouble for a moment was never used again, and its relay answered
/// nothing any more.
#[test]
fn a_server_that_refuses_for_a_moment_loses_nothing() {
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

/// Of a journal that is a filter of a policy it was not said that it has what the server lacks.
#[test]
fn a_relay_that_ends_says_that_its_journal_has_what_the_server_has_not() {
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
        assert!(error.contains("the journal has it"), "{error}");
        fs::remove_file(&trouble).expect("removed");
    }
}

/// Whatever was in the way of a journal, it was called by the option that says its size.
#[test]
fn a_journal_that_cannot_be_used_is_called_by_its_folder() {
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

/// What filters keep in a folder is of one disk, and a chain has one journal.
#[test]
fn filters_that_keep_something_have_one_relay() {
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
    assert!(error.contains("there would be two"), "{error}");
}

/// A client that is told of no smallest block sends what the server does not take.
#[test]
fn a_relay_tells_its_clients_which_blocks_its_server_takes() {
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
    let told = Command::new("nbdinfo")
        .args(["--json", &uri(folder, "relay")])
        .output();
    let told = CommandOutput::of(told.expect("nbdinfo is installed"));
    assert_eq!(told.code, 0, "{}", told.error);
    let told: serde_json::Value = serde_json::from_str(&told.out).expect("JSON");
    let export = &told["exports"][0];
    assert_eq!(export["block_size_minimum"], 4096, "{export}");
    // QEMU does what is smaller by itself.
    qemu_io(
        &uri(folder, "relay"),
        &["write -P 5 512 512", "read -P 5 512 512"],
    );
}
