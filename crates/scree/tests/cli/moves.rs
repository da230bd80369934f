//! A volume is moved between two hosts, while agents and the controller are killed.

use std::process::Command;

use crate::host::wait_until;
use crate::service::{Process, Site, qemu_io};

/// Starts a second host with the first one's wrapping key; the units are folders of this machine.
pub fn second_host(site: &Site) -> Process {
    let invited = site.locally(&["host", "add", "h2"]);
    assert_eq!(site.join_host_in("b", &invited).code, 0);
    let copied = Command::new("cp")
        .args(["-a", &site.text("a/keys"), &site.text("b")])
        .status();
    assert!(copied.expect("cp runs").success());
    site.agent_in("b")
}

/// The id, host and state of the only attachment.
fn attached(site: &Site) -> [String; 3] {
    let all = site.locally(&["attachment", "list"]);
    let all = all.as_array().expect("a list");
    assert_eq!(all.len(), 1, "{all:?}");
    ["id", "host", "state"].map(|field| all[0][field].as_str().expect("text").to_owned())
}

fn is_on(site: &Site, host: &str) -> bool {
    let [_, at, state] = attached(site);
    at == host && state == "attached"
}

#[test]
fn a_move_loses_nothing_when_agents_and_controller_are_killed() {
    let (site, mut controller) = Site::new();
    let invited = site.locally(&["host", "add", "h1"]);
    assert_eq!(site.join_host(&invited).code, 0);
    let mut first = site.agent();
    site.locally(&["volume", "create", "disk", "--size", "64M"]);
    site.locally(&["volume", "export", "disk"]);
    let (a, b) = (site.path("a"), site.path("b"));
    assert!(qemu_io(
        &a,
        "disk",
        &["write -P 7 0 1M", "flush", "write -P 8 1M 1M"]
    ));
    let mut second = second_host(&site);

    let [id, ..] = attached(&site);
    let moved = site.locally(&["attachment", "move", &id, "--host", "h2"]);
    assert_eq!(
        (&moved["host"], &moved["state"]),
        (&"h2".into(), &"attached".into())
    );
    assert!(qemu_io(
        &b,
        "disk",
        &[
            "read -P 7 0 1M",
            "read -P 8 1M 1M",
            "write -P 9 0 1M",
            "flush"
        ]
    ));
    assert!(!qemu_io(&a, "disk", &["read 0 4k"]), "h1 has let go");

    // Back again: the agent is dead when the move is requested, and so is the controller soon
    // after.
    second.kill();
    let [id, ..] = attached(&site);
    let requested = site.locally(&["attachment", "move", &id, "--host", "h1", "--no-wait"]);
    assert_eq!(requested["successor"]["host"], "h1");
    controller.kill();
    let controller = site.controller();
    let refused = site.try_scree(&["--dir", &site.text("c"), "volume", "delete", "disk"]);
    assert_ne!(refused.code, 0, "something follows");
    let mut second = site.agent_in("b");
    wait_until("h1 has it", || is_on(&site, "h1"));
    assert!(qemu_io(&a, "disk", &["read -P 9 0 1M", "read -P 8 1M 1M"]));

    // Canceled.
    first.kill();
    let [id, ..] = attached(&site);
    site.locally(&["attachment", "move", &id, "--host", "h2", "--no-wait"]);
    site.locally(&["attachment", "move", &id, "--cancel", "--no-wait"]);
    let first = site.agent();
    wait_until("h1 has it again", || is_on(&site, "h1"));
    assert!(qemu_io(&a, "disk", &["read -P 9 0 1M"]));
    second.kill();
    first.stop();
    controller.stop();
}
