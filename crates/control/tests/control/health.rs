//! Readiness and metrics of a controller, over real connections and read by the parser of
//! Prometheus.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use api::host::{Access, Encryption, Report};
use auth::Kind;
use base::{AttachmentId, BlockSize, Lineage, PartyId, VolumeId};
use control::database::{Counts, Database, NewAttachment, NewVolume, Tags};
use metrics::Part as _;
use serde_json::Value;
use tokio::runtime::Runtime;
use world::{Millis, host};

use crate::parties::Scene;
use crate::postgres::Postgres;
use crate::principals::local;
use crate::tls::{Answer, Party};

/// The samples in an exposition, parsed strictly.
struct Numbers(Vec<Value>);

impl Numbers {
    fn read(text: &str) -> Self {
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
        Self(serde_json::from_slice(&output.stdout).expect("JSON"))
    }

    /// The samples of this name that have at least these labels.
    fn of(&self, name: &str, labels: &[(&str, &str)]) -> Vec<f64> {
        let has = |row: &&Value| {
            row["name"] == name
                && labels
                    .iter()
                    .all(|(key, value)| row["labels"][*key] == *value)
        };
        let rows = self.0.iter().filter(has);
        rows.map(|row| row["value"].as_f64().expect("a number"))
            .collect()
    }

    fn one(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let found = self.of(name, labels);
        assert_eq!(found.len(), 1, "{name} {labels:?} of {:?}", self.0);
        found[0]
    }
}

async fn get(scene: &Scene, party: Option<&Party>, path: &str) -> Answer {
    let answer = scene.server.send(party, "GET", path, "").await;
    answer.expect("answered")
}

#[tokio::test]
async fn readiness_is_public_and_metrics_are_for_administrators() {
    let scene = Scene::new().await;
    let alice = scene.member("users", "alice").await;
    for (path, said) in [("/healthz", "alive\n"), ("/readyz", "ready\n")] {
        let answer = get(&scene, None, path).await;
        assert_eq!((answer.status, answer.body.as_str()), (200, said));
    }
    let statuses = [(None, 401), (Some(&alice), 403), (Some(&scene.root), 200)];
    for (party, status) in statuses {
        assert_eq!(get(&scene, party, "/metrics").await.status, status);
    }
    let numbers = Numbers::read(&get(&scene, Some(&scene.root), "/metrics").await.body);
    assert_eq!(numbers.one("scree_database_up", &[]), 1.0);
    assert_eq!(numbers.one("scree_controller_open", &[]), 1.0);
    assert_eq!(numbers.one("scree_volumes", &[("state", "available")]), 0.0);
    assert_eq!(
        numbers.one("scree_hosts", &[("state", "never-heard")]),
        1.0,
        "its own machine has no agent"
    );
    assert!(numbers.one("scree_database_latency_seconds", &[]) < 2.0);
}

/// Invented paths and methods create no time series.
#[tokio::test]
async fn requests_are_counted_by_route_and_never_by_path() {
    let scene = Scene::new().await;
    let ask = async |method: &str, path: &str| {
        let answer = scene.server.send(Some(&scene.root), method, path, "").await;
        answer.expect("answered").status
    };
    for name in ["a", "b", "c"] {
        assert_eq!(ask("GET", &format!("/v1/users/{name}")).await, 404);
        assert_eq!(ask("GET", &format!("/v1/volumes/{name}")).await, 404);
        assert_eq!(ask("GET", &format!("/v1/{name}")).await, 404);
        assert_eq!(ask(&format!("X{name}"), "/v1/units").await, 405);
    }
    assert_eq!(ask("GET", "/v1/users/root").await, 200);
    let numbers = Numbers::read(&scene.control.measure().await.whole());
    let count = |labels: &[(&str, &str)]| numbers.of("scree_http_requests_total", labels);
    let of = |route| [("route", route), ("status", "4xx")];
    assert_eq!(count(&of("/v1/users/{name}")), [3.0]);
    assert_eq!(count(&of("/v1/volumes/{volume}")), [3.0]);
    assert_eq!(count(&of("other")), [3.0]);
    assert_eq!(count(&[("route", "/v1/units"), ("method", "other")]), [3.0]);
    let well = [("route", "/v1/users/{name}"), ("status", "2xx")];
    assert_eq!(count(&well), [1.0]);
    let took = [("route", "/v1/users/{name}"), ("method", "GET")];
    let name = "scree_http_request_duration_seconds_count";
    assert_eq!(numbers.one(name, &took), 4.0);
}

/// The answer of a controller that is not ready. An answer is cached for a second.
async fn unready(scene: &Scene) -> Answer {
    let told = host::timeout(Duration::from_secs(30), async {
        loop {
            let answer = get(scene, None, "/readyz").await;
            if answer.status != 200 {
                return answer;
            }
            tokio::task::yield_now().await;
        }
    });
    told.await.expect("it is noticed")
}

