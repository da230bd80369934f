//! `scree cost predict --trace`: recorded requests as a workload.

use std::fs;
use std::process::Command;

use serde_json::Value;

use crate::cost_rig::{CostRig, near, number};
use crate::host::CommandOutput;

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
