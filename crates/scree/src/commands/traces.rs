//! Traces, whoever has recorded them.

use std::path::PathBuf;

use trace::{Record, Trace, read_foreign};
use world::host;
use world::real::RealDisk;

use super::Failure;
use super::offline::failed;

/// No file of a trace is longer, in bytes.
const FILE_BYTES_MAX: u64 = 8 << 30;

/// What was recorded.
pub struct Traces {
    /// Requests; each part has times of its own, from when it began.
    pub parts: Vec<Vec<Record>>,
    /// What is to be known of them.
    pub notices: Vec<String>,
}

/// The requests in these files.
pub fn read_traces(paths: &[PathBuf]) -> Result<Traces, Failure> {
    let mut files = Vec::new();
    for path in paths {
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
        let parts = traces.into_iter().map(|one| one.records);
        return Ok(Traces {
            parts: parts.collect(),
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
        parts: vec![records],
        notices: Vec::new(),
    })
}
