//! Bad input is refused with a clear error, and nothing changes.

use std::fs;
use std::io;
use std::process::Stdio;

use crate::host::{Host, scree};

#[test]
fn usage_errors_have_exit_code_2() {
    for arguments in [
        &["no-such-noun"][..],
        &["volume"],
        &["volume", "no-such-verb"],
        &["volume", "create"],
        &["--dir", "/tmp", "volume", "create", "disk"],
        &[
            "--dir", "/tmp", "volume", "create", "disk", "--size", "lots",
        ],
        &[
            "--dir",
            "/tmp",
            "volume",
            "create",
            "disk",
            "--size",
            "1G",
            "--encryption",
            "rot13",
        ],
        &[
            "--dir",
            "/tmp",
            "volume",
            "create",
            "disk",
            "--size",
            "1G",
            "--replicas",
            "5",
        ],
        &[
            "--dir",
            "/tmp",
            "volume",
            "restore",
            "disk",
            "--at",
            "yesterday",
        ],
        &["volume", "list"],
        &["up"],
        &["--dir", "/tmp/new", "up", "--listen-nbd", "localhost:1"],
        // Commands without a dry run refuse --dry-run.
        &["--dir", "/tmp/new", "up", "--dry-run"],
        &["login", "https://localhost:1", "--token", "x", "--dry-run"],
        &["--dir", "/tmp/new", "agent", "--idempotency-key", "k"],
        &["--dry-run", "volume", "list"],
        &["--dir", "/tmp/new", "volume", "list", "--dry-run"],
        &[
            "--dir",
            "/tmp/new",
            "unit",
            "--listen",
            "127.0.0.1:0",
            "--dry-run",
        ],
        &[
            "unit",
            "join",
            "https://localhost:1",
            "--token",
            "x",
            "--authority",
            "y",
            "--dry-run",
        ],
        // Neither a verb nor a daemon, or both.
        &["--dir", "/tmp/new", "unit"],
        &["--dir", "/tmp/new", "unit", "--address", "10.0.0.1:7070"],
        &["unit", "--listen", "127.0.0.1:0", "list"],
        &["unit", "--listen-metrics", "127.0.0.1:0", "list"],
    ] {
        let said = scree(arguments);
        assert_eq!(said.code, 2, "{arguments:?} said {}", said.error);
        assert!(!said.error.is_empty(), "{arguments:?}");
    }
    for (folder, word) in [
        ("/nonexistent", "scree up --dir"),
        ("/etc/passwd", "is not a folder"),
    ] {
        let said = scree(&["--dir", folder, "volume", "list"]);
        assert_eq!(said.code, 1);
        assert!(said.error.contains(word), "{}", said.error);
    }
    let said = scree(&["--dir", "/tmp/new", "up", "--listen-nbd", "localhost:1"]);
    assert!(said.error.contains("an IP address"), "{}", said.error);
}

#[test]
fn impossible_volumes_are_refused() {
    let host = Host::with(&["--units", "3"]);
    host.json(&["volume", "create", "disk", "--size", "1G"]);
    let create = |name: &'static str, more: &[&'static str]| {
        [&["volume", "create", name][..], more].concat()
    };
    let refuses = |arguments: Vec<&str>, words: &[&str]| host.refuses(1, &arguments, words);
    refuses(create("disk", &["--size", "1G"]), &["already exists"]);
    refuses(create("a", &["--size", "0"]), &["less than one block"]);
    refuses(
        create("a", &["--size", "4097"]),
        &["multiple of the block size", "8K"],
    );
    refuses(
        create("a", &["--size", "12K", "--block-size", "8K"]),
        &["multiple"],
    );
    refuses(create("a", &["--size", "65T"]), &["at most 64T"]);
    refuses(
        create("a", &["--size", "1G", "--block-size", "5K"]),
        &["64K"],
    );
    refuses(
        create("a", &["--size", "1G", "--replicas", "4"]),
        &["unit add"],
    );
    refuses(create("a", &["--from", "nothing"]), &["snapshot list"]);
    for name in [
        "",
        "A",
        "a b",
        "a/b",
        "../a",
        "-",
        "ä",
        "vol-00000000000000001",
    ] {
        host.refuses(
            1,
            &["volume", "create", "--size", "1G", "--", name],
            &["name"],
        );
    }
    let long = "a".repeat(64);
    host.refuses(1, &["volume", "create", &long, "--size", "1G"], &["63"]);
}

