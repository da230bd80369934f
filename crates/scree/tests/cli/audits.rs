//! `scree privacy audit`, compared with the files of the units.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::host::{CommandOutput, Host};

const BLOCK: usize = 4096;

/// No two blocks of any two files have 16 bytes in common.
fn content(file: u64, length: usize) -> Vec<u8> {
    let word = |at: u64| (file << 32 | at).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let words = (1..).flat_map(|at| word(at).to_le_bytes());
    words.take(length).collect()
}

/// Files of up to eight blocks and their contents; the first one is empty.
fn files() -> BTreeMap<String, Vec<u8>> {
    let length = |number: u64| number as usize * 997 % (8 * BLOCK);
    let file = |number| (format!("/many/f{number}"), content(number, length(number)));
    (0..120).map(file).collect()
}

fn run(command: &mut Command) {
    let said = CommandOutput::of(command.output().expect("it can be run"));
    assert_eq!(said.code, 0, "{command:?}: {}{}", said.out, said.error);
}

/// Creates an ext4 file system with all files.
fn image(folder: &Path) -> PathBuf {
    fs::create_dir_all(folder.join("tree/many")).expect("made");
    for (path, content) in files() {
        fs::write(folder.join(format!("tree{path}")), content).expect("written");
    }
    let image = folder.join("image");
    run(Command::new("/usr/sbin/mkfs.ext4")
        .args(["-q", "-b", "4096", "-d"])
        .arg(folder.join("tree"))
        .arg(&image)
        .arg("32M"));
    image
}

/// Creates a volume and writes the image to it; afterwards all of it is on the units.
fn written(host: &Host, name: &str, image: &Path, options: &[&str]) {
    let new = [&["volume", "create", name, "--size", "32M"], options].concat();
    assert_eq!(host.run(&new).code, 0);
    let uri = host.json(&["volume", "export", name])["uri"].clone();
    run(Command::new("qemu-img")
        .args(["convert", "-n", "-f", "raw", "-O", "raw"])
        .arg(image)
        .arg(uri.as_str().expect("text")));
    assert_eq!(host.run(&["volume", "unexport", name]).code, 0);
}

/// The blocks in the segments of some units.
fn blocks_on(host: &Host, units: &[u32]) -> BTreeSet<Vec<u8>> {
    let mut folders: Vec<PathBuf> = units.iter().map(|unit| host.unit(*unit)).collect();
    let mut found = BTreeSet::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("read") {
            let path = entry.expect("read").path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let bytes = fs::read(path).expect("read");
            found.extend(bytes.chunks_exact(BLOCK).map(<[u8]>::to_vec));
        }
    }
    found
}

/// The readable bytes of each file, without files that have none.
fn readable(found: &BTreeSet<Vec<u8>>) -> BTreeMap<String, u64> {
    let is_there = |part: &&[u8]| {
        let mut block = part.to_vec();
        block.resize(BLOCK, 0);
        found.contains(&block)
    };
    let bytes = |content: &Vec<u8>| {
        let parts = content.chunks(BLOCK).filter(is_there);
        parts.map(|part| part.len() as u64).sum::<u64>()
    };
    let files = files().into_iter();
    let readable = files.map(|(path, content)| (path, bytes(&content)));
    readable.filter(|(_, bytes)| *bytes > 0).collect()
}

fn number(value: &Value) -> u64 {
    value.as_u64().expect("a number")
}

/// The audit's numbers of each file.
fn listed(audit: &Value, of: &str) -> BTreeMap<String, u64> {
    let listed = audit["result"]["listed"].as_array();
    let listed = listed.map_or(&[][..], |listed| listed).iter();
    let result = listed.map(|file| {
        let path = file["path"].as_str().expect("it has a name").to_owned();
        (path, number(&file["content"][of]))
    });
    result.filter(|(_, bytes)| *bytes > 0).collect()
}

fn audit(host: &Host, name: &str, units: &str) -> Value {
    host.json(&["privacy", "audit", name, "--units", units, "--files"])
}

#[test]
fn an_audit_reports_of_each_file_what_is_on_the_units() {
    let mut host = Host::with(&["--units", "4"]);
    let folder = tempfile::tempdir().expect("a folder");
    let image = image(folder.path());
    readable_bytes_are_those_on_the_units(&host, &image);
    encrypted_blocks_are_not_readable(&host, &image);
    an_audit_of_a_snapshot_shows_its_state(&host);
    host.stop();
}

