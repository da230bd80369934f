//! Calibrations with known numbers, for tests of `scree cost`.

use std::fs;
use std::path::PathBuf;

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

    pub fn change(&self, how: impl FnOnce(&mut Value)) {
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

pub fn near(value: &Value, expected: f64) {
    let off = number(value) - expected;
    assert!(
        off.abs() <= 1e-9 * expected.abs(),
        "{value} and not {expected}"
    );
}
