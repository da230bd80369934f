//! Grants and names that several users share: what each of them may use, and what they see of each
//! other.

use api::host::{AttachmentReport, AttachmentState};
use api::types::Message;
use api::words::MessageCode;
use serde_json::{Value, json};

use crate::parties::Scene;
use crate::rights_scene::{Cast, filled};

/// They once got "no host reports", as if that were temporary.
async fn a_user_without_hosts_is_told_that_no_host_is_granted_to_them(scene: Scene) {
    let cast = Cast::new(scene).await;
    let (scene, alice) = (&cast.scene, Some(&cast.alice));
    let things = cast.objects(0, None).await;
    cast.let_h2_report().await;
    let preload = filled("POST /v1/volumes/{v}/image/preloads", &things);
    // It is not an image.
    scene.request(alice, &preload, json!({}), 409).await;
    let grants = scene
        .request(alice, "GET /v1/grants", Value::Null, 200)
        .await;
    for grant in grants["items"].as_array().expect("a page") {
        if grant["name"] == "h1" || grant["name"] == "h2" {
            let back = format!("DELETE /v1/grants/{}", grant["id"].as_str().expect("an id"));
            scene.request(alice, &back, Value::Null, 200).await;
        }
    }
    let refused = scene
        .request(alice, &preload, json!({"hosts": []}), 403)
        .await;
    let why = refused["detail"].as_str().expect("words");
    assert!(why.contains("you may not use any host"), "{why}");
}

async fn a_revoked_right_is_refused_from_the_next_request_on(scene: Scene) {
    let cast = Cast::new(scene).await;
    let (scene, alice, bob) = (&cast.scene, Some(&cast.alice), Some(&cast.bob));
    let things = cast.objects(0, Some("use")).await;
    let of_bob = format!("GET /v1/grants?volume={}", things[0].1);
    let grants = scene.request(alice, &of_bob, Value::Null, 200).await;
    let grants = grants["items"].as_array().expect("a list");
    let grant = grants
        .iter()
        .find(|grant| grant["user"] == "bob")
        .expect("given");
    let attach = json!({"volume": things[0].1, "host": "h1"});
    let made = scene
        .request(bob, "POST /v1/attachments", attach.clone(), 202)
        .await;
    let delete = format!("DELETE /v1/grants/{}", grant["id"].as_str().expect("an id"));
    scene.request(alice, &delete, Value::Null, 200).await;
    scene
        .request(bob, "POST /v1/attachments", attach, 404)
        .await;
    // The requester may still detach.
    let end = format!(
        "DELETE /v1/attachments/{}",
        made["id"].as_str().expect("an id")
    );
    scene.request(bob, &end, Value::Null, 202).await;
}

async fn a_host_is_usable_by_its_grantees_for_their_vms_only(scene: Scene) {
    let cast = Cast::new(scene).await;
    let (scene, root) = (&cast.scene, Some(&cast.scene.root));
    let dave = scene.member("users", "dave").await;
    let new = json!({"name": "disk", "size": 1 << 20});
    scene
        .request(Some(&dave), "POST /v1/volumes", new, 201)
        .await;
    let attach = |vm: Value| json!({"volume": "disk", "host": "h1", "vm": vm});
    let request = "POST /v1/attachments";
    // For dave the host does not exist.
    scene
        .request(Some(&dave), request, attach(Value::Null), 404)
        .await;
    let none = scene
        .request(Some(&dave), request, json!({"volume": "disk"}), 403)
        .await;
    assert!(
        none["detail"]
            .as_str()
            .expect("text")
            .contains("scree grant add dave use --host")
    );
    let grant = json!({"user": "dave", "right": "use", "host": "h1", "vm": "libvirt:dave-"});
    scene.request(root, "POST /v1/grants", grant, 201).await;
    for other in [json!("libvirt:erin-1"), json!("qmp:/run/vm"), Value::Null] {
        let refused = scene
            .request(Some(&dave), request, attach(other), 403)
            .await;
        assert!(
            refused["detail"]
                .as_str()
                .expect("text")
                .contains("libvirt:dave-")
        );
    }
    scene
        .request(Some(&dave), request, attach(json!("libvirt:dave-1")), 202)
        .await;
}

