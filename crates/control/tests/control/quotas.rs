//! Quotas of projects and users.

use api::types::READ_ONLY_ATTACHMENTS_MAX;
use serde_json::{Value, json};

use crate::parties::Scene;
use crate::requests::names;

async fn a_project_cannot_exceed_its_quota(scene: Scene) {
    let alice = scene.member("users", "alice").await;
    let (root, principal) = (Some(&scene.root), Some(&alice));
    let quota = json!({"volumes": 3, "snapshots": 1, "bytes": 4 << 20});
    scene
        .request(root, "PUT /v1/projects/alice/quota", quota, 200)
        .await;
    let make = async |name: &str, size: u64, status| {
        let new = json!({"name": name, "size": size});
        scene
            .request(principal, "POST /v1/volumes", new, status)
            .await
    };
    make("one", 1 << 20, 201).await;
    let refused = make("large", 4 << 20, 403).await;
    assert_eq!(refused["code"], "quota_exceeded");
    make("two", 1 << 20, 201).await;
    let grow = async |size: u64, status| {
        let request = "POST /v1/volumes/two/grow";
        scene
            .request(principal, request, json!({"size": size}), status)
            .await
    };
    grow(4 << 20, 403).await;
    grow(2 << 20, 200).await;
    make("three", 1 << 20, 201).await;
    make("four", 4096, 403).await;
    let snapshot = async |name: &str, status| {
        let new = json!({"volume": "one", "name": name});
        scene
            .request(principal, "POST /v1/snapshots", new, status)
            .await
    };
    snapshot("first", 201).await;
    assert_eq!(snapshot("second", 403).await["code"], "quota_exceeded");
    let shown = scene
        .request(principal, "GET /v1/projects/alice", Value::Null, 200)
        .await;
    let used = (&shown["volumes"], &shown["snapshots"], &shown["bytes"]);
    assert_eq!(used, (&json!(3), &json!(1), &json!(4 << 20)));
    scene
        .request(principal, "DELETE /v1/volumes/three", Value::Null, 202)
        .await;
    make("four", 1 << 20, 201).await;
    // A clone is charged to the user who creates it.
    let bob = scene.member("users", "bob").await;
    let quota = json!({"volumes": 0});
    scene
        .request(root, "PUT /v1/projects/bob/quota", quota, 200)
        .await;
    let grant = json!({"user": "bob", "right": "read", "snapshot": "first"});
    scene
        .request(principal, "POST /v1/grants", grant, 201)
        .await;
    let clone = json!({"name": "clone", "from": "alice/first"});
    scene
        .request(Some(&bob), "POST /v1/volumes", clone.clone(), 403)
        .await;
    scene
        .request(root, "PUT /v1/projects/bob/quota", json!({}), 200)
        .await;
    let made = scene
        .request(Some(&bob), "POST /v1/volumes", clone, 201)
        .await;
    assert_eq!(
        (&made["owner"], &made["project"]),
        (&json!("bob"), &json!("bob"))
    );
    // The new owner of a transferred volume needs quota for it.
    scene
        .request(
            root,
            "PUT /v1/projects/bob/quota",
            json!({"volumes": 1}),
            200,
        )
        .await;
    let give = json!({"user": "bob"});
    scene
        .request(
            root,
            "POST /v1/volumes/alice%2Fone/transfer",
            give.clone(),
            403,
        )
        .await;
    scene
        .request(root, "PUT /v1/projects/bob/quota", json!({}), 200)
        .await;
    let given = scene
        .request(root, "POST /v1/volumes/alice%2Fone/transfer", give, 200)
        .await;
    assert_eq!(given["owner"], "bob");
    scene
        .request(principal, "GET /v1/snapshots/first", Value::Null, 404)
        .await;
    scene
        .request(Some(&bob), "GET /v1/snapshots/first", Value::Null, 200)
        .await;
}

