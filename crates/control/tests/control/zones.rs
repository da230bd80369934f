//! Zones of units, and the copysets that are planned by them.

use std::collections::{BTreeMap, BTreeSet};

use base::UnitId;
use serde_json::{Value, json};

use crate::parties::Scene;

on_both!(
    copies_are_in_different_zones_also_those_set_before_a_daemon_starts
    a_volume_with_too_few_zones_has_a_message_or_is_refused_if_strict
    a_zone_without_a_valid_unit_or_name_is_refused
);

async fn put_zone(scene: &Scene, unit: &str, zone: Value, status: u16) -> Value {
    let request = format!("PUT /v1/units/{unit}/zone");
    let body = json!({"zone": zone});
    scene
        .request(Some(&scene.root), &request, body, status)
        .await
}

async fn units(scene: &Scene) -> Vec<Value> {
    let units = scene.request(Some(&scene.root), "GET /v1/units", Value::Null, 200);
    units.await.as_array().expect("a list").clone()
}

/// Daemons that have started, four in each of two zones. The existing unit is in one of these.
async fn eight_daemons(scene: &Scene) {
    for unit in units(scene).await {
        put_zone(scene, unit["id"].as_str().expect("one"), json!("a"), 200).await;
    }
    for number in 1..=8 {
        let name = format!("store-{number}");
        let daemon = scene.member("daemons", &name).await;
        let zone = if number % 2 == 0 { "a" } else { "b" };
        put_zone(scene, &name, json!(zone), 200).await;
        let url = json!({"url": format!("scree://10.0.0.{number}:7420")});
        scene
            .request(Some(&daemon), "POST /v1/unit/begin", url, 200)
            .await;
    }
}

async fn copies_are_in_different_zones_also_those_set_before_a_daemon_starts(scene: Scene) {
    eight_daemons(&scene).await;
    let root = Some(&scene.root);
    let new = json!({"name": "disk", "size": 1 << 20, "replicas": 2, "strict_zones": true});
    let made = scene.request(root, "POST /v1/volumes", new, 201).await;
    assert_eq!(made["message"], Value::Null, "{made}");
    let zones: BTreeMap<UnitId, String> = units(&scene)
        .await
        .iter()
        .map(|unit| {
            let id = unit["id"].as_str().expect("one").parse().expect("an id");
            (id, unit["zone"].as_str().expect("it is known").to_owned())
        })
        .collect();
    let sets = scene
        .control
        .database()
        .units()
        .copysets()
        .await
        .expect("read");
    let pairs: Vec<_> = sets.iter().filter(|set| set.members.len() == 2).collect();
    assert!(pairs.len() >= 8, "{}", pairs.len());
    for pair in pairs {
        let apart: BTreeSet<&String> = pair.members.iter().map(|unit| &zones[unit]).collect();
        assert_eq!(apart.len(), 2, "{pair:?}");
    }
    // The daemon's name works as well.
    let shown = scene.request(root, "GET /v1/units/store-3", Value::Null, 200);
    let shown = shown.await;
    assert_eq!((&shown["zone"], &shown["facts"]), (&json!("b"), &json!([])));
    let status = scene
        .request(root, "GET /v1/status", Value::Null, 200)
        .await;
    assert!(!status["problems"].to_string().contains("zone"), "{status}");

    // Copysets that were planned before stay, and a notice names them.
    let said = put_zone(&scene, "store-3", json!("a"), 200).await;
    assert!(
        said["message"]
            .to_string()
            .contains("two units in one zone"),
        "{said}"
    );
    let status = scene
        .request(root, "GET /v1/status", Value::Null, 200)
        .await;
    assert!(
        status["problems"]
            .to_string()
            .contains("two units in one zone"),
        "{status}"
    );
    let said = put_zone(&scene, "store-3", Value::Null, 200).await;
    assert_eq!(
        (&said["zone"], &said["message"]),
        (&Value::Null, &Value::Null)
    );
}

async fn a_volume_with_too_few_zones_has_a_message_or_is_refused_if_strict(scene: Scene) {
    eight_daemons(&scene).await;
    let root = Some(&scene.root);
    let mut new = json!({"name": "disk", "size": 1 << 20, "replicas": 3, "strict_zones": true});
    let refused = scene
        .request(root, "POST /v1/volumes", new.clone(), 400)
        .await;
    assert_eq!(refused["field"], "replicas");
    let words = refused["detail"].to_string();
    assert!(
        words.contains("3 zones") && words.contains("there are 2"),
        "{refused}"
    );
    new["strict_zones"] = json!(false);
    let made = scene.request(root, "POST /v1/volumes", new, 201).await;
    assert!(
        made["message"].to_string().contains("there are 2"),
        "{made}"
    );
}

async fn a_zone_without_a_valid_unit_or_name_is_refused(scene: Scene) {
    put_zone(&scene, "none", json!("a"), 404).await;
    let unit = units(&scene).await[0]["id"].clone();
    let unit = unit.as_str().expect("one");
    for bad in ["", "Rack 3", "unit-00000000000000001"] {
        let refused = put_zone(&scene, unit, json!(bad), 400).await;
        assert_eq!(refused["field"], "zone", "{refused}");
    }
    assert_eq!(units(&scene).await[0]["zone"], Value::Null);
}
