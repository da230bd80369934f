//! Two hosts with a shared folder of journals, or with one each; one of the hosts is dead.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::host::wait_until;
use crate::service::{Process, Site, qemu_io};

/// Hosts h1 and h2, in the folders `a` and `b`, with short leases.
struct Hosts {
    site: Site,
    _controller: Process,
    /// The folder of journals of each host.
    journals: [String; 2],
}

impl Hosts {
    /// Hosts with journals in these folders of the site.
    fn new(journals: [&str; 2]) -> Self {
        let lease = ["--lease", "3s"].map(str::to_owned);
        let (site, controller) = Site::with(|_| lease.to_vec());
        for (host, folder) in [("h1", "a"), ("h2", "b")] {
            let invited = site.locally(&["host", "add", host]);
            assert_eq!(site.join_host_in(folder, &invited).code, 0);
        }
        for folder in journals {
            fs::create_dir_all(site.path(folder)).expect("made");
        }
        Self {
            journals: journals.map(|folder| site.text(folder)),
            _controller: controller,
            site,
        }
    }

    /// An agent that destages nothing by itself.
    fn agent(&self, index: usize) -> Process {
        let journals = ["--journals", &self.journals[index]];
        let options = [&journals[..], &["--destage-after", "1h"]].concat();
        self.site.agent_with(["a", "b"][index], &options)
    }

    /// Starts both agents; the second has the first one's wrapping key.
    fn agents(&self) -> [Process; 2] {
        let first = self.agent(0);
        let copied = Command::new("cp")
            .args(["-a", &self.site.text("a/keys"), &self.site.text("b")])
            .status();
        assert!(copied.expect("cp runs").success());
        [first, self.agent(1)]
    }

    fn export(&self, host: &str) {
        self.site
            .locally(&["volume", "export", "disk", "--host", host]);
    }

    fn detach_by_force(&self, host: &str) {
        let words = ["detach", "disk", "--host", host, "--force"];
        let detached = self.site.locally(&words);
        assert_eq!(detached["state"], "detached", "{detached}");
    }

    fn io(&self, index: usize, commands: &[&str]) -> bool {
        qemu_io(&self.site.path(["a", "b"][index]), "disk", commands)
    }