/// One user could once attach thousands of volumes to a host.
async fn the_read_only_attachments_of_a_user_on_a_host_are_limited(scene: Scene) {
    let alice = scene.member("users", "alice").await;
    let (root, principal) = (Some(&scene.root), Some(&alice));
    for host in ["h1", "h2"] {
        scene.member("hosts", host).await;
        let grant = json!({"user": "alice", "right": "use", "host": host});
        scene.request(root, "POST /v1/grants", grant, 201).await;
    }
    let new = json!({"name": "disk", "size": 1 << 20});
    scene.request(principal, "POST /v1/volumes", new, 201).await;
    let attach = async |who, host: &str, number: u32, status| {
        let vm = format!("libvirt:vm-{number}");
        let new = json!({"volume": "alice/disk", "host": host, "vm": vm, "read_only": true});
        scene
            .request(who, "POST /v1/attachments", new, status)
            .await
    };
    for number in 0..READ_ONLY_ATTACHMENTS_MAX {
        attach(principal, "h1", number, 202).await;
    }
    let last = READ_ONLY_ATTACHMENTS_MAX;
    let refused = attach(principal, "h1", last, 403).await;
    assert_eq!(refused["code"], "quota_exceeded");
    // Repeating the request adds none. Another host or another user has a limit of its own.
    let again = attach(principal, "h1", 0, 202).await;
    attach(principal, "h2", last, 202).await;
    let grant = json!({"user": "root", "right": "read", "volume": "disk"});
    scene
        .request(principal, "POST /v1/grants", grant, 201)
        .await;
    attach(root, "h1", last + 1, 202).await;
    // An attachment that is being detached still counts.
    let id = again["id"].as_str().expect("an id");
    let end = format!("DELETE /v1/attachments/{id}");
    scene.request(principal, &end, Value::Null, 202).await;
    attach(principal, "h1", last, 403).await;
}

/// A user with any right on a volume once saw its owner's project and limits.
async fn outsiders_learn_of_a_quota_only_that_it_is_exhausted(scene: Scene) {
    let alice = scene.member("users", "alice").await;
    let bob = scene.member("users", "bob").await;
    let (root, principal) = (Some(&scene.root), Some(&alice));
    let new = json!({"name": "red", "quota": {"snapshots": 0, "bytes": 1 << 20}});
    scene.request(root, "POST /v1/projects", new, 201).await;
    let join = "PUT /v1/projects/red/members/alice";
    scene.request(root, join, Value::Null, 200).await;
    let new = json!({"name": "disk", "size": 1 << 20, "project": "red"});
    scene.request(principal, "POST /v1/volumes", new, 201).await;
    let take = json!({"volume": "alice/disk"});
    let grow = json!({"size": 2 << 20});
    let grow_it = "POST /v1/volumes/alice%2Fdisk/grow";
    let requests = [("POST /v1/snapshots", take), (grow_it, grow)];
    for (request, body) in &requests {
        let told = scene.request(principal, request, body.clone(), 403).await;
        assert_eq!(told["code"], "quota_exceeded");
        assert!(told["detail"].as_str().expect("text").contains("\"red\""));
    }
    for (right, requests) in [("snapshot", &requests[..1]), ("administer", &requests[..])] {
        let grant = json!({"user": "bob", "right": right, "volume": "disk"});
        scene
            .request(principal, "POST /v1/grants", grant, 201)
            .await;
        for (request, body) in requests {
            let told = scene.request(Some(&bob), request, body.clone(), 403).await;
            assert_eq!(told["code"], "quota_exceeded");
            let detail = told["detail"].as_str().expect("text");
            let is_told = detail.contains("red") || detail.contains(char::is_numeric);
            assert!(!is_told, "{detail}");
        }
        let path = "GET /v1/volumes/alice%2Fdisk";
        let shown = scene.request(Some(&bob), path, Value::Null, 200).await;
        assert_eq!(shown["project"], Value::Null);
        assert!(
            names(&scene, &bob, "/v1/volumes?project=red")
                .await
                .is_empty()
        );
        assert_eq!(names(&scene, &bob, "/v1/volumes").await, ["disk"]);
    }
    assert_eq!(
        names(&scene, &alice, "/v1/volumes?project=red").await,
        ["disk"]
    );
    let join = "PUT /v1/projects/red/members/bob";
    scene.request(root, join, Value::Null, 200).await;
    assert_eq!(
        names(&scene, &bob, "/v1/volumes?project=red").await,
        ["disk"]
    );
    let (request, body) = &requests[0];
    let told = scene.request(Some(&bob), request, body.clone(), 403).await;
    assert!(told["detail"].as_str().expect("text").contains("\"red\""));
}

