//! Traces, whoever has recorded them.

use std::path::PathBuf;

use super::Failure;
use super::offline::{failed, read_file};
use trace::{Record, Trace, read_foreign};

/// No file of a trace is longer, in bytes.
const FILE_BYTES_MAX: u64 = 8 << 30;

/// So many devices are named.
const NAMED: usize = 4;

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

/// The requests in these files.
pub fn read_traces(paths: &[PathBuf]) -> Result<Traces, Failure> {
    let mut files = Vec::new();
    for path in paths {
        files.push(read_file(path, FILE_BYTES_MAX)?);
    }
    let (traces, broken) = Trace::read(files.iter().map(|bytes| &bytes[..]));
    if !traces.is_empty() {
        let mut notices = Vec::new();
        for (number, error) in broken {
            let path = paths[number].display();
            notices.push(format!("{path}: {error}; what is before that counts"));
        }
        let missing: u64 = traces
            .iter()
            .map(Trace::missing)
            .fold(0, u64::saturating_add);
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
    // The name of a process may be cut within a character.
    let text = String::from_utf8_lossy(bytes);
    let read = read_foreign(&text).map_err(|error| failed(path, error))?;
    let mut notices = Vec::new();
    if read.devices.len() > 1 {
        let (count, some) = (
            read.devices.len(),
            &read.devices[..read.devices.len().min(NAMED)],
        );
        notices.push(format!(
            "the trace is of {count} devices ({}{}), all of which count: where one lies on \
             another, what is asked of it is there twice; give one of them alone",
            some.join(" "),
            if count > NAMED { " …" } else { "" }
        ));
    }
    Ok(Traces {
        parts: vec![Part {
            began_us: 0,
            records: read.records,
        }],
        are_timed: read.are_timed,
        notices,
    })
}