async fn two_owners_may_use_the_same_name(scene: Scene) {
    let cast = Cast::new(scene).await;
    let (scene, alice, bob) = (&cast.scene, Some(&cast.alice), Some(&cast.bob));
    let new = json!({"name": "data", "size": 1 << 20, "project": "alice"});
    let hers = scene.request(alice, "POST /v1/volumes", new, 201).await;
    let new = json!({"name": "data", "size": 1 << 20});
    // This does not tell him that hers exists.
    let his = scene
        .request(bob, "POST /v1/volumes", new.clone(), 201)
        .await;
    scene.request(bob, "POST /v1/volumes", new, 409).await;
    let grant = json!({"user": "bob", "right": "read", "volume": "data"});
    scene.request(alice, "POST /v1/grants", grant, 201).await;
    let shown = async |who, name: &str| {
        let path = format!("GET /v1/volumes/{name}");
        scene.request(who, &path, Value::Null, 200).await["id"].clone()
    };
    assert_eq!(shown(bob, "data").await, his["id"], "his own first");
    assert_eq!(shown(bob, "alice%2Fdata").await, hers["id"]);
    assert_eq!(shown(bob, "bob%2Fdata").await, his["id"]);
    // Both belong to other users.
    let root = Some(&scene.root);
    let unclear = scene
        .request(root, "GET /v1/volumes/data", Value::Null, 409)
        .await;
    let detail = unclear["detail"].as_str().expect("text");
    assert!(
        detail.contains("alice/data") && detail.contains("bob/data"),
        "{detail}"
    );
    assert_eq!(shown(root, "alice%2Fdata").await, hers["id"]);
}

/// A user who granted alice a right once decided what a bare name of hers meant.
async fn a_bare_name_means_anothers_object_only_in_reads(scene: Scene) {
    let cast = Cast::new(scene).await;
    let (scene, alice, bob) = (&cast.scene, Some(&cast.alice), Some(&cast.bob));
    let new = json!({"name": "data", "size": 1 << 20});
    let his = scene.request(bob, "POST /v1/volumes", new, 201).await;
    let take = json!({"volume": "data", "name": "noon"});
    scene.request(bob, "POST /v1/snapshots", take, 201).await;
    let unasked = json!({"user": "alice", "right": "administer", "volume": "data"});
    scene.request(bob, "POST /v1/grants", unasked, 201).await;
    let shown = scene
        .request(alice, "GET /v1/volumes/data", Value::Null, 200)
        .await;
    assert_eq!(shown["id"], his["id"]);
    for looked in [
        "GET /v1/volumes/data/versions",
        "GET /v1/snapshots/noon",
        "GET /v1/snapshots?volume=data",
        "GET /v1/attachments?volume=data",
        "GET /v1/grants?volume=data",
    ] {
        scene.request(alice, looked, Value::Null, 200).await;
    }
    let none = Value::Null;
    for (request, body) in [
        ("POST /v1/volumes/data/grow", json!({"size": 1 << 30})),
        ("PUT /v1/volumes/data/tags", json!({"tags": {}})),
        ("POST /v1/volumes/data/restore", json!({"version": 1})),
        ("POST /v1/volumes/data/transfer", json!({"user": "alice"})),
        ("DELETE /v1/volumes/data", none.clone()),
        ("PUT /v1/volumes/data/export", json!({"host": "h1"})),
        ("DELETE /v1/volumes/data/export", none.clone()),
        ("POST /v1/snapshots", json!({"volume": "data"})),
        ("PUT /v1/snapshots/noon/tags", json!({"tags": {}})),
        ("DELETE /v1/snapshots/noon", none),
        (
            "POST /v1/volumes",
            json!({"name": "clone", "from": "noon", "project": "alice"}),
        ),
        (
            "POST /v1/attachments",
            json!({"volume": "data", "host": "h1"}),
        ),
        (
            "POST /v1/attachments",
            json!({"volume": "data", "host": "h1", "read_only": true}),
        ),
        (
            "POST /v1/grants",
            json!({"user": "carol", "right": "read", "volume": "data"}),
        ),
        (
            "POST /v1/grants",
            json!({"user": "carol", "right": "read", "snapshot": "noon"}),
        ),
    ] {
        let refused = scene.request(alice, request, body, 409).await;
        let detail = refused["detail"].as_str().expect("text");
        assert!(
            detail.contains("bob/data") || detail.contains("bob/noon"),
            "{request}: {detail}"
        );
    }
    let tag = "PUT /v1/volumes/bob%2Fdata/tags";
    scene.request(alice, tag, json!({"tags": {}}), 200).await;
    // Lists name the owner.
    let attach = json!({"volume": "bob/data", "host": "h1"});
    let made = scene
        .request(alice, "POST /v1/attachments", attach, 202)
        .await;
    assert_eq!(
        (&made["volume"], &made["owner"]),
        (&json!("data"), &json!("bob"))
    );
    for list in ["attachments", "grants"] {
        let path = format!("GET /v1/{list}?volume=bob%2Fdata");
        let listed = scene.request(alice, &path, Value::Null, 200).await;
        assert_eq!(listed["items"][0]["owner"], "bob", "{listed}");
    }
    // Error texts name it with its owner.
    let elsewhere = json!({"volume": "bob/data", "host": "h2"});
    for (request, body) in [
        ("DELETE /v1/volumes/bob%2Fdata", Value::Null),
        ("POST /v1/attachments", elsewhere),
    ] {
        let refused = scene.request(alice, request, body, 409).await;
        let detail = refused["detail"].as_str().expect("text");
        assert!(
            detail.contains("`scree volume unexport bob/data`"),
            "{detail}"
        );
    }
    let end = format!(
        "DELETE /v1/attachments/{}?force=true",
        made["id"].as_str().expect("an id")
    );
    scene.request(alice, &end, Value::Null, 202).await;
    let by_id = format!("DELETE /v1/volumes/{}", his["id"].as_str().expect("an id"));
    scene.request(alice, &by_id, Value::Null, 202).await;
}

