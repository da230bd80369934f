//! A volume that is a replica of another one, by name.

use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::host::{CommandOutput, Host, wait_until};

const CHAIN: &str = "[[filter]]\nkind = 'replicate'\nname = 'copies'\n[[filter.replica]]\nname = 'r'\nvolume = 'b'\n";

fn export(host: &Host, volume: &str) -> String {
    let export = host.json(&["volume", "export", volume]);
    export["uri"].as_str().expect("text").to_owned()
}

fn times_reported(host: &Host, words: &str) -> usize {
    let said = host.run(&["monitor", "disk", "-o", "json"]);
    let lines = said.out.lines().map(serde_json::from_str::<Value>);
    let notes = lines.map(|line| line.expect("JSON")["message"].clone());
    notes
        .filter(|note| note.as_str().is_some_and(|note| note.contains(words)))
        .count()
}

fn wait_for(host: &Host, words: &str, times: usize) {
    wait_until(words, || times_reported(host, words) >= times);
}

/// The content of a disk, once its writes are flushed.
fn content(folder: &TempDir, uri: &str) -> Vec<u8> {
    let file = folder.path().join("content");
    let copied = Command::new("nbdcopy").arg(uri).arg(&file).output();
    let copied = CommandOutput::of(copied.expect("nbdcopy is installed"));
    assert_eq!(copied.code, 0, "{}", copied.error);
    std::fs::read(file).expect("copied")
}

#[test]
fn a_replica_volume_is_known_by_its_id_not_by_its_name() {
    let folder = TempDir::new().expect("a folder");
    let host = Host::with(&["--units", "2"]);
    for name in ["disk", "b"] {
        host.json(&["volume", "create", name, "--size", "16M"]);
    }
    let disk = export(&host, "disk");
    host.qemu_io_at(&disk, &["write -P 1 0 8M", "flush"]);
    let said = host.apply_chain("disk", CHAIN);
    assert_eq!(said.code, 0, "{}", said.error);
    wait_for(&host, "\"b\" is not attached to this host", 1);
    let b = export(&host, "b");
    wait_for(&host, "r is in sync", 1);
    host.qemu_io_at(&disk, &["write -P 2 4M 8M", "flush"]);
    let alike = |b: &str| content(&folder, &disk) == content(&folder, b);
    assert!(alike(&b));

    // It is unavailable for a while.
    host.json(&["volume", "unexport", "b"]);
    host.qemu_io_at(&disk, &["write -P 3 1M 2M", "flush"]);
    wait_for(&host, "replica r is excluded", 2);
    let b = export(&host, "b");
    wait_for(&host, "r is in sync", 2);
    assert!(alike(&b));

    // The next volume of this name has none of its content.
    host.json(&["volume", "unexport", "b"]);
    host.json(&["volume", "delete", "b"]);
    host.json(&["volume", "create", "b", "--size", "16M"]);
    wait_for(
        &host,
        "\"b\" is not one of the tenant's volumes any more",
        1,
    );
    let b = export(&host, "b");
    let said = host.apply_chain("disk", CHAIN);
    assert_eq!(said.code, 0, "{}", said.error);
    wait_for(&host, "r is in sync", 3);
    assert!(alike(&b));
    let chain_loop = host.apply_chain("b", &CHAIN.replace("'b'", "'disk'"));
    assert_eq!(chain_loop.code, 1, "{}", chain_loop.out);
    assert!(chain_loop.error.contains("loop"), "{}", chain_loop.error);
}

#[test]
fn a_volume_grows_in_its_guest_after_its_replica() {
    let folder = TempDir::new().expect("a folder");
    let host = Host::with(&["--units", "2"]);
    for name in ["disk", "b"] {
        host.json(&["volume", "create", name, "--size", "16M"]);
    }
    let (disk, b) = (export(&host, "disk"), export(&host, "b"));
    let said = host.apply_chain("disk", CHAIN);
    assert_eq!(said.code, 0, "{}", said.error);
    wait_for(&host, "r is in sync", 1);
    host.qemu_io_at(&disk, &["write -P 1 0 16M", "flush"]);

    // The chain stays, and is replaced afterwards.
    host.json(&["volume", "grow", "disk", "24M"]);
    let size = |uri: &str| content(&folder, uri).len();
    wait_until("the guest sees it", || size(&disk) == 24 << 20);
    wait_for(&host, "it has 16777216 bytes, and 25165824 are needed", 1);
    host.qemu_io_at(&disk, &["write -P 2 16M 8M", "flush"]);
    host.json(&["volume", "grow", "b", "24M"]);
    wait_for(&host, "r is in sync", 2);
    assert!(content(&folder, &disk) == content(&folder, &b));
    let monitored = format!("[[filter]]\nkind = 'monitor'\n{CHAIN}");
    let said = host.apply_chain("disk", &monitored);
    assert_eq!(said.code, 0, "{}", said.error);
    let reads = ["read -P 1 0 16M", "read -P 2 16M 8M"];
    host.qemu_io_at(&disk, &reads);
}

/// Once the volume was out of sync and only its replica had the last writes: it was detached all
/// the same, and the next host read an older state.
#[test]
fn a_volume_behind_its_replica_is_detached_only_by_force() {
    let mut host = Host::with(&["--units", "2"]);
    for name in ["disk", "b"] {
        host.json(&["volume", "create", name, "--size", "16M"]);
    }
    let failing = format!("{CHAIN}[[filter]]\nkind = 'fault'\nwrite_errors_one_in = 1\n");
    let disk = export(&host, "disk");
    export(&host, "b");
    let said = host.apply_chain("disk", &failing);
    assert_eq!(said.code, 0, "{}", said.error);
    wait_for(&host, "r is in sync", 1);
    host.qemu_io_at(&disk, &["write -P 7 0 1M", "flush"]);
    wait_for(&host, "the volume is excluded", 1);

    let refused = host.run(&["volume", "unexport", "disk"]);
    assert_ne!(refused.code, 0, "{}", refused.out);
    for words in [
        "the volume is missing writes that its replicas have",
        "scree detach VOLUME --force",
    ] {
        assert!(refused.error.contains(words), "{}", refused.error);
    }
    let shown = host.run(&["volume", "show", "disk"]).out;
    assert!(
        shown.contains("the volume is missing writes that its replicas have"),
        "{shown}"
    );
    // It is served as before.
    host.qemu_io_at(&disk, &["read -P 7 0 1M"]);

    // The same after a crash of its host, before the volume is opened.
    host.kill();
    host.start();
    let refused = host.run(&["volume", "unexport", "disk"]);
    assert_ne!(refused.code, 0, "{}", refused.out);
    wait_until("it is reported again", || {
        let shown = host.run(&["volume", "show", "disk"]).out;
        shown.contains("is missing writes that its replicas have")
            || shown.contains("r has the last writes")
    });

    let forced = host.run(&["detach", "disk", "--force"]);
    assert_eq!(forced.code, 0, "{}", forced.error);
    let ended = host
        .run(&["attachment", "list", "--state", "detached", "-o", "json"])
        .out;
    assert!(
        ended.contains("without the last writes through its filters"),
        "{ended}"
    );
}
