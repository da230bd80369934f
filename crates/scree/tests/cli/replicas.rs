//! Replicas of a real guest's disk. Behind a monitor and encryption: a replica fails and returns,
//! and each copy is a disk that cryptsetup opens and e2fsck finds clean. And a partial replica: a
//! file system with the chosen files and little else.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::file_reports::assert_steps_reported;
use crate::guest::Guest;
use crate::host::{CommandOutput, Host, wait_until};
use crate::watched::{
    STEPS_IN_PART, Tested, apply_policy, assert_disk_has_content, assert_steps_traced, copy_volume,
    crc32, file_system, run_steps_in_guest, tree,
};
use crate::workload::{Content, Workload};

const SIZE: u64 = 64 << 20;

/// An NBD server of a file, in its tenant's folder.
fn serve(host: &Host, name: &str, file: &Path) -> Child {
    let folder = host.path().join("filter-sockets/local");
    fs::create_dir_all(&folder).expect("made");
    let socket = folder.join(name);
    let _ = fs::remove_file(&socket);
    let server = Command::new("nbdkit")
        .args(["-f", "-U"])
        .arg(&socket)
        .arg("file")
        .arg(file)
        .stderr(Stdio::null())
        .spawn()
        .expect("nbdkit is installed");
    wait_until("the replica is served", || socket.exists());
    server
}

fn kill(server: &mut Child) {
    server.kill().expect("it runs");
    server.wait().expect("it ends");
}

fn notes(host: &Host) -> Vec<String> {
    let said = host.run(&["monitor", "disk", "-o", "json"]);
    let lines = said.out.lines().map(serde_json::from_str::<Value>);
    let notes = lines.map(|line| line.expect("JSON")["message"].as_str().map(str::to_owned));
    notes.flatten().collect()
}

fn count(host: &Host, note: &str) -> usize {
    let notes = notes(host);
    notes.iter().filter(|one| one.contains(note)).count()
}

fn run(command: &mut Command) -> CommandOutput {
    let path = "/usr/sbin:/sbin:/usr/bin:/bin";
    CommandOutput::of(command.env("PATH", path).output().expect("it is installed"))
}

/// The output of `crc32` for each file of the model.
fn sums(workload: &Workload) -> BTreeMap<String, u32> {
    let files = workload.files().into_iter();
    files
        .filter_map(|(path, content)| match content {
            Content::File(content) => Some((path.to_owned(), crc32(content))),
            _ => None,
        })
        .collect()
}

/// The checksum of each file as the guest reads it from the disk, past its page cache.
fn sums_in(guest: &mut Guest) -> BTreeMap<String, u32> {
    let said = guest.does("echo 3 >/proc/sys/vm/drop_caches; find /m -type f -exec crc32 {} +");
    said.lines()
        .map(|line| {
            let mut words = line.split_whitespace();
            let sum = words
                .next()
                .and_then(|word| u32::from_str_radix(word, 16).ok());
            let path = words.next().and_then(|path| path.strip_prefix("/m"));
            (path.expect("a path").to_owned(), sum.expect("a sum"))
        })
        .collect()
}

/// The disk in this file, which cryptsetup opens.
fn decrypted(encrypted: &Path, key: &Path, folder: &Path) -> PathBuf {
    let plain = folder.join("plain");
    fs::copy(encrypted, &plain).expect("copied");
    let header = folder.join("header");
    let _ = fs::remove_file(&header);
    let how = ["--decrypt", "--batch-mode", "--force-offline-reencrypt"];
    let done = run(Command::new("cryptsetup")
        .arg("reencrypt")
        .args(how)
        .arg("--header")
        .arg(header)
        .arg("--key-file")
        .arg(key)
        .arg(&plain));
    assert_eq!(done.code, 0, "{}", done.error);
    plain
}

