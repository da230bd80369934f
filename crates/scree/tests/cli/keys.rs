//! The key that wraps all others.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::Stdio;

use crate::host::Host;

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
fn the_key_file_is_private_and_needed() {
    let mut host = Host::new();
    host.json(&["volume", "create", "disk", "--size", "8M"]);
    host.qemu_io("disk", &["write -P 9 0 1M"]);
    assert_eq!(host.stop(), 0);
    let key = host.path().join("keys/master.key");
    assert_eq!(
        fs::metadata(&key).expect("there").permissions().mode() & 0o777,
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
fn a_passphrase_does_as_well_and_a_wrong_one_is_told() {
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

    // By the environment; and not by a key file.
    let mut by_file = std::process::Command::new(env!("CARGO_BIN_EXE_scree"));
    by_file
        .args(["up", "--dir"])
        .arg(host.path())
        .env_remove("SCREE_PASSPHRASE");
    let said = by_file.stdout(Stdio::null()).output().expect("runs");
    assert!(String::from_utf8_lossy(&said.stderr).contains("made with a passphrase"));
}
