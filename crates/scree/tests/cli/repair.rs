//! Lost, drained, removed and compared units, with four unit daemons.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use serde_json::Value;

use crate::host::{Host, wait_until};
use crate::service::{Process, Site, qemu_io};
use crate::stores::Stores;

/// A controller, an agent, four healthy daemons, and a volume whose content is on the daemons.
struct Scene<'a> {
    site: &'a Site,
    stores: Stores<'a>,
    agent: Process,
}

const WRITES: [&str; 2] = ["write -P 7 0 4M", "write -P 9 8M 5M"];
const READS: [&str; 2] = ["read -P 7 0 4M", "read -P 9 8M 5M"];

/// A slot beyond the part of a segment that one answer of a daemon can have.
const ROT_AT: u64 = 3 << 20;

impl<'a> Scene<'a> {
    fn new(site: &'a Site, redundancy: [&str; 2]) -> Self {
        let invited = site.locally(&["host", "add", "h1"]);
        assert_eq!(site.join_host(&invited).code, 0);
        let stores = Stores::new(site, 4);
        let agent = site.agent();
        wait_until("all daemons are used", || stores.are(&[1, 2, 3, 4]));
        let create = ["volume", "create", "disk", "--size", "64M"];
        site.locally(&[&create[..], &redundancy].concat());
        let scene = Self {
            site,
            stores,
            agent,
        };
        scene.with_disk(&[&WRITES[..], &["flush"], &READS].concat());
        scene
    }

    /// Attaches the volume. Earlier writes are on the daemons when this returns.
    fn with_disk(&self, commands: &[&str]) {
        self.site.locally(&["volume", "export", "disk"]);
        let done = qemu_io(&self.site.path("a"), "disk", commands);
        assert!(done, "{commands:?}: {:?}", self.stores.states());
        self.site.locally(&["volume", "unexport", "disk"]);
    }

    /// Destroys the machine of a daemon with all its data.
    fn lose(&mut self, number: usize) {
        self.stores.running[number - 1].kill();
        fs::remove_dir_all(self.site.path(&format!("u{number}"))).expect("removed");
        let name = format!("s{number}");
        wait_until("it is missing", || {
            let states = self.stores.states();
            states.contains(&(name.clone(), "missing".to_owned()))
        });
    }

    /// Waits until all members of all copysets are in sync.
    fn wait_until_repaired(&self) {
        wait_until("repair is complete", || {
            let jobs = self.site.locally(&["unit", "jobs"]);
            jobs.as_array().expect("a list").is_empty()
        });
    }

    /// Reads everything while each of these daemons in turn is unavailable.
    fn reads_without_any_of(&mut self, numbers: &[usize]) {
        for number in numbers {
            self.stores.running[number - 1].kill();
            self.with_disk(&READS);
            self.stores.running[number - 1] = self.stores.start(*number);
            wait_until("it is healthy again", || self.stores.are(numbers));
        }
    }

    /// Flips some bits in each large segment of a daemon except the newest one of each copyset,
    /// which may be open. Returns the number of segments.
    fn rot(&self, number: usize) -> usize {
        let mut folders = vec![self.site.path(&format!("u{number}/unit/segments"))];
        let mut large: BTreeMap<String, BTreeMap<String, PathBuf>> = BTreeMap::new();
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).expect("read") {
                let path = entry.expect("read").path();
                let name = path.file_name().expect("one").to_str().expect("text");
                if path.is_dir() {
                    folders.push(path);
                } else if let Some((copyset, serial)) = name.split_once('-')
                    && fs::metadata(&path).expect("it exists").len() > ROT_AT
                {
                    let of = large.entry(copyset.to_owned()).or_default();
                    of.insert(serial.to_owned(), path.clone());
                }
            }
        }
        large.values_mut().for_each(|of| drop(of.pop_last()));
        let old: Vec<&PathBuf> = large.values().flat_map(BTreeMap::values).collect();
        for path in &old {
            let file = fs::File::options().write(true).open(path);
            let written = file.and_then(|file| file.write_all_at(&[0xff, 1, 2, 3], ROT_AT - 100));
            written.expect("written");
        }
        old.len()
    }

    fn is_refused(&self, arguments: &[&str], why: &str) {
        let said = self
            .site
            .try_scree(&[&["--dir", &self.site.text("c")], arguments].concat());
        assert!(said.code == 1 && said.error.contains(why), "{}", said.error);
    }

    fn stop(self) {
        self.agent.stop();
    }
}

fn copysets(answer: &Value) -> u64 {
    answer["copysets"].as_u64().expect("a number")
}

