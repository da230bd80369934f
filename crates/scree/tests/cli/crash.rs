//! `kill -9`, and what must survive it.

use std::fs;
use std::io::Read as _;
use std::path::Path;

use serde_json::json;

use crate::host::Host;

#[test]
fn flushed_writes_survive_kill_9() {
    let mut host = Host::new();
    host.json(&["volume", "create", "disk", "--size", "64M"]);
    for round in 1..=4_u32 {
        let write = format!("write -P {round} {round}M 3M");
        host.qemu_io("disk", &[write.as_str(), "flush"]);
        host.kill();
        host.start();
        assert_eq!(host.state("disk"), "in-use", "it is served again by itself");
        for earlier in 1..round {
            host.qemu_io(
                "disk",
                &[format!("read -P {earlier} {earlier}M 1M").as_str()],
            );
        }
        host.qemu_io("disk", &[format!("read -P {round} {round}M 3M").as_str()]);
    }
}

#[test]
fn a_snapshot_with_a_version_survives_a_crash() {
    let mut host = Host::new();
    host.json(&["volume", "create", "disk", "--size", "64M"]);
    host.qemu_io("disk", &["write -P 1 0 4M", "flush"]);
    host.json(&["snapshot", "create", "disk", "--name", "cut", "--wait"]);
    host.qemu_io("disk", &["write -P 2 0 4M", "flush"]);
    host.kill();
    host.start();
    let snapshot = &host.json(&["snapshot", "list"])[0];
    assert_eq!(snapshot["state"], "completed", "{snapshot}");
    host.json(&["volume", "create", "copy", "--from", "cut"]);
    host.qemu_io("copy", &["read -P 1 0 4M"]);
    host.qemu_io("disk", &["read -P 2 0 4M"]);
}

/// The snapshot's consistency point is lost with the process: later flushes go into the same
/// journal.
#[test]
fn a_snapshot_without_a_version_is_an_error_after_a_crash() {
    let mut host = Host::new();
    host.json(&["volume", "create", "disk", "--size", "64M"]);
    host.qemu_io("disk", &["write -P 1 0 4M", "flush"]);
    // No version is committed as long as nothing can be destaged.
    let (units, away) = (host.path().join("units"), host.path().join("away"));
    fs::rename(&units, &away).expect("renamed");
    let snapshot = host.json(&["snapshot", "create", "disk", "--name", "cut"]);
    assert_eq!(snapshot["state"], "pending", "{snapshot}");
    host.kill();
    fs::rename(&away, &units).expect("renamed");
    host.start();
    let snapshot = &host.json(&["snapshot", "list"])[0];
    assert_eq!(snapshot["state"], "error", "{snapshot}");
    let reason = snapshot["message"]["text"].as_str().expect("a reason");
    assert!(reason.contains("take it again"), "{reason}");
    host.refuses(
        1,
        &["volume", "create", "copy", "--from", "cut"],
        &["take another"],
    );
    host.json(&["snapshot", "delete", "cut"]);
    host.qemu_io("disk", &["read -P 1 0 4M"]);
}

#[test]
fn a_lost_journal_leaves_an_earlier_state_of_the_disk() {
    let mut host = Host::new();
    host.json(&["volume", "create", "disk", "--size", "32M"]);
    host.qemu_io("disk", &["write -P 1 0 4M", "flush"]);
    host.json(&["snapshot", "create", "disk", "--wait"]);
    host.qemu_io("disk", &["write -P 2 0 4M", "flush"]);
    host.kill();
    for journal in fs::read_dir(host.path().join("journal")).expect("a folder") {
        fs::remove_file(journal.expect("an entry").path()).expect("removed");
    }
    host.start();
    let uri = host.json(&["volume", "export", "disk"])["uri"].clone();
    let reads = |pattern: u8| {
        let read = format!("read -P {pattern} 0 4M");
        let output = std::process::Command::new("qemu-io")
            .args(["-f", "raw", "-c", &read, uri.as_str().expect("text")])
            .output()
            .expect("qemu-io is installed");
        output.status.success() && !String::from_utf8_lossy(&output.stdout).contains("failed")
    };
    assert!(reads(1) || reads(2), "a version, never a mixture");
}

#[test]
fn no_plaintext_reaches_a_unit_a_journal_or_the_database() {
    let mut host = Host::new();
    host.json(&["volume", "create", "secret-disk", "--size", "32M"]);
    // Ciphertext does not have sixteen equal bytes in a row.
    host.qemu_io("secret-disk", &["write -P 0x6b 0 6M", "flush"]);
    host.json(&["snapshot", "create", "secret-disk", "--wait"]);
    host.qemu_io("secret-disk", &["write -P 0x6b 8M 2M", "flush"]);
    assert!(!holds(host.path(), &[0x6b; 16]), "while it runs");
    host.kill();
    assert!(!holds(host.path(), &[0x6b; 16]), "after a crash");

    // The search works: it finds the blocks of an unencrypted volume.
    host.start();
    host.json(&[
        "volume",
        "create",
        "open-disk",
        "--size",
        "32M",
        "--encryption",
        "none",
    ]);
    host.qemu_io("open-disk", &["write -P 0x6b 0 1M", "flush"]);
    assert!(holds(host.path(), &[0x6b; 16]));
    assert_eq!(
        host.json(&["volume", "show", "open-disk"])["encryption"],
        json!("none")
    );
}

/// Whether any file below `folder` has `needle` in it.
fn holds(folder: &Path, needle: &[u8]) -> bool {
    fs::read_dir(folder).expect("a folder").any(|entry| {
        let entry = entry.expect("an entry");
        let kind = entry.file_type().expect("known");
        if kind.is_dir() {
            return holds(&entry.path(), needle);
        }
        let mut bytes = Vec::new();
        kind.is_file()
            && fs::OpenOptions::new()
                .read(true)
                .open(entry.path())
                .and_then(|mut file| file.read_to_end(&mut bytes))
                // A file that was removed meanwhile holds nothing.
                .is_ok_and(|_| bytes.windows(needle.len()).any(|window| window == needle))
    })
}

#[test]
fn a_damaged_journal_stops_only_its_own_volume() {
    let mut host = Host::new();
    for name in ["one", "two"] {
        host.json(&["volume", "create", name, "--size", "32M"]);
        host.qemu_io(name, &["write -P 1 0 4M", "flush"]);
        host.json(&["snapshot", "create", name, "--wait"]);
    }
    let id = host.json(&["volume", "show", "one"])["id"].clone();
    let journal = host.path().join("journal").join(id.as_str().expect("text"));
    host.kill();
    let file = fs::OpenOptions::new()
        .write(true)
        .open(&journal)
        .expect("opens");
    std::os::unix::fs::FileExt::write_all_at(&file, &[0x55; 64], 0).expect("written");
    host.start();
    assert_eq!(
        (host.state("one"), host.state("two")),
        ("error".into(), "in-use".into())
    );
    host.qemu_io("two", &["read -P 1 0 4M"]);
    assert_eq!(host.json(&["status"])["state"], json!("degraded"));
    host.refuses(
        1,
        &["volume", "export", "one"],
        &["move it away", "newest version"],
    );
    fs::rename(&journal, host.path().join("damaged")).expect("renamed");
    host.qemu_io("one", &["read -P 1 0 4M"]);
    assert_eq!(host.state("one"), "in-use");
}