/// Users with the right to read once saw in which VM a volume was, and why it could not be plugged
/// in there.
async fn only_those_who_administer_a_volume_see_attachments_of_others(scene: Scene) {
    let cast = Cast::new(scene).await;
    let (scene, alice, bob) = (&cast.scene, Some(&cast.alice), Some(&cast.bob));
    let new = json!({"name": "data", "size": 1 << 20, "project": "alice"});
    scene.request(alice, "POST /v1/volumes", new, 201).await;
    let attach = json!({"volume": "data", "host": "h1", "vm": "libvirt:secret"});
    let made = scene
        .request(alice, "POST /v1/attachments", attach, 202)
        .await;
    let id = made["id"].as_str().expect("an id").parse().expect("an id");
    let report = AttachmentReport {
        generation: 1,
        state: AttachmentState::Error,
        problem: Some(Message::new(
            MessageCode::VmUnavailable,
            "libvirt:secret does not run",
        )),
        notice: None,
        device: None,
        chain: None,
        chain_problem: None,
        size_bytes: None,
        uri: None,
        tcp_uri: None,
    };
    let host = scene
        .control
        .local_request()
        .await
        .expect("local")
        .host_or_default(Some("h1"))
        .await
        .expect("it exists");
    let kept = scene
        .control
        .host(host)
        .attachment_reported(id, &report)
        .await;
    assert!(kept.expect("recorded"), "accepted");
    let states = async |who| {
        let path = "GET /v1/volumes/alice%2Fdata";
        let shown = scene.request(who, path, Value::Null, 200).await;
        let mut listed = Vec::new();
        for state in ["available", "in-use", "error"] {
            let path = format!("GET /v1/volumes?name=data&state={state}");
            let list = scene.request(who, &path, Value::Null, 200).await;
            if list["items"]
                .as_array()
                .is_some_and(|items| !items.is_empty())
            {
                assert_eq!(list["items"][0]["state"], state);
                assert_eq!(list["items"][0]["message"], shown["message"]);
                listed.push(state);
            }
        }
        assert_eq!(listed, [shown["state"].as_str().expect("a state")]);
        (listed, shown["message"].clone())
    };
    let message = json!({"code": "vm_unavailable", "text": "libvirt:secret does not run"});
    let whole = (vec!["error"], message);
    assert_eq!(states(alice).await, whole);
    assert_eq!(states(Some(&scene.root)).await, whole);
    let grant = |right: &str| json!({"user": "bob", "right": right, "volume": "data"});
    for right in ["read", "use", "snapshot"] {
        scene
            .request(alice, "POST /v1/grants", grant(right), 201)
            .await;
        assert_eq!(states(bob).await, (vec!["in-use"], Value::Null), "{right}");
    }
    scene
        .request(alice, "POST /v1/grants", grant("administer"), 201)
        .await;
    assert_eq!(states(bob).await, whole);
}

