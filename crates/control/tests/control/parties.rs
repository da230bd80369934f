//! Users and hosts: what each of them may call, over real connections.

use std::sync::Arc;
use std::time::Duration;

use api::host::{EncodedPlan, HostUnit};
use auth::KeyRequest;
use base::{UnitId, VolumeId};
use catalog::retention::Retention;
use catalog::{Neighbors, VersionKey};
use control::folder::Leftovers;
use control::{Control, Settings, authority, http};
use serde_json::{Value, json};
use world::{Millis, World};

use crate::calls;
use crate::tls::{Party, Server};

/// A controller with one administrator, `root`.
pub struct Scene {
    pub server: Server,
    pub root: Party,
    pub control: Control,
    pub folder: tempfile::TempDir,
}

/// Defines the tests of claims, which are functions of a [`Scene`]: each on SQLite, and all of them
/// on one PostgreSQL server.
macro_rules! on_both {
    ($($claim:ident)*) => {
        mod on_sqlite {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $claim() {
                    super::$claim(crate::parties::Scene::new().await).await;
                }
            )*
        }

        #[test]
        fn all_claims_hold_on_postgresql() {
            let server = crate::postgres::Postgres::start();
            let runtime = tokio::runtime::Runtime::new().expect("a runtime");
            $(
                let url = server.database(&runtime);
                runtime.block_on(async {
                    $claim(crate::parties::Scene::on(&url).await).await;
                });
            )*
        }
    };
}

impl Scene {
    pub async fn new() -> Self {
        Self::naming(&[]).await
    }

    /// A scene whose server also accepts these authorities.
    pub async fn naming(authorities: &[&str]) -> Self {
        Self::with(authorities, None).await
    }

    /// A scene on the PostgreSQL database at `url`.
    pub async fn on(url: &str) -> Self {
        Self::with(&[], Some(url)).await
    }

    async fn with(authorities: &[&str], url: Option<&str>) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let world = World::real(1);
        let settings = Settings {
            folder: folder.path().to_owned(),
            remains: Arc::new(|| Ok(Leftovers::default())),
            retention: Retention::default(),
            grace: Duration::ZERO,
            lease: None,
            overcommit: control::control::OVERCOMMIT,
            scatter_width: control::control::SCATTER_WIDTH,
            replace_after: std::time::Duration::ZERO,
            restored_database: false,
            new_authority: false,
            database: url.map(|url| url.parse().expect("a URL")),
        };
        let control = Control::start(world.clone(), settings).await;
        let control = control.expect("starts");
        control.set_open(true);
        // Registers a unit, as a host does: volumes need one.
        let unit = HostUnit {
            id: UnitId::from_u128(1),
            url: "file:///unit".to_owned(),
            is_disabled: false,
        };
        control
            .unit_registry()
            .register_all(&[unit])
            .await
            .expect("taken in");
        let authority = authority::open(&world, folder.path(), "").expect("created");
        let parties = control.parties();
        let subject = "scree://user/root".parse().expect("a subject");
        let principal = parties.local_principal().await.expect("it exists");
        let added = parties.add(&principal, subject, true, None).await;
        added.expect("made");
        let subject = "scree://user/root".parse().expect("a subject");
        let (token, _) = parties.invite(&principal, &subject).await.expect("invited");
        let router = http::router(control.clone());
        let server = Server::naming(Arc::new(authority), authorities, router).await;
        let root = joined(&server, &token.reveal()).await;
        Self {
            server,
            root,
            control,
            folder,
        }
    }

    /// Sends a request, and expects this status.
    pub async fn request(
        &self,
        party: Option<&Party>,
        request: &str,
        body: Value,
        status: u16,
    ) -> Value {
        let text = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let (said, answer) = self.try_request(party, request, &text).await;
        assert_eq!(said, status, "{request}: {answer}");
        answer
    }

    /// Sends a request.
    pub async fn try_request(
        &self,
        party: Option<&Party>,
        request: &str,
        body: &str,
    ) -> (u16, Value) {
        let (method, path) = request.split_once(' ').expect("a method and a path");
        let answer = self.server.send(party, method, path, body).await;
        let answer = answer.expect("answered");
        let value = serde_json::from_str(&answer.body).expect("JSON");
        (answer.status, value)
    }

    /// A new user or host with a certificate. `path` is `users` or `hosts`.
    pub async fn member(&self, path: &str, name: &str) -> Party {
        let new = json!({ "name": name });
        self.request(Some(&self.root), &format!("POST /v1/{path}"), new, 201)
            .await;
        let token = self.token(path, name).await;
        joined(&self.server, &token).await
    }

    pub async fn token(&self, path: &str, name: &str) -> String {
        let request = format!("POST /v1/{path}/{name}/token");
        let token = self
            .request(Some(&self.root), &request, Value::Null, 201)
            .await;
        token["token"].as_str().expect("a token").to_owned()
    }
}

