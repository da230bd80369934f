//! A monitor filter on the disk of a real guest: each step of a trojan that installs itself is
//! reported (the case study of StorM).

use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::guest::Guest;
use crate::host::{Host, wait_until};

/// Creates an ext4 file system with a few folders, in `folder`.
fn file_system(folder: &Path) -> String {
    let tree = folder.join("tree");
    for part in ["bin", "etc/init.d", "home/data", "var/log"] {
        std::fs::create_dir_all(tree.join(part)).expect("made");
    }
    std::fs::write(tree.join("bin/ls"), vec![7; 40_000]).expect("written");
    std::fs::write(tree.join("etc/passwd"), "root:x:0:0\n").expect("written");
    std::fs::write(tree.join("var/log/auth"), vec![b'a'; 9000]).expect("written");
    let image = folder.join("image");
    let made = Command::new("mke2fs")
        .env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin")
        .args(["-q", "-t", "ext4", "-d"])
        .arg(&tree)
        .arg(&image)
        .arg("64M")
        .status();
    assert!(made.expect("e2fsprogs is installed").success());
    image.to_str().expect("text").to_owned()
}

fn events(host: &Host, volume: &str) -> Vec<Value> {
    let said = host.run(&["monitor", volume, "-o", "json"]);
    assert_eq!(said.code, 0, "{}", said.error);
    let lines = said.out.lines().map(serde_json::from_str);
    lines.collect::<Result<_, _>>().expect("each line is JSON")
}

/// The changes of names, owners and modes, as `operation path`.
fn steps(events: &[Value]) -> Vec<String> {
    let is_step = |event: &&Value| {
        let operation = event["operation"].as_str().unwrap_or_default();
        !["", "read", "write", "open"].contains(&operation)
    };
    let step = |event: &Value| {
        let path = event["path"].as_str().unwrap_or("?");
        let operation = event["operation"].as_str().expect("it is one");
        match event["to"].as_str() {
            Some(to) => format!("{operation} {path} {to}"),
            None => format!("{operation} {path}"),
        }
    };
    events.iter().filter(is_step).map(step).collect()
}

#[test]
fn each_step_of_a_trojan_in_a_guest_is_reported() {
    let folder = TempDir::new().expect("a folder");
    let image = file_system(folder.path());
    let host = Host::with(&["--units", "2"]);
    host.json(&["volume", "create", "disk", "--size", "64M"]);
    let export = host.json(&["volume", "export", "disk"]);
    let copied = Command::new("nbdcopy")
        .args([&image, export["uri"].as_str().expect("text")])
        .status();
    assert!(copied.expect("libnbd-bin is installed").success());
    host.json(&["volume", "unexport", "disk"]);
    let policy = folder.path().join("policy.toml");
    let text = "volume = 'disk'\n[[filter]]\nkind = 'monitor'\nname = 'watch'\n\
                [[filter.rule]]\nname = 'programs'\npaths = ['/bin/**', '/etc/init.d/**']\n\
                operations = ['create', 'rename', 'write']\naction = 'alert'\n";
    std::fs::write(&policy, text).expect("written");
    host.json(&["chain", "apply", policy.to_str().expect("text")]);

    let mut guest = Guest::boot();
    guest.wait_for_boot();
    let attached = host.json(&["attach", "disk", "--vm", &guest.address()]);
    assert_eq!(attached["chain_revision"], 1, "{attached}");
    let serial = attached["device"].as_str().expect("text").to_owned();
    guest.does(&format!(
        "mkdir /m; mount -t ext4 $(disk {serial}) /m && sync"
    ));
    for step in [
        "cp /bin/busybox /m/home/data/payload && sync",
        "mkdir /m/bin/.hidden && sync",
        "mv /m/home/data/payload /m/bin/.hidden/ls && sync",
        "ln /m/bin/.hidden/ls /m/bin/ps && sync",
        "chmod 4755 /m/bin/.hidden/ls && sync",
        "echo ls >/m/etc/init.d/S99x && sync",
        "mv /m/bin/.hidden/ls /m/bin/ls && sync",
        "chown 1000:1000 /m/etc/passwd && sync",
        "rm /m/var/log/auth && sync",
    ] {
        guest.does(step);
    }
    let mut heard = Vec::new();
    wait_until("the last step is reported", || {
        heard = events(&host, "disk");
        steps(&heard).contains(&"delete /var/log/auth".to_owned())
    });
    let expected = [
        "create /home/data/payload",
        "mkdir /bin/.hidden",
        "rename /home/data/payload /bin/.hidden/ls",
        "link /bin/ps",
        "chmod /bin/.hidden/ls",
        "create /etc/init.d/S99x",
        "rename /bin/.hidden/ls /bin/ls",
        "delete /bin/ls",
        "chown /etc/passwd",
        "delete /var/log/auth",
    ];
    let mut reported = steps(&heard);
    // A rename and the removal of the replaced file may be reported in any order.
    reported.sort_by_key(|step| expected.iter().position(|one| one == step));
    assert_eq!(reported, expected, "{heard:#?}");
    let written = heard
        .iter()
        .find(|event| event["operation"] == "write" && event["path"] == "/home/data/payload");
    let written = written.expect("its content is reported");
    assert_eq!(written["vm"], guest.address().as_str());
    assert!(written["length"].as_u64() > Some(100_000), "{written}");
    let alerts = heard.iter().filter(|event| event["rule"] == "programs");
    assert!(alerts.count() >= 3, "{heard:#?}");

    // The text output has the same events.
    let text = host.run(&["monitor", "disk"]);
    assert!(
        text.out.contains("ALERT (programs)") && text.out.contains("/bin/ls"),
        "{}",
        text.out
    );
    host.json(&["chain", "delete", "disk"]);
    guest.does("echo more >/m/etc/more && sync && umount /m");
}
