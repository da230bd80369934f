//! A monitor filter against a real guest: hundreds of random operations on files by a seed, each of
//! which has to be reported, and nothing else.
//!
//! The operations are those of the script that the guest runs, which ends with the first command that
//! fails; and strace in the guest shows that its kernel got exactly these calls.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::guest::Guest;
use crate::host::{CommandOutput, Host, wait_until};
use crate::trace::{self, TRACED};
use crate::workload::{Content, Happened, Step, Workload};

/// The last operation.
const THE_END: &str = "/the-end";

/// Number of steps of a script, so that each runs briefly.
pub const STEPS_IN_PART: usize = 15;

/// Existing files: more names in a directory than fit a block.
pub fn tree() -> Vec<(String, Vec<u8>)> {
    let mut tree = Vec::new();
    for directory in ["/many/", "/etc/", "/home/", "/home/data/"] {
        tree.push((directory.to_owned(), Vec::new()));
    }
    for number in 0..250 {
        let path = format!("/many/{number}-{}", "x".repeat(number % 30));
        tree.push((path, vec![b'm'; number * 17]));
    }
    for (path, bytes) in [("/etc/passwd", 1500), ("/home/data/large", 200_000)] {
        tree.push((path.to_owned(), vec![b'l'; bytes]));
    }
    tree
}

pub fn run(command: &mut Command) -> CommandOutput {
    let path = "/usr/sbin:/sbin:/usr/bin:/bin";
    let said = CommandOutput::of(command.env("PATH", path).output().expect("it is installed"));
    assert!(
        said.code == 0,
        "{command:?} said {} {}",
        said.out,
        said.error
    );
    said
}

/// Creates a file system of 48 MiB with these files, of the kind `ext2` to `ext4`.
pub fn file_system(
    folder: &Path,
    tree: &[(String, Vec<u8>)],
    block_bytes: u64,
    kind: &str,
) -> Vec<u8> {
    let root = folder.join("tree");
    fs::create_dir_all(&root).expect("made");
    for (path, content) in tree {
        let at = root.join(&path[1..]);
        match path.ends_with('/') {
            true => fs::create_dir_all(at).expect("made"),
            false => fs::write(at, content).expect("written"),
        }
    }
    let image = folder.join("image");
    run(Command::new("mke2fs")
        .args(["-q", "-F", "-t", kind, "-b", &block_bytes.to_string(), "-d"])
        .arg(&root)
        .arg(&image)
        .arg("48M"));
    fs::read(image).expect("read")
}

fn events(host: &Host) -> Vec<Value> {
    let said = host.run(&["monitor", "disk", "-o", "json"]);
    assert_eq!(said.code, 0, "{}", said.error);
    let lines = said.out.lines().map(serde_json::from_str);
    lines.collect::<Result<_, _>>().expect("each line is JSON")
}

/// The changes that an event reports; a write is one for each block.
fn reported(event: &Value, block_bytes: u64) -> Vec<Happened> {
    let text = |field: &str| event[field].as_str().map(str::to_owned);
    let Some(operation) = text("operation") else {
        return Vec::new();
    };
    let known = [
        "create", "mkdir", "rename", "link", "unlink", "delete", "chmod", "chown", "truncate",
        "write",
    ];
    // Reads are only those that the guest's page cache does not answer.
    let Some(operation) = known.into_iter().find(|one| *one == operation) else {
        assert!(["read", "open"].contains(&&*operation), "{event}");
        return Vec::new();
    };
    let happened = Happened {
        operation,
        paths: text("path").into_iter().collect(),
        to: text("to"),
        block: None,
        now: match operation {
            "chmod" => event["mode"].clone(),
            "chown" => event["owner"].clone(),
            "truncate" => json!([event["size_before"], event["size"]]),
            _ => Value::Null,
        },
    };
    if operation != "write" {
        return vec![happened];
    }
    let number = |field: &str| event[field].as_u64().expect("a number");
    let (begin, length) = (number("offset"), number("length"));
    // Appended content begins at the previous end of the file.
    assert!(length > 0, "{event}");
    let blocks = begin / block_bytes..(begin + length).div_ceil(block_bytes);
    let block = |block| Happened {
        block: Some(block),
        ..happened.clone()
    };
    blocks.map(block).collect()
}