    /// A summary of the only attachment.
    fn note(&self) -> String {
        let all = self.site.locally(&["attachment", "list"]);
        let all = all.as_array().expect("a list");
        assert_eq!(all.len(), 1, "{all:?}");
        all[0]["message"]["text"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    }
}

/// The journals in a folder.
fn journals(folder: &str) -> Vec<String> {
    let names = fs::read_dir(folder).expect("it exists");
    let name = |entry: std::io::Result<fs::DirEntry>| entry.expect("read").file_name();
    let names = names.map(|entry| name(entry).into_string().expect("text"));
    let mut names: Vec<String> = names.filter(|name| name.starts_with("vol-")).collect();
    names.sort();
    names
}

#[test]
fn writes_flushed_by_a_dead_host_are_replayed_by_a_host_with_its_journals() {
    let hosts = Hosts::new(["journals", "journals"]);
    let [mut first, second] = hosts.agents();
    hosts
        .site
        .locally(&["volume", "create", "disk", "--size", "64M"]);
    hosts.export("h1");
    assert!(hosts.io(0, &["write -P 7 0 1M", "write -P 8 1M 1M", "flush"]));
    let own = fs::read_dir(hosts.site.path("a/journal")).expect("it exists");
    assert_eq!(own.count(), 0, "it has none for itself");

    first.kill();
    hosts.detach_by_force("h1");
    hosts.export("h2");
    let note = hosts.note();
    assert!(
        note.contains("\"h1\"") && note.contains("jrnl-") && note.ends_with("and are replayed"),
        "{note}"
    );
    assert!(hosts.io(1, &["read -P 7 0 1M", "read -P 8 1M 1M"]));
    assert!(hosts.io(1, &["write -P 9 0 1M", "flush"]));

    // The dead host returns, and does no harm.
    let first = hosts.agent(0);
    assert!(!hosts.io(0, &["read 0 4k"]), "h1 has it no more");
    assert!(hosts.io(1, &["write -P 5 2M 1M", "flush", "read -P 9 0 1M"]));
    let files = journals(&hosts.journals[0]);
    assert_eq!(files.len(), 1, "h2's only: {files:?}");
    let status = hosts.site.locally(&["status"]);
    assert_eq!(
        status["problems"].as_array().map(Vec::len),
        Some(0),
        "{status}"
    );

    // h2 is stopped in between, and does not know how long.
    second.signal("STOP");
    hosts.detach_by_force("h2");
    hosts.export("h1");
    let read = ["read -P 9 0 1M", "read -P 8 1M 1M", "read -P 5 2M 1M"];
    assert!(hosts.io(0, &read));
    assert!(hosts.io(0, &["write -P 6 0 1M", "flush"]));
    second.signal("CONT");
    wait_until("h2 knows that it has lost the lease", || {
        !hosts.io(1, &["read 0 4k"])
    });
    assert!(hosts.io(0, &["read -P 6 0 1M", "write -P 4 3M 1M", "flush"]));

    // Once closed, the volume needs no journal, and any host may attach it.
    hosts.site.locally(&["volume", "unexport", "disk"]);
    wait_until("the folder is empty", || {
        journals(&hosts.journals[0]).is_empty()
    });
    hosts.export("h2");
    let read = ["read -P 6 0 1M", "read -P 8 1M 1M", "read -P 4 3M 1M"];
    assert!(hosts.io(1, &read));
    assert_eq!(hosts.note(), "");
    second.stop();
    first.stop();
}

#[test]
fn a_host_without_the_journal_continues_from_the_newest_version_and_reports_it() {
    let hosts = Hosts::new(["journals-1", "journals-2"]);
    let [mut first, second] = hosts.agents();
    hosts
        .site
        .locally(&["volume", "create", "disk", "--size", "64M"]);
    hosts.export("h1");
    assert!(hosts.io(0, &["write -P 7 0 1M", "flush"]));
    hosts.site.locally(&["volume", "unexport", "disk"]);
    hosts.export("h1");
    assert!(hosts.io(0, &["write -P 8 0 1M", "flush"]));
    first.kill();

    // The same host with the other folder reports an error, and does not serve an older version: no
    // one has accepted data loss yet.
    let other = Hosts {
        journals: [hosts.journals[1].clone(), String::new()],
        ..hosts
    };
    let mut wrong = other.agent(0);
    wait_until("it reports the missing journal", || {
        let all = other.site.locally(&["attachment", "list"]);
        let reason = all[0]["message"]["text"].as_str().unwrap_or_default();
        all[0]["state"] == "error" && reason.contains("out of reach")
    });
    assert!(!other.io(0, &["read 0 4k"]));
    wrong.kill();
    let hosts = Hosts {
        journals: ["journals-1", "journals-2"].map(|folder| other.site.text(folder)),
        ..other
    };

    hosts.detach_by_force("h1");
    hosts.export("h2");
    let note = hosts.note();
    assert!(
        note.contains("at version 1") && note.ends_with("only, which this host does not use"),
        "{note}"
    );
    assert!(hosts.io(1, &["read -P 7 0 1M", "write -P 9 1M 1M", "flush"]));

    // The first host returns: its flushed writes are not merged with newer ones.
    let first = hosts.agent(0);
    assert!(!hosts.io(0, &["read 0 4k"]));
    hosts.site.locally(&["volume", "unexport", "disk"]);
    hosts.export("h1");
    assert!(hosts.io(0, &["read -P 7 0 1M", "read -P 9 1M 1M"]));
    assert_eq!(hosts.note(), "");
    second.stop();
    first.stop();
}

#[test]
fn foreign_and_missing_folders_of_journals_are_refused() {
    let hosts = Hosts::new(["journals", "missing"]);
    fs::remove_dir(&hosts.journals[1]).expect("empty");
    let marker = Path::new(&hosts.journals[0]).join("scree-journals");
    let text = "format = 1\ncluster = \"cluster-00000000000000000000000000000001\"\n\
                folder = \"jrnl-00000000000000001\"\n";
    fs::write(&marker, text).expect("written");
    for (folder, why) in [
        (&hosts.journals[0], "of another cluster"),
        (&hosts.journals[1], "must exist"),
    ] {
        let dir = hosts.site.text("a");
        let said = hosts
            .site
            .try_scree(&["agent", "--dir", &dir, "--journals", folder]);
        assert_eq!(said.code, 1);
        assert!(said.error.contains(why), "{}", said.error);
    }
    assert_eq!(fs::read_to_string(&marker).expect("it exists"), text);
}