pub async fn try_join(server: &Server, token: &str, key: &KeyRequest) -> (u16, Value) {
    let body = json!({ "token": token, "signing_request": key.request_pem });
    send_join(server, &body).await
}

async fn send_join(server: &Server, body: &Value) -> (u16, Value) {
    let answer = server
        .send(None, "POST", "/v1/join", &body.to_string())
        .await;
    let answer = answer.expect("answered");
    (
        answer.status,
        serde_json::from_str(&answer.body).expect("JSON"),
    )
}

async fn joined(server: &Server, token: &str) -> Party {
    let key = KeyRequest::generate().expect("a key");
    let (status, issued) = try_join(server, token, &key).await;
    assert_eq!(status, 201, "{issued}");
    Party {
        chain_pem: issued["certificate"].as_str().expect("PEM").to_owned(),
        key_pem: key.key_pem.to_string(),
    }
}

#[tokio::test]
async fn a_token_joins_its_party_once() {
    let scene = Scene::new().await;
    let alice = scene.member("users", "alice").await;
    let me = scene
        .request(Some(&alice), "GET /v1/me", Value::Null, 200)
        .await;
    assert_eq!(
        (&me["kind"], &me["name"]),
        (&json!("user"), &json!("alice"))
    );
    assert_eq!(me["administrator"], json!(false));
    let host = scene.member("hosts", "alice").await;
    let me = scene
        .request(Some(&host), "GET /v1/me", Value::Null, 200)
        .await;
    assert_eq!(me["kind"], json!("host"), "a name of its own");

    let token = scene.token("users", "alice").await;
    joined(&scene.server, &token).await;
    let key = KeyRequest::generate().expect("a key");
    for bad in [token.as_str(), "", "scree-join-", "x"] {
        let (status, problem) = try_join(&scene.server, bad, &key).await;
        assert_eq!((status, &problem["code"]), (401, &json!("unauthenticated")));
    }
    let bad = KeyRequest {
        key_pem: key.key_pem.clone(),
        request_pem: "x".to_owned(),
    };
    let token = scene.token("users", "alice").await;
    let (status, problem) = try_join(&scene.server, &token, &bad).await;
    assert_eq!(
        (status, &problem["field"]),
        (400, &json!("signing_request"))
    );
    joined(&scene.server, &token).await;
}

#[tokio::test]
async fn a_token_that_another_kind_of_party_presents_stays_valid() {
    let scene = Scene::new().await;
    scene.member("hosts", "h1").await;
    let token = scene.token("hosts", "h1").await;
    let key = KeyRequest::generate().expect("a key");
    let mut body = json!({ "token": token, "signing_request": key.request_pem });
    for (kind, status) in [("user", 409), ("unit", 409), ("guest", 400), ("host", 201)] {
        body["kind"] = json!(kind);
        let (said, answer) = send_join(&scene.server, &body).await;
        assert_eq!(said, status, "{kind}: {answer}");
    }
}

#[tokio::test]
async fn a_disabled_party_is_refused_from_the_next_request_on() {
    let scene = Scene::new().await;
    let alice = scene.member("users", "alice").await;
    let ask = async |status| {
        scene
            .request(Some(&alice), "GET /v1/me", Value::Null, status)
            .await
    };
    ask(200).await;
    let root = Some(&scene.root);
    let token = scene.token("users", "alice").await;
    scene
        .request(root, "POST /v1/users/alice/disable", Value::Null, 200)
        .await;
    assert_eq!(ask(401).await["code"], json!("unauthenticated"));
    let key = KeyRequest::generate().expect("a key");
    assert_eq!(try_join(&scene.server, &token, &key).await.0, 401);
    scene
        .request(root, "POST /v1/users/alice/enable", Value::Null, 200)
        .await;
    ask(200).await;
    scene
        .request(root, "DELETE /v1/users/alice/keys", Value::Null, 200)
        .await;
    ask(401).await;
    assert_eq!(try_join(&scene.server, &token, &key).await.0, 401);
    scene
        .request(root, "POST /v1/users/root/disable", Value::Null, 409)
        .await;
}