fn is(expected: &Happened, reported: &Happened) -> bool {
    (
        expected.operation,
        &expected.to,
        expected.block,
        &expected.now,
    ) == (
        reported.operation,
        &reported.to,
        reported.block,
        &reported.now,
    ) && !expected.paths.is_disjoint(&reported.paths)
}

/// Each step has to be reported as expected, in order, and nothing else.
fn compare(steps: &[Step], reported: &[Happened]) {
    let mut reported = reported.iter().peekable();
    let mut last: &[Happened] = &[];
    let mut steps = steps.iter();
    while let Some(step) = steps.next() {
        let mut left: Vec<&Happened> = step.required.iter().collect();
        let mut seen: Vec<&Happened> = Vec::new();
        while let Some(one) = reported.peek() {
            let found = left.iter().position(|expected| is(expected, one));
            // The guest may write a block twice.
            let again = step.required.iter().chain(&step.optional).chain(last);
            let is_more = || {
                let mut again = again.clone();
                one.block.is_some() && again.any(|expected| is(expected, one))
            };
            let next = || steps.clone();
            match found {
                Some(at) => drop(left.remove(at)),
                None if left.is_empty() && is_next(next(), one, |step| &step.required) => {
                    break;
                }
                None if is_more() => {}
                None if left.is_empty() && is_next(next(), one, |step| &step.optional) => {
                    break;
                }
                None => panic!(
                    "{:?}: reported {one:?}, before that {seen:#?}; not reported {left:#?}; next {:#?}",
                    step.commands,
                    steps.next()
                ),
            }
            seen.push(one);
            reported.next();
        }
        assert!(
            left.is_empty(),
            "{:?}: not reported: {left:#?}",
            step.commands
        );
        last = &step.optional;
    }
    assert!(
        reported.peek().is_none(),
        "reported in addition: {:#?}",
        reported.collect::<Vec<_>>()
    );
}

/// Whether this belongs to the next step with a report, or to an earlier one.
fn is_next<'a>(
    steps: impl Iterator<Item = &'a Step>,
    reported: &Happened,
    part: impl Fn(&Step) -> &[Happened],
) -> bool {
    for step in steps {
        if part(step).iter().any(|expected| is(expected, reported)) {
            return true;
        }
        if !step.required.is_empty() {
            break;
        }
    }
    false
}

/// The disk has what the script has written.
pub fn check_content(image: &Path, workload: &Workload, folder: &Path) {
    run(Command::new("e2fsck").arg("-fn").arg(image));
    let out = folder.join("out");
    fs::create_dir_all(&out).expect("made");
    let request = format!("rdump / {}", out.display());
    run(Command::new("debugfs").args(["-R", &request]).arg(image));
    let mut found = BTreeMap::new();
    let mut waiting = vec![(String::new(), out)];
    while let Some((above, at)) = waiting.pop() {
        for entry in fs::read_dir(at).expect("listed") {
            let entry = entry.expect("an entry");
            let path = format!("{above}/{}", entry.file_name().to_str().expect("UTF-8"));
            let kind = entry.file_type().expect("known");
            let content = if kind.is_dir() {
                waiting.push((path.clone(), entry.path()));
                Content::Directory
            } else if kind.is_symlink() {
                let target = fs::read_link(entry.path()).expect("read");
                Content::Symlink(target.to_str().expect("UTF-8").to_owned())
            } else {
                Content::File(fs::read(entry.path()).expect("read"))
            };
            found.insert(path, content);
        }
    }
    found.remove("/lost+found");
    found.remove(THE_END);
    let expected = workload.files();
    let names = |files: Vec<&str>| {
        files
            .into_iter()
            .map(str::to_owned)
            .collect::<BTreeSet<_>>()
    };
    assert_eq!(
        names(found.keys().map(String::as_str).collect()),
        names(expected.keys().copied().collect())
    );
    for (path, content) in &found {
        assert!(content == expected[path.as_str()], "{path}");
    }
}

/// A disk and the location of its file system.
pub struct Tested {
    pub disk: Vec<u8>,
    pub place: std::ops::Range<usize>,
    pub partition: Option<u32>,
    pub block_bytes: u64,
    /// `ext4`, or one of its predecessors.
    pub kind: &'static str,
}

