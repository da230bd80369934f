//! `scree unit`: the process of a unit daemon, and how a daemon joins.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde_json::json;

use crate::host::{scree, wait_until};
use crate::monitoring::{Numbers, get};
use crate::service::{Process, Site, qemu_io};
use crate::stores::Stores;

const CLUSTER: &str = "cluster-00000000000000000000000000000001";
const UNIT: &str = "unit-00000000000000001";
const DATABASE: &str = "database-00000000000000000000000000000001";

/// 2030-01-01T00:00:00Z, in seconds since 1970.
const ENDS: f64 = 1_893_456_000.0;

fn write_private(path: &Path, text: &str) {
    let mut options = fs::OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(path);
    let mut file = file.expect("a new file");
    file.write_all(text.as_bytes()).expect("written");
}

/// Creates in `folder` the files of a daemon whose controller does not exist any more.
fn leave(folder: &Path) {
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = params.self_signed(&key).expect("signed").pem();
    let issuer = Issuer::from_ca_cert_pem(&authority, key).expect("an authority");
    let key = KeyPair::generate().expect("a key");
    let params = CertificateParams::new([UNIT.to_owned()]).expect("a name");
    let certificate = params.signed_by(&key, &issuer).expect("signed").pem();
    let identity = format!(
        "urls = [\"https://localhost:1\"]\nsubject = \"scree://unit/store1\"\n\
         expires = \"2030-01-01T00:00:00Z\"\nauthority = '''{authority}'''\n\
         certificate = '''{certificate}'''\nkey = '''{}'''\n",
        key.serialize_pem()
    );
    write_private(&folder.join("identity.toml"), &identity);
    let cluster = json!({
        "id": CLUSTER,
        "unit": UNIT,
        "owner": { "database": DATABASE, "generation": 1, "location": "c1" },
        "takes_over": false,
        "authority": authority,
        "keys": [],
        "units": [],
        "now": 0,
    });
    write_private(&folder.join("cluster.json"), &cluster.to_string());
    fs::create_dir_all(folder.join("unit/segments")).expect("made");
    let marker = format!("format = 1\ncluster = \"{CLUSTER}\"\nunit = \"{UNIT}\"\n");
    fs::write(folder.join("unit/scree-unit.toml"), marker).expect("written");
}

#[test]
fn a_daemon_serves_without_a_controller_until_a_signal() {
    let folder = tempfile::tempdir().expect("a folder");
    leave(folder.path());
    let dir = folder.path().to_str().expect("UTF-8");
    let words = ["unit", "--dir", dir, "--listen", "127.0.0.1:0"];
    let words = [&words[..], &["--listen-metrics", "127.0.0.1:0"]].concat();
    for signal in ["TERM", "INT", "QUIT"] {
        let daemon = Process::start(&words);
        let port = daemon.metrics.expect("it listens");
        assert_eq!(get(port, "/readyz"), (200, "ready\n".to_owned()));
        let numbers = Numbers::of(port);
        let healthy = Some(("state", "healthy"));
        for (name, label, expected) in [
            ("scree_ready", Some(("part", "unit")), 1.0),
            ("scree_daemon_info", Some(("unit", UNIT)), 1.0),
            ("scree_daemon_unit_state", healthy, 1.0),
            ("scree_daemon_connections", None, 0.0),
            ("scree_certificate_expiry_timestamp_seconds", None, ENDS),
        ] {
            assert_eq!(numbers.sum(name, label), Some(expected), "{name}");
        }
        let took = "scree_daemon_request_duration_seconds_count";
        assert_eq!(numbers.sum(took, None), Some(0.0));
        let again = scree(&words);
        assert_eq!(again.code, 1);
        let reason = "is in use by another unit daemon";
        assert!(again.error.contains(reason), "{}", again.error);
        // The signal is ignored.
        daemon.signal("HUP");
        daemon.end_by(signal);
    }
    let everywhere = scree(&["unit", "--dir", dir, "--listen", "0.0.0.0:0"]);
    assert_eq!(everywhere.code, 1);
    let reason = "with --address IP:PORT";
    assert!(everywhere.error.contains(reason), "{}", everywhere.error);
}

