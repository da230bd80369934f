//! The settings of a volume: given at creation, changed one by one, and shown.

use serde_json::{Value, json};

use crate::parties::Scene;

const SET: &str = "PUT /v1/volumes/disk/settings";

/// The settings among the fields of a volume.
fn settings_of(volume: &Value) -> Value {
    json!([volume["journal_bytes"], volume["cache_max_bytes"]])
}

/// A request once replaced all of them.
async fn setting_one_keeps_the_others(scene: Scene) {
    let root = Some(&scene.root);
    let new = json!({
        "name": "disk",
        "size": 1 << 20,
        "journal_bytes": 16 << 20,
        "cache_max_bytes": 2 << 20,
    });
    let made = scene.request(root, "POST /v1/volumes", new, 201).await;
    assert_eq!(settings_of(&made), json!([16 << 20, 2 << 20]));
    for (set, expected) in [
        (json!({}), json!([16 << 20, 2 << 20])),
        (
            json!({"cache_max_bytes": 4 << 20}),
            json!([16 << 20, 4 << 20]),
        ),
        (json!({"journal_bytes": null}), json!([null, 4 << 20])),
        (json!({"journal_bytes": 8 << 20}), json!([8 << 20, 4 << 20])),
        (json!({"cache_max_bytes": null}), json!([8 << 20, null])),
    ] {
        let answer = scene.request(root, SET, set.clone(), 200).await;
        assert_eq!(settings_of(&answer), expected, "{set}");
        let kept = scene
            .request(root, "GET /v1/volumes/disk", Value::Null, 200)
            .await;
        assert_eq!(settings_of(&kept), expected, "{set}");
    }
}

async fn an_invalid_setting_is_refused_by_its_name(scene: Scene) {
    let root = Some(&scene.root);
    let new = json!({"name": "disk", "size": 1 << 20, "cache_max_bytes": 2 << 20});
    let made = scene.request(root, "POST /v1/volumes", new, 201).await;
    for (field, value) in [
        ("cache_max_bytes", json!(4096)),
        ("journal_bytes", json!(4096)),
    ] {
        let mut new = json!({"name": "other", "size": 1 << 20});
        new[field] = value.clone();
        let refused = scene.request(root, "POST /v1/volumes", new, 400).await;
        assert_eq!(refused["field"], field);
        let refused = scene.request(root, SET, json!({field: value}), 400).await;
        assert_eq!(refused["field"], field);
    }
    let kept = scene
        .request(root, "GET /v1/volumes/disk", Value::Null, 200)
        .await;
    assert_eq!(settings_of(&kept), settings_of(&made));
}

async fn a_dry_run_shows_the_new_settings_and_keeps_the_old(scene: Scene) {
    let root = Some(&scene.root);
    let new = json!({"name": "disk", "size": 1 << 20, "cache_max_bytes": 2 << 20});
    scene.request(root, "POST /v1/volumes", new, 201).await;
    let dry = format!("{SET}?dry_run=true");
    let shown = scene
        .request(root, &dry, json!({"cache_max_bytes": 4 << 20}), 200)
        .await;
    assert_eq!(shown["cache_max_bytes"], 4 << 20);
    let kept = scene
        .request(root, "GET /v1/volumes/disk", Value::Null, 200)
        .await;
    assert_eq!(kept["cache_max_bytes"], 2 << 20);
}

on_both!(
    setting_one_keeps_the_others
    an_invalid_setting_is_refused_by_its_name
    a_dry_run_shows_the_new_settings_and_keeps_the_old
);