/// The whole chain: random operations of a guest on files are reported step by step; after each
/// part the guest reads from the disk what it has written; meanwhile a replica fails and returns.
/// In the end the volume and both replicas are equal, cryptsetup opens each, e2fsck finds each
/// clean, and their files are those of the guest.
#[test]
fn monitor_encryption_and_replicas_survive_random_work_and_a_failing_replica() {
    let folder = TempDir::new().expect("a folder");
    let host = Host::with(&["--units", "2"]);
    host.json(&["volume", "create", "disk", "--size", "64M"]);
    let copies = ["b", "c"].map(|name| folder.path().join(name));
    for copy in &copies {
        let file = fs::File::create(copy).expect("made");
        file.set_len(SIZE).expect("room");
    }
    let mut b = serve(&host, "b", &copies[0]);
    let mut c = serve(&host, "c", &copies[1]);
    let key = host.filter_key("web", "correct horse");
    let text = "volume = 'disk'\n\
                [[filter]]\nkind = 'monitor'\n\
                [[filter]]\nkind = 'encrypt'\nkey = 'web'\nformat = 'if-empty'\n\
                [[filter]]\nkind = 'replicate'\nname = 'copies'\n\
                [[filter.replica]]\nname = 'b'\nuri = 'nbd+unix:///?socket=b'\n\
                [[filter.replica]]\nname = 'c'\nuri = 'nbd+unix:///?socket=c'\n";
    apply_policy(&host, folder.path(), text);

    let (tree, block_bytes, kind) = (tree(), 4096, "ext4");
    let disk = file_system(folder.path(), &tree, block_bytes, kind);
    // The file system is written through the chain, too.
    let image = folder.path().join("image").display().to_string();
    copy_volume(&host, "disk", |uri| [image.clone(), uri]);

    let mut workload = Workload::new(3, block_bytes, &tree);
    let (mut steps, mut expected) = (Vec::new(), Vec::new());
    for operations in [1, 1, 1, 1, 5, 5] {
        steps.extend(workload.steps(STEPS_IN_PART, operations));
        expected.push(sums(&workload));
    }
    let tested = Tested {
        place: 0..disk.len(),
        disk,
        partition: None,
        block_bytes,
        kind,
    };
    let mut in_sync = 0;
    let between = |number: usize, guest: &mut Guest| {
        let found = sums_in(guest);
        assert!(found == expected[number], "part {number}: {found:#?}");
        match number {
            0 => wait_until("both replicas are in sync", || {
                ["b", "c"]
                    .iter()
                    .all(|name| count(&host, &format!("{name} is in sync")) > 0)
            }),
            1 => {
                in_sync = count(&host, "b is in sync");
                kill(&mut b);
            }
            3 => {
                wait_until("it is noticed", || {
                    count(&host, "replica b is excluded") >= 1
                });
                b = serve(&host, "b", &copies[0]);
                wait_until("b is in sync again", || {
                    count(&host, "b is in sync") > in_sync
                });
            }
            _ => {}
        }
    };
    let events = run_steps_in_guest(&host, &tested, &workload, &steps, folder.path(), between);
    assert_steps_reported(&events, &tested, &steps);
    for volume in ["disk", "work"] {
        host.json(&["detach", volume]);
    }
    assert_steps_traced(&host, &steps, folder.path());

    kill(&mut b);
    kill(&mut c);
    let volume = folder.path().join("volume");
    host.json(&["chain", "delete", "disk"]);
    let spelled = volume.display().to_string();
    copy_volume(&host, "disk", |uri| [uri, spelled.clone()]);
    let content = fs::read(&volume).expect("read");
    for one in copies.iter().chain([&volume]) {
        assert!(fs::read(one).expect("read") == content, "{one:?} is alike");
        let opened = run(Command::new("cryptsetup")
            .args(["open", "--test-passphrase", "--type", "luks2", "--key-file"])
            .arg(&key)
            .arg(one));
        assert_eq!(opened.code, 0, "{}", opened.error);
        let plain = decrypted(one, &key, folder.path());
        let checked = run(Command::new("e2fsck").args(["-f", "-n"]).arg(&plain));
        assert_eq!(checked.code, 0, "{} {}", checked.out, checked.error);
    }
    assert_disk_has_content(&folder.path().join("plain"), &workload, folder.path());
}

