//! A journal filter above a slow filter: its acknowledged writes survive every crash.

use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Command;

use crate::host::{CommandOutput, Host, wait_until};

/// Each write below takes as long as on a slow remote machine.
const SLOW: &str = "[[filter]]\nkind = \"fault\"\nname = \"slow\"\ndelays_one_in = 1\ndelay_ms = 30\n\
                    runs = \"process\"\nmemory = \"128M\"\n";

/// With `encrypt` above it, the ring has ciphertext, and is replayed before `encrypt` reads its
/// header.
fn chain(flush: &str) -> String {
    let above = match flush {
        "through" => "",
        _ => "[[filter]]\nkind = \"encrypt\"\nkey = \"disk\"\nformat = \"if-empty\"\n",
    };
    format!(
        "{above}[[filter]]\nkind = \"journal\"\nname = {flush:?}\nsize = \"64M\"\nflush = {flush:?}\n{SLOW}"
    )
}

/// Writes `kib` from the beginning on with fio, in sequential writes of 4 KiB.
fn fio(uri: &str, kib: u64) -> Command {
    let mut command = Command::new("fio");
    command
        .args([
            "--name=w",
            "--ioengine=nbd",
            "--rw=write",
            "--bs=4k",
            "--iodepth=1",
        ])
        .args([
            "--verify=crc32c",
            "--verify_state_save=0",
            "--output-format=json",
        ])
        .arg(format!("--size={kib}k"))
        .arg(format!("--uri={uri}"));
    command
}

/// Whether a journal's ring, in its first round, has at least this many writes of 4 KiB.
fn has_records(folder: &Path, name: &str, count: u64) -> bool {
    let volumes = std::fs::read_dir(folder.join("chains")).expect("listed");
    let mut paths = volumes.map(|volume| {
        let volume = volume.expect("an entry").path();
        volume.join(format!("{name}.journal"))
    });
    paths.any(|path| {
        let mut bytes = [0; 512];
        let at = 8192 + count * (48 + 4096) - 512;
        // Of another volume, or not created yet.
        let Ok(file) = std::fs::File::open(path) else {
            return false;
        };
        file.read_exact_at(&mut bytes, at).is_ok() && bytes != [0; 512]
    })
}

fn is_aside(folder: &Path) -> bool {
    let volumes = std::fs::read_dir(folder.join("chains")).expect("listed");
    let mut files = volumes.flat_map(|volume| {
        let volume = volume.expect("an entry").path();
        std::fs::read_dir(volume).expect("listed")
    });
    files.any(|file| {
        let name = file.expect("an entry").file_name();
        name.to_string_lossy().contains(".aside-")
    })
}

#[test]
fn writes_acknowledged_by_a_journal_filter_survive_kill_9_and_a_detach() {
    let mut host = Host::with(&["--units", "2"]);
    host.filter_key("disk", "a passphrase");
    for flush in ["through", "journal"] {
        // A disk with a header is smaller than its volume.
        let volume = format!("disk-{flush}");
        host.json(&["volume", "create", &volume, "--size", "96M"]);
        let said = host.apply_chain(&volume, &chain(flush));
        assert_eq!(said.code, 0, "{}", said.error);
        let export = host.json(&["volume", "export", &volume]);
        let uri = export["uri"].as_str().expect("text").to_owned();
        let mut writer = fio(&uri, 32 << 10);
        writer.args(["--do_verify=0", "--rate_iops=4000"]);
        let writing = std::thread::spawn(move || writer.output().expect("fio is installed"));
        // Some writes are acknowledged, and most of them are not below yet.
        wait_until("the journal has many writes", || {
            has_records(host.path(), flush, 2000)
        });
        host.kill();
        let json = CommandOutput::of(writing.join().expect("it ends")).of_fio();
        let written = json["jobs"][0]["write"]["total_ios"]
            .as_u64()
            .expect("a number");
        assert!(written > 100, "{written} writes try little");
        host.start();
        assert_eq!(
            host.state(&volume),
            "in-use",
            "it is served again by itself"
        );
        // The last write may not have been acknowledged.
        let verified = |host: &Host, uri: &str| {
            let mut read = fio(uri, (written - 1) * 4);
            let read = read.args(["--verify_only=1", "--iodepth=32"]).output();
            let read = CommandOutput::of(read.expect("fio is installed"));
            assert_eq!(read.code, 0, "{} {}", read.out, read.error);
            assert!(!is_aside(host.path()));
        };
        verified(&host, &uri);
        // Writes that are acknowledged now go below when it is detached.
        host.qemu_io(&volume, &["write -P 7 48M 1M"]);
        host.json(&["volume", "unexport", &volume]);
        // Without the journal, and through the filters above it.
        let above = chain(flush);
        let above = above.split("[[filter]]\nkind = \"journal\"").next();
        match above.filter(|above| !above.is_empty()) {
            Some(encrypt) => assert_eq!(host.apply_chain(&volume, encrypt).code, 0),
            None => drop(host.json(&["chain", "delete", &volume])),
        }
        let export = host.json(&["volume", "export", &volume]);
        let uri = export["uri"].as_str().expect("text").to_owned();
        host.qemu_io(&volume, &["read -P 7 48M 1M"]);
        verified(&host, &uri);
    }
    let status = host.run(&["status"]).out;
    assert!(!status.contains("journal among the filters"), "{status}");
}

