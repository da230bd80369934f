//! Health and metrics of real processes, parsed strictly as by Prometheus, while parts fail and
//! recover.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::host::{scree, wait_until};
use crate::service::{Process, Site};

/// The status and the text of an HTTP response.
pub fn get(port: u16, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("answered");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    let status = head.split(' ').nth(1).expect("a status");
    let whole = head.to_lowercase().contains("content-length:");
    assert!(whole, "the body is not in chunks: {head}");
    (status.parse().expect("a number"), body.to_owned())
}

/// Whether docs/reference/metrics.md has this name in one of its tables.
fn is_documented(name: &str) -> bool {
    let text = include_str!("../../../../docs/reference/metrics.md");
    [format!("`{name}`"), format!("`{name}{{")]
        .iter()
        .any(|spelled| text.contains(spelled))
}

/// The metrics at /metrics, as Python's Prometheus parser reads them.
pub struct Numbers(Vec<Value>);

impl Numbers {
    pub fn of(port: u16) -> Self {
        let (status, text) = get(port, "/metrics");
        assert_eq!(status, 200);
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tools/run");
        let mut parser = Command::new(script)
            .args(["check", "metrics"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("tools/run check metrics runs");
        let mut into = parser.stdin.take().expect("piped");
        into.write_all(text.as_bytes()).expect("taken");
        drop(into);
        let output = parser.wait_with_output().expect("it ends");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said} of {text}");
        let numbers = Self(serde_json::from_slice(&output.stdout).expect("JSON"));
        numbers.are_documented();
        numbers
    }

    fn are_documented(&self) {
        for row in &self.0 {
            let name = row["name"].as_str().expect("a text");
            let of_histogram = ["_bucket", "_count", "_sum"];
            let mut suffixes = of_histogram.iter();
            let base = suffixes.find_map(|suffix| name.strip_suffix(suffix));
            let name = base.unwrap_or(name);
            assert!(
                is_documented(name),
                "{name} is not in docs/reference/metrics.md"
            );
        }
    }

    /// The values of the rows with this name and this label, if one is given.
    pub fn sum(&self, name: &str, label: Option<(&str, &str)>) -> Option<f64> {
        let has = |row: &&Value| {
            let labeled = label.is_none_or(|(key, value)| row["labels"][key] == value);
            row["name"] == name && labeled
        };
        let rows: Vec<f64> = self
            .0
            .iter()
            .filter(has)
            .map(|row| row["value"].as_f64().expect("a number"))
            .collect();
        (!rows.is_empty()).then(|| rows.iter().sum())
    }
}

#[test]
fn all_parts_of_a_process_are_one_valid_text() {
    let folder = tempfile::Builder::new().prefix("scree-").tempdir_in("/tmp");
    let folder = folder.expect("a folder");
    let path = folder.path().to_str().expect("UTF-8");
    let options = ["--units", "2", "--journal-size", "16M", "--listen-metrics"];
    let up = Process::start(&[&["up", "--dir", path], &options[..], &["127.0.0.1:0"]].concat());
    let port = up.metrics.expect("it listens");
    let run = |arguments: &[&str]| {
        let said = scree(&[&["--dir", path], arguments].concat());
        assert_eq!(said.code, 0, "{}", said.error);
    };
    run(&["volume", "create", "disk", "--size", "64M"]);
    run(&["volume", "export", "disk"]);
    assert_eq!(get(port, "/healthz"), (200, "alive\n".to_owned()));
    assert_eq!(get(port, "/readyz"), (200, "ready\n".to_owned()));
    assert_eq!(get(port, "/v1/volumes").0, 404, "nothing of the API");
    let numbers = Numbers::of(port);
    for (name, label, expected) in [
        ("scree_ready", None, 2.0),
        ("scree_build_info", None, 1.0),
        ("scree_database_up", None, 1.0),
        ("scree_volumes", Some(("state", "in-use")), 1.0),
        ("scree_attachments", Some(("state", "attached")), 1.0),
        ("scree_hosts", Some(("state", "heard")), 1.0),
        ("scree_unit_state", Some(("state", "healthy")), 2.0),
        ("scree_volumes_open", None, 1.0),
        ("scree_volume_stalled", None, 0.0),
        ("scree_part_unresponsive", None, 0.0),
    ] {
        assert_eq!(numbers.sum(name, label), Some(expected), "{name}");
    }
    let journal = numbers.sum("scree_volume_journal_bytes", None);
    assert!(journal.is_some_and(|bytes| bytes > 0.0), "{journal:?}");
    let route = Some(("route", "/v1/volumes/{volume}/export"));
    assert_eq!(numbers.sum("scree_http_requests_total", route), Some(1.0));
    up.stop();
}

/// A host whose controller dies keeps serving, stalls when its lease runs out, and is ready again
/// when the controller has returned; each state is visible.
#[test]
fn a_host_without_its_controller_is_not_ready_until_it_returns() {
    let (site, mut controller) = Site::new();
    let invited = site.locally(&["host", "add", "h1"]);
    assert_eq!(site.join_host(&invited).code, 0);
    let agent = site.agent();
    let port = agent.metrics.expect("it listens");
    site.locally(&["volume", "create", "disk", "--size", "64M"]);
    site.locally(&["volume", "export", "disk"]);
    wait_until("it is ready", || get(port, "/readyz").0 == 200);
    let numbers = Numbers::of(port);
    let ends = "scree_certificate_expiry_timestamp_seconds";
    let began = numbers.sum("process_start_time_seconds", None);
    let left = numbers
        .sum(ends, Some(("use", "client")))
        .expect("it has one")
        - began.expect("it did");
    assert!((80_000.0..=86_401.0).contains(&left), "{left}");
    let server = Numbers::of(controller.metrics.expect("it listens"));
    assert!(server.sum(ends, Some(("use", "server"))).is_some());

    controller.kill();
    wait_until("it is not ready", || {
        let (status, said) = get(port, "/readyz");
        status == 503 && said.contains("agent: no controller has answered for")
    });
    assert_eq!(get(port, "/healthz").0, 200);
    // Its lease may have been taken after the others were renewed.
    wait_until("its volume stalls", || {
        Numbers::of(port).sum("scree_volumes_stalled", None) == Some(1.0)
    });
    let numbers = Numbers::of(port);
    assert_eq!(numbers.sum("scree_ready", None), Some(0.0));
    assert!(numbers.sum("scree_lease_age_seconds", None) >= Some(8.0));

    let controller = site.controller();
    wait_until("it is ready again", || get(port, "/readyz").0 == 200);
    wait_until("its volume continues", || {
        Numbers::of(port).sum("scree_volumes_stalled", None) == Some(0.0)
    });
    agent.stop();
    controller.stop();
}

#[test]
fn a_port_that_is_in_use_or_invalid_is_refused() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let taken = taken.local_addr().expect("it has one").to_string();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("d");
    let path = path.to_str().expect("UTF-8");
    let said = scree(&["up", "--dir", path, "--listen-metrics", &taken]);
    assert_eq!(said.code, 1, "{}", said.error);
    let expected = format!("cannot listen for metrics at {taken}");
    assert!(said.error.contains(&expected), "{}", said.error);
    assert!(!folder.path().join("d").exists(), "nothing was made");
    let said = scree(&["up", "--dir", path, "--listen-metrics", "9180"]);
    assert_eq!(said.code, 2, "{}", said.error);
    assert!(said.error.contains("--listen-metrics"), "{}", said.error);
}

#[test]
fn alert_rules_use_existing_metrics() {
    let rules = include_str!("../../../../docs/prometheus/alerts.yml");
    let is_part = |letter: char| letter.is_ascii_lowercase() || letter == '_';
    let names = rules
        .match_indices("scree_")
        .map(|(at, _)| rules[at..].split(|letter| !is_part(letter)).next());
    let names: Vec<&str> = names.flatten().collect();
    assert!(names.len() > 10, "{names:?}");
    for name in names {
        assert!(is_documented(name), "{name}");
    }
}