/// Creates a disk with the scripts, the source of file contents, and strace.
fn scripts(folder: &Path, workload: &Workload, steps: &[Step]) -> String {
    let scripts = folder.join("scripts");
    fs::create_dir_all(&scripts).expect("made");
    fs::write(scripts.join("source"), workload.source()).expect("written");
    for (number, part) in steps.chunks(STEPS_IN_PART).enumerate() {
        fs::write(scripts.join(number.to_string()), Workload::script(part)).expect("written");
    }
    let work = folder.join("work");
    trace::put_strace(&scripts);
    run(Command::new("mke2fs")
        .args(["-q", "-t", "ext4", "-d"])
        .arg(&scripts)
        .arg(&work)
        .arg("16M"));
    work.to_str().expect("text").to_owned()
}

/// The log of strace on this disk matches the steps.
fn check_traced(image: &Path, steps: &[Step]) {
    let mut traced = Vec::new();
    for number in 0..steps.len().div_ceil(STEPS_IN_PART) {
        let request = format!("cat log{number}");
        let log = run(Command::new("debugfs").args(["-R", &request]).arg(image));
        traced.extend(trace::calls(&log.out));
    }
    let commands = steps.iter().flat_map(|step| &step.commands);
    let expected_calls: Vec<String> = commands.flat_map(|one| trace::expected(one)).collect();
    let differs = traced
        .iter()
        .zip(&expected_calls)
        .position(|(one, other)| one != other);
    let near = |all: &[String]| {
        let at = differs.unwrap_or(traced.len().min(expected_calls.len()));
        all[at.saturating_sub(3)..(at + 4).min(all.len())].join("\n")
    };
    assert!(
        traced == expected_calls,
        "strace:\n{}\nscript:\n{}",
        near(&traced),
        near(&expected_calls)
    );
}

/// Copies between a volume, as its chain serves it, and a file.
pub fn copy(host: &Host, volume: &str, arguments: impl Fn(String) -> [String; 2]) {
    let export = host.json(&["volume", "export", volume]);
    let uri = export["uri"].as_str().expect("text").to_owned();
    run(Command::new("nbdcopy").args(arguments(uri)));
    host.json(&["volume", "unexport", volume]);
}

pub fn apply(host: &Host, folder: &Path, text: &str) {
    let policy = folder.join("policy.toml");
    fs::write(&policy, text).expect("written");
    host.json(&["chain", "apply", policy.to_str().expect("text")]);
}

/// A guest with the volume `disk` and another one with the image `work`, and their devices.
fn guest_with(host: &Host, work: &str) -> (Guest, String, String) {
    host.json(&["volume", "create", "work", "--size", "16M"]);
    copy(host, "work", |uri| [work.to_owned(), uri]);
    let mut guest = Guest::boot();
    guest.wait_for_boot();
    let attach = |volume: &str| {
        let attached = host.json(&["attach", volume, "--vm", &guest.address()]);
        attached["device"].as_str().expect("text").to_owned()
    };
    let (disk, work) = (attach("disk"), attach("work"));
    (guest, disk, work)
}

/// Runs the steps in a guest, and waits until the last one is reported. Calls `between` with the
/// number of each completed part.
pub fn guest_takes(
    host: &Host,
    tested: &Tested,
    workload: &Workload,
    steps: &[Step],
    folder: &Path,
    mut between: impl FnMut(usize, &mut Guest),
) -> Vec<Value> {
    let work = scripts(folder, workload, steps);
    let (mut guest, disk, work) = guest_with(host, &work);
    guest.does(&format!(
        "mkdir /m /given && mount -t ext4 $(disk {work}) /given"
    ));
    let partition = tested
        .partition
        .map_or(String::new(), |one| one.to_string());
    guest.does(&format!(
        "mount -t {} $(disk {disk}){partition} /m && sync",
        tested.kind
    ));
    for number in 0..steps.len().div_ceil(STEPS_IN_PART) {
        guest.does(&format!("{TRACED} sh /given/{number}"));
        guest.does(&format!("mv /log /given/log{number}"));
        between(number, &mut guest);
    }
    guest.does(&format!("mkdir /m{THE_END} && umount /m && umount /given"));
    let mut heard = Vec::new();
    wait_until("the last step is reported", || {
        heard = events(host);
        heard.iter().any(|event| event["path"] == THE_END)
    });
    heard
}

