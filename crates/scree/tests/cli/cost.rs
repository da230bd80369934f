//! `scree cost predict`: the cost of encryption, by calibrations with known numbers.

use std::fs;

use serde_json::{Value, json};

use crate::cost_rig::{CostRig, near, number};
use crate::host::scree;

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
    let read = |name: &str| fs::read(rig.path(name)).expect("it exists");
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
