//! Machines in network namespaces, each of which reaches some others: all links are pairs of
//! virtual interfaces, and no machine forwards packets.
//!
//! ```text
//!     host ──── store1 ──── store2
//!       │      ╱      ╲        │
//!       │    ╱          ╲      │
//!     control ───────── store3 │      the host reaches the controller and store1
//!          ╲───────────────────┘
//! ```

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::host::{CommandOutput, wait_until};
use crate::service::qemu_io;

const SCREE: &str = env!("CARGO_BIN_EXE_scree");

/// The linked machines. The first end of link N is at 10.9.N.1, the other one at 10.9.N.2.
const LINKS: [[&str; 2]; 7] = [
    ["control", "host"],
    ["store1", "host"],
    ["control", "store1"],
    ["control", "store2"],
    ["control", "store3"],
    ["store1", "store2"],
    ["store1", "store3"],
];

/// The namespaces of this test, which end with it.
struct Networks {
    holder: Child,
}

impl Networks {
    fn new() -> Self {
        let mut script = "set -e; mount -t tmpfs none /run; mkdir /run/netns;".to_owned();
        for name in ["control", "host", "store1", "store2", "store3"] {
            script += &format!("ip netns add {name}; ip -n {name} link set lo up;");
        }
        for (number, [one, other]) in LINKS.iter().enumerate() {
            script += &format!(
                "ip link add l{number} netns {one} type veth peer name r{number} netns {other}; \
                 ip -n {one} addr add 10.9.{number}.1/24 dev l{number}; \
                 ip -n {other} addr add 10.9.{number}.2/24 dev r{number}; \
                 ip -n {one} link set l{number} up; ip -n {other} link set r{number} up;"
            );
        }
        // It ends when the other end of its input is closed.
        script += "echo ready; read -r _ || true";
        let mut holder = Command::new("unshare")
            .args(namespaces())
            .args(["--", "sh", "-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare runs");
        let mut line = String::new();
        let out = holder.stdout.take().expect("piped");
        BufReader::new(out).read_line(&mut line).expect("readable");
        assert_eq!(line, "ready\n", "the machines could not be linked");
        Self { holder }
    }

    /// A command on one of the machines.
    fn on(&self, machine: &str, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command
            .args(["--target", &self.holder.id().to_string()])
            .args(["--net", "--mount"]);
        if !is_root() {
            command.args(["--user", "--preserve-credentials"]);
        }
        command.args(["--", "ip", "netns", "exec", machine, program]);
        command.env_remove("SCREE_DIR");
        command
    }

    /// Cuts a link, or restores it.
    fn set_link(&self, number: usize, state: &str) {
        let [one, _] = LINKS[number];
        let link = format!("l{number}");
        let set = self
            .on(one, "ip")
            .args(["link", "set", &link, state])
            .status();
        assert!(set.expect("ip runs").success());
    }
}

impl Drop for Networks {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        let _ = self.holder.wait();
    }
}

fn is_root() -> bool {
    let mut status = String::new();
    let mut file = File::open("/proc/self/status").expect("it exists");
    file.read_to_string(&mut status).expect("text");
    let uid = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    uid.expect("it has one").split_whitespace().nth(1) == Some("0")
}

/// A user without root rights gets a user namespace.
fn namespaces() -> &'static [&'static str] {
    match is_root() {
        true => &["--net", "--mount"],
        false => &["--net", "--mount", "--user", "--map-root-user"],
    }
}

/// A process on one of the machines.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Cluster {
    folder: TempDir,
    networks: Networks,
}