fn readable_bytes_are_those_on_the_units(host: &Host, image: &Path) {
    let all = files();
    let bytes_all: u64 = all.values().map(|content| content.len() as u64).sum();
    written(
        host,
        "open",
        image,
        &["--encryption", "none", "--replicas", "1"],
    );
    let (mut whole, mut part) = (0, 0);
    for (names, units) in [
        ("u1,u3", &[1, 3][..]),
        ("u2", &[2]),
        ("u1,u2,u3,u4", &[1, 2, 3, 4]),
    ] {
        let result = audit(host, "open", names);
        let expected = readable(&blocks_on(host, units));
        assert_eq!(listed(&result, "readable"), expected, "{names}");
        let files = &result["result"]["files"];
        let is_whole = |(path, bytes): &(&String, &u64)| all[*path].len() as u64 == **bytes;
        let (whole_now, part_now): (Vec<_>, Vec<_>) = expected.iter().partition(is_whole);
        assert_eq!(number(&files["readable"]), whole_now.len() as u64);
        assert_eq!(number(&files["partly_readable"]), part_now.len() as u64);
        let bytes: u64 = whole_now.iter().map(|(_, bytes)| **bytes).sum();
        assert_eq!(number(&files["readable_bytes"]), bytes);
        assert_eq!(number(&files["content"]["total"]), bytes_all);
        assert_eq!(
            number(&files["content"]["readable"]),
            expected.values().sum::<u64>()
        );
        assert_eq!(
            number(&result["placement"]["compromised"]),
            units.len() as u64
        );
        // One of twenty audits does not agree by chance; one of twenty thousand is this far out.
        for ratio in ["less_ratio", "more_ratio"] {
            let ratio = result["predicted"][ratio].as_f64().expect("a number");
            assert!(ratio < 0.99995, "{result:#}");
        }
        (whole, part) = (whole.max(whole_now.len()), part.max(part_now.len()));
    }
    assert_eq!((whole, part > 30), (119, true), "one is empty");
}

fn encrypted_blocks_are_not_readable(host: &Host, image: &Path) {
    let all = files();
    written(host, "sealed", image, &["--replicas", "2"]);
    let before = blocks_on(host, &[1, 2, 3, 4]);
    let result = audit(host, "sealed", "u1,u3");
    assert_eq!(listed(&result, "readable"), BTreeMap::new());
    let sealed = listed(&result, "sealed");
    assert!(sealed.len() > 60, "{sealed:?}");
    let is_part = |(path, bytes): (&String, &u64)| *bytes <= all[path].len() as u64;
    assert!(sealed.iter().all(is_part), "its wrapping key is here");
    assert_eq!(number(&result["result"]["files"]["unreadable"]), 119);
    let brief = host.json(&["privacy", "audit", "sealed", "--units", "u1"]);
    assert!(brief["result"].get("listed").is_none(), "{brief}");
    assert_eq!(number(&result["result"]["map"]["readable"]), 0);
    assert_eq!(
        (
            &result["predicted"]["leak_ratio"],
            &result["predicted"]["agrees"]
        ),
        (&0.0.into(), &true.into())
    );
    assert_eq!(
        blocks_on(host, &[1, 2, 3, 4]),
        before,
        "an audit changes nothing"
    );
}

fn an_audit_of_a_snapshot_shows_its_state(host: &Host) {
    assert_eq!(
        host.run(&["snapshot", "create", "open", "--name", "early"])
            .code,
        0
    );
    host.qemu_io("open", &["write -P 0x55 0 32M"]);
    assert_eq!(host.run(&["volume", "unexport", "open"]).code, 0);
    let early = [
        "privacy",
        "audit",
        "open",
        "--units",
        "u1,u3",
        "--snapshot",
        "early",
        "--files",
    ];
    let result = host.json(&early);
    let expected = readable(&blocks_on(host, &[1, 3]));
    assert_eq!(listed(&result, "readable"), expected);
    // The current content is not a file system.
    let said = host.run(&["privacy", "audit", "open", "--units", "u1"]);
    assert_eq!(said.code, 0, "{}", said.error);
    assert!(
        said.error.contains("only its blocks are audited"),
        "{}",
        said.error
    );
    assert!(said.out.contains("blocks   32M"), "{}", said.out);
}

/// How often a text occurs in the files of the controller's database.
fn in_database(host: &Host, text: &str) -> usize {
    let files = fs::read_dir(host.path())
        .expect("read")
        .map(|entry| entry.expect("read").path());
    let of_database = files.filter(|path| {
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        name.starts_with("scree.db")
    });
    let count = |path: PathBuf| {
        let bytes = fs::read(path).expect("read");
        let parts = bytes.windows(text.len());
        parts.filter(|part| *part == text.as_bytes()).count()
    };
    of_database.map(count).sum()
}

