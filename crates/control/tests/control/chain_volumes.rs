//! Replicas of chains: volumes by name, and addresses in the network.

use serde_json::{Value, json};

use crate::parties::Scene;
use crate::tls::Party;

/// Requests a chain of `volume` with one replica. Returns the answer.
async fn replicate(scene: &Scene, who: &Party, volume: &str, to: &str, status: u16) -> Value {
    let place = if to.starts_with("nbd") {
        "uri"
    } else {
        "volume"
    };
    let policy = format!(
        "volume = {volume:?}\n[[filter]]\nkind = 'replicate'\n[[filter.replica]]\nname = 'r'\n\
         {place} = {to:?}\n"
    );
    let body = json!({"policy": policy});
    let done = scene
        .request(Some(who), "POST /v1/chains", body, status)
        .await;
    match status {
        200 => done,
        _ => done["detail"].clone(),
    }
}

fn assert_says(refused: &Value, words: &str) {
    let text = refused.as_str().expect("text");
    assert!(text.contains(words), "{text}");
}

async fn volumes(scene: &Scene, of: &Party, names: &[&str]) {
    for name in names {
        let new = json!({"name": name, "size": 1 << 20});
        scene.request(Some(of), "POST /v1/volumes", new, 201).await;
    }
}

async fn chains_have_no_cycle_and_a_replica_belongs_to_one_volume(scene: Scene) {
    let alice = scene.member("users", "alice").await;
    volumes(&scene, &alice, &["a", "b", "c", "d"]).await;
    let refused = replicate(&scene, &alice, "a", "a", 409).await;
    assert_says(&refused, "of itself");
    replicate(&scene, &alice, "a", "b", 200).await;
    replicate(&scene, &alice, "b", "c", 200).await;
    let refused = replicate(&scene, &alice, "c", "a", 409).await;
    assert_says(&refused, "loop");
    let refused = replicate(&scene, &alice, "d", "b", 409).await;
    assert_says(&refused, "is a replica of \"a\"");
    replicate(&scene, &alice, "a", "none", 404).await;
    // Without one of its links there is no cycle.
    let chain = replicate(&scene, &alice, "b", "d", 200).await;
    replicate(&scene, &alice, "c", "a", 200).await;
    let refused = replicate(&scene, &alice, "b", "c", 409).await;
    assert_says(&refused, "loop");
    let id = chain["id"].as_str().expect("an id");
    let delete = format!("DELETE /v1/chains/{id}");
    scene.request(Some(&alice), &delete, Value::Null, 200).await;
    replicate(&scene, &alice, "d", "c", 200).await;
}

async fn a_replica_has_the_same_owner_as_its_volume(scene: Scene) {
    let alice = scene.member("users", "alice").await;
    let bob = scene.member("users", "bob").await;
    volumes(&scene, &alice, &["a", "b", "c"]).await;
    volumes(&scene, &bob, &["d"]).await;
    // A user who may not see the volume gets 404, and one who may only use it gets 409.
    replicate(&scene, &alice, "a", "bob/d", 404).await;
    let grant = json!({"user": "alice", "right": "use", "volume": "d"});
    scene
        .request(Some(&bob), "POST /v1/grants", grant, 201)
        .await;
    let refused = replicate(&scene, &alice, "a", "bob/d", 409).await;
    assert_says(&refused, "belongs to another owner");
    // A volume that is transferred or deleted is no replica any more, so the chain changes.
    let first = replicate(&scene, &alice, "a", "b", 200).await;
    let give = json!({"user": "bob"});
    let path = "POST /v1/volumes/alice%2Fb/transfer";
    scene.request(Some(&scene.root), path, give, 200).await;
    let id = first["id"].as_str().expect("an id");
    let show = format!("GET /v1/chains/{id}");
    let after = scene.request(Some(&alice), &show, Value::Null, 200).await;
    assert_eq!(after["revision"], json!(2), "{after}");
    replicate(&scene, &bob, "d", "b", 200).await;
    replicate(&scene, &alice, "a", "c", 200).await;
    let delete = "DELETE /v1/volumes/c";
    scene.request(Some(&alice), delete, Value::Null, 202).await;
    let after = scene.request(Some(&alice), &show, Value::Null, 200).await;
    assert_eq!(after["revision"], json!(4), "{after}");
}

async fn an_address_holds_at_most_one_replica(scene: Scene) {
    let alice = scene.member("users", "alice").await;
    let bob = scene.member("users", "bob").await;
    volumes(&scene, &alice, &["a", "b"]).await;
    volumes(&scene, &bob, &["c"]).await;
    let place = "nbd://10.0.0.1/x";
    let first = replicate(&scene, &alice, "a", place, 200).await;
    // The spelling of the address does not matter.
    let spelled = ["nbd://10.0.0.1:10809/x", "nbd://[::ffff:10.0.0.1]/x"];
    for same in spelled.into_iter().chain([place]) {
        let refused = replicate(&scene, &alice, "b", same, 409).await;
        assert_says(
            &refused,
            "10.0.0.1:10809/x already holds a replica of \"a\"",
        );
    }
    replicate(&scene, &alice, "b", "nbd://10.0.0.1/y", 200).await;
    // The error does not name the other volume, and each host has its own sockets.
    replicate(&scene, &bob, "c", place, 200).await;
    for volume in ["a", "b"] {
        replicate(&scene, &alice, volume, "nbd+unix:///x?socket=s", 200).await;
    }
    // A chain may be applied again with other replicas; released addresses are free.
    replicate(&scene, &alice, "a", place, 200).await;
    let id = first["id"].as_str().expect("an id");
    let delete = format!("DELETE /v1/chains/{id}");
    scene.request(Some(&alice), &delete, Value::Null, 200).await;
    replicate(&scene, &alice, "b", place, 200).await;
    scene
        .request(Some(&alice), "DELETE /v1/volumes/b", Value::Null, 202)
        .await;
    replicate(&scene, &alice, "a", place, 200).await;
}

on_both!(
    chains_have_no_cycle_and_a_replica_belongs_to_one_volume
    a_replica_has_the_same_owner_as_its_volume
    an_address_holds_at_most_one_replica
);
