//! Units in buckets of an object store: moto's server, as in the tests of `unit-object`.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::host::{Host, wait_until};

/// A server that is killed when it is dropped.
struct Server {
    process: Child,
    port: u16,
    key: String,
    secret: String,
}

impl Server {
    /// A server with a bucket called `bucket`, which checks no credentials.
    fn start() -> Self {
        Self::with(&[])
    }

    /// As [`Server::start`], with options.
    fn with(options: &[&str]) -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let made = Command::new(root.join("tools/venv"))
            .arg("object")
            .stderr(Stdio::inherit())
            .output()
            .expect("tools/venv can be run");
        assert!(made.status.success(), "tools/venv object: {}", made.status);
        let venv = String::from_utf8(made.stdout).expect("a path");
        let mut process = Command::new(root.join(venv.trim()).join("bin/python"))
            .arg(root.join("crates/units/object/tests/object/s3-server.py"))
            .args(options)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("Python can be run");
        let mut line = String::new();
        let output = process.stdout.take().expect("it is piped");
        BufReader::new(output).read_line(&mut line).expect("a line");
        let mut words = line.split_whitespace();
        let port = words.next().and_then(|port| port.parse().ok());
        Self {
            process,
            port: port.expect("the server's port"),
            key: words.next().unwrap_or("key").to_owned(),
            secret: words.next().unwrap_or("secret").to_owned(),
        }
    }

    fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Sends it a signal, as `-STOP` or `-CONT`. Its content is in its memory.
    fn signal(&self, signal: &str) {
        let pid = self.process.id().to_string();
        let sent = Command::new("kill").args([signal, &pid]).status();
        assert!(sent.expect("kill runs").success());
    }

    /// Puts an object without credentials, which moto does not check.
    fn put(&self, path: &str) {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("it listens");
        write!(
            stream,
            "PUT /{path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\
             Connection: close\r\n\r\nx"
        )
        .expect("sent");
        let mut status = String::new();
        BufReader::new(stream)
            .read_line(&mut status)
            .expect("a line");
        assert!(status.contains("200"), "{status}");
    }

    /// The environment variables by which a host reaches it.
    fn settings(&self) -> Vec<(&'static str, String)> {
        vec![
            ("AWS_ENDPOINT_URL", self.endpoint()),
            ("AWS_ACCESS_KEY_ID", self.key.clone()),
            ("AWS_SECRET_ACCESS_KEY", self.secret.clone()),
            ("AWS_REGION", "us-east-1".to_owned()),
        ]
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A host without units, with this environment.
fn host(settings: &[(&'static str, String)]) -> Host {
    let mut host = Host::idle(&["--units", "0", "--grace", "0s"]);
    host.environment = settings.to_vec();
    host.start();
    host
}

fn segments(host: &Host) -> Vec<u64> {
    let units = host.json(&["unit", "list"]);
    let units = units.as_array().expect("a list").iter();
    units
        .map(|unit| unit["segments"].as_u64().unwrap_or(0))
        .collect()
}

#[test]
fn a_volume_in_three_buckets_survives_a_crash_and_is_deleted_completely() {
    let server = Server::start();
    let mut host = host(&server.settings());
    for number in 1..=3 {
        let url = format!("s3://bucket/cluster/u{number}");
        // Two spellings of one prefix name the same unit.
        let added = host.json(&["unit", "add", &format!("{url}/")]);
        assert_eq!(added["url"], json!(url));
        host.refuses(1, &["unit", "add", &url], &["is already a unit"]);
    }
    let shown = host.json(&["unit", "list"])[0]["id"].clone();
    let shown = shown.as_str().expect("text").to_owned();
    wait_until("the properties of the store are known", || {
        let facts = host.json(&["unit", "show", &shown])["facts"].clone();
        let facts = facts.as_array().expect("a list").clone();
        let held = |fact: &&Value| fact["present"] == json!(true);
        facts.len() == 2 && facts.iter().filter(held).count() >= 1
    });
    host.json(&[
        "volume",
        "create",
        "disk",
        "--size",
        "64M",
        "--replicas",
        "2",
    ]);
    host.qemu_io("disk", &["write -P 0x11 0 12M", "flush"]);
    host.json(&["snapshot", "create", "disk", "--name", "first", "--wait"]);
    host.qemu_io("disk", &["write -P 0x22 8M 12M", "flush"]);
    host.kill();
    host.start();
    let check = [
        "read -P 0x11 0 8M",
        "read -P 0x22 8M 12M",
        "read -P 0 20M 1M",
    ];
    host.qemu_io("disk", &check);
    assert_eq!(host.stop(), 0, "it destages everything");
    host.start();
    host.qemu_io("disk", &check);
    host.json(&["volume", "create", "copy", "--from", "first"]);
    host.qemu_io("copy", &["read -P 0x11 0 12M", "read -P 0 12M 1M"]);
    assert!(segments(&host).iter().all(|count| *count > 0));
    // 24 MiB were written twice: a dozen objects per MiB would be many more.
    assert!(
        segments(&host).iter().sum::<u64>() < 120,
        "{:?}",
        segments(&host)
    );
    for volume in ["copy", "disk"] {
        host.json(&["volume", "unexport", volume]);
    }
    for what in [
        ["volume", "copy"],
        ["snapshot", "first"],
        ["volume", "disk"],
    ] {
        host.json(&[what[0], "delete", what[1]]);
    }
    wait_until("its objects are deleted", || {
        segments(&host).iter().sum::<u64>() == 0
    });
    let units = host.json(&["unit", "list"]);
    for unit in units.as_array().expect("a list") {
        assert_eq!(unit["state"], json!("healthy"), "{unit}");
    }
}

#[test]
fn an_unresponsive_store_loses_nothing() {
    let server = Server::start();
    let mut host = host(&server.settings());
    for number in 1..=2 {
        host.json(&["unit", "add", &format!("s3://bucket/u{number}")]);
    }
    host.json(&["volume", "create", "disk", "--size", "32M"]);
    host.qemu_io("disk", &["write -P 1 0 4M", "flush"]);
    host.json(&["snapshot", "create", "disk", "--wait"]);
    server.signal("-STOP");
    host.qemu_io("disk", &["write -P 2 4M 4M", "flush"]);
    let states = || {
        let units = host.json(&["unit", "list"]);
        [units[0]["state"].clone(), units[1]["state"].clone()]
    };
    wait_until("the units are missing", || {
        states().iter().all(|state| *state == json!("missing"))
    });
    server.signal("-CONT");
    wait_until("they are healthy again", || {
        states().iter().all(|state| *state == json!("healthy"))
    });
    host.json(&["snapshot", "create", "disk", "--name", "after", "--wait"]);
    let check = ["read -P 1 0 4M", "read -P 2 4M 4M"];
    host.qemu_io("disk", &check);
    assert_eq!(host.stop(), 0);
    host.start();
    host.qemu_io("disk", &check);
}

/// Both members keep the weaker member's rule, and either one is enough to read.
#[test]
fn a_folder_and_a_bucket_hold_copies_of_the_same_segments() {
    let server = Server::start();
    let host = host(&server.settings());
    let folder = host.path().join("unit");
    std::fs::create_dir(&folder).expect("made");
    host.json(&["unit", "add", folder.to_str().expect("UTF-8")]);
    host.json(&["unit", "add", "s3://bucket"]);
    host.json(&["volume", "create", "disk", "--size", "32M"]);
    host.qemu_io("disk", &["write -P 7 0 10M", "flush"]);
    host.json(&["snapshot", "create", "disk", "--name", "s", "--wait"]);
    let [in_folder, in_bucket] = segments(&host)[..] else {
        panic!("two units");
    };
    assert!(
        in_folder > 0 && in_folder == in_bucket,
        "{in_folder} {in_bucket}"
    );
    server.signal("-STOP");
    host.json(&["volume", "create", "one", "--from", "s"]);
    host.qemu_io("one", &["read -P 7 0 10M"]);
    server.signal("-CONT");
    std::fs::rename(&folder, host.path().join("away")).expect("renamed");
    host.json(&["volume", "create", "other", "--from", "s"]);
    host.qemu_io("other", &["read -P 7 0 10M"]);
}

#[test]
fn unusable_buckets_are_refused_with_a_remedy() {
    let server = Server::start();
    let host = host(&server.settings());
    let other = self::host(&server.settings());
    other.json(&["unit", "add", "s3://bucket/others"]);
    server.put("bucket/full/something");
    for (url, words) in [
        ("s3://no-such-bucket/a", &["NoSuchBucket"][..]),
        (
            "s3://bucket/full",
            &["it contains", "something", "an empty prefix"],
        ),
        (
            "s3://bucket/others",
            &["is a unit of cluster-", "cannot be taken over"],
        ),
        (
            "s3://bucket/others/within",
            &["is within", "prefix outside it"],
        ),
        ("s3://bucket//a", &["empty"]),
        ("ftp://host/a", &["s3://"]),
    ] {
        host.refuses(1, &["unit", "add", url], words);
    }
    host.json(&["unit", "add", "s3://bucket/a"]);
    host.refuses(
        1,
        &["unit", "add", "s3://bucket/a/b"],
        &["is already a unit"],
    );

    // An operator's keys are neither logged nor world-readable.
    for (changed, words) in [
        (("AWS_SECRET_ACCESS_KEY", ""), &["cannot be reached"][..]),
        (
            ("AWS_ENDPOINT_URL", "http://store.example:9000"),
            &["neither https nor this machine", "AWS_ALLOW_HTTP"],
        ),
        (("AWS_PROFILE", "none"), &["AWS_PROFILE", "\"none\""]),
    ] {
        let (name, value) = changed;
        let mut settings = server.settings();
        if name == "AWS_PROFILE" {
            settings.retain(|(name, _)| !name.contains("KEY"));
        }
        settings.retain(|(known, _)| *known != name);
        if !value.is_empty() {
            settings.push((name, value.to_owned()));
        }
        let host = self::host(&settings);
        host.refuses(1, &["unit", "add", "s3://bucket/b"], words);
    }
}

/// The operator sees the store's error, and a unit whose credentials are revoked is not written to
/// until they are valid again.
#[test]
fn wrong_credentials_are_shown_and_right_ones_restore_the_unit() {
    let server = Server::with(&["--checked"]);
    let right = server.settings();
    let mut wrong = right.clone();
    wrong[2].1 = "another".to_owned();
    let mut host = self::host(&wrong);
    let words = &["SignatureDoesNotMatch"];
    host.refuses(1, &["unit", "add", "s3://bucket/a"], words);
    assert_eq!(host.stop(), 0);
    host.environment = right;
    host.start();
    host.json(&["unit", "add", "s3://bucket/a"]);
    host.json(&["volume", "create", "disk", "--size", "16M"]);
    host.qemu_io("disk", &["write -P 3 0 2M", "flush"]);
    host.json(&["snapshot", "create", "disk", "--wait"]);
    let right = std::mem::replace(&mut host.environment, wrong);
    host.kill();
    host.start();
    let unit = host.json(&["unit", "list"])[0].clone();
    assert_ne!(unit["state"], json!("healthy"));
    let reason = unit["message"]["text"].as_str().expect("text");
    assert!(reason.contains("SignatureDoesNotMatch"), "{reason}");
    host.kill();
    host.environment = right;
    host.start();
    host.qemu_io("disk", &["read -P 3 0 2M", "read -P 0 2M 1M"]);
}

/// The credentials are in a profile, as Amazon's tools store them.
#[test]
fn credentials_come_from_a_profile() {
    let server = Server::start();
    let mut host = Host::idle(&["--units", "0", "--grace", "0s"]);
    let folder = tempfile::tempdir().expect("a folder");
    let credentials = folder.path().join("credentials");
    let text = format!(
        "[store]\naws_access_key_id = key\naws_secret_access_key = secret\n\
         endpoint_url = {}\nregion = us-east-1\n",
        server.endpoint()
    );
    std::fs::write(&credentials, text).expect("written");
    let file = credentials.to_str().expect("UTF-8").to_owned();
    host.environment = vec![
        ("AWS_SHARED_CREDENTIALS_FILE", file),
        ("AWS_PROFILE", "store".to_owned()),
    ];
    host.start();
    let added = host.json(&["unit", "add", "s3://bucket/a"]);
    assert_eq!(added["state"], json!("healthy"));
}
