//! A monitor filter against a real guest: hundreds of random operations on files by a seed, each of
//! which has to be reported, and nothing else.
//!
//! The operations are those of the script that the guest runs, which ends with the first command
//! that fails; and strace in the guest shows that its kernel got exactly these calls.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::file_reports::{assert_steps_reported, assert_steps_reported_in_any_order, read_events};
use crate::guest::Guest;
use crate::host::{CommandOutput, Host, wait_until};
use crate::trace::{self, TRACED};
use crate::workload::{Content, Step, Workload};

/// The last operation.
pub const THE_END: &str = "/the-end";

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

pub fn run_tool(command: &mut Command) -> CommandOutput {
    let path = "/usr/sbin:/sbin:/usr/bin:/bin";
    let output = CommandOutput::of(command.env("PATH", path).output().expect("it is installed"));
    assert!(
        output.code == 0,
        "{command:?} said {} {}",
        output.out,
        output.error
    );
    output
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
    run_tool(
        Command::new("mke2fs")
            .args(["-q", "-F", "-t", kind, "-b", &block_bytes.to_string(), "-d"])
            .arg(&root)
            .arg(&image)
            .arg("48M"),
    );
    fs::read(image).expect("read")
}

/// The disk has what the script has written.
pub fn assert_disk_has_content(image: &Path, workload: &Workload, folder: &Path) {
    run_tool(Command::new("e2fsck").arg("-fn").arg(image));
    let out = folder.join("out");
    fs::create_dir_all(&out).expect("made");
    let request = format!("rdump / {}", out.display());
    run_tool(Command::new("debugfs").args(["-R", &request]).arg(image));
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
fn create_script_disk(folder: &Path, workload: &Workload, steps: &[Step]) -> String {
    let scripts = folder.join("scripts");
    fs::create_dir_all(&scripts).expect("made");
    fs::write(scripts.join("source"), workload.source()).expect("written");
    for (number, part) in steps.chunks(STEPS_IN_PART).enumerate() {
        fs::write(scripts.join(number.to_string()), Workload::script(part)).expect("written");
    }
    let work = folder.join("work");
    trace::put_strace(&scripts);
    run_tool(
        Command::new("mke2fs")
            .args(["-q", "-t", "ext4", "-d"])
            .arg(&scripts)
            .arg(&work)
            .arg("16M"),
    );
    work.to_str().expect("text").to_owned()
}

/// The log of strace on this disk matches the steps.
fn assert_calls_traced(image: &Path, steps: &[Step]) {
    let mut traced = Vec::new();
    for number in 0..steps.len().div_ceil(STEPS_IN_PART) {
        let request = format!("cat log{number}");
        let log = run_tool(Command::new("debugfs").args(["-R", &request]).arg(image));
        traced.extend(trace::calls(&log.out));
    }
    let commands = steps.iter().flat_map(|step| &step.commands);
    let expected_calls: Vec<String> = commands
        .flat_map(|command| trace::expected(command))
        .collect();
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
pub fn copy_volume(host: &Host, volume: &str, arguments: impl Fn(String) -> [String; 2]) {
    let export = host.json(&["volume", "export", volume]);
    let uri = export["uri"].as_str().expect("text").to_owned();
    run_tool(Command::new("nbdcopy").args(arguments(uri)));
    host.json(&["volume", "unexport", volume]);
}

pub fn apply_policy(host: &Host, folder: &Path, text: &str) {
    let policy = folder.join("policy.toml");
    fs::write(&policy, text).expect("written");
    host.json(&["chain", "apply", policy.to_str().expect("text")]);
}

/// A guest with the volume `disk` and another one with the image `work`, and their devices.
fn guest_with(host: &Host, work: &str) -> (Guest, String, String) {
    host.json(&["volume", "create", "work", "--size", "16M"]);
    copy_volume(host, "work", |uri| [work.to_owned(), uri]);
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
pub fn run_steps_in_guest(
    host: &Host,
    tested: &Tested,
    workload: &Workload,
    steps: &[Step],
    folder: &Path,
    mut between: impl FnMut(usize, &mut Guest),
) -> Vec<Value> {
    let work = create_script_disk(folder, workload, steps);
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
    let mut events = Vec::new();
    wait_until("the last step is reported", || {
        events = read_events(host);
        events.iter().any(|event| event["path"] == THE_END)
    });
    events
}

/// strace in the guest has seen the steps.
pub fn assert_steps_traced(host: &Host, steps: &[Step], folder: &Path) {
    let image = folder.join("traced");
    let spelled = image.to_str().expect("text").to_owned();
    copy_volume(host, "work", |uri| [uri, spelled.clone()]);
    assert_calls_traced(&image, steps);
}

/// Runs the steps in a guest, and compares the reports and the disk with them.
pub fn assert_guest_is_monitored(
    tested: &Tested,
    workload: &Workload,
    steps: &[Step],
    folder: &TempDir,
) {
    let folder = folder.path();
    let image = folder.join("disk");
    fs::write(&image, &tested.disk).expect("written");
    let host = Host::with(&["--units", "2"]);
    let size = tested.disk.len().to_string();
    host.json(&["volume", "create", "disk", "--size", &size]);
    let spelled = image.to_str().expect("text").to_owned();
    copy_volume(&host, "disk", |uri| [spelled.clone(), uri]);
    apply_policy(
        &host,
        folder,
        "volume = 'disk'\n[[filter]]\nkind = 'monitor'\n",
    );
    let events = run_steps_in_guest(&host, tested, workload, steps, folder, |_, _| ());
    let notes = events.iter().filter_map(|event| event["message"].as_str());
    let notes: Vec<&str> = notes.collect();
    assert!(
        notes
            .iter()
            .all(|note| note.contains("is followed") || tested.partition.is_some()),
        "{notes:?}"
    );
    match tested.kind {
        "ext2" => assert_steps_reported_in_any_order(&events, tested, steps),
        _ => assert_steps_reported(&events, tested, steps),
    }
    host.json(&["chain", "delete", "disk"]);
    for volume in ["disk", "work"] {
        host.json(&["detach", volume]);
    }
    assert_steps_traced(&host, steps, folder);
    copy_volume(&host, "disk", |uri| [uri, spelled.clone()]);
    let disk = fs::read(&image).expect("read");
    fs::write(&image, &disk[tested.place.clone()]).expect("written");
    assert_disk_has_content(&image, workload, folder);
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
    assert_guest_is_monitored(&tested, &workload, &steps, &folder);
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
    assert_guest_is_monitored(&tested, &workload, &steps, &folder);
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
    let spelled = image.to_str().expect("text").to_owned();
    copy_volume(&host, "disk", |uri| [spelled.clone(), uri]);
    apply_policy(
        &host,
        folder.path(),
        "volume = 'disk'\n[[filter]]\nkind = 'monitor'\n",
    );
    let given = folder.path().join("given");
    trace::put_program(&given, "/usr/sbin/resize2fs");
    let work = folder.path().join("work");
    run_tool(
        Command::new("mke2fs")
            .args(["-q", "-t", "ext4", "-d"])
            .arg(&given)
            .arg(&work)
            .arg("16M"),
    );
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
    let mut events = Vec::new();
    wait_until("the last step is reported", || {
        events = read_events(&host);
        events.iter().any(|event| event["path"] == THE_END)
    });
    let of = |operation: &str| {
        let of = events
            .iter()
            .filter(move |one| one["operation"] == operation);
        of.filter(|one| one["path"] == "/grown/file")
            .collect::<Vec<_>>()
    };
    assert_eq!(of("create").len(), 1, "{events:#?}");
    let mut blocks = BTreeSet::new();
    for event in of("write") {
        let number = |field: &str| event[field].as_u64().expect("a number");
        blocks.extend(number("offset") / 1024..(number("offset") + number("length")) / 1024);
    }
    assert_eq!(blocks.len() as u64, BYTES / 1024);
    let notes = events.iter().filter_map(|event| event["message"].as_str());
    let notes: Vec<&str> = notes.filter(|note| note.contains("is followed")).collect();
    assert_eq!(notes.len(), 1, "{notes:?}");
    for volume in ["disk", "work"] {
        host.json(&["detach", volume]);
    }
    host.json(&["chain", "delete", "disk"]);
    copy_volume(&host, "disk", |uri| [uri, spelled.clone()]);
    run_tool(Command::new("e2fsck").arg("-fn").arg(&image));
    let view = run_tool(Command::new("dumpe2fs").arg("-h").arg(&image));
    assert!(view.out.contains(" 131072\n"), "{}", view.out);
}