/// Two units are lost one after the other: each time the remaining ones restore two copies of
/// everything.
#[test]
fn blocks_of_a_lost_unit_get_two_copies_again_and_last_copies_stay() {
    let soon = ["--grace", "0s"].map(str::to_owned);
    let (site, _controller) = Site::with(|_| soon.to_vec());
    let mut scene = Scene::new(&site, ["--replicas", "2"]);
    scene.is_refused(&["unit", "remove", "s2"], "is a member of");

    scene.lose(2);
    let drained = site.locally(&["unit", "drain", "s2"]);
    assert!(copysets(&drained[0]) > 0 && drained[0]["removed"] == false);
    wait_until("it is drained, and removed", || {
        scene.stores.are(&[1, 3, 4])
    });
    scene.wait_until_repaired();
    scene.reads_without_any_of(&[1, 3, 4]);

    // Everything is compared, and nothing has to be copied.
    assert!(copysets(&site.locally(&["unit", "repair"])) > 0);
    scene.wait_until_repaired();
    assert!(copysets(&site.locally(&["unit", "scrub", "s1"])) > 0);
    scene.wait_until_repaired();

    let remove = ["unit", "remove", "s3", "--lost"];
    scene.is_refused(&remove, "still reaches s3");
    // Nothing is copied: after the next loss only last copies are left.
    scene.lose(3);
    scene.agent.kill();
    let removed = site.locally(&["unit", "remove", "s3", "--lost"]);
    assert!(copysets(&removed) > 0 && removed["removed"] == true);
    for name in ["s1", "s4"] {
        let remove = ["unit", "remove", name, "--lost"];
        scene.is_refused(&remove, &format!("host h1 still reaches {name}"));
    }
    scene.agent = site.agent();
    wait_until("it is not used any more", || scene.stores.are(&[1, 4]));
    scene.wait_until_repaired();
    scene.reads_without_any_of(&[1, 4]);
    scene.stop();
}

/// The same with parity: lost blocks are reconstructed.
#[test]
fn blocks_of_a_lost_unit_are_reconstructed_from_parity() {
    let soon = ["--grace", "0s"].map(str::to_owned);
    let (site, _controller) = Site::with(|_| soon.to_vec());
    let mut scene = Scene::new(&site, ["--erasure", "2+1"]);
    scene.lose(1);
    let removed = site.locally(&["unit", "remove", "s1", "--lost"]);
    assert!(copysets(&removed) > 0 && removed["removed"] == true);
    wait_until("it is not used any more", || scene.stores.are(&[2, 3, 4]));
    scene.wait_until_repaired();
    scene.reads_without_any_of(&[2, 3, 4]);

    // There is no fourth unit to replace it.
    scene.is_refused(&["unit", "drain", "s2"], "no healthy unit with free space");
    scene.stop();
}

/// Once a repair read more of a segment than one answer can have, and failed.
#[test]
fn rotten_slots_of_a_daemon_are_repaired() {
    for redundancy in [["--replicas", "2"], ["--erasure", "2+1"]] {
        let soon = ["--grace", "0s"].map(str::to_owned);
        let (site, _controller) = Site::with(|_| soon.to_vec());
        let mut scene = Scene::new(&site, redundancy);
        for pattern in [1, 2, 3] {
            scene.with_disk(&[&format!("write -P {pattern} 16M 48M"), "flush"]);
        }
        scene.wait_until_repaired();
        assert!(
            scene.rot(1) > 0,
            "{redundancy:?}: nothing that large is there"
        );
        assert!(copysets(&site.locally(&["unit", "scrub", "s1"])) > 0);
        scene.wait_until_repaired();
        for number in [2, 3, 4] {
            scene.stores.running[number - 1].kill();
            scene.with_disk(&[&READS[..], &["read -P 3 16M 48M"]].concat());
            scene.stores.running[number - 1] = scene.stores.start(number);
            wait_until("it is healthy again", || scene.stores.are(&[1, 2, 3, 4]));
        }
        scene.stop();
    }
}

/// A removed unit may be stale. Once the host tried to add it without end, and the caller got no
/// error.
#[test]
fn a_removed_unit_is_not_added_again() {
    let host = Host::with(&["--units", "3"]);
    let folder = host.unit(1);
    let folder = folder.to_str().expect("text");
    let url = format!("file://{folder}");
    host.json(&["unit", "drain", &url]);
    wait_until("it is removed", || {
        let units = host.json(&["unit", "list"]);
        units.as_array().expect("a list").len() == 2
    });
    host.refuses(
        1,
        &["unit", "add", folder],
        &["was removed", "empty its folder"],
    );
}
