//! A volume from creation to deletion.

use serde_json::json;

use crate::host::{Host, scree, wait_until};

#[test]
fn a_volume_is_written_snapshotted_cloned_restored_grown_and_deleted() {
    let host = Host::new();
    let made = host.json(&["volume", "create", "disk", "--size", "64M"]);
    assert_eq!(
        (&made["name"], &made["size"], &made["state"]),
        (&json!("disk"), &json!(64 << 20), &json!("available"))
    );
    host.qemu_io(
        "disk",
        &[
            "write -P 0xaa 0 20M",
            "flush",
            "read -P 0xaa 0 20M",
            "read -P 0 20M 1M",
        ],
    );
    assert_eq!(host.state("disk"), "in-use");

    let snapshot = host.json(&["snapshot", "create", "disk", "--name", "monday", "--wait"]);
    assert_eq!(
        (&snapshot["state"], &snapshot["volume"]),
        (&json!("completed"), &json!("disk"))
    );
    host.qemu_io("disk", &["write -P 0xbb 0 1M", "discard 1M 1M", "flush"]);

    // A clone begins as the snapshot; neither volume sees writes of the other.
    host.json(&[
        "volume", "create", "copy", "--from", "monday", "--size", "128M",
    ]);
    host.qemu_io(
        "copy",
        &[
            "read -P 0xaa 0 20M",
            "read -P 0 20M 100M",
            "write -P 0xcc 4M 1M",
            "flush",
        ],
    );
    host.qemu_io(
        "disk",
        &[
            "read -P 0xbb 0 1M",
            "read -P 0 1M 1M",
            "read -P 0xaa 2M 18M",
        ],
    );

    // A clone of a clone.
    host.json(&["snapshot", "create", "copy", "--name", "tuesday"]);
    host.json(&["volume", "create", "copy2", "--from", "tuesday"]);
    host.qemu_io("copy2", &["read -P 0xaa 0 4M", "read -P 0xcc 4M 1M"]);

    // Restored, and restored to before that.
    host.json(&["volume", "unexport", "disk"]);
    let versions = host.json(&["volume", "versions", "disk"]);
    let held = versions.as_array().expect("a list").iter();
    let held = held
        .clone()
        .find(|version| version["snapshots"] == json!(["monday"]));
    let number = held.expect("the snapshot's version")["version"].to_string();
    let newest = versions.as_array().expect("a list").last().expect("some")["version"].to_string();
    host.json(&["volume", "restore", "disk", "--at", &number]);
    host.qemu_io("disk", &["read -P 0xaa 0 20M"]);
    host.json(&["volume", "unexport", "disk"]);
    host.json(&["volume", "restore", "disk", "--at", &newest]);
    host.qemu_io("disk", &["read -P 0xbb 0 1M"]);

    // Grown while it is served.
    assert_eq!(
        host.json(&["volume", "grow", "disk", "96M"])["size"],
        json!(96 << 20)
    );
    host.qemu_io(
        "disk",
        &[
            "read -P 0xbb 0 1M",
            "write -P 0xdd 95M 1M",
            "read -P 0xdd 95M 1M",
        ],
    );

    // Deleted, except for its snapshots and their clones.
    host.json(&["volume", "unexport", "disk"]);
    let deleted = host.json(&["volume", "delete", "disk", "--wait"]);
    assert_eq!(deleted["state"], json!("deleted"));
    assert_eq!(host.run(&["volume", "show", "disk"]).code, 1);
    host.qemu_io("copy", &["read -P 0xaa 0 4M", "read -P 0xcc 4M 1M"]);
    let tree = host.run(&["snapshot", "tree"]).out;
    assert!(tree.contains("(deleted)") && tree.contains("@monday") && tree.contains("copy2"));
    host.json(&["snapshot", "delete", "monday"]);
    host.qemu_io("copy2", &["read -P 0xaa 0 4M", "read -P 0xcc 4M 1M"]);
}

#[test]
fn restoring_to_a_time_takes_the_newest_version_up_to_it() {
    let host = Host::new();
    host.json(&["volume", "create", "disk", "--size", "8M"]);
    host.qemu_io("disk", &["write -P 1 0 4k", "flush"]);
    host.json(&["snapshot", "create", "disk", "--wait"]);
    let units = host.json(&["unit", "list"]);
    let written = units.as_array().into_iter().flatten().map(|unit| {
        let written = unit["written_bytes"].as_u64();
        written.expect("a number")
    });
    assert!(written.sum::<u64>() >= 2 * 4096, "two copies: {units}");
    host.qemu_io("disk", &["write -P 2 0 4k", "flush"]);
    host.json(&["volume", "unexport", "disk"]);
    let versions = host.json(&["volume", "versions", "disk"]);
    let first = versions[0]["created"].as_str().expect("a time").to_owned();
    host.refuses(
        1,
        &["volume", "restore", "disk", "--at", "2020-01-01 00:00"],
        &["oldest that is kept"],
    );
    host.refuses(
        1,
        &["volume", "restore", "disk", "--at", "2999-01-01 00:00"],
        &["future"],
    );
    host.refuses(
        1,
        &["volume", "restore", "disk", "--at", "99"],
        &["`scree volume versions disk`"],
    );
    host.json(&["volume", "restore", "disk", "--at", &first]);
    host.qemu_io("disk", &["read -P 1 0 4k"]);
}

