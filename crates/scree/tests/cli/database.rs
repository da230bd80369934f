//! A controller's database: how it is named, and what is said when it cannot be
//! used. (What several controllers do on a PostgreSQL, `control` tests.)

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use crate::host::{CommandOutput, Host};

const SCREE: &str = env!("CARGO_BIN_EXE_scree");

/// Nobody listens there, and the password is nobody's.
const AWAY: &str = "postgres://scree:hunter2@127.0.0.1:1/disks";

/// What a controller says that does not start.
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
fn a_database_that_does_not_answer_is_named_without_its_password() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("url");
    private(&file, &format!("{AWAY}\n"), 0o600);
    let dir = folder.path().join("c");
    let file = file.to_str().expect("UTF-8");
    for (arguments, environment) in [
        (&["--database", AWAY][..], None),
        (&["--database-file", file], None),
        // What is said counts more than the environment.
        (&["--database-file", file], Some("nonsense")),
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
fn a_file_with_the_databases_url_is_private_and_holds_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path().join("c");
    for (name, text, mode, word) in [
        ("open", AWAY, 0o644, "chmod 600"),
        ("empty", "", 0o600, "postgres://"),
        ("other", "mysql://scree:hunter2@h/d", 0o600, "postgres://"),
        (
            "bad",
            "postgres://scree:hunter2@h/d?colour=red",
            0o600,
            "parameters",
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
fn help_does_not_show_what_the_environment_holds() {
    let output = Command::new(SCREE)
        .args(["controller", "--help"])
        .env("SCREE_DATABASE", AWAY)
        .output();
    let said = CommandOutput::of(output.expect("scree runs"));
    assert!(said.out.contains("SCREE_DATABASE"), "{}", said.out);
    assert!(!said.out.contains("hunter2"), "{}", said.out);
}

/// The number of a user who owns nothing.
const NOBODY: &str = "65534";

/// For root every file can be written, so another user starts it then.
#[test]
fn a_database_that_cannot_be_written_is_named_as_that() {
    let mut host = Host::with(&["--units", "1"]);
    assert_eq!(host.stop(), 0);
    let database = host.path().join("scree.db");
    fs::set_permissions(&database, fs::Permissions::from_mode(0o400)).expect("set");
    // Wherever the build lies, others may not enter.
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
        let owner = format!("{NOBODY}:{NOBODY}");
        let mut give = Command::new("chown");
        let given = give.args(["-R", &owner]).arg(host.path()).status();
        assert!(given.expect("chown runs").success());
        command.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", "--"]);
        command.arg(&program);
    }
    let output = command.args(["up", "--dir"]).arg(host.path()).output();
    let said = CommandOutput::of(output.expect("it runs"));
    assert_eq!(said.code, 1, "{}", said.error);
    assert!(said.error.contains("takes no changes"), "{}", said.error);
    fs::set_permissions(&database, fs::Permissions::from_mode(0o600)).expect("set");
    if is_root {
        host.start();
    }
}
