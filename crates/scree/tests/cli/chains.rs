//! Chains: applied, reconfigured while a disk is in use, refused, and restored after a restart.

use std::process::{Command, Stdio};

use crate::host::{CommandOutput, Host};

fn uri(host: &Host, volume: &str) -> String {
    let export = host.json(&["volume", "export", volume]);
    export["uri"].as_str().expect("text").to_owned()
}

/// Whether qemu-io's commands succeed.
fn succeeds(uri: &str, commands: &[&str]) -> bool {
    let mut qemu = Command::new("qemu-io");
    qemu.args(["-f", "raw", uri]);
    for command in commands {
        qemu.args(["-c", command]);
    }
    let said = CommandOutput::of(qemu.output().expect("qemu-io is installed"));
    said.code == 0 && !said.out.contains("failed") && !said.error.contains("error")
}

const SLOW: &str = "[[filter]]\nkind = \"fault\"\ndelays_one_in = 3\ndelay_ms = 2\n";
const LIMITED: &str = "[[filter]]\nkind = \"rate\"\niops = 1000000\n";
const BOTH: &str = "[[filter]]\nkind = \"rate\"\niops = 1000000\n[[filter]]\nkind = \"fault\"\n";

#[test]
fn live_reconfiguration_under_writes_loses_no_request() {
    let host = Host::with(&["--units", "2"]);
    host.json(&["volume", "create", "disk", "--size", "32M"]);
    let uri = uri(&host, "disk");
    let mut fio = Command::new("fio")
        .args(["--name=w", "--ioengine=nbd", "--rw=randwrite", "--bs=4k"])
        .args(["--size=32M", "--io_size=96M", "--iodepth=16"])
        .args(["--verify=crc32c", "--verify_backlog=256", "--fsync=64"])
        .args(["--verify_state_save=0"])
        .arg(format!("--uri={uri}"))
        .stdout(Stdio::piped())
        .spawn()
        .expect("fio is installed");
    let mut exchanges = 0;
    while fio.try_wait().expect("its state").is_none() || exchanges < 6 {
        let filters = [SLOW, LIMITED, BOTH][exchanges % 3];
        let said = host.apply_chain("disk", filters);
        assert_eq!(said.code, 0, "{}", said.error);
        exchanges += 1;
        if exchanges % 4 == 0 {
            host.json(&["chain", "delete", "disk"]);
        }
    }
    let fio = CommandOutput::of(fio.wait_with_output().expect("it ends"));
    assert_eq!(
        fio.code, 0,
        "{exchanges} exchanges: {} {}",
        fio.out, fio.error
    );
}

#[test]
fn a_chain_applies_before_any_client_connects() {
    let mut host = Host::with(&["--units", "2"]);
    host.json(&["volume", "create", "disk", "--size", "8M"]);
    let uri = uri(&host, "disk");
    assert!(succeeds(&uri, &["write -P 7 0 64k", "flush"]));
    let said = host.apply_chain(
        "disk",
        "[[filter]]\nkind = \"fault\"\nread_errors_one_in = 1\n",
    );
    assert_eq!(said.code, 0, "{}", said.error);
    assert!(
        said.out.contains("served through revision 1"),
        "{}",
        said.out
    );
    assert!(!succeeds(&uri, &["read 0 4k"]));
    assert!(succeeds(&uri, &["write -P 8 4k 4k"]));

    host.stop();
    host.start();
    assert!(!succeeds(&uri, &["read 0 4k"]), "also after a restart");
    let shown = host.json(&["chain", "show", "disk"]);
    assert_eq!(shown["attachments"][0]["revision"], 1, "{shown}");
    let listed = host.json(&["chain", "list"]);
    assert_eq!(listed[0]["filters"][0]["kind"], "fault", "{listed}");

    // The served disk continues without the chain, and so does a client.
    host.json(&["chain", "delete", "disk"]);
    let whole = ["read -P 7 0 4k", "read -P 8 4k 4k", "read -P 7 8k 56k"];
    crate::host::wait_until("the filters are removed", || succeeds(&uri, &whole));
    host.refuses(1, &["chain", "show", "disk"], &["has no chain"]);
}

#[test]
fn an_invalid_policy_changes_nothing() {
    let host = Host::with(&["--units", "2"]);
    host.json(&["volume", "create", "disk", "--size", "8M"]);
    assert_eq!(host.apply_chain("disk", LIMITED).code, 0);
    let before = host.json(&["chain", "show", "disk"]);
    for (volume, filters, word) in [
        (
            "disk",
            "[[filter]]\nkind = \"turbo\"\n",
            "unknown kind \"turbo\"",
        ),
        ("disk", "[[filter]\n", "TOML parse error"),
        ("disk", "", "delete the chain"),
        ("disc", LIMITED, "does not exist"),
        (
            "disk",
            "vm = \"web\"\n[[filter]]\nkind = \"fault\"\n",
            "is not the address of a VM",
        ),
    ] {
        let said = host.apply_chain(volume, filters);
        assert!(
            said.code == 1 && said.error.contains(word),
            "{filters}: {}",
            said.error
        );
    }
    let missing = host.run(&["chain", "apply", "/nowhere.toml"]);
    assert!(missing.code == 1 && missing.error.contains("/nowhere.toml"));
    let tried = host.path().join("policy.toml");
    std::fs::write(&tried, format!("volume = \"disk\"\n{BOTH}")).expect("written");
    let tried = tried.to_str().expect("text");
    assert_eq!(host.run(&["chain", "apply", tried, "--dry-run"]).code, 0);
    assert_eq!(host.json(&["chain", "show", "disk"]), before);
}