/// It once accepted tags and rights, which were lost when it was deleted.
async fn a_volume_that_is_being_deleted_accepts_no_changes(scene: Scene) {
    let cast = Cast::new(scene).await;
    let (scene, alice) = (&cast.scene, Some(&cast.alice));
    let things = cast.objects(0, None).await;
    let id = &things[0].1;
    let delete = format!("DELETE /v1/volumes/{id}");
    scene.request(alice, &delete, Value::Null, 202).await;
    let give = json!({"user": "carol", "project": "shared"});
    for (request, body) in [
        ("PUT /v1/volumes/{v}/tags", json!({"tags": {"a": "b"}})),
        ("POST /v1/volumes/{v}/grow", json!({"size": 1 << 30})),
        ("POST /v1/volumes/{v}/transfer", give),
        ("POST /v1/snapshots", json!({"volume": id})),
        ("POST /v1/attachments", json!({"volume": id, "host": "h1"})),
        (
            "POST /v1/grants",
            json!({"user": "carol", "right": "use", "volume": id}),
        ),
        ("DELETE /v1/volumes/{v}", Value::Null),
    ] {
        let request = filled(request, &things);
        let refused = scene.request(alice, &request, body, 409).await;
        assert_eq!(refused["code"], "conflict", "{request}");
        let detail = refused["detail"].as_str().expect("text");
        assert!(detail.contains("is being deleted"), "{request}: {detail}");
    }
    // Rights can still be revoked, and its snapshots can be changed.
    let revoke = filled("DELETE /v1/grants/{g}", &things);
    scene.request(alice, &revoke, Value::Null, 200).await;
    let set = json!({"tags": {"a": "b"}});
    let tag = filled("PUT /v1/snapshots/{s}/tags", &things);
    scene.request(alice, &tag, set, 200).await;
}

/// The requester of an attachment may detach it, but needs the right to attach it again.
async fn a_user_without_the_right_cannot_cancel_a_move(scene: Scene) {
    let cast = Cast::new(scene).await;
    let (scene, alice, bob) = (&cast.scene, Some(&cast.alice), Some(&cast.bob));
    let things = cast.objects(0, None).await;
    let grant = json!({"user": "bob", "right": "use", "volume": things[0].1});
    let grant = scene.request(alice, "POST /v1/grants", grant, 201).await;
    let attach = json!({"volume": things[0].1, "host": "h1"});
    let made = scene
        .request(bob, "POST /v1/attachments", attach, 202)
        .await;
    let revoke = format!("DELETE /v1/grants/{}", grant["id"].as_str().expect("an id"));
    scene.request(alice, &revoke, Value::Null, 200).await;
    let path = format!("/v1/attachments/{}", made["id"].as_str().expect("an id"));
    let (start, cancel) = (format!("POST {path}/move"), format!("DELETE {path}/move"));
    cast.let_h2_report().await;
    scene
        .request(alice, &start, json!({"host": "h2"}), 202)
        .await;
    scene.request(bob, &cancel, Value::Null, 404).await;
    scene.request(alice, &cancel, Value::Null, 202).await;
}