/// `scree up` once made a second cluster in the data directory of an agent.
#[test]
fn the_data_directory_of_a_daemon_is_refused_as_that_of_a_controller() {
    let folder = tempfile::tempdir().expect("a folder");
    leave(folder.path());
    let dir = folder.path().to_str().expect("UTF-8");
    let count = || fs::read_dir(folder.path()).expect("readable").count();
    let before = count();
    for (words, remedy) in [
        (&["up"][..], "start it with `scree unit --dir"),
        (
            &["controller", "--listen", "127.0.0.1:0"],
            "start it with `scree unit --dir",
        ),
        (&["volume", "list"], "--profile"),
    ] {
        let said = scree(&[&["--dir", dir], words].concat());
        assert_eq!(said.code, 1, "{words:?}");
        let whose = "is the data directory of unit daemon store1";
        assert!(said.error.contains(whose), "{}", said.error);
        assert!(said.error.contains(remedy), "{}", said.error);
    }
    assert_eq!(count(), before);
}

#[test]
fn a_folder_belongs_to_a_host_or_a_unit_daemon() {
    let (site, _controller) = Site::new();
    let invited = site.locally(&["host", "add", "h1"]);
    // A token of the wrong kind.
    let said = site.join_unit_in("u", &invited);
    assert_eq!(said.code, 1);
    assert!(said.error.contains("is not a unit"), "{}", said.error);
    assert!(!site.path("u/identity.toml").exists());

    let invited = site.locally(&["host", "token", "h1"]);
    assert_eq!(site.join_host(&invited).code, 0);
    let before = fs::read(site.path("a/identity.toml")).expect("it is joined");
    let invited = site.locally(&["host", "token", "h1"]);
    let said = site.join_unit_in("a", &invited);
    assert_eq!(said.code, 1);
    let reason = "is the identity of scree://host/h1: use another folder";
    assert!(said.error.contains(reason), "{}", said.error);
    let after = fs::read(site.path("a/identity.toml")).expect("it is joined");
    assert!(before == after);
    let dir = site.text("a");
    let said = scree(&["unit", "--dir", &dir, "--listen", "127.0.0.1:0"]);
    assert_eq!(said.code, 1);
    assert!(said.error.contains("is not a unit"), "{}", said.error);
    // The token is still valid.
    assert_eq!(site.join_host(&invited).code, 0);
    // An invalid zone is refused before the daemon is registered.
    let folder = site.text("c");
    let create = ["--dir", &folder, "unit", "create", "s9", "--zone", "Rack 3"];
    let said = scree(&create);
    assert_eq!(said.code, 1);
    assert!(said.error.contains("is not a name"), "{}", said.error);
    assert_eq!(said.out, "");
    let invited = site.locally(&["unit", "create", "s9"]);
    let said = site.login("default", &invited);
    assert_eq!(said.code, 1);
    assert!(said.error.contains("is not a user"), "{}", said.error);

    let dir = site.text("u");
    let said = scree(&["unit", "--dir", &dir, "--listen", "127.0.0.1:0"]);
    assert_eq!(said.code, 1);
    assert!(said.error.contains("scree unit join"), "{}", said.error);
    leave(&site.path("u"));
    let invited = site.locally(&["host", "token", "h1"]);
    let said = site.join_host_in("u", &invited);
    assert_eq!(said.code, 1);
    assert!(said.error.contains("scree://unit/store1"), "{}", said.error);
    let said = scree(&["agent", "--dir", &dir]);
    assert_eq!(said.code, 1);
    assert!(said.error.contains("is not a host"), "{}", said.error);
}

