//! `scree cache simulate`, and caches of real hosts.

use std::os::unix::fs::FileExt as _;

use serde_json::Value;
use tempfile::TempDir;

use crate::host::{CommandOutput, Host, scree, wait_until};
use crate::monitoring::Numbers;
use crate::service::{Process, Site, qemu_io};
use crate::stores::Stores;

fn simulate(arguments: &[&str]) -> CommandOutput {
    scree(&[&["cache", "simulate"], arguments].concat())
}

fn hits(result: &Value, policy: &str, blocks: u64) -> u64 {
    let results = result["results"].as_array().expect("a list").iter();
    let mut found = results.filter(|result| {
        result["policy"] == policy && result["cache_bytes"].as_u64() == Some(blocks * 4096)
    });
    found.next().expect("it was tried")["hits"]
        .as_u64()
        .expect("a number")
}

#[test]
fn an_fio_log_is_simulated_shown_and_plotted() {
    let folder = TempDir::new().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("text").to_owned();
    let (log, picture) = (path("log"), path("picture.svg"));
    // A loop over eight blocks, four times; one of them is written before the last round.
    let mut text = "fio version 2 iolog\nx add\nx open\n".to_owned();
    for round in 0..4 {
        if round == 3 {
            text += "x write 0 4096\n";
        }
        (0..8).for_each(|block| text += &format!("x read {} 4096\n", block * 4096));
    }
    std::fs::write(&log, text).expect("written");
    let sizes = ["--sizes", "16k,32k"];
    let said = simulate(&[&["--trace", &log, "-o", "json"], &sizes[..]].concat());
    assert_eq!(said.code, 0, "{}", said.error);
    let result: Value = serde_json::from_str(&said.out).expect("JSON");
    assert_eq!(
        (&result["requests"], &result["asked"]),
        (&33.into(), &32.into())
    );
    assert_eq!(hits(&result, "lru", 4), 0, "a loop that does not fit");
    assert!(hits(&result, "lirs", 4) >= 6);
    assert!(hits(&result, "belady", 4) >= hits(&result, "lirs", 4));
    for policy in ["lru", "belady"] {
        assert_eq!(
            hits(&result, policy, 8),
            23,
            "all blocks but the written one"
        );
    }
    let kept = [
        &["--trace", &log, "-o", "json", "--writes", "keep"],
        &sizes[..],
    ]
    .concat();
    let result: Value = serde_json::from_str(&simulate(&kept).out).expect("JSON");
    assert_eq!(hits(&result, "lru", 8), 24);
    let said = simulate(&["--trace", &log, "--policy", "lru,lirs", "--plot", &picture]);
    assert_eq!(said.code, 0, "{}", said.error);
    assert!(
        said.out.contains("LIRS") && !said.out.contains("ARC"),
        "{}",
        said.out
    );
    let drawn = std::fs::read_to_string(&picture).expect("drawn");
    assert!(drawn.contains("<svg") && drawn.contains("lirs"), "{drawn}");

    let huge = folder
        .path()
        .join("huge")
        .to_str()
        .expect("text")
        .to_owned();
    let request = format!("x read 0 {}\n", 4_u64 * 1000 * 1000 * 1000);
    let text = format!("fio version 2 iolog\n{}", request.repeat(200));
    std::fs::write(&huge, text).expect("written");
    for (arguments, why) in [
        (&["--trace", &picture][..], "the format is unknown"),
        (&["--trace", &log, "--plot", &log], "it is an input file"),
        (&["--trace", &huge], "requests more than"),
        (&["--trace", &log, &picture], "must belong to one filter"),
        (&["--trace", "/nowhere/log"], "/nowhere/log"),
    ] {
        let said = simulate(arguments);
        assert_eq!(said.code, 1, "{}", said.out);
        assert!(said.error.contains(why), "{}", said.error);
    }
    let unknown = simulate(&["--trace", &log, "--policy", "mru"]);
    assert_eq!(unknown.code, 2);
}

#[test]
fn a_recorded_trace_is_simulated() {
    let host = Host::with(&["--units", "2"]);
    host.json(&["volume", "create", "disk", "--size", "16M"]);
    let said = host.apply_chain("disk", "[[filter]]\nkind = 'trace'\nname = 'all'\n");
    assert_eq!(said.code, 0, "{}", said.error);
    for _ in 0..3 {
        host.qemu_io("disk", &["read 0 1M"]);
    }
    let trace = || {
        let chains = std::fs::read_dir(host.path().join("chains")).expect("listed");
        let mut traces = chains.map(|volume| volume.expect("one").path().join("all.trace"));
        traces.find(|path| path.exists())
    };
    wait_until("the whole trace is recorded", || {
        let Some(path) = trace() else { return false };
        let said = simulate(&["--trace", path.to_str().expect("text"), "-o", "json"]);
        said.code == 0 && {
            let result: Value = serde_json::from_str(&said.out).expect("JSON");
            result["asked"] == 768 && hits(&result, "lru", 256) == 512
        }
    });
}

/// How many of a volume's blocks the only host's cache read from its file and from units.
fn requested(site: &Site) -> (u64, u64) {
    let load = site.locally(&["top"]);
    let requested = &load[0]["volumes"][0]["engine"]["cache"]["lookups"]["active"];
    let count = |source: &str| requested[source].as_u64().expect("a number");
    (count("file"), count("units"))
}

