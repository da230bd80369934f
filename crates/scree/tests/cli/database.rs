//! A controller's database: how it is named, and the errors if it is unusable. (Several controllers
//! on one PostgreSQL: tests of `control`.)

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use crate::host::{CommandOutput, Host};

const SCREE: &str = env!("CARGO_BIN_EXE_scree");

/// No server listens there, and no user has the password.
const AWAY: &str = "postgres://scree:hunter2@127.0.0.1:1/disks";

/// The error of a controller that does not start.
fn refused(folder: &Path, arguments: &[&str], environment: Option<&str>) -> CommandOutput {
    let mut command = Command::new(SCREE);
    command
        .args(["controller", "--listen", "127.0.0.1:0", "--dir"])
        .arg(folder)
        .args(arguments)
        .env_remove("SCREE_DATABASE");
    if let Some(url) = environment {
        command.env("SCREE_DATABASE", url);
    }
    let said = CommandOutput::of(command.output().expect("scree runs"));
    assert_eq!(said.code, 1, "{}", said.error);
    assert!(!said.error.contains("hunter2"), "{}", said.error);
    said
}

fn private(path: &Path, text: &str, mode: u32) {
    fs::write(path, text).expect("written");
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("set");
}

#[test]
fn an_unresponsive_database_is_named_without_its_password() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("url");
    private(&file, &format!("{AWAY}\n"), 0o600);
    let dir = folder.path().join("c");
    let file = file.to_str().expect("UTF-8");
    for (arguments, environment) in [
        (&["--database", AWAY][..], None),
        (&["--database-file", file], None),
        // The option takes precedence over the environment.
        (&["--database-file", file], Some("no URL")),
        (&[], Some(AWAY)),
    ] {
        let said = refused(&dir, arguments, environment);
        assert!(said.error.contains("does not answer"), "{}", said.error);
        assert!(
            !dir.join("scree.db").exists(),
            "nothing else is served instead"
        );
    }
    let warned = refused(&dir, &["--database", AWAY], None);
    assert!(warned.error.contains("--database-file"), "{}", warned.error);
}

#[test]
fn a_database_file_is_private_and_has_one_url() {
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path().join("c");
    for (name, text, mode, word) in [
        ("open", AWAY, 0o644, "chmod 600"),
        ("empty", "", 0o600, "postgres://"),
        ("other", "mysql://scree:hunter2@h/d", 0o600, "postgres://"),
        (
            "bad",
            "postgres://scree:hunter2@h/d?color=red",
            0o600,
            "unknown parameter",
        ),
    ] {
        let path = folder.path().join(name);
        private(&path, text, mode);
        let said = refused(
            &dir,
            &["--database-file", path.to_str().expect("UTF-8")],
            None,
        );
        assert!(said.error.contains(word), "{name}: {}", said.error);
    }
    let said = refused(&dir, &["--database-file", "/nonexistent/url"], None);
    assert!(said.error.contains("/nonexistent/url"), "{}", said.error);
}

#[test]
fn help_shows_no_values_of_the_environment() {
    let output = Command::new(SCREE)
        .args(["controller", "--help"])
        .env("SCREE_DATABASE", AWAY)
        .output();
    let said = CommandOutput::of(output.expect("scree runs"));
    assert!(said.out.contains("SCREE_DATABASE"), "{}", said.out);
    assert!(!said.out.contains("hunter2"), "{}", said.out);
}

/// The id of a user without files.
const STRANGER: &str = "65534";

/// Root can write every file, so another user starts it then.
#[test]
fn a_read_only_database_is_reported_as_such() {
    let mut host = Host::with(&["--units", "1"]);
    assert_eq!(host.stop(), 0);
    let database = host.path().join("scree.db");
    fs::set_permissions(&database, fs::Permissions::from_mode(0o400)).expect("set");
    // Other users may not be able to enter the build folder.
    let program = host.path().join("units/scree");
    fs::copy(SCREE, &program).expect("copied");
    let id = Command::new("id").arg("-u").output().expect("id runs");
    let is_root = String::from_utf8_lossy(&id.stdout).trim() == "0";
    let mut command = Command::new(if is_root {
        Path::new("setpriv")
    } else {
        &program
    });
    if is_root {
        let owner = format!("{STRANGER}:{STRANGER}");
        let mut chown = Command::new("chown");
        let changed = chown.args(["-R", &owner]).arg(host.path()).status();
        assert!(changed.expect("chown runs").success());
        command.args([
            "--reuid",
            STRANGER,
            "--regid",
            STRANGER,
            "--clear-groups",
            "--",
        ]);
        command.arg(&program);
    }
    let output = command.args(["up", "--dir"]).arg(host.path()).output();
    let said = CommandOutput::of(output.expect("it runs"));
    assert_eq!(said.code, 1, "{}", said.error);
    assert!(said.error.contains("is read-only"), "{}", said.error);
    fs::set_permissions(&database, fs::Permissions::from_mode(0o600)).expect("set");
    if is_root {
        host.start();
    }
}