/// Entries about hosts once had ids only.
async fn the_audit_log_has_names_beside_ids(scene: Scene) {
    let cast = Cast::new(scene).await;
    let (scene, root, alice) = (&cast.scene, Some(&cast.scene.root), Some(&cast.alice));
    let things = cast.objects(0, Some("read")).await;
    let volume = &things[0].1;
    let grant = json!({"user": "carol", "right": "use", "host": "h2", "vm": "libvirt:carol-"});
    let grant = scene.request(root, "POST /v1/grants", grant, 201).await;
    let attach = json!({"volume": volume, "host": "h1", "vm": "libvirt:one"});
    let made = scene
        .request(alice, "POST /v1/attachments", attach, 202)
        .await;
    let id = made["id"].as_str().expect("an id");
    let onto = json!({"host": "h2"});
    let path = format!("/v1/attachments/{id}");
    let (start, cancel) = (format!("POST {path}/move"), format!("DELETE {path}/move"));
    cast.let_h2_report().await;
    scene.request(alice, &start, onto, 202).await;
    scene.request(alice, &cancel, Value::Null, 202).await;
    let detach = format!("DELETE {path}?force=true");
    scene.request(alice, &detach, Value::Null, 202).await;
    let set = json!({"tags": {"a": "b"}});
    let tag = filled("PUT /v1/volumes/{v}/tags", &things);
    scene.request(alice, &tag, set.clone(), 200).await;
    let tag = filled("PUT /v1/snapshots/{s}/tags", &things);
    scene.request(alice, &tag, set, 200).await;
    let revoke = format!("DELETE /v1/grants/{}", grant["id"].as_str().expect("an id"));
    scene.request(root, &revoke, Value::Null, 200).await;
    let mut ids = [String::new(), String::new()];
    for (host, id) in ["h1", "h2"].iter().zip(&mut ids) {
        let path = format!("GET /v1/hosts/{host}");
        let shown = scene.request(root, &path, Value::Null, 200).await;
        *id = shown["id"].as_str().expect("an id").to_owned();
    }
    let [h1, h2] = ids;
    let snapshot = &things[1].1;
    let log = scene.request(root, "GET /v1/audit", Value::Null, 200).await;
    let said: Vec<String> = log
        .as_array()
        .expect("lines")
        .iter()
        .map(|line| {
            let word = |key: &str| line[key].as_str().expect("text").to_owned();
            format!("{} {}", word("action"), word("target"))
        })
        .collect();
    for line in [
        format!("grant {h2} h2 use carol VMs libvirt:carol-"),
        format!("revoke {h2} h2 use carol VMs libvirt:carol-"),
        format!("grant {volume} thing-0 read bob"),
        format!("attach {volume} thing-0 to {h1} h1 libvirt:one"),
        format!("move {volume} thing-0 from {h1} h1 libvirt:one to {h2} h2"),
        format!("cancel-move {volume} thing-0 to {h2} h2"),
        format!("detach {volume} thing-0 from {h1} h1 libvirt:one by force"),
        format!("tag {volume} thing-0"),
        format!("tag {snapshot} thing-0"),
    ] {
        assert!(said.contains(&line), "{line}: {said:#?}");
    }
}

/// Tenants were once told to run commands of administrators.
async fn hints_name_commands_that_the_caller_may_run(scene: Scene) {
    let cast = Cast::new(scene).await;
    let (scene, alice, root) = (&cast.scene, Some(&cast.alice), Some(&cast.scene.root));
    let things = cast.objects(0, None).await;
    let volume = &things[0].1;
    let attach = |host: &str| json!({"volume": volume, "host": host});
    let detail = async |who, request: &str, body: Value, status| {
        let refused = scene.request(who, request, body, status).await;
        refused["detail"].as_str().expect("text").to_owned()
    };
    let request = "POST /v1/attachments";
    let said = detail(alice, request, attach("none"), 404).await;
    assert!(said.contains("`scree grant list`"), "{said}");
    let said = detail(root, request, attach("none"), 404).await;
    assert!(said.contains("`scree host list`"), "{said}");
    let somewhere = json!({"volume": volume});
    let said = detail(alice, request, somewhere.clone(), 503).await;
    assert!(said.contains("ask an administrator"), "{said}");
    let said = detail(root, request, somewhere, 503).await;
    assert!(said.contains("start `scree agent`"), "{said}");
    let many = json!({"name": "many", "size": 1 << 20, "replicas": 4, "project": "alice"});
    let to_unknown = json!({"user": "unknown", "right": "read", "volume": volume});
    let of_host = format!("GET /v1/attachments/{}", things[2].1);
    let unresponsive = scene.request(alice, &of_host, Value::Null, 200).await;
    for said in [
        detail(alice, "POST /v1/volumes", many, 400).await,
        detail(alice, "POST /v1/grants", to_unknown, 404).await,
        unresponsive["message"]["text"]
            .as_str()
            .expect("text")
            .to_owned(),
    ] {
        assert!(said.contains("an administrator"), "{said}");
    }
}

on_both!(
    hints_name_commands_that_the_caller_may_run
    the_audit_log_has_names_beside_ids
    a_user_without_the_right_cannot_cancel_a_move
    a_volume_that_is_being_deleted_accepts_no_changes
    only_those_who_administer_a_volume_see_attachments_of_others
    a_bare_name_means_anothers_object_only_in_reads
    a_revoked_right_is_refused_from_the_next_request_on
    a_user_without_hosts_is_told_that_no_host_is_granted_to_them
    a_host_is_usable_by_its_grantees_for_their_vms_only
    two_owners_may_use_the_same_name
);