#[test]
fn unknown_names_and_wrong_states_are_refused() {
    let host = Host::new();
    host.json(&["volume", "create", "disk", "--size", "1G"]);
    for verb in ["show", "delete", "versions", "export", "unexport"] {
        host.refuses(
            1,
            &["volume", verb, "nothing"],
            &["does not exist", "volume list"],
        );
        host.refuses(1, &["volume", verb, "../units"], &["does not exist"]);
    }
    host.refuses(1, &["volume", "grow", "nothing", "2G"], &["does not exist"]);
    host.refuses(1, &["volume", "grow", "disk", "1G"], &["larger"]);
    host.refuses(1, &["volume", "grow", "disk", "1025"], &["at least 4K"]);
    host.refuses(1, &["volume", "grow", "disk", "65T"], &["64T"]);
    host.refuses(1, &["volume", "unexport", "disk"], &["not exported"]);
    host.refuses(1, &["snapshot", "create", "nothing"], &["does not exist"]);
    host.refuses(1, &["snapshot", "delete", "nothing"], &["snapshot list"]);
    host.json(&["snapshot", "create", "disk", "--name", "moment"]);
    host.refuses(
        1,
        &["snapshot", "create", "disk", "--name", "moment"],
        &["already exists"],
    );
    host.refuses(
        1,
        &["snapshot", "create", "disk", "--name", "No Name"],
        &["lowercase letters"],
    );
    let from = |more: &[&'static str]| {
        let clone = ["volume", "create", "copy", "--from", "moment"];
        host.refuses(1, &[&clone[..], more].concat(), &["moment"]);
    };
    from(&["--size", "512M"]);
    from(&["--block-size", "8K"]);
    from(&["--encryption", "none"]);
    host.json(&["volume", "export", "disk"]);
    host.refuses(1, &["volume", "delete", "disk"], &["unexport"]);
    host.refuses(
        1,
        &["volume", "restore", "disk", "--at", "1"],
        &["unexport"],
    );
}

#[test]
fn a_journal_is_neither_too_small_nor_too_large() {
    for (size, word) in [("7M", "at least 8M"), ("257G", "at most 256G")] {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("new");
        let path = path.to_str().expect("UTF-8");
        let said = scree(&["--dir", path, "up", "--journal-size", size]);
        assert_eq!(said.code, 1, "{}", said.error);
        assert!(said.error.contains(word), "{}", said.error);
        assert!(!folder.path().join("new").exists(), "nothing was created");
    }
}

#[test]
fn a_folder_with_foreign_files_is_refused_and_unchanged() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::File::create(folder.path().join("thesis.tex")).expect("a file");
    let deep = folder.path().join("x".repeat(100));
    let cases = [
        (folder.path().to_owned(), "thesis.tex"),
        (folder.path().join("thesis.tex"), "is not a folder"),
        (folder.path().join("thesis.tex/below"), "is not a folder"),
        (deep, "at most 107"),
    ];
    for (path, word) in cases {
        let path = path.to_str().expect("UTF-8");
        let said = scree(&["--dir", path, "up", "--units", "1"]);
        assert_eq!(said.code, 1, "{}", said.error);
        assert!(said.error.contains(word), "{}", said.error);
    }
    let left = fs::read_dir(folder.path()).expect("it exists").count();
    assert_eq!(left, 1, "nothing was created");
}

#[test]
fn a_failed_start_names_its_cause() {
    let host = Host::idle(&["--units", "1"]);
    fs::create_dir_all(host.unit(1)).expect("a folder");
    fs::File::create(host.unit(1).join("thesis.tex")).expect("a file");
    let said = host.refused_start();
    assert!(
        said.error.contains("cannot create a unit: ") && said.error.contains("thesis.tex"),
        "{}",
        said.error
    );
}