#[test]
fn file_names_in_an_audit_of_an_encrypted_volume_need_its_key() {
    let mut host = Host::with(&["--units", "2"]);
    let folder = tempfile::tempdir().expect("a folder");
    let image = image(folder.path());
    written(&host, "sealed", &image, &["--replicas", "1"]);
    let result = audit(&host, "sealed", "u1,u2");
    assert_eq!(listed(&result, "sealed").len(), 119, "{result:#}");
    assert_eq!(result["result"]["sealed"], Value::Null);
    assert!(
        !result["result"]["lengths"]
            .as_array()
            .expect("a list")
            .is_empty()
    );
    for text in ["/many/", "\"listed\"", "\"lengths\":[{"] {
        assert_eq!(in_database(&host, text), 0, "{text}");
    }

    // Without the wrapping key the listing stays encrypted, and counts are shown.
    let keys = folder.path().join("keys.toml");
    let name = |key: &Path| format!("[keys.main]\nkind = \"file\"\npath = {key:?}\n");
    let key = host.path().join("keys/master.key");
    let other = folder.path().join("other.key");
    fs::write(&other, "7".repeat(64)).expect("written");
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    fs::set_permissions(&other, private).expect("changed");
    fs::write(&keys, name(&other)).expect("written");
    let keys_file = keys.to_str().expect("text");
    let arguments = ["privacy", "audit", "sealed", "--units", "u1,u2", "--files"];
    let elsewhere = [&arguments[..], &["--keys-file", keys_file]].concat();
    let said = host.run(&elsewhere);
    assert_eq!(said.code, 0, "{}", said.error);
    assert!(
        said.error.contains("encrypted with the volume's key"),
        "{}",
        said.error
    );
    assert!(!said.out.contains("/many/"), "{}", said.out);
    let result = host.json(&elsewhere);
    assert!(
        result["result"]["sealed"]["sealed_report"].is_string(),
        "{result:#}"
    );
    assert_eq!(number(&result["result"]["files"]["unreadable"]), 119);
    fs::write(&keys, name(&key)).expect("written");
    assert_eq!(listed(&host.json(&elsewhere), "sealed").len(), 119);

    // The listing of an unencrypted volume is in the database.
    written(
        &host,
        "open",
        &image,
        &["--encryption", "none", "--replicas", "1"],
    );
    assert_eq!(
        listed(&audit(&host, "open", "u1,u2"), "readable").len(),
        119
    );
    assert!(in_database(&host, "/many/") > 0);
    host.stop();
}

#[test]
fn impossible_audits_are_refused() {
    let host = Host::with(&["--units", "2"]);
    let new = ["volume", "create", "empty", "--size", "8M"];
    assert_eq!(host.run(&new).code, 0);
    let audit = |more: &[&'static str]| [&["privacy", "audit"], more].concat();
    host.refuses(
        1,
        &audit(&["none", "--units", "u1"]),
        &["volume \"none\" does not exist"],
    );
    host.refuses(
        1,
        &audit(&["empty", "--units", "u1"]),
        &["volume \"empty\" has no data on the units yet"],
    );
    host.refuses(2, &audit(&["empty"]), &["--units"]);
    host.qemu_io("empty", &["write -P 1 0 64k", "flush"]);
    // Destaged only when the export ends.
    assert_eq!(host.run(&["volume", "unexport", "empty"]).code, 0);
    host.refuses(
        1,
        &audit(&["empty", "--units", "u9"]),
        &["unit u9 does not exist"],
    );
    host.refuses(
        1,
        &audit(&["empty", "--units", "u1", "--snapshot", "s"]),
        &["snapshot \"s\" does not exist"],
    );
    // A dry run changes nothing.
    let dry = host.run(&["privacy", "audit", "empty", "--units", "u1", "--dry-run"]);
    assert_eq!(dry.code, 0, "{}", dry.error);
    assert!(dry.error.contains("nothing was changed"), "{}", dry.error);
    // While the volume is in use, a notice says that its journal is not audited.
    host.qemu_io("empty", &["write -P 2 0 64k", "flush"]);
    let said = host.run(&["privacy", "audit", "empty", "--units", "u1,u2"]);
    assert_eq!(said.code, 0, "{}", said.error);
    assert!(
        said.error.contains("in its host's journal"),
        "{}",
        said.error
    );
}
