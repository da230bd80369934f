//! Wrapping keys.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::Stdio;

use serde_json::Value;

use crate::host::{Host, wait_until};

fn write_private(path: &Path, text: &str) {
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
        .expect("opens");
    file.write_all(text.as_bytes()).expect("written");
}

#[test]
fn the_key_file_is_private_and_required() {
    let mut host = Host::new();
    host.json(&["volume", "create", "disk", "--size", "8M"]);
    host.qemu_io("disk", &["write -P 9 0 1M"]);
    assert_eq!(host.stop(), 0);
    let key = host.path().join("keys/master.key");
    assert_eq!(
        fs::metadata(&key).expect("it exists").permissions().mode() & 0o777,
        0o600
    );

    fs::set_permissions(&key, fs::Permissions::from_mode(0o640)).expect("set");
    assert!(host.refused_start().error.contains("chmod 600"));
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("set");

    let away = host.path().join("away.key");
    fs::rename(&key, &away).expect("renamed");
    assert!(host.refused_start().error.contains("backup"));
    assert!(!key.exists(), "no other key is made in its place");

    write_private(&key, &format!("{}\n", "0123456789abcdef".repeat(4)));
    assert!(host.refused_start().error.contains("not the key file"));
    write_private(&key, "not a key");
    assert!(host.refused_start().error.contains("64 hex digits"));

    fs::rename(&away, &key).expect("renamed");
    host.start();
    host.qemu_io("disk", &["read -P 9 0 1M"]);
}

#[test]
fn a_passphrase_works_and_a_wrong_one_is_reported() {
    let passphrases = tempfile::tempdir().expect("a folder");
    let path = passphrases.path().join("phrase");
    write_private(&path, "correct horse\n");
    let mut host = Host::with(&["--passphrase-file", path.to_str().expect("UTF-8")]);
    host.json(&["volume", "create", "disk", "--size", "8M"]);
    host.qemu_io("disk", &["write -P 9 0 1M"]);
    assert!(!host.path().join("keys/master.key").exists());
    assert_eq!(host.stop(), 0);
    write_private(&path, "battery staple\n");
    assert!(host.refused_start().error.contains("not the passphrase"));
    write_private(&path, "\n");
    assert!(host.refused_start().error.contains("empty"));
    write_private(&path, "correct horse");
    host.start();
    host.qemu_io("disk", &["read -P 9 0 1M"]);
    assert_eq!(host.stop(), 0);

    // The passphrase comes from the environment; a key file does not open it.
    let mut by_file = std::process::Command::new(env!("CARGO_BIN_EXE_scree"));
    by_file
        .args(["up", "--dir"])
        .arg(host.path())
        .env_remove("SCREE_PASSPHRASE");
    let said = by_file.stdout(Stdio::null()).output().expect("runs");
    assert!(String::from_utf8_lossy(&said.stderr).contains("was created from a passphrase"));
}

/// The row of a wrapping key in the list.
fn shown(host: &Host, name: &str) -> Value {
    let keys = host.json(&["key", "list"]);
    let mut keys = keys.as_array().expect("a list").iter();
    let key = keys.find(|key| key["name"] == name);
    key.unwrap_or_else(|| panic!("{name} is not listed"))
        .clone()
}

#[test]
fn a_rotation_completes_through_any_number_of_kills() {
    let mut host = Host::new();
    let names = ["a", "b", "c"];
    for name in names {
        host.json(&["volume", "create", name, "--size", "8M"]);
        host.qemu_io(name, &["write -P 9 0 1M"]);
        host.json(&["volume", "unexport", name]);
    }
    let keys = host.path().join("keys");
    host.refuses(1, &["key", "add", "new"], &["[keys.new]", "keys.toml"]);
    write_private(
        &keys.join("keys.toml"),
        "[keys.new]\nkind = \"passphrase\"\npath = \"new.phrase\"\n",
    );
    host.refuses(1, &["key", "add", "new"], &["new.phrase"]);
    write_private(&keys.join("new.phrase"), "correct horse\n");
    let added = host.json(&["key", "add", "new"]);
    assert_eq!(
        (&added["kind"], &added["state"]),
        (&"passphrase".into(), &"active".into())
    );
    host.refuses(1, &["key", "add", "new"], &["already exists"]);
    host.refuses(1, &["key", "add", "No Name"], &["is not a name"]);
    host.refuses(1, &["key", "rotate", "old", "new"], &["scree key list"]);
    host.refuses(
        1,
        &["key", "rotate", "main", "main"],
        &["cannot replace itself"],
    );
    host.refuses(1, &["key", "delete", "main"], &["scree key rotate main"]);

    host.json(&["key", "rotate", "main", "new"]);
    host.kill();
    host.start();
    wait_until("main wraps nothing", || {
        shown(&host, "main")["state"] == "retired"
    });
    assert_eq!(shown(&host, "main")["lineages"], 0);
    assert_eq!(shown(&host, "new")["lineages"], 3);
    assert_eq!(host.stop(), 0);
    fs::remove_file(keys.join("master.key")).expect("it exists");
    host.start();
    for name in names {
        host.qemu_io(name, &["read -P 9 0 1M"]);
    }
    assert_eq!(host.json(&["status"])["state"], "ok");
    host.json(&["key", "delete", "main"]);
    host.refuses(1, &["key", "show", "main"], &["scree key list"]);
    assert_eq!(
        host.json(&["key", "list"]).as_array().map(Vec::len),
        Some(1)
    );

    // The same key under another name is refused: it would protect nothing.
    let text = fs::read_to_string(keys.join("keys.toml")).expect("text")
        + "[keys.one]\nkind = \"file\"\npath = \"one.key\"\n"
        + "[keys.two]\nkind = \"file\"\npath = \"one.key\"\n";
    write_private(&keys.join("keys.toml"), &text);
    host.json(&["key", "add", "one"]);
    host.refuses(1, &["key", "add", "two"], &["the same key", "\"one\""]);
    let done = host.json(&["key", "rotate", "new", "one", "--wait"]);
    assert_eq!(done["state"], "retired");
    host.qemu_io("a", &["read -P 9 0 1M"]);
}