/// A former member of a project could once still create objects that were charged to it.
async fn a_former_member_adds_nothing_to_a_project(scene: Scene) {
    let alice = scene.member("users", "alice").await;
    let bob = scene.member("users", "bob").await;
    scene.member("hosts", "h1").await;
    let (root, principal) = (Some(&scene.root), Some(&alice));
    let new = json!({"name": "red"});
    scene.request(root, "POST /v1/projects", new, 201).await;
    let membership = "/v1/projects/red/members/alice";
    let join = format!("PUT {membership}");
    scene.request(root, &join, Value::Null, 200).await;
    let grant = json!({"user": "alice", "right": "use", "host": "h1"});
    scene.request(root, "POST /v1/grants", grant, 201).await;
    let new = json!({"name": "disk", "size": 1 << 20, "project": "red"});
    scene.request(principal, "POST /v1/volumes", new, 201).await;
    for right in ["snapshot", "administer"] {
        let grant = json!({"user": "bob", "right": right, "volume": "disk"});
        scene
            .request(principal, "POST /v1/grants", grant, 201)
            .await;
    }
    let attach = json!({"volume": "disk", "host": "h1"});
    scene
        .request(principal, "POST /v1/attachments", attach, 202)
        .await;
    let add = async |who, size: u64, status| {
        let take = json!({"volume": "alice/disk"});
        let taken = scene.request(who, "POST /v1/snapshots?dry_run=true", take, status);
        let taken = taken.await;
        let grow = "POST /v1/volumes/alice%2Fdisk/grow";
        let status = if status == 201 { 200 } else { status };
        let grown = scene.request(who, grow, json!({ "size": size }), status);
        (taken, grown.await)
    };
    add(principal, 2 << 20, 201).await;
    let leave = format!("DELETE {membership}");
    scene.request(root, &leave, Value::Null, 200).await;
    let (taken, grown) = add(principal, 3 << 20, 403).await;
    for refused in [taken, grown] {
        let detail = refused["detail"].as_str().expect("text");
        assert!(
            detail.contains("`scree volume transfer disk alice --project"),
            "{detail}"
        );
    }
    let (taken, grown) = add(Some(&bob), 3 << 20, 403).await;
    for refused in [taken, grown] {
        let detail = refused["detail"].as_str().expect("text");
        assert!(!detail.contains("red"), "{detail}");
    }
    // An administrator, who manages members, may.
    add(root, 3 << 20, 201).await;
    let shown = scene
        .request(principal, "GET /v1/volumes/disk", Value::Null, 200)
        .await;
    assert_eq!(shown["project"], "red");
    // Transferring the volume to another project helps, also while it is attached. Other users keep
    // their rights.
    let give = "POST /v1/volumes/disk/transfer";
    let given = json!({"user": "alice", "project": "alice"});
    let given = scene.request(principal, give, given, 200).await;
    assert_eq!(
        (&given["owner"], &given["project"], &given["state"]),
        (&json!("alice"), &json!("alice"), &json!("in-use"))
    );
    add(principal, 4 << 20, 201).await;
    add(Some(&bob), 5 << 20, 201).await;
    scene
        .request(root, "DELETE /v1/projects/red", Value::Null, 200)
        .await;
}

on_both!(
    a_project_cannot_exceed_its_quota
    the_read_only_attachments_of_a_user_on_a_host_are_limited
    outsiders_learn_of_a_quota_only_that_it_is_exhausted
    a_former_member_adds_nothing_to_a_project
);
