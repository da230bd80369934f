//! What holds for every request: idempotency keys, dry runs, pages, filters and tags.

use serde_json::{Value, json};

use crate::parties::Scene;
use crate::tls::Party;

async fn post(scene: &Scene, party: &Party, path: &str, key: &str, body: &Value) -> (u16, Value) {
    let headers = format!("idempotency-key: {key}\r\n");
    let body = body.to_string();
    let answer = scene
        .server
        .send_with(Some(party), "POST", path, &headers, &body)
        .await;
    let answer = answer.expect("answered");
    let value = serde_json::from_str(&answer.body).expect("JSON");
    (answer.status, value)
}

pub async fn names(scene: &Scene, party: &Party, path: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut after = String::new();
    loop {
        let joint = if path.contains('?') { '&' } else { '?' };
        let request = format!("GET {path}{joint}after={after}");
        let page = scene.request(Some(party), &request, Value::Null, 200).await;
        let items = page["items"].as_array().expect("a list");
        names.extend(
            items
                .iter()
                .map(|item| item["name"].as_str().expect("a name").to_owned()),
        );
        match page["next"].as_str() {
            Some(next) => after = next.to_owned(),
            None => return names,
        }
    }
}

async fn a_request_with_the_same_idempotency_key_is_carried_out_once(scene: Scene) {
    let alice = scene.member("users", "alice").await;
    let bob = scene.member("users", "bob").await;
    let new = json!({"name": "disk", "size": 1 << 20});
    let (status, first) = post(&scene, &alice, "/v1/volumes", "k1", &new).await;
    assert_eq!(status, 201, "{first}");
    // The same request, written differently.
    let again = json!({"size": 1 << 20, "name": "disk"});
    let (status, second) = post(&scene, &alice, "/v1/volumes", "k1", &again).await;
    assert_eq!((status, &second), (201, &first));
    assert_eq!(names(&scene, &alice, "/v1/volumes").await, ["disk"]);
    // A different request with the same key, and the same request of another user.
    let other = json!({"name": "disk-2", "size": 1 << 20});
    let (status, refused) = post(&scene, &alice, "/v1/volumes", "k1", &other).await;
    assert_eq!(
        (status, &refused["code"]),
        (409, &json!("idempotency_conflict"))
    );
    let (status, _) = post(&scene, &bob, "/v1/volumes", "k1", &other).await;
    assert_eq!(status, 201, "a key is its user's own");
    let (status, refused) = post(&scene, &alice, "/v1/snapshots", "k1", &new).await;
    assert_eq!(
        (status, &refused["code"]),
        (422, &json!("invalid_argument")),
        "{refused}"
    );

    let new = json!({"volume": "disk", "name": "noon"});
    let (status, first) = post(&scene, &alice, "/v1/snapshots", "k2", &new).await;
    assert_eq!(status, 201, "{first}");
    let (_, second) = post(&scene, &alice, "/v1/snapshots", "k2", &new).await;
    assert_eq!(second, first);
    // A refused request does not use up its key.
    let clone = json!({"name": "disk", "from": "noon"});
    let (status, _) = post(&scene, &alice, "/v1/volumes", "k3", &clone).await;
    assert_eq!(status, 409);
    let clone = json!({"name": "clone", "from": "noon"});
    let (status, _) = post(&scene, &alice, "/v1/volumes", "k3", &clone).await;
    assert_eq!(status, 201);
    // An object that was deleted since is not created again.
    let snapshot = "DELETE /v1/snapshots/noon";
    scene
        .request(Some(&alice), snapshot, Value::Null, 200)
        .await;
    let (status, gone) = post(&scene, &alice, "/v1/snapshots", "k2", &new).await;
    assert_eq!(status, 409, "{gone}");
    assert!(
        gone["detail"]
            .as_str()
            .expect("text")
            .contains("deleted since"),
        "{gone}"
    );

    for key in ["", "with space", &"x".repeat(256), "\u{e4}"] {
        let (status, refused) = post(&scene, &alice, "/v1/volumes", key, &clone).await;
        assert_eq!(
            (status, &refused["field"]),
            (400, &json!("Idempotency-Key")),
            "{key:?}"
        );
    }
    let root = &scene.root;
    for (path, body) in [
        ("/v1/users", json!({"name": "carol"})),
        ("/v1/hosts", json!({"name": "h1"})),
        ("/v1/projects", json!({"name": "red"})),
        (
            "/v1/grants",
            json!({"user": "alice", "right": "use", "host": "h1"}),
        ),
    ] {
        let (status, first) = post(&scene, root, path, path, &body).await;
        assert_eq!(status, 201, "{first}");
        let (status, second) = post(&scene, root, path, path, &body).await;
        assert_eq!((status, second), (201, first), "{path}");
    }
    let attach = json!({"volume": "disk", "host": "h1"});
    let (status, first) = post(&scene, &alice, "/v1/attachments", "k4", &attach).await;
    assert_eq!(status, 202, "{first}");
    let (_, second) = post(&scene, &alice, "/v1/attachments", "k4", &attach).await;
    assert_eq!(second["id"], first["id"]);
}