/// Load balancers probe it, and treat a missing answer as a failure.
#[test]
fn a_controller_reports_a_hanging_database() {
    let runtime = Runtime::new().expect("a runtime");
    let server = Postgres::start();
    let url = server.database(&runtime);
    runtime.block_on(async {
        let scene = Scene::on(&url).await;
        assert_eq!(get(&scene, None, "/readyz").await.status, 200);
        server.freeze(true);
        let told = unready(&scene).await;
        server.freeze(false);
        assert_eq!(told.status, 503);
        assert_eq!(told.body, "the database does not answer; see the log\n");
    });
}

#[tokio::test]
async fn a_controller_whose_database_is_unavailable_is_alive_and_not_ready() {
    let scene = Scene::new().await;
    assert_eq!(get(&scene, None, "/readyz").await.status, 200);
    scene.control.database().close().await;
    let told = unready(&scene).await;
    assert_eq!(told.status, 503);
    assert_eq!(told.body, "the database does not answer; see the log\n");
    assert_eq!(get(&scene, None, "/healthz").await.status, 200);
    let numbers = Numbers::read(&scene.control.measure().await.whole());
    assert_eq!(numbers.one("scree_database_up", &[]), 0.0);
    assert!(numbers.of("scree_volumes", &[]).is_empty());
    assert!(!numbers.of("scree_http_requests_total", &[]).is_empty());
}

#[tokio::test]
async fn a_starting_or_stopping_controller_is_not_ready() {
    let scene = Scene::new().await;
    scene.control.set_open(false);
    let answer = get(&scene, None, "/readyz").await;
    let expected = "it is starting or ending\n";
    assert_eq!((answer.status, answer.body.as_str()), (503, expected));
    assert_eq!(get(&scene, None, "/healthz").await.status, 200);
    assert_eq!(
        get(&scene, Some(&scene.root), "/v1/users").await.status,
        503
    );
    let numbers = Numbers::read(&get(&scene, Some(&scene.root), "/metrics").await.body);
    assert_eq!(numbers.one("scree_controller_open", &[]), 0.0);
    scene.control.set_open(true);
    assert_eq!(get(&scene, None, "/readyz").await.status, 200);
}

/// Two volumes, one of them attached, and a host that reported at 100.
async fn counted(database: &Database) -> Counts {
    let host = database
        .parties()
        .local(Kind::Host, PartyId::from_u128(1), Millis(0));
    let host = host.await.expect("made");
    let principal = local(database).await;
    for number in [2, 3] {
        let id = VolumeId::from_u128(number);
        let new = NewVolume {
            id,
            name: format!("disk{number}"),
            size_bytes: 1 << 20,
            block_size: BlockSize::DEFAULT,
            encryption: Encryption::Aes256Gcm,
            replicas: 1,
            erasure: None,
            project: None,
            tags: Tags::new(),
            lineage: Lineage::from_u128(number),
            origin: None,
            created: Millis(0),
            settings: control::database::VolumeSettings::default(),
        };
        database
            .volumes()
            .insert(&principal, &new)
            .await
            .expect("made");
    }
    let new = NewAttachment {
        id: AttachmentId::from_u128(4),
        volume: VolumeId::from_u128(2),
        host,
        vm: None,
        access: Access::ReadWrite,
        created: Millis(0),
    };
    database
        .attachments()
        .attach(&principal, &new)
        .await
        .expect("attached");
    let report = Report::default();
    let kept = database.hosts().record_report(host, &report, Millis(100));
    kept.await.expect("kept");
    database.counts(Millis(50)).await.expect("counted")
}

fn check(mut counts: Counts) {
    counts.volumes.sort();
    let row = |state: &str, count| (state.to_owned(), count);
    let expected = Counts {
        volumes: vec![row("available", 1), row("in-use", 1)],
        attachments: vec![row("attaching", 1)],
        hosts: vec![row("heard", 1)],
        ..Counts::default()
    };
    assert_eq!(counts, expected);
}

#[test]
fn everything_is_counted_on_both_databases() {
    let runtime = Runtime::new().expect("a runtime");
    let folder = tempfile::tempdir().expect("a folder");
    let server = Postgres::start();
    let url = server.database(&runtime);
    runtime.block_on(async {
        let sqlite = Database::open(&folder.path().join("scree.db")).await;
        let sqlite = sqlite.expect("made");
        check(counted(&sqlite).await);
        let later = sqlite.counts(Millis(100)).await.expect("counted");
        assert_eq!(later.hosts, [("unresponsive".to_owned(), 1)]);
        let postgres = Database::connect(&url.parse().expect("a URL"))
            .await
            .expect("made");
        check(counted(&postgres).await);
        postgres.ping().await.expect("it exists");
        drop(server);
        postgres.ping().await.expect_err("it is gone");
    });
}