/// A volume on three daemons: whichever is killed, its blocks can be read without a wait.
#[test]
fn a_volume_on_daemons_survives_the_loss_of_each_and_of_the_controller() {
    let soon = ["--grace", "0s"].map(str::to_owned);
    let (site, mut controller) = Site::with(|_| soon.to_vec());
    let invited = site.locally(&["host", "add", "h1"]);
    assert_eq!(site.join_host(&invited).code, 0);
    let mut stores = Stores::new(&site, 3);
    let mut agent = site.agent();
    wait_until("all daemons are used", || stores.are(&[1, 2, 3]));
    let create = [
        "volume",
        "create",
        "disk",
        "--size",
        "64M",
        "--replicas",
        "2",
    ];
    site.locally(&create);
    let a = site.path("a");
    let mut patterns = Vec::new();
    // Earlier writes are on the daemons: the volume was closed since.
    let mut step = |stores: &Stores<'_>| {
        site.locally(&["volume", "export", "disk"]);
        let next = patterns.len() + 1;
        patterns.push(format!("-P {next} {}k 256k", 512 * next));
        let write = format!("write {}", patterns[next - 1]);
        let reads = patterns.iter().map(|pattern| format!("read {pattern}"));
        let all: Vec<String> = [write, "flush".to_owned()]
            .into_iter()
            .chain(reads)
            .collect();
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        assert!(qemu_io(&a, "disk", &all), "{next}: {:?}", stores.states());
        site.locally(&["volume", "unexport", "disk"]);
    };
    step(&stores);
    for number in 1..=3 {
        stores.running[number - 1].kill();
        step(&stores);
        stores.running[number - 1] = stores.start(number);
        wait_until("it is found at its new port", || stores.are(&[1, 2, 3]));
        step(&stores);
    }
    assert!((1..=3).all(|number| stores.has_segments(number)));

    // No controller signs the host's capabilities, and then the host is killed.
    site.locally(&["volume", "export", "disk"]);
    controller.kill();
    assert!(qemu_io(&a, "disk", &["write -P 99 0 256k", "flush"]));
    let controller = site.controller();
    agent.kill();
    let agent = site.agent();
    wait_until("it is served again", || {
        qemu_io(&a, "disk", &["read -P 99 0 256k"])
    });
    site.locally(&["volume", "unexport", "disk"]);
    step(&stores);
    site.locally(&["volume", "delete", "disk"]);
    wait_until("its segments are deleted", || {
        !(1..=3).any(|number| stores.has_segments(number))
    });
    agent.stop();
    for daemon in stores.running {
        daemon.stop();
    }
    controller.stop();
}

/// The only unit of a volume restarts: reads and writes of partial blocks wait, and the reason is
/// shown.
#[test]
fn a_guest_waits_while_the_only_daemon_is_restarted() {
    let (site, controller) = Site::with(|_| Vec::new());
    let invited = site.locally(&["host", "add", "h1"]);
    assert_eq!(site.join_host(&invited).code, 0);
    let mut stores = Stores::new(&site, 1);
    let agent = site.agent();
    wait_until("the daemon is used", || stores.are(&[1]));
    let create = ["volume", "create", "disk", "--size", "64M"];
    site.locally(&[&create[..], &["--replicas", "1"]].concat());
    let a = site.path("a");
    site.locally(&["volume", "export", "disk"]);
    assert!(qemu_io(&a, "disk", &["write -P 7 0 256k", "flush"]));
    // Its writes are on the daemon then, and nowhere else.
    site.locally(&["volume", "unexport", "disk"]);
    site.locally(&["volume", "export", "disk"]);
    stores.running[0].kill();
    let guest = {
        let a = a.clone();
        std::thread::spawn(move || {
            let commands = ["read -P 7 0 64k", "write -P 8 512 512", "read -P 8 512 512"];
            qemu_io(&a, "disk", &commands)
        })
    };
    wait_until("it is shown that reads wait", || {
        let volume = site.locally(&["volume", "show", "disk"]);
        volume["engine"]["read_error"].is_string()
    });
    let status = site.locally(&["status"]);
    let problems = status["problems"].to_string();
    assert!(problems.contains("wait: unavailable"), "{problems}");
    assert!(!guest.is_finished());
    stores.running[0] = stores.start(1);
    assert!(guest.join().expect("no panic"), "it got an error");
    wait_until("it is shown that none waits", || {
        let volume = site.locally(&["volume", "show", "disk"]);
        volume["engine"]["read_error"].is_null()
    });

    // A detach does not wait for them.
    site.locally(&["volume", "unexport", "disk"]);
    site.locally(&["volume", "export", "disk"]);
    stores.running[0].kill();
    let guest = std::thread::spawn(move || qemu_io(&a, "disk", &["read -P 7 128k 64k"]));
    wait_until("it is shown that reads wait", || {
        let volume = site.locally(&["volume", "show", "disk"]);
        volume["engine"]["read_error"].is_string()
    });
    site.locally(&["volume", "unexport", "disk"]);
    assert!(!guest.join().expect("no panic"), "the read did not succeed");
    agent.stop();
    controller.stop();
}