impl Cluster {
    fn text(&self, name: &str) -> String {
        let path = self.folder.path().join(name);
        path.to_str().expect("UTF-8").to_owned()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn start(&self, machine: &str, arguments: &[&str]) -> Process {
        let mut child = self
            .networks
            .on(machine, SCREE)
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let out = child.stdout.take().expect("piped");
        let process = Process(child);
        let mut line = String::new();
        BufReader::new(out).read_line(&mut line).expect("readable");
        assert!(line.contains("is ready"), "{arguments:?} said {line:?}");
        process
    }

    /// Runs a command in the controller's data directory.
    fn locally(&self, arguments: &[&str]) -> Value {
        let output = Command::new(SCREE)
            .args(["--dir", &self.text("c"), "-o", "json"])
            .args(arguments)
            .output();
        let said = CommandOutput::of(output.expect("scree runs"));
        assert_eq!(said.code, 0, "{arguments:?}: {}", said.error);
        serde_json::from_str(&said.out).expect("JSON")
    }

    /// Joins a machine at the controller's address on one of its links.
    fn join(&self, machine: &str, kind: &str, link: usize, invited: &Value) {
        let text = |field: &str| invited[field].as_str().expect("a text");
        let url = format!("https://10.9.{link}.1:8443");
        let output = self
            .networks
            .on(machine, SCREE)
            .args([kind, "join", &url, "--dir", &self.text(machine)])
            .args(["--token", text("token"), "--authority", text("authority")])
            .output();
        let said = CommandOutput::of(output.expect("scree runs"));
        assert_eq!(said.code, 0, "{}", said.error);
    }

    /// Starts a unit daemon that announces its address on one of its links.
    fn store(&self, machine: &str, (control, own): (usize, &str)) -> Process {
        let invited = self.locally(&["unit", "create", machine]);
        self.join(machine, "unit", control, &invited);
        let (folder, address) = (self.text(machine), format!("{own}:7070"));
        let listen = ["--listen", "0.0.0.0:7070", "--address", &address];
        self.start(
            machine,
            &[&["unit", "--dir", &folder], &listen[..]].concat(),
        )
    }

    fn are_well(&self) -> bool {
        let units = self.locally(&["unit", "list"]);
        let units = units.as_array().expect("a list");
        units.len() == 3 && units.iter().all(|unit| unit["state"] == "healthy")
    }

    fn io(&self, commands: &[&str]) -> bool {
        qemu_io(&self.path("host"), "disk", commands)
    }
}

/// The host reaches one daemon, and all others through it (HVSTO's three steps).
#[test]
fn a_host_that_reaches_one_daemon_uses_all() {
    let folder = tempfile::Builder::new().prefix("scree-").tempdir_in("/tmp");
    let cluster = Cluster {
        folder: folder.expect("a folder"),
        networks: Networks::new(),
    };
    let names: Vec<String> = [0, 2, 3, 4].map(|link| format!("10.9.{link}.1")).into();
    let names: Vec<&str> = names.iter().flat_map(|name| ["--name", name]).collect();
    let folder = cluster.text("c");
    let words = ["controller", "--dir", &folder, "--listen", "0.0.0.0:8443"];
    let _controller = cluster.start("control", &[&words[..], &names].concat());
    let _stores = [
        cluster.store("store1", (2, "10.9.1.1")),
        cluster.store("store2", (3, "10.9.5.2")),
        cluster.store("store3", (4, "10.9.6.2")),
    ];
    let invited = cluster.locally(&["host", "add", "host"]);
    cluster.join("host", "host", 0, &invited);
    let folder = cluster.text("host");
    let _agent = cluster.start("host", &["agent", "--dir", &folder]);
    // The host has no link to the other two.
    for address in ["10.9.5.2", "10.9.6.2"] {
        let route = cluster.networks.on("host", "ip");
        let mut route = route;
        let route = route.args(["route", "get", address]).output();
        assert!(!route.expect("ip runs").status.success(), "{address}");
    }
    wait_until("the host sees all units as healthy", || cluster.are_well());

    let create = [
        "volume",
        "create",
        "disk",
        "--size",
        "64M",
        "--replicas",
        "3",
    ];
    cluster.locally(&create);
    cluster.locally(&["volume", "export", "disk"]);
    assert!(cluster.io(&["write -P 7 0 8M", "flush"]));
    cluster.locally(&["volume", "unexport", "disk"]);
    let status = cluster.locally(&["status"]);
    assert_eq!(
        status["degraded_segments"], 0,
        "each has its copy: {status}"
    );
    for unit in cluster
        .locally(&["unit", "list"])
        .as_array()
        .expect("a list")
    {
        assert!(unit["segments"].as_u64() > Some(0), "{unit}");
    }

    // The link to one of them is cut: nothing is lost, and no request fails.
    cluster.networks.set_link(5, "down");
    cluster.locally(&["volume", "export", "disk"]);
    assert!(cluster.io(&["read -P 7 0 8M", "write -P 8 0 1M", "flush"]));
    cluster.locally(&["volume", "unexport", "disk"]);
    cluster.networks.set_link(5, "up");
    wait_until("all units are healthy again", || cluster.are_well());
    cluster.locally(&["volume", "export", "disk"]);
    assert!(cluster.io(&["read -P 8 0 1M", "read -P 7 1M 7M"]));
}