pub fn file_of(site: &Site) -> Value {
    site.locally(&["top"])[0]["cache"]["file"].clone()
}

/// A site of two daemons and a host with a cache file, and a volume of 512 blocks whose content is
/// on the daemons only.
pub fn site_with_cache() -> (Site, [Process; 4], Vec<String>) {
    let (site, controller) = Site::new();
    let invited = site.locally(&["host", "add", "h1"]);
    assert_eq!(site.join_host(&invited).code, 0);
    let mut stores = Stores::new(&site, 2);
    let cache = site.text("cache");
    let options = [
        "--cache",
        &cache,
        "--cache-size",
        "16M",
        "--cache-memory",
        "0",
    ];
    let options: Vec<String> = options.iter().map(|&option| option.to_owned()).collect();
    let agent = agent(&site, &options);
    wait_until("the daemons are used", || stores.are(&[1, 2]));
    site.locally(&[
        "volume",
        "create",
        "disk",
        "--size",
        "64M",
        "--replicas",
        "1",
    ]);
    site.locally(&["volume", "export", "disk"]);
    let write = ["write -P 7 0 1M", "write -P 9 1M 1M"];
    assert!(qemu_io(&site.path("a"), "disk", &write));
    site.locally(&["volume", "unexport", "disk"]);
    site.locally(&["volume", "export", "disk"]);
    let second = stores.running.remove(1);
    let first = stores.running.remove(0);
    (site, [controller, agent, first, second], options)
}

fn agent(site: &Site, options: &[String]) -> Process {
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    site.agent_with("a", &options)
}

fn reads_right(site: &Site) -> bool {
    qemu_io(
        &site.path("a"),
        "disk",
        &["read -P 7 0 1M", "read -P 9 1M 1M"],
    )
}

#[test]
fn a_cache_is_warm_after_a_restart() {
    let (site, [controller, mut running, first, second], options) = site_with_cache();
    assert!(reads_right(&site));
    let (file, units) = requested(&site);
    assert_eq!((file, units), (0, 512));
    wait_until("all blocks are cached", || {
        file_of(&site)["active"]["blocks"] == 512
    });
    for round in 1..=2 {
        assert!(reads_right(&site));
        assert_eq!(requested(&site), (512 * round, 512));
    }
    running.stop();
    running = agent(&site, &options);
    wait_until("it is served again", || reads_right(&site));
    let (file, units) = requested(&site);
    assert!(file >= 512 && units == 0, "{file} {units}");
    let numbers = Numbers::of(running.metrics.expect("it has them"));
    let hits = numbers.sum("scree_cache_requested_blocks_total", Some(("from", "file")));
    assert!(hits >= Some(512.0), "{hits:?}");
    // After a kill, the cache has the blocks that were written behind before.
    running.kill();
    running = agent(&site, &options);
    wait_until("it is served again", || reads_right(&site));
    let (file, units) = requested(&site);
    assert!(file >= 400 && units <= 112, "{file} {units}");
    for process in [running, first, second, controller] {
        process.stop();
    }
}

#[test]
fn no_damage_to_the_cache_file_causes_a_wrong_read() {
    let (site, [controller, mut running, first, second], options) = site_with_cache();
    assert!(reads_right(&site));
    wait_until("all blocks are cached", || {
        file_of(&site)["active"]["blocks"] == 512
    });
    // Parts of the file are overwritten while it is read.
    let path = site.path("cache");
    let file = std::fs::File::options()
        .write(true)
        .open(&path)
        .expect("it exists");
    let length = file.metadata().expect("known").len();
    for at in (200_000..length).step_by(5000) {
        file.write_all_at(b"something else", at).expect("written");
        if at % 7 == 0 {
            assert!(reads_right(&site));
        }
    }
    assert!(reads_right(&site));
    assert!(file_of(&site)["damaged"].as_u64() > Some(300));
    // The file is removed.
    std::fs::remove_file(&path).expect("removed");
    assert!(reads_right(&site));
    running.stop();
    // A foreign file in its place is not overwritten.
    std::fs::write(&path, "letters").expect("written");
    running = agent(&site, &options);
    wait_until("it is served again", || reads_right(&site));
    let status = site.locally(&["status"]);
    let problems = status["problems"].to_string();
    assert!(
        problems.contains("is not a cache of this build"),
        "{problems}"
    );
    assert_eq!(std::fs::read(&path).expect("it exists"), b"letters");
    std::fs::remove_file(&path).expect("removed");
    // Nor is a file that another process uses.
    let others = std::fs::File::create(&path).expect("made");
    others.try_lock().expect("it is not locked");
    wait_until("the other process is reported", || {
        let problems = site.locally(&["status"])["problems"].to_string();
        problems.contains("another process uses the cache")
    });
    assert!(reads_right(&site) && file_of(&site).is_null());
    drop(others);
    wait_until("the cache is used once the file is free", || {
        !file_of(&site).is_null()
    });
    assert!(reads_right(&site));
    for process in [running, first, second, controller] {
        process.stop();
    }
}
