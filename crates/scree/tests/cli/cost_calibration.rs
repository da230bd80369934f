//! `scree cost calibrate` and `validate`: real measurements on this machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use crate::cost_rig::{CostRig, number};
use crate::host::{SCREE, scree, wait_until};

#[test]
fn a_device_is_overwritten_only_on_request() {
    let rig = CostRig::with_place();
    let work = ["--place", "guest-block"];
    assert!(rig.refused("validate", &work).contains("--device"));
    let file = rig.path("file");
    fs::write(&file, "content").expect("written");
    let name = file.to_str().expect("text");
    let error = rig.refused(
        "validate",
        &[&work[..], &["--device", name, "--overwrite"]].concat(),
    );
    assert!(error.contains("not a block device"), "{error}");
    assert_eq!(fs::read(&file).expect("it exists"), b"content");
}

/// The command measures volumes of a Scree of its own, and removes everything afterwards.
#[test]
fn a_place_is_calibrated_and_validated_for_real() {
    let rig = CostRig::new();
    let folder = rig.0.path().to_str().expect("text").to_owned();
    let at = ["--folder", folder.as_str(), "--rounds", "1"];
    let little = ["--bytes", "1M", "--cipher-time", "1ms", "--data-max", "64M"];
    let place = [&["--place", "agent"][..], &little].concat();
    let result = rig.result("calibrate", &[&place[..], &at[..]].concat());
    let measured = &result["places"][0];
    assert_eq!(measured["place"], "agent");
    assert_eq!(measured["layers"][0]["cipher"], "aes-256-gcm");
    assert!(number(&measured["target"]["bytes_per_s"]["write"]) > 0.0);
    let works = [
        "--work",
        "direct:2M:64K:50:2",
        "--work",
        "direct:1M:16K:0:1",
    ];
    let plot = rig.path("p.svg");
    let plot = ["--plot", plot.to_str().expect("text")];
    let result = rig.result(
        "validate",
        &[&["--place", "agent"], &at[..], &works, &plot].concat(),
    );
    let cases = result["cases"].as_array().expect("cases");
    assert_eq!(cases.len(), 2);
    for case in cases {
        assert!(number(&case["plain_cpu_s"]) > 0.0, "{case}");
        assert!(number(&case["measured_run_s"]) > 0.0, "{case}");
    }
    let results = rig.path("results.json");
    fs::write(&results, result.to_string()).expect("written");
    let results = results.to_str().expect("text");
    for figure in ["load", "share", "overhead", "time"] {
        let said = scree(&[&["cost", "draw", results, "--figure", figure], &plot[..]].concat());
        assert_eq!(said.code, 0, "{}", said.error);
        assert!(
            fs::read_to_string(plot[1])
                .expect("drawn")
                .contains("polyline")
        );
    }
    let said = scree(&[&["cost", "draw", results, "--only", "words"], &plot[..]].concat());
    assert!(
        said.error.contains("no work in these results"),
        "{}",
        said.error
    );
    let error = rig.refused(
        "validate",
        &[
            "--place", "agent", "--work", "words:1M", "--folder", &folder,
        ],
    );
    assert!(error.contains("with direct I/O"), "{error}");
    // One more place is measured; the first one stays.
    let before = result["calibrated_at"].clone();
    let other = [&["--place", "filter"][..], &little].concat();
    let result = rig.result("calibrate", &[&other[..], &at[..]].concat());
    let places: Vec<_> = result["places"]
        .as_array()
        .expect("places")
        .iter()
        .collect();
    let of = |name: &str| places.iter().find(|one| one["place"] == name);
    assert_eq!(of("agent").expect("agent")["at"], before);
    assert_ne!(of("filter").expect("filter")["at"], before);
    // The page cache is above a volume, wherever encryption happens.
    let reads = of("filter").expect("filter")["target"]["reads"].as_array();
    assert!(
        number(&reads.expect("a curve")[0]["speedup"]) > 1.0,
        "{reads:?}"
    );
    let left: Vec<_> = fs::read_dir(Path::new(&folder))
        .expect("it exists")
        .collect();
    let is_ours = |entry: &Result<fs::DirEntry, _>| {
        let name = entry.as_ref().expect("an entry").file_name();
        name.to_string_lossy().starts_with(".scree-cost")
    };
    assert!(!left.iter().any(is_ours), "{left:?}");
}

/// Starts a long calibration of volumes below this folder. Returns it and its scratch folder.
fn long_calibration(rig: &CostRig, folder: &Path) -> (Child, PathBuf) {
    let started = Command::new(SCREE)
        .args(["cost", "calibrate", "--place", "agent"])
        .args(["--cipher-time", "1ms", "--rounds", "1000", "--folder"])
        .arg(folder)
        .arg("--calibration")
        .arg(rig.path("c.json"))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("scree runs");
    let scratch = folder.join(format!(".scree-cost-{}", started.id()));
    // It has started a Scree of its own, and created a volume there.
    let socket = scratch.join("up").join("nbd.sock");
    wait_until("a volume is measured", || socket.exists());
    (started, scratch)
}

/// Whether the command line of a running process has this path.
fn is_any_process_of(scratch: &Path) -> bool {
    let scratch = scratch.to_str().expect("text");
    let mut processes = fs::read_dir("/proc").expect("Linux").flatten();
    processes.any(|process| {
        let words = fs::read(process.path().join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&words).contains(scratch)
    })
}

/// A signal leaves neither files nor processes.
#[test]
fn a_signal_ends_a_calibration_and_its_processes() {
    let rig = CostRig::new();
    let folder = TempDir::new().expect("a folder");
    let (mut started, scratch) = long_calibration(&rig, folder.path());
    let mut kill = Command::new("kill");
    let killed = kill.args(["-INT", &started.id().to_string()]).status();
    assert!(killed.expect("kill runs").success());
    let ended = started.wait().expect("it ends");
    assert_eq!(ended.code(), Some(1));
    let mut said = String::new();
    let mut error = started.stderr.take().expect("piped");
    std::io::Read::read_to_string(&mut error, &mut said).expect("read");
    assert!(said.contains("stopped before its end"), "{said}");
    assert_eq!(fs::read_dir(folder.path()).expect("it exists").count(), 0);
    assert!(!is_any_process_of(&scratch));
}

/// A killed calibration leaves files, but no processes.
#[test]
fn processes_of_a_killed_calibration_end() {
    let rig = CostRig::new();
    let folder = TempDir::new().expect("a folder");
    let (mut started, scratch) = long_calibration(&rig, folder.path());
    assert!(is_any_process_of(&scratch));
    started.kill().expect("killed");
    started.wait().expect("it ends");
    wait_until("its processes have ended", || !is_any_process_of(&scratch));
}