/// Of two concurrent requests one creates the object, and both return it.
async fn two_concurrent_requests_with_one_key_create_one_object(scene: Scene) {
    let alice = scene.member("users", "alice").await;
    for turn in 0..8 {
        let new = json!({"name": format!("disk-{turn}"), "size": 1 << 20});
        let key = format!("k{turn}");
        let (one, other) = tokio::join!(
            post(&scene, &alice, "/v1/volumes", &key, &new),
            post(&scene, &alice, "/v1/volumes", &key, &new)
        );
        assert_eq!(one, other);
        assert_eq!(one.0, 201, "{}", one.1);
    }
    assert_eq!(names(&scene, &alice, "/v1/volumes").await.len(), 8);
}

/// Dry runs of a user who owns the volume `disk`, and the status of each.
fn dry_runs_of_owner() -> Vec<(&'static str, Value, u16)> {
    vec![
        (
            "POST /v1/snapshots?dry_run=true",
            json!({"volume": "disk", "name": "noon"}),
            201,
        ),
        (
            "POST /v1/snapshots?dry_run=true&wait=5",
            json!({"volume": "none"}),
            404,
        ),
        (
            "POST /v1/volumes/disk/grow?dry_run=true",
            json!({"size": 1 << 30}),
            200,
        ),
        (
            "POST /v1/volumes/disk/grow?dry_run=true",
            json!({"size": 5}),
            400,
        ),
        (
            "PUT /v1/volumes/disk/tags?dry_run=true",
            json!({"tags": {}}),
            200,
        ),
        (
            "POST /v1/attachments?dry_run=true&wait=5",
            json!({"volume": "disk"}),
            503,
        ),
        (
            "POST /v1/attachments?dry_run=true&wait=5",
            json!({"volume": "disk", "host": "h1"}),
            202,
        ),
        (
            "DELETE /v1/volumes/disk?dry_run=true&wait=5",
            Value::Null,
            202,
        ),
        (
            "PUT /v1/volumes/disk/export?dry_run=true",
            json!({"host": "h1"}),
            400,
        ),
        (
            "DELETE /v1/volumes/disk/export?dry_run=true",
            Value::Null,
            400,
        ),
        (
            "POST /v1/me/certificate?dry_run=true",
            json!({"signing_request": ""}),
            400,
        ),
        (
            "POST /v1/grants?dry_run=true",
            json!({"user": "alice", "right": "read", "volume": "disk"}),
            201,
        ),
        ("POST /v1/users?dry_run=true", json!({"name": "carol"}), 403),
    ]
}

/// Changes of administrators that have no dry run.
fn changes_without_dry_run() -> Vec<(&'static str, Value)> {
    let signing = json!({"token": "t", "signing_request": "r"});
    vec![
        ("POST /v1/join", signing),
        ("POST /v1/units", json!({"url": "/srv/unit-9"})),
        ("POST /v1/keys", json!({"name": "second"})),
        ("POST /v1/users/alice/token", Value::Null),
        ("POST /v1/hosts/h1/token", Value::Null),
    ]
}

/// Dry runs of an administrator, which all succeed.
fn dry_runs_of_administrator() -> Vec<(&'static str, Value)> {
    vec![
        ("POST /v1/users?dry_run=true", json!({"name": "carol"})),
        ("POST /v1/users/alice/disable?dry_run=true", Value::Null),
        ("DELETE /v1/users/alice/keys?dry_run=true", Value::Null),
        ("POST /v1/projects?dry_run=true", json!({"name": "red"})),
        (
            "PUT /v1/projects/alice/quota?dry_run=true",
            json!({"volumes": 0}),
        ),
        ("DELETE /v1/projects/root?dry_run=true", Value::Null),
        (
            "POST /v1/volumes/alice%2Fdisk/transfer?dry_run=true",
            json!({"user": "root"}),
        ),
    ]
}

/// The number of entries in the audit log, and the volume `disk`.
async fn state_of_disk(scene: &Scene, owner: &Party) -> (usize, Value) {
    let log = scene.request(Some(&scene.root), "GET /v1/audit", Value::Null, 200);
    let log = log.await.as_array().expect("entries").len();
    let disk = scene.request(Some(owner), "GET /v1/volumes/disk", Value::Null, 200);
    (log, disk.await)
}