#[tokio::test]
async fn a_certificate_is_renewed_for_the_same_key_and_for_another() {
    let scene = Scene::new().await;
    let alice = scene.member("users", "alice").await;
    let bob = scene.member("users", "bob").await;
    let key = KeyRequest::generate().expect("a key");
    let body = json!({ "signing_request": key.request_pem });
    for _ in 0..2 {
        let issued = scene
            .request(Some(&alice), "POST /v1/me/certificate", body.clone(), 201)
            .await;
        assert_eq!(issued["subject"], json!("scree://user/alice"));
        let renewed = Party {
            chain_pem: issued["certificate"].as_str().expect("PEM").to_owned(),
            key_pem: key.key_pem.to_string(),
        };
        let me = scene
            .request(Some(&renewed), "GET /v1/me", Value::Null, 200)
            .await;
        assert_eq!(me["name"], json!("alice"));
    }
    scene
        .request(Some(&bob), "POST /v1/me/certificate", body, 409)
        .await;
}

/// Each call, and the statuses for an anonymous caller, a host, a user and an administrator.
#[tokio::test]
async fn only_administrators_see_and_change_others() {
    let scene = Scene::new().await;
    let alice = scene.member("users", "alice").await;
    let host = scene.member("hosts", "h1").await;
    let named = json!({ "name": "new" });
    let table = [
        ("GET /v1/me", Value::Null, [401, 200, 200, 200]),
        ("GET /v1/authority", Value::Null, [200, 200, 200, 200]),
        ("GET /v1/users", Value::Null, [401, 403, 403, 200]),
        ("GET /v1/users/alice", Value::Null, [401, 403, 403, 200]),
        ("GET /v1/users/none", Value::Null, [401, 403, 403, 404]),
        ("GET /v1/users/A%20b", Value::Null, [401, 403, 403, 400]),
        ("POST /v1/users", named.clone(), [401, 403, 403, 201]),
        ("POST /v1/users", named.clone(), [401, 403, 403, 409]),
        ("POST /v1/users", json!({}), [401, 403, 403, 422]),
        ("POST /v1/users", json!({"name": ""}), [401, 403, 403, 400]),
        (
            "POST /v1/users/alice/token",
            Value::Null,
            [401, 403, 403, 201],
        ),
        (
            "POST /v1/users/none/token",
            Value::Null,
            [401, 403, 403, 404],
        ),
        (
            "POST /v1/users/new/disable",
            Value::Null,
            [401, 403, 403, 200],
        ),
        (
            "POST /v1/users/new/enable",
            Value::Null,
            [401, 403, 403, 200],
        ),
        (
            "DELETE /v1/users/new/keys",
            Value::Null,
            [401, 403, 403, 200],
        ),
        ("GET /v1/hosts", Value::Null, [401, 403, 403, 200]),
        (
            "POST /v1/hosts",
            json!({"name": "h2", "administrator": true}),
            [401, 403, 403, 400],
        ),
        (
            "POST /v1/hosts",
            json!({"name": "h2"}),
            [401, 403, 403, 201],
        ),
        ("GET /v1/audit", Value::Null, [401, 403, 403, 200]),
        ("GET /v1/audit?limit=x", Value::Null, [401, 403, 403, 400]),
        ("GET /v1/nowhere", Value::Null, [404, 404, 404, 404]),
        ("PUT /v1/users", Value::Null, [405, 405, 405, 405]),
    ];
    let principals = [None, Some(&host), Some(&alice), Some(&scene.root)];
    for (request, body, statuses) in table {
        for (principal, status) in principals.into_iter().zip(statuses) {
            scene
                .request(principal, request, body.clone(), status)
                .await;
        }
    }
}

#[tokio::test]
async fn changes_are_in_the_audit_log_and_refusals_are_not() {
    let scene = Scene::new().await;
    let alice = scene.member("users", "alice").await;
    let new = json!({ "name": "mallory" });
    scene
        .request(Some(&alice), "POST /v1/users", new, 403)
        .await;
    let log = scene
        .request(Some(&scene.root), "GET /v1/audit", Value::Null, 200)
        .await;
    let told: Vec<_> = log
        .as_array()
        .expect("lines")
        .iter()
        .map(|line| {
            let word = |key: &str| line[key].as_str().expect("text").to_owned();
            (word("principal"), word("action"), word("target"))
        })
        .collect();
    let line = |who: &str, action: &str, target: &str| {
        (
            who.to_owned(),
            action.to_owned(),
            format!("scree://user/{target}"),
        )
    };
    let expected = [
        line("a token", "join", "alice"),
        line("scree://user/root", "invite", "alice"),
        line("scree://user/root", "add", "alice"),
        line("a token", "join", "root"),
        line("scree://user/local", "invite", "root"),
        line("scree://user/local", "add", "root"),
    ];
    assert_eq!(told, expected);
    assert!(
        log[0]["key"]
            .as_str()
            .expect("a key")
            .starts_with("sha256:")
    );
    assert!(
        log[0]["address"]
            .as_str()
            .expect("text")
            .starts_with("127.0.0.1:")
    );
    let page = scene
        .control
        .database()
        .parties()
        .audit_log(4, 2)
        .await
        .expect("a page");
    let ids: Vec<i64> = page.iter().map(|row| row.id).collect();
    assert_eq!(ids, [3, 2]);
}