/// The reported events are those expected of the steps.
pub fn check_reported(heard: &[Value], tested: &Tested, steps: &[Step]) {
    let is_file = |event: &&Value| event["inode"].is_number();
    for event in heard.iter().filter(is_file) {
        assert_eq!(event["partition"], json!(tested.partition), "{event}");
    }
    let happened: Vec<Happened> = heard
        .iter()
        .filter(is_file)
        .flat_map(|event| reported(event, tested.block_bytes))
        .filter(|one| !one.paths.contains(THE_END))
        .collect();
    compare(steps, &happened);
}

/// Without a journal each block counts as it is written, in the guest's order: a rename is a new
/// name and a removed one. So only events about one block of the file system itself, or about
/// existing files, are checked.
fn check_reported_in_any_order(heard: &[Value], tested: &Tested, steps: &[Step]) {
    let happened: Vec<Happened> = heard
        .iter()
        .filter(|event| event["inode"].is_number())
        .flat_map(|event| reported(event, tested.block_bytes))
        .collect();
    for step in steps {
        let is_new = |path: &BTreeSet<String>| {
            let mut created = step.required.iter();
            created.any(|one| one.operation == "create" && one.paths == *path)
        };
        let known = ["mkdir", "chmod", "chown", "write"];
        let required = step.required.iter();
        for one in required.filter(|one| known.contains(&one.operation)) {
            let is_reported = happened.iter().any(|reported| is(one, reported));
            assert!(
                is_reported || is_new(&one.paths),
                "{step:#?}: not reported: {one:?}"
            );
        }
    }
}

/// strace in the guest has seen the steps.
pub fn check_work(host: &Host, steps: &[Step], folder: &Path) {
    let image = folder.join("traced");
    let spelt = image.to_str().expect("text").to_owned();
    copy(host, "work", |uri| [uri, spelt.clone()]);
    check_traced(&image, steps);
}

/// Runs the steps in a guest, and compares the reports and the disk with them.
pub fn check(tested: &Tested, workload: &Workload, steps: &[Step], folder: &TempDir) {
    let folder = folder.path();
    let image = folder.join("disk");
    fs::write(&image, &tested.disk).expect("written");
    let host = Host::with(&["--units", "2"]);
    let size = tested.disk.len().to_string();
    host.json(&["volume", "create", "disk", "--size", &size]);
    let spelt = image.to_str().expect("text").to_owned();
    copy(&host, "disk", |uri| [spelt.clone(), uri]);
    apply(
        &host,
        folder,
        "volume = 'disk'\n[[filter]]\nkind = 'monitor'\n",
    );
    let heard = guest_takes(&host, tested, workload, steps, folder, |_, _| ());
    let notes = heard.iter().filter_map(|event| event["message"].as_str());
    let notes: Vec<&str> = notes.collect();
    assert!(
        notes
            .iter()
            .all(|note| note.contains("is followed") || tested.partition.is_some()),
        "{notes:?}"
    );
    match tested.kind {
        "ext2" => check_reported_in_any_order(&heard, tested, steps),
        _ => check_reported(&heard, tested, steps),
    }
    host.json(&["chain", "delete", "disk"]);
    for volume in ["disk", "work"] {
        host.json(&["detach", volume]);
    }
    check_work(&host, steps, folder);
    copy(&host, "disk", |uri| [uri, spelt.clone()]);
    let disk = fs::read(&image).expect("read");
    fs::write(&image, &disk[tested.place.clone()]).expect("written");
    check_content(&image, workload, folder);
}

#[test]
fn each_operation_of_a_guest_is_reported_and_nothing_else() {
    let folder = TempDir::new().expect("a folder");
    let tree = tree();
    let block_bytes = 4096;
    let disk = file_system(folder.path(), &tree, block_bytes, "ext4");
    let mut workload = Workload::new(1, block_bytes, &tree);
    let mut steps = workload.steps(300, 1);
    // Then several operations between two `sync`: their combined effect is reported.
    steps.extend(workload.steps(40, 5));
    steps.extend(workload.steps(10, 20));
    let place = 0..disk.len();
    let tested = Tested {
        disk,
        place,
        partition: None,
        block_bytes,
        kind: "ext4",
    };
    check(&tested, &workload, &steps, &folder);
}