/// A deleted volume disappears immediately, and its segments can be restored within the undelete
/// window.
#[test]
fn deleted_segments_are_restored_on_the_machines_of_daemons() {
    let soon = ["--grace", "0s"].map(str::to_owned);
    let (site, controller) = Site::with(|_| soon.to_vec());
    let invited = site.locally(&["host", "add", "h1"]);
    assert_eq!(site.join_host(&invited).code, 0);
    let mut stores = Stores::new(&site, 3);
    let agent = site.agent();
    wait_until("all daemons are used", || stores.are(&[1, 2, 3]));
    let create = ["volume", "create", "disk", "--size", "64M"];
    site.locally(&[&create[..], &["--replicas", "3"]].concat());
    site.locally(&["volume", "export", "disk"]);
    assert!(qemu_io(
        &site.path("a"),
        "disk",
        &["write -P 7 0 256k", "flush"]
    ));
    site.locally(&["volume", "unexport", "disk"]);
    wait_until("all of them have segments", || {
        (1..=3).all(|number| stores.has_segments(number))
    });
    site.locally(&["volume", "delete", "disk"]);
    wait_until("its segments are deleted", || {
        !(1..=3).any(|number| stores.has_segments(number))
    });
    agent.stop();
    // The operator restores them on each machine, once the daemon is stopped.
    let restore = |number: usize, more: &[&str]| {
        let dir = site.text(&format!("u{number}"));
        let words = ["unit", "restore", "--dir", &dir, "--since", "-1h"];
        scree(&[&words[..], more].concat())
    };
    let refused = restore(1, &[]);
    assert_eq!(refused.code, 1);
    let reason = "is in use by another unit daemon";
    assert!(refused.error.contains(reason), "{}", refused.error);
    for daemon in stores.running.drain(..) {
        daemon.stop();
    }
    let fates_in = |said: &str| -> Vec<String> {
        let report: serde_json::Value = serde_json::from_str(said).expect("JSON");
        let segments = report["segments"].as_array().expect("a list").iter();
        let states = segments.map(|segment| segment["state"].as_str().expect("text").to_owned());
        states.collect()
    };
    for number in 1..=3 {
        let dry = restore(number, &["--dry-run", "-o", "json"]);
        assert!(dry.error.contains("nothing was changed"), "{}", dry.error);
        assert!(!stores.has_segments(number));
        let done = restore(number, &["-o", "json"]);
        assert_eq!(done.code, 0, "{}", done.error);
        let fates = fates_in(&done.out);
        assert_eq!(fates, fates_in(&dry.out));
        assert!(!fates.is_empty());
        assert!(fates.iter().all(|fate| fate == "restored"), "{fates:?}");
        assert!(stores.has_segments(number));
        let again = restore(number, &["-o", "json"]);
        assert_eq!(fates_in(&again.out), [""; 0]);
    }
    let foreign = scree(&[
        "unit",
        "restore",
        "--dir",
        &site.text("a"),
        "--since",
        "-1h",
    ]);
    assert_eq!(foreign.code, 1, "{}", foreign.out);
    controller.stop();
}