/// Once a journal that could not be written below was replayed over its restored volume.
#[test]
fn a_journal_filter_is_not_replayed_over_a_restored_volume() {
    let host = Host::with(&["--units", "2"]);
    host.json(&["volume", "create", "disk", "--size", "64M"]);
    host.qemu_io("disk", &["write -P 1 0 1M"]);
    host.json(&["volume", "unexport", "disk"]);
    let journal = "[[filter]]\nkind = 'journal'\nname = 'fast'\nsize = '8M'\nflush = 'journal'\n";
    let failing = "[[filter]]\nkind = 'fault'\nwrite_errors_one_in = 1\n";
    let said = host.apply_chain("disk", &format!("{journal}{failing}"));
    assert_eq!(said.code, 0, "{}", said.error);
    host.qemu_io("disk", &["write -P 2 0 1M"]);
    let refused = host.run(&["volume", "unexport", "disk"]);
    assert_ne!(refused.code, 0, "{}", refused.out);
    let why = "what the journal fast has acknowledged cannot be carried out";
    assert!(refused.error.contains(why), "{}", refused.error);
    // It is served as before.
    host.qemu_io("disk", &["read -P 2 0 1M"]);
    let forced = host.run(&["detach", "disk", "--force"]);
    assert_eq!(forced.code, 0, "{}", forced.error);
    let ended = host.run(&["attachment", "list", "--state", "detached", "-o", "json"]);
    let note = "is carried out when this host has the volume again";
    assert!(ended.out.contains(note), "{}", ended.out);

    let versions = host.json(&["volume", "versions", "disk"]);
    let newest = versions.as_array().expect("a list").last().expect("some")["version"].to_string();
    host.json(&["volume", "restore", "disk", "--at", &newest]);
    let said = host.apply_chain("disk", journal);
    assert_eq!(said.code, 0, "{}", said.error);
    host.qemu_io("disk", &["read -P 1 0 1M", "write -P 3 1M 1M"]);
    assert!(is_aside(host.path()));
    wait_until("the operator is notified", || {
        let status = host.run(&["status"]).out;
        status.contains("journal among the filters of volume")
    });
    // No other file stays after a filter is removed.
    let said = host.run(&["chain", "delete", "disk"]);
    assert_eq!(said.code, 0, "{}", said.error);
    host.qemu_io("disk", &["read -P 3 1M 1M"]);
    wait_until("the ring is removed", || {
        let volumes = std::fs::read_dir(host.path().join("chains")).expect("listed");
        let mut folders = volumes.map(|volume| volume.expect("an entry").path());
        folders.all(|folder| !folder.join("fast.journal").exists())
    });
    assert!(is_aside(host.path()));
}

#[test]
fn an_operators_limit_on_journals_is_named() {
    let host = Host::with(&["--units", "2", "--filter-journal", "1M"]);
    host.json(&["volume", "create", "disk", "--size", "64M"]);
    host.json(&["volume", "export", "disk"]);
    let said = host.apply_chain("disk", &chain("through"));
    let all = format!("{}{}", said.out, said.error);
    assert!(all.contains("--filter-journal"), "{all}");
    host.qemu_io("disk", &["write -P 1 0 1M", "read -P 1 0 1M"]);
}