/// The report of a host with thousands of open volumes was once refused, and so was the removal of
/// a version of more than 3 GiB.
#[tokio::test]
async fn a_host_may_send_a_long_report() {
    let scene = Scene::new().await;
    let host = scene.member("hosts", "h1").await;
    let long = "x".repeat(4 << 20);
    let report = |look: Value, problems: &[&str]| json!({"report": {"report_number": look, "units": [], "volumes": [], "free_bytes": 0, "problems": problems}});
    let tell = "POST /v1/host/rpc/report-host";
    let told = scene.request(Some(&host), tell, report(json!(0), &[&long]), 200);
    told.await;
    let longer = report(json!(0), &[long.as_str(); 4]);
    scene.request(Some(&host), tell, longer, 413).await;
    // Only short bodies are parsed twice.
    scene
        .request(Some(&host), tell, report(json!(0.0), &["one"]), 200)
        .await;
    scene
        .request(Some(&host), tell, report(json!(0.0), &[&long]), 422)
        .await;
    let key = VersionKey {
        volume: VolumeId::from_u128(7),
        number: 1,
    };
    let call = calls::RemoveVersion {
        key,
        neighbors: Neighbors {
            parent: None,
            children: Vec::new(),
            needed: false,
        },
        not_before: Millis(0),
        plan: EncodedPlan(vec![0; 4 << 20]),
    };
    let call = serde_json::to_value(&call).expect("JSON");
    let answer = scene.request(Some(&host), "POST /v1/host/rpc/remove-version", call, 200);
    // The version does not exist, but the body was read.
    assert!(answer.await["Err"]["Refused"].is_object());
}

/// A user's first project has the user's name, and was once taken for another user's.
#[tokio::test]
async fn no_name_is_taken_for_an_id() {
    let scene = Scene::new().await;
    let root = Some(&scene.root);
    let names = [
        "proj-00000000000000001",
        "party-00000000000000001",
        "vol-00000000000000001",
        "grant-00000000000000001",
    ];
    for name in names {
        for (request, body) in [
            ("POST /v1/users", json!({ "name": name })),
            ("POST /v1/hosts", json!({ "name": name })),
            ("POST /v1/projects", json!({ "name": name })),
            ("POST /v1/volumes", json!({"name": name, "size": 1 << 20})),
        ] {
            let refused = scene.request(root, request, body, 400).await;
            assert_eq!(refused["field"], "name", "{request} {name}");
        }
    }
    scene
        .request(root, "POST /v1/users", json!({"name": "proj-1"}), 201)
        .await;
}

/// The local user could be disabled, or left without a project, and nothing could undo that.
#[tokio::test]
async fn the_controllers_own_machine_is_not_locked_out() {
    let scene = Scene::new().await;
    let root = Some(&scene.root);
    let join = "PUT /v1/projects/root/members/local";
    scene.request(root, join, Value::Null, 200).await;
    for request in [
        "POST /v1/users/local/disable",
        "POST /v1/hosts/local/disable",
        "DELETE /v1/projects/local",
        "DELETE /v1/projects/local/members/local",
    ] {
        let refused = scene.request(root, request, Value::Null, 409).await;
        let detail = refused["detail"].as_str().expect("text");
        assert!(detail.contains("own machine"), "{request}: {detail}");
    }
    let me = scene
        .request(root, "GET /v1/users/local", Value::Null, 200)
        .await;
    assert_eq!(me["disabled"], false);
    // The user may leave any other project.
    let leave = "DELETE /v1/projects/root/members/local";
    scene.request(root, leave, Value::Null, 200).await;
    let enable = "POST /v1/users/local/enable";
    scene.request(root, enable, Value::Null, 200).await;
}