async fn a_dry_run_creates_nothing_and_finds_conflicts(scene: Scene) {
    let alice = scene.member("users", "alice").await;
    let principal = Some(&alice);
    let new = json!({"name": "disk", "size": 1 << 20, "tags": {"tier": "gold"}});
    let request = "POST /v1/volumes?dry_run=true";
    let tried = scene.request(principal, request, new.clone(), 201).await;
    assert_eq!(
        (&tried["name"], &tried["tags"]["tier"]),
        (&json!("disk"), &json!("gold"))
    );
    assert!(names(&scene, &alice, "/v1/volumes").await.is_empty());
    scene
        .request(principal, "POST /v1/volumes", new.clone(), 201)
        .await;
    scene.request(principal, request, new, 409).await;
}

async fn dry_runs_are_checked_and_change_nothing(scene: Scene) {
    let alice = scene.member("users", "alice").await;
    let (root, principal) = (Some(&scene.root), Some(&alice));
    scene.member("hosts", "h1").await;
    let grant = json!({"user": "alice", "right": "use", "host": "h1"});
    scene.request(root, "POST /v1/grants", grant, 201).await;
    let new = json!({"name": "disk", "size": 1 << 20, "tags": {"tier": "gold"}});
    scene.request(principal, "POST /v1/volumes", new, 201).await;
    let before = state_of_disk(&scene, &alice).await;
    for (request, body, status) in dry_runs_of_owner() {
        scene.request(principal, request, body, status).await;
    }
    for (request, body) in changes_without_dry_run() {
        let request = format!("{request}?dry_run=true");
        let refused = scene.request(root, &request, body, 400).await;
        assert_eq!(refused["field"], "dry_run", "{request}: {refused}");
    }
    for (request, body) in dry_runs_of_administrator() {
        let body = match body {
            Value::Null => String::new(),
            body => body.to_string(),
        };
        let (status, answer) = scene.try_request(root, request, &body).await;
        assert!((200..300).contains(&status), "{request}: {answer}");
    }
    assert_eq!(before, state_of_disk(&scene, &alice).await);
    for absent in ["GET /v1/users/carol", "GET /v1/projects/red"] {
        scene.request(root, absent, Value::Null, 404).await;
    }
    assert!(names(&scene, &alice, "/v1/snapshots").await.is_empty());
}

async fn lists_are_paged_and_filtered(scene: Scene) {
    let alice = scene.member("users", "alice").await;
    let principal = Some(&alice);
    for number in 0..7 {
        let tier = if number % 2 == 0 { "gold" } else { "tin" };
        let tags = json!({"tier": tier, "number": number.to_string()});
        let new = json!({"name": format!("disk-{number}"), "size": 1 << 20, "tags": tags});
        scene.request(principal, "POST /v1/volumes", new, 201).await;
        let new = json!({"volume": format!("disk-{number}"), "name": format!("noon-{number}"),
            "tags": {"tier": tier}});
        scene
            .request(principal, "POST /v1/snapshots", new, 201)
            .await;
    }
    for limit in [1, 2, 3, 6, 7, 8, 1000] {
        let mut all = names(&scene, &alice, &format!("/v1/volumes?limit={limit}")).await;
        all.sort();
        let expected: Vec<_> = (0..7).map(|number| format!("disk-{number}")).collect();
        assert_eq!(all, expected, "{limit}");
    }
    for (query, count) in [
        ("tag=tier%3Dgold", 4),
        ("tag=tier%3Dgold&tag=number%3D2", 1),
        ("tag=tier%3Dgold&tag=number%3D1", 0),
        ("tag=tier%3D", 0),
        ("name=disk-3", 1),
        ("name=disk", 0),
        ("state=available", 7),
        ("state=in-use", 0),
        ("state=error", 0),
        ("state=deleting", 0),
        ("owner=alice", 7),
        ("owner=bob", 0),
        (
            "project=alice&name=disk-1&state=available&tag=tier%3Dtin",
            1,
        ),
        ("project=red", 0),
    ] {
        let found = names(&scene, &alice, &format!("/v1/volumes?limit=3&{query}")).await;
        assert_eq!(found.len(), count, "{query}");
    }
    for (query, count) in [
        ("tag=tier%3Dtin", 3),
        ("volume=disk-5", 1),
        ("state=completed", 7),
        ("state=pending", 0),
        ("owner=alice&name=noon-4", 1),
    ] {
        let found = names(&scene, &alice, &format!("/v1/snapshots?limit=2&{query}")).await;
        assert_eq!(found.len(), count, "{query}");
    }
    for query in [
        "limit=0",
        "limit=1001",
        "limit=x",
        "state=creating",
        "tag=x",
    ] {
        let request = format!("GET /v1/volumes?{query}");
        scene.request(principal, &request, Value::Null, 400).await;
    }
    let set = json!({"tags": {"tier": "lead"}});
    let tagged = scene
        .request(principal, "PUT /v1/volumes/disk-0/tags", set.clone(), 200)
        .await;
    assert_eq!(tagged["tags"], set["tags"]);
    assert_eq!(
        names(&scene, &alice, "/v1/volumes?tag=tier%3Dlead").await,
        ["disk-0"]
    );
    assert_eq!(
        names(&scene, &alice, "/v1/volumes?tag=number%3D0")
            .await
            .len(),
        0
    );
    for tags in [
        json!({"": "x"}),
        json!({"a": "x".repeat(257)}),
        json!({"a\n": ""}),
    ] {
        let set = json!({"tags": tags});
        let refused = scene
            .request(principal, "PUT /v1/volumes/disk-0/tags", set, 400)
            .await;
        assert_eq!(refused["field"], "tags");
    }
}

