//! Traces, whoever has recorded them.

use std::path::PathBuf;

use trace::{Record, Trace, read_foreign};
use world::host;
use world::real::RealDisk;

use super::Failure;
use super::offline::failed;

/// No file of a trace is longer, in bytes.
const FILE_BYTES_MAX: u64 = 8 << 30;

/// The requests in these files, and what is to be known of them.
pub fn read_traces(paths: &[PathBuf]) -> Result<(Vec<Record>, Vec<String>), Failure> {
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
        let records = traces.into_iter().flat_map(|one| one.records);
        return Ok((records.collect(), notices));
    }
    let ([path], [bytes]) = (paths, &files[..]) else {
        return Err(Failure::new(
            "of several files all have to be of one box `trace`; of other traces give one",
        ));
    };
    let text = std::str::from_utf8(bytes)
        .map_err(|_| failed(path, "it is no trace of a box, and no text"))?;
    let records = read_foreign(text).map_err(|error| failed(path, error))?;
    Ok((records, Vec::new()))
}
