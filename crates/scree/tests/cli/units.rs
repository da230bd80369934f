//! Units that are added, missing, or unusable.

use std::fs;

use serde_json::json;

use crate::host::{Host, wait_until};

#[test]
fn a_missing_unit_does_not_disturb_a_volume_and_becomes_healthy_again() {
    let host = Host::with(&["--units", "4"]);
    host.json(&["volume", "create", "disk", "--size", "64M"]);
    host.qemu_io("disk", &["write -P 0x11 0 16M", "flush"]);
    host.json(&["snapshot", "create", "disk", "--wait"]);
    let away = host.path().join("away");
    fs::rename(host.unit(2), &away).expect("renamed");
    let state = || host.json(&["unit", "list"])[1]["state"].clone();
    wait_until("it is missing", || state() == json!("missing"));
    assert_eq!(host.json(&["status"])["state"], json!("degraded"));
    host.qemu_io(
        "disk",
        &["read -P 0x11 0 16M", "write -P 0x22 16M 16M", "flush"],
    );
    host.json(&["snapshot", "create", "disk", "--name", "without", "--wait"]);
    host.json(&["volume", "create", "copy", "--from", "without"]);
    host.qemu_io("copy", &["read -P 0x11 0 16M", "read -P 0x22 16M 16M"]);
    fs::rename(&away, host.unit(2)).expect("renamed");
    wait_until("it is healthy again", || state() == json!("healthy"));
    host.qemu_io("disk", &["read -P 0x11 0 16M", "read -P 0x22 16M 16M"]);
}

#[test]
fn a_volume_with_parity_survives_the_loss_of_a_unit() {
    let mut host = Host::with(&["--units", "4"]);
    let made = host.json(&[
        "volume",
        "create",
        "disk",
        "--size",
        "64M",
        "--erasure",
        "2+1",
    ]);
    assert_eq!(made["erasure"], json!("2+1"));
    host.qemu_io(
        "disk",
        &["write -P 0x11 0 16M", "write -P 0x22 20M 4k", "flush"],
    );
    host.json(&["snapshot", "create", "disk", "--name", "before", "--wait"]);
    assert_eq!(host.stop(), 0);
    fs::remove_dir_all(host.unit(2)).expect("removed");
    host.start();
    let all = [
        "read -P 0x11 0 16M",
        "read -P 0x22 20M 4k",
        "read -P 0 16M 4M",
    ];
    host.qemu_io("disk", &all);
    host.qemu_io("disk", &["write -P 0x33 0 4M", "flush"]);
    host.json(&["snapshot", "create", "disk", "--name", "after", "--wait"]);
    host.json(&["volume", "create", "copy", "--from", "before"]);
    host.qemu_io("copy", &all);
    host.qemu_io("disk", &["read -P 0x33 0 4M", "read -P 0x11 4M 12M"]);
    host.refuses(
        1,
        &[
            "volume",
            "create",
            "wide",
            "--size",
            "1M",
            "--erasure",
            "4+2",
        ],
        &["erasure 4+2 needs 6 units, and there are 4"],
    );
    host.refuses(
        1,
        &[
            "volume",
            "create",
            "odd",
            "--size",
            "1M",
            "--erasure",
            "1+1",
        ],
        &["write k+m"],
    );
}

#[test]
fn a_start_without_a_unit_is_degraded() {
    let mut host = Host::with(&["--units", "4"]);
    host.json(&["volume", "create", "disk", "--size", "64M"]);
    host.qemu_io("disk", &["write -P 0x11 0 16M", "flush"]);
    assert_eq!(host.stop(), 0);
    fs::rename(host.unit(3), host.path().join("away")).expect("renamed");
    host.start();
    assert_eq!(host.json(&["unit", "list"])[2]["state"], json!("missing"));
    host.qemu_io(
        "disk",
        &[
            "read -P 0x11 0 16M",
            "write -P 0x33 0 4M",
            "read -P 0x33 0 4M",
        ],
    );
    assert!(
        !host.unit(3).exists(),
        "nothing is written where a unit should be mounted"
    );
}

#[test]
fn a_unit_is_added_and_used() {
    let mut host = Host::with(&["--units", "1"]);
    assert_eq!(
        host.json(&["volume", "create", "one", "--size", "8M"])["replicas"],
        json!(1)
    );
    let folder = host.path().join("100%41 more units");
    fs::create_dir(&folder).expect("made");
    let url = format!("file://{}/100%2541%20more%20units", host.path().display());
    assert_eq!(host.json(&["unit", "add", &url])["url"], json!(url));
    assert_eq!(
        host.json(&["volume", "create", "two", "--size", "8M"])["replicas"],
        json!(2)
    );
    host.qemu_io("two", &["write -P 5 0 8M", "flush"]);
    assert_eq!(host.stop(), 0);
    host.start();
    let units = host.json(&["unit", "list"]);
    assert!(units[1]["segments"].as_u64() > Some(0), "{units}");
    host.qemu_io("two", &["read -P 5 0 8M"]);
}

