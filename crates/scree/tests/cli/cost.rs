//! `scree cost predict`: the cost of encryption, by calibrations with known numbers.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::host::{CommandOutput, scree};

/// A folder with a calibration.
pub struct CostRig(pub TempDir);

impl CostRig {
    /// A short calibration of this machine, of ciphers only.
    pub fn new() -> Self {
        let rig = Self(TempDir::new().expect("a folder"));
        let said = rig.cost("calibrate", &["--cipher-time", "1ms"]);
        assert_eq!(said.code, 0, "{}", said.error);
        rig
    }

    /// A calibration with made-up numbers: a write takes 10 µs plus 1 ns a byte, a read half of
    /// that; the disk does 100 MB/s.
    pub fn with_place() -> Self {
        let rig = Self::new();
        let by_size = |scale: f64| {
            let at = |bytes: f64| json!([bytes, scale * (1e-5 + 1e-9 * bytes)]);
            json!([at(4096.0), at(131_072.0)])
        };
        let both = json!({ "read": by_size(0.5), "write": by_size(1.0) });
        let nothing = json!({ "byte_s": 0.0, "operation_s": 0.0 });
        let nothing = json!({ "read": nothing, "write": nothing });
        let reads = json!([
            { "data_ratio": 0.5, "speedup": 10.0, "missed": 0.0 },
            { "data_ratio": 1.0, "speedup": 1.0, "missed": 1.0 },
        ]);
        rig.change(|calibration| {
            calibration["places"] = json!([{
                "place": "guest-block",
                "at": "2026-01-02T03:04:05Z",
                "memory_bytes": 1_u64 << 30,
                "target": {
                    "bytes_per_s": { "read": 1e8, "write": 1e8 },
                    "reads": reads,
                    "writes": [{ "data_ratio": 1.0, "speedup": 1.0, "missed": 1.0 }],
                    "cpu": nothing,
                    "direct_cpu": nothing,
                    "direct_latency": nothing,
                },
                "layers": [{ "cipher": "aes-256-xts", "at": "2026-01-02T03:04:05Z", "layer": {
                    "cpu": both,
                    "latency": both,
                    "request_bytes_max": 131_072.0,
                    "merged_bytes": 131_072.0,
                    "apart_s": { "read": 0.0, "write": 0.0 },
                    "is_above_memory": false,
                }, "unsure": 0, "measured": 4 }],
            }]);
        });
        rig
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn change(&self, how: impl FnOnce(&mut Value)) {
        let path = self.path("c.json");
        let mut read: Value =
            serde_json::from_slice(&fs::read(&path).expect("read")).expect("JSON");
        how(&mut read);
        fs::write(&path, read.to_string()).expect("written");
    }

    pub fn cost(&self, verb: &str, arguments: &[&str]) -> CommandOutput {
        let calibration = self.path("c.json");
        let calibration = ["--calibration", calibration.to_str().expect("text")];
        scree(&[&["cost", verb], &calibration[..], arguments].concat())
    }

    pub fn result(&self, verb: &str, arguments: &[&str]) -> Value {
        let said = self.cost(verb, &[arguments, &["-o", "json"]].concat());
        assert_eq!(said.code, 0, "{}", said.error);
        serde_json::from_str(&said.out).expect("JSON")
    }

    pub fn refused(&self, verb: &str, arguments: &[&str]) -> String {
        let said = self.cost(verb, arguments);
        assert_ne!(said.code, 0, "{}", said.out);
        assert!(said.out.is_empty(), "{}", said.out);
        said.error
    }
}

pub fn number(value: &Value) -> f64 {
    value.as_f64().expect("a number")
}

fn near(value: &Value, expected: f64) {
    let off = number(value) - expected;
    assert!(
        off.abs() <= 1e-9 * expected.abs(),
        "{value} and not {expected}"
    );
}

#[test]
fn the_cost_of_a_workload_is_computed() {
    let rig = CostRig::with_place();
    // 1,000 requests of 64 KiB in each direction, past the page cache, four at once.
    let arguments = [
        "--read",
        "64000K",
        "--write",
        "64000K",
        "--request",
        "64K",
        "--direct",
        "4",
    ];
    let result = rig.result("predict", &arguments);
    let way = &result["ways"][0];
    let bytes = 65_536_000.0;
    let write_s = 1000.0 * 1e-5 + 1e-9 * bytes;
    near(&way["cpu_s"], 1.5 * write_s);
    near(&way["plain_run_s"], 2.0 * bytes / 1e8);
    near(&way["run_s"], 2.0 * bytes / 1e8 + 1.5 * write_s / 4.0);
    near(&way["cpu_share"], 1.5 * write_s / number(&way["run_s"]));
    near(&way["latency_s"], 0.75 * write_s / 1000.0);
    assert_eq!(result["cheapest"], 0);
    // Half of the memory holds everything that is read again: nothing is decrypted.
    let warm = rig.result("predict", &["--read", "512M", "--warm"]);
    assert_eq!(number(&warm["ways"][0]["cpu_s"]), 0.0);
    let cold = rig.result("predict", &["--read", "512M"]);
    assert!(number(&cold["ways"][0]["cpu_s"]) > 0.1);
    // A write to the page cache does not wait for the layers below.
    let late = rig.result("predict", &["--write", "64M"]);
    assert_eq!(number(&late["ways"][0]["latency_s"]), 0.0);
    assert_eq!(late["ways"][0]["calibrated_at"], "2026-01-02T03:04:05Z");
    // The scatter of the rounds is shown.
    rig.change(|calibration| calibration["places"][0]["layers"][0]["unsure"] = json!(3));
    let said = rig.cost("predict", &["--write", "64M"]);
    assert!(
        said.error
            .contains("of 4 measurements 3 are not significant"),
        "{}",
        said.error
    );
}

#[test]
fn each_place_is_compared_with_its_own_baseline() {
    let rig = CostRig::with_place();
    // The same above the page cache, and in a filter at half the speed.
    rig.change(|calibration| {
        let mut other = calibration["places"][0].clone();
        let places = calibration["places"].as_array_mut().expect("places");
        other["place"] = json!("guest-stackable");
        other["layers"][0]["cipher"] = json!("aes-256-gcm");
        places.push(other.clone());
        other["place"] = json!("filter");
        other["layers"][0]["cipher"] = json!("aes-256-xts");
        other["target"]["bytes_per_s"]["write"] = json!(5e7);
        places.push(other);
    });
    let all = rig.result("predict", &["--write", "100M"]);
    assert_eq!(all["ways"].as_array().map(Vec::len), Some(3));
    let said = rig.cost("predict", &["--write", "100M"]);
    assert!(said.out.contains("none, at filter"), "{}", said.out);
    let direct = ["--write", "100M", "--direct", "1"];
    let said = rig.cost("predict", &[&direct[..], &["-o", "json"]].concat());
    assert!(said.error.contains("it is left out"), "{}", said.error);
    assert!(!said.out.contains("stackable"), "{}", said.out);
    let named = [&direct[..], &["--place", "guest-stackable"]].concat();
    assert!(rig.refused("predict", &named).contains("direct I/O"));
    // Equal times are shown once.
    let same = [&["--write", "100M"][..], &["--place", "guest-block"]].concat();
    let said = rig.cost("predict", &same);
    assert!(said.out.contains("\nnone  "), "{}", said.out);
}

#[test]
fn an_unmeasured_cipher_is_predicted_by_one_of_its_mode_only() {
    let rig = CostRig::with_place();
    let arguments = |cipher| ["--write", "100M", "--cipher", cipher];
    let result = rig.result("predict", &arguments("aes-128-xts"));
    assert_eq!(result["ways"][0]["is_by_cipher"], true);
    assert!(number(&result["ways"][0]["cpu_s"]).is_finite());
    let error = rig.refused("predict", &arguments("aes-256-cbc"));
    assert!(error.contains("calibrate --place"), "{error}");
}

#[test]
fn a_latency_bound_and_prices_select_the_cheapest_place() {
    let rig = CostRig::with_place();
    let prices = rig.path("prices.csv");
    fs::write(
        &prices,
        "where,cpu_hour,run_hour,currency\nguest,3600,0,EUR\n",
    )
    .expect("written");
    let prices = prices.to_str().expect("text");
    let arguments = ["--write", "4096K", "--request", "4K", "--direct", "1"];
    let result = rig.result("predict", &[&arguments[..], &["--prices", prices]].concat());
    near(
        &result["ways"][0]["money"],
        number(&result["ways"][0]["cpu_s"]),
    );
    assert_eq!(result["currency"], "EUR");
    // A request takes 14 µs longer.
    for (bound, cheapest) in [("15us", json!(0)), ("14us", Value::Null)] {
        let result = rig.result(
            "predict",
            &[&arguments[..], &["--latency-max", bound]].concat(),
        );
        assert_eq!(result["cheapest"], cheapest, "{bound}");
    }
    let said = rig.cost("predict", &[&arguments[..], &["--prices", prices]].concat());
    assert!(
        said.out.contains("guest-block with aes-256-xts"),
        "{}",
        said.out
    );
    fs::write(prices, "where,cpu_hour,run_hour\nhost,1,1\n").expect("written");
    let error = rig.refused("predict", &[&arguments[..], &["--prices", prices]].concat());
    assert!(error.contains("no row `guest`"), "{error}");
    let error = rig.refused(
        "predict",
        &[&arguments[..], &["--prices", "/dev/null"]].concat(),
    );
    assert!(error.contains("not a regular file"), "{error}");
    let of_nothing = [
        "cost",
        "predict",
        "--calibration",
        "/dev/null",
        "--write",
        "1M",
    ];
    assert!(scree(&of_nothing).error.contains("not a regular file"));
    let error = rig.refused(
        "predict",
        &[&arguments[..], &["--prices", "/none"]].concat(),
    );
    assert!(error.contains("/none"), "{error}");
}

#[test]
fn a_trace_is_a_workload_unless_it_is_truncated_or_foreign() {
    let rig = CostRig::with_place();
    let path = rig.path("iolog");
    let name = path.to_str().expect("text").to_owned();
    let arguments = ["--trace", name.as_str()];
    let head = "fio version 3 iolog\n0 disk add\n0 disk open\n";
    let requests = "0 disk write 0 4096\n500000 disk read 0 4096\n1000000 disk write 4096 4096\n";
    fs::write(&path, format!("{head}{requests}")).expect("written");
    let result = rig.result("predict", &arguments);
    near(&result["written_bytes"], 8192.0);
    near(&result["read_bytes"], 4096.0);
    // The cost of 2.5 writes, in the recorded second.
    let cpu_s = 2.5 * (1e-5 + 4096e-9);
    near(&result["ways"][0]["cpu_s"], cpu_s);
    near(&result["ways"][0]["plain_run_s"], 1.0);
    // Each request counts by its own size.
    let sizes = "0 disk write 0 4096\n1000000 disk write 4096 131072\n";
    fs::write(&path, format!("{head}{sizes}")).expect("written");
    let result = rig.result("predict", &arguments);
    near(&result["ways"][0]["cpu_s"], 2e-5 + 135_168e-9);
    // A truncated trace, also where the rest of a line could be a line.
    for cut in ["0 disk write 0", "0 disk write 0 409"] {
        fs::write(&path, format!("{head}{cut}")).expect("written");
        let error = rig.refused("predict", &arguments);
        assert!(error.contains("line 4"), "{error}");
    }
    for (text, why) in [
        ("nothing that anybody records\n", "the format is unknown"),
        ("", "the format is unknown"),
        ("fio version 3 iolog\n0 disk add\n", "no request"),
        (
            "fio version 3 iolog\n0 disk trim 0 4096\n",
            "no reads or writes",
        ),
    ] {
        fs::write(&path, text).expect("written");
        let error = rig.refused("predict", &arguments);
        assert!(error.contains(why), "{text:?}: {error}");
    }
    fs::write(&path, [0xff; 100]).expect("written");
    assert!(
        rig.refused("predict", &arguments)
            .contains("the format is unknown")
    );
    let pipe = ["--trace", "/dev/null"];
    assert!(rig.refused("predict", &pipe).contains("not a regular file"));
    // Times of a log with pauses are not those of requests; and logs of fio do not have the queue
    // depth.
    let text = "fio version 2 iolog\ndisk add\ndisk wait 20 0\ndisk write 0 4096\n";
    fs::write(&path, text).expect("written");
    let said = rig.cost("predict", &arguments);
    assert!(said.error.contains("has no times"), "{}", said.error);
    assert!(said.error.contains("say --direct"), "{}", said.error);
    // A log with a single time is accepted.
    fs::write(&path, format!("{head}7 disk write 0 4096\n")).expect("written");
    let said = rig.cost("predict", &arguments);
    assert!(said.error.contains("have the same time"), "{}", said.error);
    assert!(!said.error.contains("has no times"), "{}", said.error);
}

/// fio reports its run time, and pauses between requests as requested.
#[test]
fn the_run_time_of_an_fio_log_is_that_of_fio() {
    let rig = CostRig::with_place();
    let (log, disk) = (rig.path("log"), rig.path("disk"));
    let wrote = Command::new("fio")
        .args(["--name=w", "--ioengine=psync", "--rw=write", "--bs=4k"])
        .args(["--size=128k", "--thinktime=5000", "--thinktime_spin=0"])
        .args(["--output-format=json"])
        .arg(format!("--filename={}", disk.display()))
        .arg(format!("--write_iolog={}", log.display()))
        .output();
    let wrote = CommandOutput::of(wrote.expect("fio is installed"));
    assert_eq!(wrote.code, 0, "{} {}", wrote.out, wrote.error);
    let took_s = number(&wrote.of_fio()["jobs"][0]["job_runtime"]) / 1e3;
    let result = rig.result("predict", &["--trace", log.to_str().expect("text")]);
    near(&result["written_bytes"], f64::from(128 << 10));
    // There are 31 pauses between 32 requests; fio counts milliseconds.
    let (least_s, most_s) = (31.0 * 5e-3, took_s + 2e-3);
    let told_s = number(&result["ways"][0]["plain_run_s"]);
    assert!(
        (least_s..=most_s).contains(&told_s),
        "{told_s} s; fio said {took_s} s"
    );
}

#[test]
fn the_output_of_blkparse_has_the_queue_depth() {
    let rig = CostRig::with_place();
    let path = rig.path("blktrace");
    let arguments = ["--trace", path.to_str().expect("text")];
    let queued: String = (0..4)
        .map(|at| format!("8,0 0 {at} 1.{at} 9 Q W {} + 8 [x]\n", 8 * at))
        .collect();
    let ended = "8,0 0 5 3.0 0 C W 0 + 32 [0]\n";
    fs::write(&path, format!("{queued}{ended}")).expect("written");
    let said = rig.cost("predict", &[&arguments[..], &["-o", "json"]].concat());
    assert!(!said.error.contains("--direct"), "{}", said.error);
    let result: Value = serde_json::from_str(&said.out).expect("JSON");
    near(&result["ways"][0]["plain_run_s"], 2.0);
    // They took 2.0, 1.9, 1.8 and 1.7 s within two seconds, so 3.7 were under way; each takes as
    // much longer as it would alone.
    near(&result["ways"][0]["longer_s"], 4.0 * (1e-5 + 4096e-9) / 3.7);
    // A stacked disk has each request twice; the name of a process may be any bytes.
    let mut text = format!("{queued}{ended}{}", queued.replace("8,0 ", "253,0 ")).into_bytes();
    text.extend(b"8,0 0 9 3.5 9 Q R 0 + 8 [caf\xc3]\n");
    fs::write(&path, text).expect("written");
    let said = rig.cost("predict", &arguments);
    assert_eq!(said.code, 0, "{}", said.error);
    assert!(
        said.error.contains("2 disks or files (253,0 8,0)"),
        "{}",
        said.error
    );
    // Requests that were only queued have no queue depth.
    fs::write(&path, &queued).expect("written");
    let said = rig.cost("predict", &arguments);
    assert!(said.error.contains("say --direct"), "{}", said.error);
}

#[test]
fn a_calibration_of_another_machine_is_marked_and_not_validated() {
    let rig = CostRig::with_place();
    rig.change(|calibration| calibration["machine"]["name"] = json!("elsewhere"));
    let result = rig.result("predict", &["--write", "1M"]);
    let differs = result["ways"][0]["other_machine"].as_str();
    let differs = differs.expect("it is result");
    assert!(differs.contains("elsewhere"), "{differs}");
    let said = rig.cost("predict", &["--write", "1M"]);
    assert!(said.error.contains("elsewhere"), "{}", said.error);
    let error = rig.refused("validate", &["--place", "guest-block"]);
    assert!(error.contains("--other-machine"), "{error}");
    // It is not mixed with measurements of this machine.
    let error = rig.refused("calibrate", &["--cipher-time", "1ms"]);
    assert!(error.contains("another --calibration"), "{error}");
}

#[test]
fn an_invalid_calibration_is_refused() {
    let rig = CostRig::with_place();
    let arguments = ["--write", "1M"];
    rig.change(|calibration| calibration["version"] = json!(99));
    assert!(
        rig.refused("predict", &arguments)
            .contains("its version is 99")
    );
    fs::write(rig.path("c.json"), "{\"version\": 1").expect("written");
    assert!(
        rig.refused("predict", &arguments)
            .contains("not a calibration")
    );
    fs::remove_file(rig.path("c.json")).expect("removed");
    assert!(
        rig.refused("predict", &arguments)
            .contains("scree cost calibrate")
    );
    let rig = CostRig::new();
    assert!(
        rig.refused("predict", &arguments)
            .contains("calibrate --place")
    );
    // Impossible options.
    for bad in [
        &[][..],
        &["--write", "1M", "--request", "0"],
        &["--write", "1M", "--trace", "x"],
        &["--write", "1M", "--cpus", "0"],
        &["--write", "1M", "--place", "moon"],
        &["--write", "1M", "--own-cpu", "-1"],
        &["--read", "1M", "--data", "0"],
        &["--read", "1M", "--memory", "0"],
    ] {
        assert_eq!(rig.cost("predict", bad).code, 2, "{bad:?}");
    }
}

/// Guests and hosts are calibrated separately, and compared.
#[test]
fn calibrations_of_several_machines_are_compared() {
    let [guest, host] = [CostRig::with_place(), CostRig::with_place()];
    host.change(|calibration| {
        calibration["places"][0]["place"] = json!("filter");
        calibration["machine"]["name"] = json!("a-host");
    });
    let other = host.path("c.json");
    let other = ["--calibration", other.to_str().expect("text")];
    let arguments = ["--write", "1M", "--direct", "1"];
    let result = guest.result("predict", &[&arguments[..], &other[..]].concat());
    let ways = result["ways"].as_array().expect("ways");
    assert_eq!(ways.len(), 2, "{result}");
    assert_eq!(ways[1]["place"], "filter");
    assert_eq!(ways[1]["machine"], "a-host");
    assert!(ways[0]["other_machine"].is_null(), "{result}");
    assert!(ways[1]["other_machine"].is_string(), "{result}");
    // A place that was not measured is named beside the cheapest one.
    let said = guest.cost("predict", &[&arguments[..], &other[..]].concat());
    assert!(
        said.out.contains("calibrated on a-host and "),
        "{}",
        said.out
    );
    assert!(
        said.error.contains("agent: not calibrated"),
        "{}",
        said.error
    );
    // Each place has one calibration.
    host.change(|calibration| calibration["places"][0]["place"] = json!("guest-block"));
    let error = guest.refused("predict", &[&arguments[..], &other[..]].concat());
    assert!(error.contains("in several of these"), "{error}");
}

#[test]
fn estimates_and_omissions_are_reported() {
    let rig = CostRig::with_place();
    let said = rig.cost("predict", &["--read", "1M"]);
    assert!(!said.error.contains("is assumed to have"), "{}", said.error);
    // The data exceed those of the measurements.
    rig.change(|calibration| calibration["places"][0]["tried_bytes"] = json!(256 << 20));
    for (more, is_guessed) in [
        (&["--read", "512M", "--warm"][..], true),
        (&["--read", "1G", "--data", "512M"], true),
        (&["--read", "256M", "--warm"], false),
        (&["--read", "512M"], false),
        (&["--read", "512M", "--direct", "4"], false),
        (&["--write", "512M", "--warm"], false),
    ] {
        let said = rig.cost("predict", more);
        assert_eq!(said.code, 0, "{}", said.error);
        let is_reported = said.error.contains("data of up to 256M");
        assert_eq!(is_reported, is_guessed, "{more:?}: {}", said.error);
    }
    let drawn = rig.path("drawn.svg");
    let drawn = ["--plot", drawn.to_str().expect("text")];
    let said = rig.cost(
        "predict",
        &[&["--read", "200M", "--warm"], &drawn[..]].concat(),
    );
    assert!(
        said.error.contains("data of up to 256M"),
        "twice as much is drawn"
    );
    rig.change(|calibration| calibration["places"][0]["place"] = json!("filter"));
    let said = rig.cost("predict", &["--read", "1M"]);
    assert!(
        !said.error.contains("is assumed to have"),
        "it is read once"
    );
    let said = rig.cost("predict", &["--read", "1M", "--warm"]);
    assert!(
        said.error.contains("is assumed to have 1G of memory"),
        "{}",
        said.error
    );
    let ciphers = ["--cipher", "aes-256-xts", "--cipher", "aes-256-gcm"];
    let said = rig.cost("predict", &[&["--write", "1M"], &ciphers[..]].concat());
    let why = "filter with aes-256-gcm is left out: the place does not support this cipher";
    assert!(said.error.contains(why), "{}", said.error);
}

#[test]
fn impossible_options_are_refused_before_measuring() {
    let rig = CostRig::with_place();
    rig.change(|calibration| calibration["places"][0]["place"] = json!("filter"));
    let place = ["--place", "filter"];
    let error = rig.refused(
        "validate",
        &[&place[..], &["--plot", "/none/p.svg"]].concat(),
    );
    assert!(error.contains("its folder does not exist"), "{error}");
    let two = ["--cipher", "aes-256-xts", "--cipher", "aes-256-cbc"];
    let error = rig.refused("validate", &[&place[..], &two].concat());
    assert!(error.contains("aes-256-cbc was not calibrated"), "{error}");
    let error = rig.refused("predict", &["--write", "1M", "--plot", "/none/p.svg"]);
    assert!(error.contains("its folder does not exist"), "{error}");
    for arguments in [
        &["--request", "4K"][..],
        &["--own-cpu", "1"],
        &["--write", "0"],
        &["--write", "1M", "--own-cpu", "1e308"],
        &["--write", "1M", "--dry-run"],
    ] {
        assert_eq!(rig.cost("predict", arguments).code, 2, "{arguments:?}");
    }
    let idle = [&place[..], &["--work", "direct:1M:4K:50:0"]].concat();
    assert!(rig.refused("validate", &idle).contains("from 1 to 128"));
}

/// Once an input file was overwritten.
#[test]
fn an_input_file_is_not_overwritten_by_a_plot() {
    let rig = CostRig::with_place();
    let path = |name: &str| rig.path(name).to_str().expect("text").to_owned();
    let read = |name: &str| fs::read(rig.path(name)).expect("it is there");
    fs::write(rig.path("p.csv"), "where,cpu_hour,run_hour\nguest,1,1\n").expect("written");
    std::os::unix::fs::symlink(rig.path("c.json"), rig.path("link")).expect("made");
    let before = (read("c.json"), read("p.csv"));
    let (prices, results) = (path("p.csv"), path("c.json"));
    for over in ["c.json", "link", "p.csv"] {
        let over = path(over);
        let arguments = ["--write", "1M", "--prices", &prices, "--plot", &over];
        let error = rig.refused("predict", &arguments);
        assert!(error.contains("it is an input file"), "{error}");
    }
    let validate = ["--place", "guest-block", "--plot", &results];
    assert!(
        rig.refused("validate", &validate)
            .contains("it is an input file")
    );
    let said = scree(&["cost", "draw", &results, "--plot", &results]);
    assert!(said.error.contains("it is an input file"), "{}", said.error);
    assert_eq!((read("c.json"), read("p.csv")), before);
}

#[test]
fn savings_are_shown_as_such() {
    let rig = CostRig::with_place();
    let saves = json!([[4096.0, -1e-5], [131_072.0, -1e-5]]);
    rig.change(|calibration| {
        let layer = &mut calibration["places"][0]["layers"][0]["layer"];
        layer["latency"] = json!({ "read": saves, "write": saves });
        layer["cpu"] = json!({ "read": saves, "write": saves });
    });
    let prices = rig.path("prices.csv");
    fs::write(&prices, "where,cpu_hour,run_hour\nguest,0,3600\n").expect("written");
    let prices = prices.to_str().expect("text");
    let arguments = [
        "--write",
        "4M",
        "--request",
        "4K",
        "--direct",
        "1",
        "--prices",
        prices,
    ];
    let result = rig.result("predict", &arguments);
    let way = &result["ways"][0];
    // 1024 writes, each of which is 10 µs shorter.
    near(
        &way["longer_s"],
        number(&way["run_s"]) - number(&way["plain_run_s"]),
    );
    near(&way["money"], number(&way["longer_s"]));
    assert!((number(&way["longer_s"]) + 0.010_24).abs() < 1e-9, "{way}");
    let said = rig.cost("predict", &arguments);
    assert!(said.out.contains(" -10.2 ms "), "{}", said.out);
}