#[test]
fn unusable_tls_files_are_named_with_the_cause() {
    let host = Host::idle(&["--listen-nbd", "127.0.0.1:0"]);
    let file = |name: &str| host.path().join(name);
    let refused = || {
        let mut command = host.up_command();
        for (option, name) in [("ca", "ca.pem"), ("cert", "cert.pem"), ("key", "key.pem")] {
            command.arg(format!("--nbd-tls-{option}")).arg(file(name));
        }
        let output = command.stderr(Stdio::piped()).output().expect("runs");
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).expect("UTF-8")
    };
    let said = refused();
    assert!(
        said.contains("ca.pem") && said.contains("No such file"),
        "{said}"
    );
    let mode = |name: &str, mode: u32| {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        fs::set_permissions(file(name), mode).expect("set");
    };
    for name in ["ca.pem", "cert.pem", "key.pem"] {
        let broken = "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n";
        fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(file(name))
            .and_then(|mut new| io::Write::write_all(&mut new, broken.as_bytes()))
            .expect("written");
    }
    mode("key.pem", 0o640);
    let said = refused();
    assert!(
        said.contains("key.pem can be read by other users (mode 640)"),
        "{said}"
    );
    mode("key.pem", 0o600);
    let said = refused();
    assert!(
        said.contains("ca.pem: the client authority is not valid PEM: ") && said.contains("base64"),
        "{said}"
    );
}

#[test]
fn a_data_directory_has_one_process() {
    let host = Host::new();
    let said = host.refused_start();
    assert!(said.error.contains("another `scree up`"), "{}", said.error);
    assert_eq!(host.run(&["status"]).code, 0, "the first one continues");
}

#[test]
fn a_damaged_database_is_refused_and_unchanged() {
    let mut host = Host::new();
    assert_eq!(host.stop(), 0);
    let path = host.path().join("scree.db");
    let length = fs::metadata(&path).expect("it exists").len();
    let file = fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .expect("opens");
    std::os::unix::fs::FileExt::write_all_at(&file, &[0x55; 4096], 0).expect("written");
    let said = host.refused_start();
    assert!(
        said.error.contains("damaged") && said.error.contains("backup"),
        "{}",
        said.error
    );
    assert_eq!(fs::metadata(&path).expect("it exists").len(), length);
}

#[test]
fn nbd_over_tcp_without_tls_is_for_loopback_only() {
    let host = Host::idle(&["--listen-nbd", "0.0.0.0:0"]);
    assert!(host.refused_start().error.contains("--nbd-tls-ca"));
    let host = Host::with(&["--listen-nbd", "127.0.0.1:0"]);
    host.json(&["volume", "create", "disk", "--size", "8M"]);
    let export = host.json(&["volume", "export", "disk"]);
    let said = host.run(&["volume", "export", "disk"]);
    let printed: Vec<&str> = said.out.lines().collect();
    assert_eq!(printed, [&export["uri"], &export["tcp_uri"]]);
    let uri = export["tcp_uri"].as_str().expect("it listens");
    host.qemu_io_at(uri, &["write -P 3 0 64k", "read -P 3 0 64k"]);
}

/// These commands choose a host by default, and fail with several hosts unless one is named.
#[test]
fn a_host_can_be_named_in_place_of_the_default() {
    let host = Host::new();
    host.json(&["volume", "create", "disk", "--size", "8M"]);
    let own = host.json(&["host", "list"])[0]["name"].clone();
    let own = own.as_str().expect("a name");
    let folder = host.path().join("elsewhere");
    std::fs::create_dir(&folder).expect("new");
    let folder = folder.to_str().expect("text");
    for command in [
        &["volume", "export", "disk"][..],
        &["unit", "add", folder],
        &["key", "add", "other"],
    ] {
        let named = [command, &["--host", "stranger"]].concat();
        host.refuses(1, &named, &["stranger", "scree host list"]);
    }
    host.json(&["volume", "export", "disk", "--host", own]);
    host.json(&["unit", "add", folder, "--host", own]);
}
