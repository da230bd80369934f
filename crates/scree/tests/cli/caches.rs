//! The laboratory of caches, from traces to a table and a picture.

use serde_json::Value;
use tempfile::TempDir;

use crate::host::{Host, Said, scree, wait_until};

fn simulate(arguments: &[&str]) -> Said {
    scree(&[&["cache", "simulate"], arguments].concat())
}

fn hits(told: &Value, policy: &str, blocks: u64) -> u64 {
    let results = told["results"].as_array().expect("a list").iter();
    let mut found = results.filter(|one| {
        one["policy"] == policy && one["cache_bytes"].as_u64() == Some(blocks * 4096)
    });
    found.next().expect("it was tried")["hits"]
        .as_u64()
        .expect("a number")
}

#[test]
fn a_log_of_fio_is_simulated_shown_and_drawn() {
    let folder = TempDir::new().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("text").to_owned();
    let (log, picture) = (path("log"), path("picture.svg"));
    // A loop over eight blocks, four times, one of which is written before the last one.
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
    let told: Value = serde_json::from_str(&said.out).expect("JSON");
    assert_eq!(
        (&told["requests"], &told["asked"]),
        (&33.into(), &32.into())
    );
    assert_eq!(hits(&told, "lru", 4), 0, "a loop that does not fit");
    assert!(hits(&told, "lirs", 4) >= 6);
    assert!(hits(&told, "belady", 4) >= hits(&told, "lirs", 4));
    for policy in ["lru", "belady"] {
        assert_eq!(hits(&told, policy, 8), 23, "all but what was written");
    }
    let kept = [
        &["--trace", &log, "-o", "json", "--writes", "keep"],
        &sizes[..],
    ]
    .concat();
    let told: Value = serde_json::from_str(&simulate(&kept).out).expect("JSON");
    assert_eq!(hits(&told, "lru", 8), 24);
    let said = simulate(&["--trace", &log, "--policy", "lru,lirs", "--plot", &picture]);
    assert_eq!(said.code, 0, "{}", said.error);
    assert!(
        said.out.contains("LIRS") && !said.out.contains("ARC"),
        "{}",
        said.out
    );
    let drawn = std::fs::read_to_string(&picture).expect("drawn");
    assert!(drawn.contains("<svg") && drawn.contains("lirs"), "{drawn}");

    for (arguments, why) in [
        (&["--trace", &picture][..], "it is no trace of a box"),
        (&["--trace", &log, &picture], "all have to be of one box"),
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
fn what_a_box_has_recorded_is_simulated() {
    let host = Host::with(&["--units", "2"]);
    host.json(&["volume", "create", "disk", "--size", "16M"]);
    let said = host.apply_chain("disk", "[[box]]\nkind = 'trace'\nname = 'all'\n");
    assert_eq!(said.code, 0, "{}", said.error);
    for _ in 0..3 {
        host.qemu_io("disk", &["read 0 1M"]);
    }
    let trace = || {
        let chains = std::fs::read_dir(host.path().join("chains")).expect("listed");
        let mut traces = chains.map(|volume| volume.expect("one").path().join("all.trace"));
        traces.find(|path| path.exists())
    };
    wait_until("all of it is recorded", || {
        let Some(path) = trace() else { return false };
        let said = simulate(&["--trace", path.to_str().expect("text"), "-o", "json"]);
        said.code == 0 && {
            let told: Value = serde_json::from_str(&said.out).expect("JSON");
            told["asked"] == 768 && hits(&told, "lru", 256) == 512
        }
    });
}