pub fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0xEDB8_8320 & (crc & 1).wrapping_neg());
        }
    }
    !crc
}

/// ext3 has block maps in place of extents, and the journal of ext4.
#[test]
fn each_operation_on_ext3_is_reported() {
    each_operation_is_reported_on("ext3", 4);
}

/// ext2 has no journal: each written block counts immediately.
#[test]
fn operations_on_ext2_are_reported_block_by_block() {
    each_operation_is_reported_on("ext2", 5);
}

fn each_operation_is_reported_on(kind: &'static str, seed: u64) {
    let folder = TempDir::new().expect("a folder");
    let tree = tree();
    let block_bytes = 1024;
    let disk = file_system(folder.path(), &tree, block_bytes, kind);
    let mut workload = Workload::new(seed, block_bytes, &tree);
    let steps = workload.steps(90, 1);
    let place = 0..disk.len();
    let tested = Tested {
        disk,
        place,
        partition: None,
        block_bytes,
        kind,
    };
    check(&tested, &workload, &steps, &folder);
}

/// New files in new block groups are reported immediately, and the disk is not scanned again.
#[test]
fn a_file_system_that_grows_in_a_guest_is_followed() {
    const BYTES: u64 = 30 << 20;
    let folder = TempDir::new().expect("a folder");
    let image = folder.path().join("grows");
    let disk = file_system(folder.path(), &tree(), 1024, "ext4");
    fs::write(&image, disk).expect("written");
    let host = Host::with(&["--units", "2"]);
    host.json(&["volume", "create", "disk", "--size", "128M"]);
    let spelt = image.to_str().expect("text").to_owned();
    copy(&host, "disk", |uri| [spelt.clone(), uri]);
    apply(
        &host,
        folder.path(),
        "volume = 'disk'\n[[filter]]\nkind = 'monitor'\n",
    );
    let given = folder.path().join("given");
    trace::put_program(&given, "/usr/sbin/resize2fs");
    let work = folder.path().join("work");
    run(Command::new("mke2fs")
        .args(["-q", "-t", "ext4", "-d"])
        .arg(&given)
        .arg(&work)
        .arg("16M"));
    let work = work.to_str().expect("text");
    let (mut guest, disk, work) = guest_with(&host, work);
    guest.does(&format!(
        "mkdir /m /given && mount -t ext4 $(disk {work}) /given && mount -t ext4 $(disk {disk}) /m"
    ));
    guest.does("sync && cd /given/resize2fs");
    guest.does(&format!(
        "./ld --library-path . ./resize2fs $(disk {disk}) 2>&1 && cd /"
    ));
    guest.does(&format!(
        "mkdir /m/grown && head -c {BYTES} /dev/urandom >/m/grown/file && sync"
    ));
    guest.does(&format!("mkdir /m{THE_END} && umount /m && umount /given"));
    let mut heard = Vec::new();
    wait_until("the last step is reported", || {
        heard = events(&host);
        heard.iter().any(|event| event["path"] == THE_END)
    });
    let of = |operation: &str| {
        let of = heard
            .iter()
            .filter(move |one| one["operation"] == operation);
        of.filter(|one| one["path"] == "/grown/file")
            .collect::<Vec<_>>()
    };
    assert_eq!(of("create").len(), 1, "{heard:#?}");
    let mut blocks = BTreeSet::new();
    for event in of("write") {
        let number = |field: &str| event[field].as_u64().expect("a number");
        blocks.extend(number("offset") / 1024..(number("offset") + number("length")) / 1024);
    }
    assert_eq!(blocks.len() as u64, BYTES / 1024);
    let notes = heard.iter().filter_map(|event| event["message"].as_str());
    let notes: Vec<&str> = notes.filter(|note| note.contains("is followed")).collect();
    assert_eq!(notes.len(), 1, "{notes:?}");
    for volume in ["disk", "work"] {
        host.json(&["detach", volume]);
    }
    host.json(&["chain", "delete", "disk"]);
    copy(&host, "disk", |uri| [uri, spelt.clone()]);
    run(Command::new("e2fsck").arg("-fn").arg(&image));
    let view = run(Command::new("dumpe2fs").arg("-h").arg(&image));
    assert!(view.out.contains(" 131072\n"), "{}", view.out);
}