#[test]
fn unusable_folders_are_refused_as_units() {
    let host = Host::with(&["--units", "2"]);
    let other = Host::with(&["--units", "1"]);
    let text = |path: &std::path::Path| path.to_str().expect("UTF-8").to_owned();
    let full = host.path().join("full");
    fs::create_dir(&full).expect("made");
    fs::create_dir(full.join("something")).expect("made");
    host.refuses(
        1,
        &["unit", "add", &text(&full)],
        &["it contains \"something\"", "an empty folder"],
    );
    host.refuses(
        1,
        &["unit", "add", &text(&host.path().join("nothing"))],
        &["create or mount the folder"],
    );
    host.refuses(
        1,
        &["unit", "add", &text(&host.path().join("scree.db"))],
        &["not a folder"],
    );
    host.refuses(1, &["unit", "add", "units/u1"], &["absolute"]);
    host.refuses(1, &["unit", "add", "ftp://host"], &["file:///"]);
    host.refuses(
        1,
        &["unit", "add", &text(&host.unit(1))],
        &["already a unit"],
    );
    host.refuses(
        1,
        &["unit", "add", &text(&host.path().join("units"))],
        &["already a unit"],
    );
    host.refuses(
        1,
        &["unit", "add", &text(&other.unit(1))],
        &[
            "is a unit of cluster-",
            "another cluster cannot be taken over",
        ],
    );
    // Within a unit: the new files would be taken for its own.
    let within = other.unit(1).join("segments").join("000");
    fs::create_dir_all(&within).expect("made");
    host.refuses(
        1,
        &["unit", "add", &text(&within)],
        &["is within", "units/u1", "folder outside it"],
    );
    assert_eq!(fs::read_dir(&within).expect("it exists").count(), 0);
    // A copy of a unit.
    let copy = host.path().join("copy");
    fs::create_dir(&copy).expect("made");
    fs::copy(
        host.unit(1).join("scree-unit.toml"),
        copy.join("scree-unit.toml"),
    )
    .expect("copied");
    host.refuses(1, &["unit", "add", &text(&copy)], &["used twice"]);
}

#[test]
fn a_stop_without_units_keeps_everything_in_the_journal() {
    let mut host = Host::with(&["--units", "2"]);
    host.json(&["volume", "create", "disk", "--size", "32M"]);
    host.qemu_io("disk", &["write -P 1 0 1M", "flush"]);
    let (units, away) = (host.path().join("units"), host.path().join("away"));
    fs::rename(&units, &away).expect("renamed");
    host.qemu_io("disk", &["write -P 2 1M 1M", "flush"]);
    assert_eq!(host.stop(), 1, "it says that it could not destage");
    fs::rename(&away, &units).expect("renamed");
    host.start();
    host.qemu_io("disk", &["read -P 1 0 1M", "read -P 2 1M 1M"]);
}

/// Once a link called `probe` had the key file overwritten.
#[test]
fn a_link_in_a_unit_is_not_followed_and_the_unit_is_failing() {
    let mut host = Host::new();
    host.json(&["volume", "create", "disk", "--size", "8M"]);
    host.qemu_io("disk", &["write -P 5 0 1M", "flush"]);
    assert_eq!(host.stop(), 0);
    let key = host.path().join("keys/master.key");
    let before = fs::read_to_string(&key).expect("it exists");
    let probe = host.unit(1).join("probe");
    if probe.exists() {
        fs::remove_file(&probe).expect("removed");
    }
    std::os::unix::fs::symlink(&key, &probe).expect("linked");
    host.start();
    wait_until("the unit is failing", || {
        let units = host.json(&["unit", "list"]);
        let units = units.as_array().expect("a list").iter();
        let mut failing = units.filter(|unit| unit["state"] == "failing");
        failing.any(|unit| unit["message"].to_string().contains("symbolic link"))
    });
    host.qemu_io("disk", &["read -P 5 0 1M", "write -P 6 1M 1M", "flush"]);
    assert_eq!(host.stop(), 0);
    assert_eq!(fs::read_to_string(&key).expect("it exists"), before);
}

/// Once a failed destage kept descriptors that the next one needed.
#[test]
fn few_descriptors_only_make_it_slow() {
    let mut host = Host::limited("-n 100", &["--units", "8"]);
    host.json(&["volume", "create", "disk", "--size", "1G"]);
    for part in 0..8 {
        let write = format!("write -P {} {}M 16M", part + 1, part * 64);
        host.qemu_io("disk", &[&write, "flush"]);
    }
    for part in 0..8 {
        let read = format!("read -P {} {}M 16M", part + 1, part * 64);
        host.qemu_io("disk", &[&read]);
    }
    assert_eq!(host.stop(), 0);
}

/// Once each touched segment kept one or two files open, so that at the usual limit of 1024 a few
/// GiB made every unit fail.
#[test]
fn segments_may_outnumber_open_files() {
    let host = Host::limited("-n 256", &["--units", "8"]);
    host.json(&["volume", "create", "disk", "--size", "1G"]);
    for part in 0..16 {
        let write = format!("write -P {} {}M 32M", part + 1, part * 64);
        host.qemu_io("disk", &[&write, "flush"]);
    }
    host.json(&["snapshot", "create", "disk", "--wait"]);
    let segments = |unit: &serde_json::Value| unit["segments"].as_u64().expect("a number");
    let units = host.json(&["unit", "list"]);
    let units = units.as_array().expect("a list");
    let all: u64 = units.iter().map(segments).sum();
    assert!(all * 2 > 256, "{all} segments, of two descriptors each");
    for part in 0..16 {
        let read = format!("read -P {} {}M 32M", part + 1, part * 64);
        host.qemu_io("disk", &[&read]);
    }
    for unit in units {
        assert_eq!(unit["state"], json!("healthy"), "{unit}");
    }
}

#[test]
fn the_limit_of_open_files_is_raised() {
    let host = Host::limited("-S -n 256", &["--units", "1"]);
    let limits = fs::read_to_string(format!("/proc/{}/limits", host.pid())).expect("it runs");
    let files = limits
        .lines()
        .find(|line| line.starts_with("Max open files"));
    let words: Vec<&str> = files.expect("a line").split_whitespace().collect();
    assert_eq!(words[3], words[4], "the soft limit and the hard one");
    assert_ne!(words[3], "256");
}