/// A request with a misspelled `dry_run` was once carried out, and a misspelled filter showed
/// everything.
#[tokio::test]
async fn unknown_parameters_and_invalid_values_are_refused() {
    let scene = Scene::new().await;
    let alice = scene.member("users", "alice").await;
    let principal = Some(&alice);
    let new = json!({"name": "disk", "size": 1 << 20});
    for request in [
        "POST /v1/volumes?dryrun=true",
        "POST /v1/volumes?dry_run=",
        "GET /v1/volumes?stat=error",
        "GET /v1/volumes?state=",
        "GET /v1/volumes?limit=",
        "GET /v1/attachments?state=",
        "GET /v1/volumes?dry_run=true",
        "GET /v1/snapshots/none?wait=301",
    ] {
        let body = match request.starts_with("POST") {
            true => new.clone(),
            false => Value::Null,
        };
        let refused = scene.request(principal, request, body, 400).await;
        assert_eq!(refused["code"], "invalid_argument", "{request}");
    }
    assert!(names(&scene, &alice, "/v1/volumes").await.is_empty());
    for request in ["GET /v1/audit?limit=0", "GET /v1/audit?limit=1001"] {
        scene
            .request(Some(&scene.root), request, Value::Null, 400)
            .await;
    }
    scene.request(principal, "POST /v1/volumes", new, 201).await;
    let restore = "POST /v1/volumes/disk/restore";
    for body in [json!({}), json!({"time": null, "version": 1})] {
        let (status, _) = scene
            .try_request(principal, restore, &body.to_string())
            .await;
        assert!(matches!(status, 400 | 422), "{body}: {status}");
    }
}

/// In JSON Schema, and so in docs/openapi.json, `1048576.0` is an integer.
#[tokio::test]
async fn a_whole_number_may_be_written_with_a_point() {
    let scene = Scene::new().await;
    let alice = scene.member("users", "alice").await;
    for (size, status) in [
        ("1048576.0", 201),
        ("1048576.5", 422),
        ("-4096.0", 422),
        ("1e300", 422),
    ] {
        let body = format!(r#"{{"name": "disk", "size": {size}}}"#);
        let (said, answer) = scene
            .try_request(Some(&alice), "POST /v1/volumes", &body)
            .await;
        assert_eq!(said, status, "{size}: {answer}");
    }
}

/// Of two values for one tag the last one once counted, so objects with the other one were shown.
#[tokio::test]
async fn an_object_has_one_value_for_each_tag() {
    let scene = Scene::new().await;
    let alice = scene.member("users", "alice").await;
    let new = json!({"name": "disk", "size": 1 << 20, "tags": {"tier": "gold"}});
    scene
        .request(Some(&alice), "POST /v1/volumes", new, 201)
        .await;
    let both = "/v1/volumes?tag=tier%3Dtin&tag=tier%3Dgold";
    assert!(names(&scene, &alice, both).await.is_empty());
    // No filter could name such a tag.
    let set = json!({"tags": {"a=b": "c"}});
    let tag = "PUT /v1/volumes/disk/tags";
    scene.request(Some(&alice), tag, set, 400).await;
}

on_both!(
    a_request_with_the_same_idempotency_key_is_carried_out_once
    two_concurrent_requests_with_one_key_create_one_object
    a_dry_run_creates_nothing_and_finds_conflicts
    dry_runs_are_checked_and_change_nothing
    lists_are_paged_and_filtered
);
