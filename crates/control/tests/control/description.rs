//! docs/openapi.json matches the handlers, and docs/reference explains each code and state.

use serde_json::json;

/// Words were once described by their names in the code.
#[test]
fn words_are_described_as_they_are_sent() {
    let document = serde_json::to_value(control::http::description()).expect("JSON");
    let described = |name: &str| document["components"]["schemas"][name]["enum"].clone();
    let states = ["available", "in-use", "deleting", "error"];
    assert_eq!(described("VolumeState"), json!(states));
    assert_eq!(described("Encryption"), json!(["aes-256-gcm", "none"]));
    let rights = ["read", "use", "snapshot", "administer"];
    assert_eq!(described("Right"), json!(rights));
    let units = &document["components"]["schemas"]["Unit"]["properties"]["state"];
    assert!(units.to_string().contains("#/components/schemas/UnitState"));
    for state in [
        "attaching",
        "attached",
        "detaching",
        "detached",
        "busy",
        "error",
    ] {
        let all = described("AttachmentState");
        assert!(
            all.as_array().expect("words").contains(&json!(state)),
            "{state}"
        );
    }
    let items = &document["components"]["schemas"]["Page_ListedVolume"]["properties"]["items"];
    assert_eq!(items["items"]["$ref"], "#/components/schemas/ListedVolume");
}

#[test]
fn each_problem_code_and_state_is_explained_to_programmers() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/api.md");
    let text = std::fs::read_to_string(path).expect("docs/reference/api.md");
    let document = serde_json::to_value(control::http::description()).expect("JSON");
    let schemas = &document["components"]["schemas"];
    let mut looked_for = 0;
    for name in [
        "ProblemCode",
        "VolumeState",
        "SnapshotState",
        "AttachmentState",
        "KeyState",
        "UnitState",
        "PreloadState",
    ] {
        for word in schemas[name]["enum"].as_array().expect("words") {
            let cell = format!("| `{}` |", word.as_str().expect("a word"));
            assert!(
                text.contains(&cell),
                "docs/reference/api.md has no line for {cell}"
            );
            looked_for += 1;
        }
    }
    assert!(looked_for > 20, "{looked_for}");
}

/// Clients are generated from this file.
#[test]
fn the_committed_description_matches_the_handlers() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");
    let made = control::http::description().to_pretty_json().expect("JSON") + "\n";
    if std::env::var_os("SCREE_WRITE_OPENAPI").is_some() {
        std::fs::write(path, &made).expect("written");
    }
    let kept = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        kept == made,
        "docs/openapi.json does not match the handlers; run `make openapi`"
    );
}
