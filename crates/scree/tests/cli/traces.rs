//! Recorded traces, and their replay by fio.

use std::fs;
use std::process::Command;

use serde_json::Value;

use crate::host::{CommandOutput, Host, wait_until};

/// All requests, in order.
fn recorded(host: &Host) -> Vec<Value> {
    let said = host.run(&["trace", "disk", "-o", "json"]);
    let lines = said.out.lines();
    lines
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect()
}

fn first_number(line: &str) -> Option<u64> {
    line.split(' ').next()?.parse().ok()
}

#[test]
fn recorded_requests_are_replayed_by_fio() {
    let mut host = Host::with(&["--units", "2"]);
    host.json(&["volume", "create", "disk", "--size", "64M"]);
    host.json(&["volume", "export", "disk"]);
    host.refuses(
        1,
        &["trace", "disk"],
        &["no filter of this volume has recorded anything"],
    );
    let said = host.apply_chain("disk", "[[filter]]\nkind = \"trace\"\nbytes_max = \"8M\"\n");
    assert_eq!(said.code, 0, "{}", said.error);
    let commands = [
        "write -P 1 4096 8192",
        "write -f -P 2 1M 512",
        "read 4096 4096",
        "flush",
        "write -z 1M 64k",
    ];
    host.qemu_io("disk", &commands);
    let lines = || recorded(&host);
    let has = |verb: &str, offset: u64, length: u64, fua: bool| {
        lines().iter().any(|line| {
            line["operation"] == verb
                && line["offset"] == offset
                && line["length"] == length
                && line["fua"] == fua
                && line["outcome"] == "done"
                && line["latency_ns"].as_u64() > Some(0)
        })
    };
    wait_until("the trace is written", || {
        has("write", 4096, 8192, true)
            && has("read", 4096, 4096, false)
            && has("flush", 0, 0, false)
            && has("write-zeroes", 1 << 20, 64 << 10, true)
    });
    let fua = lines()
        .iter()
        .any(|line| line["offset"] == 1 << 20 && line["operation"] == "write");
    assert!(fua, "{:?}", lines());
    let plain = host.run(&["trace", "disk"]).out;
    assert!(plain.contains("write") && plain.contains("µs"), "{plain}");

    // The trace outlives the process, and continues in another file.
    assert_eq!(host.stop(), 0);
    host.start();
    host.qemu_io("disk", &["write -P 3 2M 4096"]);
    wait_until("the second run is written", || {
        let said = host.run(&["trace", "disk", "-o", "json"]).out;
        said.contains(&format!("\"offset\":{}", 2 << 20)) && said.contains("\"offset\":4096,")
    });

    // Without trims, which fio does not replay on files.
    let log = host.run(&["trace", "disk", "--format", "iolog"]);
    assert_eq!(log.code, 0, "{}", log.error);
    let count = |action: &str| {
        let of_it = log.out.lines().filter(|line| line.contains(action));
        of_it.count() as u64
    };
    let (reads, writes) = (count(" read "), count(" write "));
    assert!(reads >= 1 && writes >= 3, "{}", log.out);
    // Its times are in microseconds, and the printed ones in nanoseconds: the two runs are equally
    // far apart.
    let at_us: Vec<u64> = log.out.lines().skip(1).filter_map(first_number).collect();
    let span_us = at_us.last().expect("lines") - at_us[0];
    let moment_us = |line: &Value| {
        let began: jiff::Timestamp = line["began"].as_str()?.parse().ok()?;
        Some(began.as_microsecond() as u64 + line["time_ns"].as_u64()? / 1000)
    };
    let moments: Vec<u64> = recorded(&host).iter().filter_map(moment_us).collect();
    let (first, last) = (moments.iter().min(), moments.iter().max());
    assert_eq!(
        last.zip(first).map(|(last, first)| last - first),
        Some(span_us)
    );

    let (file, target) = (host.path().join("log"), host.path().join("target"));
    fs::write(&file, &log.out).expect("written");
    fs::File::create(&target)
        .and_then(|file| file.set_len(64 << 20))
        .expect("made");
    let replayed = Command::new("fio")
        .args(["--name=r", "--ioengine=psync", "--output-format=json"])
        .arg(format!("--read_iolog={}", file.display()))
        .arg(format!("--replay_redirect={}", target.display()))
        .arg("--replay_no_stall=1")
        .output();
    let replayed = CommandOutput::of(replayed.expect("fio is installed"));
    assert_eq!(replayed.code, 0, "{} {}", replayed.out, replayed.error);
    let json = replayed.of_fio();
    let job = &json["jobs"][0];
    assert_eq!(job["read"]["total_ios"], reads, "{}", log.out);
    assert_eq!(job["write"]["total_ios"], writes, "{}", log.out);
}