/// Whether the file system after a crash is clean and has these files.
fn has_files(image: &Path, folder: &Path, sums: &str) -> bool {
    let copy = folder.join("copy");
    let copied = run(Command::new("cp")
        .arg("--sparse=always")
        .arg(image)
        .arg(&copy));
    assert_eq!(copied.code, 0, "{}", copied.error);
    let replayed = run(Command::new("e2fsck").args(["-f", "-p"]).arg(&copy));
    let checked = run(Command::new("e2fsck").args(["-f", "-n"]).arg(&copy));
    let is_whole = matches!(replayed.code, 0 | 1) && checked.code == 0;
    is_whole
        && sums.lines().all(|line| {
            let (sum, path) = line.split_once("  .").expect("a sum and a path");
            let dumped = folder.join("dumped");
            let _ = fs::remove_file(&dumped);
            let request = format!("dump {path} {}", dumped.display());
            run(Command::new("debugfs").arg("-R").arg(request).arg(&copy));
            run(Command::new("md5sum").arg(&dumped))
                .out
                .starts_with(sum)
        })
}

#[test]
fn a_partial_replica_has_the_chosen_files_after_a_power_failure() {
    let folder = TempDir::new().expect("a folder");
    let host = Host::with(&["--units", "2"]);
    host.json(&["volume", "create", "disk", "--size", "64M"]);
    let image = folder.path().join("image");
    let made = run(Command::new("mke2fs")
        .args(["-q", "-t", "ext4"])
        .arg(&image)
        .arg("64M"));
    assert_eq!(made.code, 0, "{}", made.error);
    let export = host.json(&["volume", "export", "disk"]);
    let uri = export["uri"].as_str().expect("text");
    let copied = run(Command::new("nbdcopy").arg(&image).arg(uri));
    assert_eq!(copied.code, 0, "{}", copied.error);
    host.json(&["volume", "unexport", "disk"]);

    let copy = folder.path().join("b");
    let file = fs::File::create(&copy).expect("made");
    file.set_len(SIZE).expect("room");
    let mut b = serve(&host, "b", &copy);
    let policy = folder.path().join("policy.toml");
    let text = "volume = 'disk'\n\
                [[filter]]\nkind = 'replicate'\n\
                [[filter.replica]]\nname = 'b'\nuri = 'nbd+unix:///?socket=b'\n\
                paths = ['/etc/**', '/home/*/mail/**']\n";
    fs::write(&policy, text).expect("written");
    host.json(&["chain", "apply", policy.to_str().expect("text")]);
    let mut guest = Guest::boot();
    guest.wait_for_boot();
    let attached = host.json(&["attach", "disk", "--vm", &guest.address()]);
    let serial = attached["device"].as_str().expect("text").to_owned();
    guest.does(&format!(
        "mkdir /m; mount -t ext4 $(disk {serial}) /m && cd /m && \
         mkdir -p etc/deep home/a/new var && sync"
    ));
    wait_until("it is in sync", || count(&host, "b is in sync") == 1);
    let put = |guest: &mut Guest, name: &str, blocks: u32| {
        guest.does(&format!(
            "dd if=/dev/urandom of=/m/{name} bs=100k count={blocks} 2>/dev/null"
        ));
    };
    put(&mut guest, "var/large", 200);
    put(&mut guest, "etc/deep/one", 5);
    put(&mut guest, "var/up", 20);
    put(&mut guest, "home/a/new/1", 4);
    guest.does("sync; mv var/up etc/up; ln -s deep/one etc/link; sync");
    kill(&mut b);
    put(&mut guest, "etc/without", 7);
    guest.does("mv home/a/new home/a/mail; sync");
    wait_until("it is noticed", || {
        count(&host, "replica b is excluded") >= 1
    });
    let mut b = serve(&host, "b", &copy);
    wait_until("b is in sync again", || count(&host, "b is in sync") >= 2);
    put(&mut guest, "home/a/mail/2", 3);
    guest.does(
        "dd if=/dev/urandom of=/m/etc/up bs=4k seek=30 count=9 conv=notrunc 2>/dev/null; \
         mv etc/without var/with; sync",
    );
    let sums = guest.does("find etc home -type f | xargs md5sum | sed 's|  |  ./|'");
    assert_eq!(sums.lines().count(), 4, "{sums}");
    guest.kill();
    wait_until("the replica has all that was chosen", || {
        has_files(&copy, folder.path(), &sums)
    });
    kill(&mut b);
    let bytes = fs::metadata(&copy).expect("it exists").blocks() * 512;
    assert!(bytes < 24 << 20, "it has {bytes} bytes, of 64 MiB");
    let said = count(&host, "b gets the content of");
    assert!(said >= 1, "{:?}", notes(&host));
}
