//! Replicas of the disk of a real guest. Behind a monitor and encryption: a replica dies and
//! comes back, and each copy is a disk that cryptsetup opens and e2fsck finds whole. And one
//! of chosen files: what it has is a file system with these, and little else.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::guest::Guest;
use crate::host::{Host, Said, wait_until};

const SIZE: u64 = 64 << 20;

/// An NBD server of a file, in its tenant's folder.
fn serve(host: &Host, name: &str, file: &Path) -> Child {
    let folder = host.path().join("box-sockets/local");
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
    let notes = lines.map(|line| line.expect("JSON")["note"].as_str().map(str::to_owned));
    notes.flatten().collect()
}

fn count(host: &Host, note: &str) -> usize {
    let notes = notes(host);
    notes.iter().filter(|one| one.contains(note)).count()
}

fn run(command: &mut Command) -> Said {
    let path = "/usr/sbin:/sbin:/usr/bin:/bin";
    Said::of(command.env("PATH", path).output().expect("it is installed"))
}

#[test]
fn a_guest_writes_through_a_monitor_encryption_and_replicas_of_which_one_dies() {
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
    let keys = host.path().join("box-keys/local");
    fs::create_dir_all(&keys).expect("made");
    let key = keys.join("web");
    fs::write(&key, "correct horse").expect("written");
    fs::set_permissions(&key, Permissions::from_mode(0o600)).expect("set");
    let policy = folder.path().join("policy.toml");
    let text = "volume = 'disk'\n\
                [[box]]\nkind = 'monitor'\n\
                [[box]]\nkind = 'encrypt'\nkey = 'web'\nformat = 'if-empty'\n\
                [[box]]\nkind = 'replicate'\nname = 'copies'\n\
                [[box.replica]]\nname = 'b'\nuri = 'nbd+unix:///?socket=b'\n\
                [[box.replica]]\nname = 'c'\nuri = 'nbd+unix:///?socket=c'\n";
    fs::write(&policy, text).expect("written");
    host.json(&["chain", "apply", policy.to_str().expect("text")]);

    // The file system goes through the chain as well.
    let image = folder.path().join("image");
    let made = run(Command::new("mke2fs")
        .args(["-q", "-t", "ext4"])
        .arg(&image)
        .arg("48M"));
    assert_eq!(made.code, 0, "{}", made.error);
    let export = host.json(&["volume", "export", "disk"]);
    let uri = export["uri"].as_str().expect("text").to_owned();
    let size = run(Command::new("nbdinfo").args(["--size", &uri]));
    assert_eq!(
        size.out.trim(),
        (SIZE - (16 << 20)).to_string(),
        "{}",
        size.error
    );
    let copied = run(Command::new("nbdcopy").arg(&image).arg(&uri));
    assert_eq!(copied.code, 0, "{}", copied.error);
    wait_until("both replicas are in sync", || {
        count(&host, "b is in sync") == 1 && count(&host, "c is in sync") == 1
    });
    host.json(&["volume", "unexport", "disk"]);

    let mut guest = Guest::boot();
    guest.wait_for_boot();
    let attached = host.json(&["attach", "disk", "--vm", &guest.address()]);
    let serial = attached["device"].as_str().expect("text").to_owned();
    guest.does(&format!(
        "mkdir /m; mount -t ext4 $(disk {serial}) /m && sync"
    ));
    let work = |guest: &mut Guest, name: &str| {
        guest.does(&format!(
            "mkdir /m/{name} && for i in 1 2 3 4 5 6 7 8; do \
             dd if=/dev/urandom of=/m/{name}/$i bs=100k count=5 2>/dev/null; done; \
             mv /m/{name}/8 /m/{name}/moved; rm /m/{name}/7; sync"
        ));
    };
    work(&mut guest, "before");
    kill(&mut b);
    work(&mut guest, "without");
    wait_until("it is noticed", || count(&host, "b is out") >= 1);
    let mut b = serve(&host, "b", &copies[0]);
    work(&mut guest, "after");
    wait_until("b is back", || count(&host, "b is in sync") >= 1);
    let sums = guest.does("cd /m && find . -type f | sort | xargs md5sum; cd /");
    guest.does("umount /m");
    let told = host.run(&["monitor", "disk", "-o", "json"]).out;
    for path in [
        "/before/moved",
        "/without/moved",
        "/after/moved",
        "/after/1",
    ] {
        assert!(told.contains(path), "{path} is told");
    }
    host.json(&["detach", "disk", "--vm", &guest.address()]);

    // What a replica has is a disk: cryptsetup opens it, and what is in it is whole.
    kill(&mut b);
    kill(&mut c);
    let volume = folder.path().join("volume");
    host.json(&["chain", "delete", "disk"]);
    let export = host.json(&["volume", "export", "disk"]);
    let copied = run(Command::new("nbdcopy")
        .arg(export["uri"].as_str().expect("text"))
        .arg(&volume));
    assert_eq!(copied.code, 0, "{}", copied.error);
    let content = fs::read(&volume).expect("read");
    for copy in &copies {
        assert!(
            fs::read(copy).expect("read") == content,
            "the copies are alike"
        );
        let opened = run(Command::new("cryptsetup")
            .args(["open", "--test-passphrase", "--type", "luks2", "--key-file"])
            .arg(&key)
            .arg(copy));
        assert_eq!(opened.code, 0, "{}", opened.error);
    }
    let plain = folder.path().join("plain");
    fs::copy(&copies[0], &plain).expect("copied");
    let decrypted = run(Command::new("cryptsetup")
        .args([
            "reencrypt",
            "--decrypt",
            "--batch-mode",
            "--force-offline-reencrypt",
        ])
        .args(["--header"])
        .arg(folder.path().join("header"))
        .arg("--key-file")
        .arg(&key)
        .arg(&plain));
    assert_eq!(decrypted.code, 0, "{}", decrypted.error);
    let checked = run(Command::new("e2fsck").args(["-f", "-n"]).arg(&plain));
    assert_eq!(checked.code, 0, "{} {}", checked.out, checked.error);
    for line in sums.lines() {
        let (sum, path) = line.split_once("  .").expect("a sum and a path");
        let dumped = folder.path().join("dumped");
        let request = format!("dump {path} {}", dumped.display());
        run(Command::new("debugfs").arg("-R").arg(request).arg(&plain));
        let found = run(Command::new("md5sum").arg(&dumped));
        assert!(found.out.starts_with(sum), "{path}");
    }
}

/// Whether what a crash has left of a file system is whole, and has these files in it.
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
fn a_replica_of_chosen_files_is_a_file_system_with_these_after_its_guest_lost_its_power() {
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
                [[box]]\nkind = 'replicate'\n\
                [[box.replica]]\nname = 'b'\nuri = 'nbd+unix:///?socket=b'\n\
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
    wait_until("it is noticed", || count(&host, "b is out") >= 1);
    let mut b = serve(&host, "b", &copy);
    wait_until("b is back", || count(&host, "b is in sync") >= 2);
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
    let bytes = fs::metadata(&copy).expect("it is there").blocks() * 512;
    assert!(bytes < 24 << 20, "it has {bytes} bytes, of 64 MiB");
    let said = count(&host, "b is to have the content of");
    assert!(said >= 1, "{:?}", notes(&host));
}
