//! Traces, whoever has recorded them.

use std::path::{Path, PathBuf};

use trace::{Record, Trace, has_times, read_foreign};
use world::host;
use world::real::RealDisk;

use super::Failure;
use super::offline::failed;

/// No file of a trace is longer, in bytes.
const FILE_BYTES_MAX: u64 = 8 << 30;

/// What was recorded of one disk, in one go.
pub struct Part {
    /// When it began, in microseconds since 1970; 0, if nothing says so.
    pub began_us: u64,
    /// Requests, with times from then on.
    pub records: Vec<Record>,
}

/// What was recorded.
pub struct Traces {
    /// The parts, the oldest first.
    pub parts: Vec<Part>,
    /// Their times are those of requests.
    pub are_timed: bool,
    /// What is to be known of them.
    pub notices: Vec<String>,
}

/// A pipe has no length, and may come to no end.
#[expect(
    clippy::disallowed_methods,
    reason = "of what its user's shell has made"
)]
fn check_file(path: &Path) -> Result<(), Failure> {
    match std::fs::metadata(path) {
        Ok(data) if !data.is_file() => Err(failed(path, "it is no file; write it to one first")),
        // That it is not there is said where it is read.
        _ => Ok(()),
    }
}

/// The requests in these files.
pub fn read_traces(paths: &[PathBuf]) -> Result<Traces, Failure> {
    let mut files = Vec::new();
    for path in paths {
        check_file(path)?;
        let read = host::read_small(&RealDisk, path, FILE_BYTES_MAX);
        files.push(read.map_err(|error| failed(path, error))?);
    }
    let (traces, broken) = Trace::read(files.iter().map(|bytes| &bytes[..]));
    if !traces.is_empty() {
        let mut notices = Vec::new();
        for (number, error) in broken {
            let path = paths[number].display();
            notices.push(format!("{path}: {error}; what is before that counts"));
        }
        let missing: u64 = traces.iter().map(|one| one.gone + one.lost).sum();
        if missing > 0 {
            notices.push(format!("{missing} requests are missing in the trace"));
        }
        let parts = traces.into_iter().map(|one| Part {
            began_us: one.began_us,
            records: one.records,
        });
        return Ok(Traces {
            parts: parts.collect(),
            are_timed: true,
            notices,
        });
    }
    let ([path], [bytes]) = (paths, &files[..]) else {
        return Err(Failure::new(
            "of several files all have to be of one box `trace`; of other traces give one",
        ));
    };
    let text = std::str::from_utf8(bytes)
        .map_err(|_| failed(path, "it is no trace of a box, and no text"))?;
    let records = read_foreign(text).map_err(|error| failed(path, error))?;
    Ok(Traces {
        parts: vec![Part {
            began_us: 0,
            records,
        }],
        are_timed: has_times(text),
        notices: Vec::new(),
    })
}