#[test]
fn a_read_only_export_refuses_writes() {
    let host = Host::new();
    host.json(&["volume", "create", "disk", "--size", "8M"]);
    let export = host.json(&["volume", "export", "disk", "--read-only"]);
    let uri = export["uri"].as_str().expect("text");
    let info = std::process::Command::new("qemu-io")
        .args(["-f", "raw", "-c", "write 0 4k", uri])
        .output()
        .expect("qemu-io is installed");
    assert!(!info.status.success() || !info.stderr.is_empty());
    host.refuses(1, &["volume", "export", "disk"], &["read-only", "unexport"]);
    assert_eq!(
        host.json(&["volume", "export", "disk", "--read-only"]),
        export,
        "as often as wanted"
    );
}

#[test]
fn a_clean_stop_empties_the_journals_and_a_start_serves_again() {
    let mut host = Host::new();
    host.json(&["volume", "create", "disk", "--size", "32M"]);
    host.json(&["volume", "create", "other", "--size", "32M"]);
    host.qemu_io("disk", &["write -P 0x77 0 8M"]);
    assert_eq!(host.stop(), 0);
    host.start();
    assert_eq!(
        (host.state("disk"), host.state("other")),
        ("in-use".into(), "available".into())
    );
    host.qemu_io("disk", &["read -P 0x77 0 8M"]);
    assert_eq!(host.json(&["status"])["journal_used_bytes"], json!(0));
}

#[test]
fn unneeded_versions_are_removed_and_their_space_is_reclaimed() {
    let host = Host::with(&[
        "--retain-count",
        "1",
        "--grace",
        "0s",
        "--destage-after",
        "1s",
    ]);
    host.json(&["volume", "create", "disk", "--size", "32M"]);
    for pattern in 1..=4 {
        let write = format!("write -P {pattern} 0 8M");
        host.qemu_io("disk", &[write.as_str(), "flush"]);
        host.json(&[
            "snapshot",
            "create",
            "disk",
            "--name",
            &format!("s{pattern}"),
            "--wait",
        ]);
    }
    let bytes = || host.json(&["status"])["bytes"].as_u64().expect("a number");
    let full = bytes();
    for pattern in 1..=3 {
        host.json(&["snapshot", "delete", &format!("s{pattern}")]);
    }
    wait_until("three of four versions are freed", || bytes() < full / 2);
    host.qemu_io("disk", &["read -P 4 0 8M"]);
    host.json(&["volume", "unexport", "disk"]);
    host.json(&["volume", "delete", "disk"]);
    host.json(&["snapshot", "delete", "s4"]);
    wait_until("all is freed", || bytes() < 1 << 20);
    assert_eq!(host.json(&["volume", "list"]), json!([]));
}

#[test]
fn results_are_tables_json_or_yaml() {
    let host = Host::new();
    host.json(&["volume", "create", "disk", "--size", "10G"]);
    let table = host.run(&["volume", "list"]).out;
    assert!(
        table.starts_with("NAME") && table.contains("10G"),
        "{table}"
    );
    let yaml = host.run(&["-o", "yaml", "volume", "list"]).out;
    assert!(
        yaml.contains("name: \"disk\"") && yaml.contains("size: 10737418240"),
        "{yaml}"
    );
    let units = host.json(&["unit", "list"]);
    assert_eq!(units.as_array().map(Vec::len), Some(8));
    for field in ["id", "url", "state", "segments", "bytes"] {
        assert!(!units[0][field].is_null(), "{field}");
    }
    assert_eq!(units[0]["state"], json!("healthy"));
    assert_eq!(host.json(&["status"])["state"], json!("ok"));
}

#[test]
fn completions_and_manual_pages_need_no_server() {
    for shell in ["bash", "zsh", "fish"] {
        assert!(
            scree(&["completions", shell]).out.contains("snapshot"),
            "{shell}"
        );
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_str().expect("UTF-8");
    assert_eq!(scree(&["man", path]).code, 0);
    assert!(folder.path().join("scree-volume-create.1").exists());
}
