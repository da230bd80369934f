//! [`read_traces`]: the files of a trace from any of the supported programs.

use std::path::PathBuf;

use trace::{Record, Trace};

use super::read_foreign;
use crate::commands::Failure;
use crate::commands::files::{failed, read_file};

/// The largest file of a trace, in bytes.
const FILE_BYTES_MAX: u64 = 8 << 30;

/// The most disks that a notice names.
const NAMED: usize = 4;

/// A trace that was recorded without interruption.
pub struct Part {
    /// Start in microseconds since 1970; 0 if it is unknown.
    pub began_us: u64,
    /// The requests, with times relative to the start.
    pub records: Vec<Record>,
    /// For each request, the index of its disk; empty if there is one disk.
    pub disk_of: Vec<u32>,
}

impl Part {
    /// The requests, each with the index of its disk.
    pub fn by_disk(&self) -> impl Iterator<Item = (u32, &Record)> + Clone {
        let disk = |number: usize| self.disk_of.get(number).copied().unwrap_or(0);
        let each = self.records.iter().enumerate();
        each.map(move |(number, record)| (disk(number), record))
    }
}

/// What the files of a trace contain.
pub struct Traces {
    /// The parts, the oldest first.
    pub parts: Vec<Part>,
    /// Whether the times of requests are known.
    pub are_timed: bool,
    /// Notices for the user.
    pub notices: Vec<String>,
}

/// Reads the requests in these files.
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
            notices.push(format!("{path}: {error}; the requests before it are used"));
        }
        let missing: u64 = traces
            .iter()
            .map(Trace::missing)
            .fold(0, u64::saturating_add);
        if missing > 0 {
            notices.push(format!("the trace is missing {missing} requests"));
        }
        let parts = traces.into_iter().map(|trace| Part {
            began_us: trace.began_us,
            records: trace.records,
            disk_of: Vec::new(),
        });
        return Ok(Traces {
            parts: parts.collect(),
            are_timed: true,
            notices,
        });
    }
    let ([path], [bytes]) = (paths, &files[..]) else {
        return Err(Failure::new(
            "several files must belong to one filter `trace`; of another trace, give one file",
        ));
    };
    // The name of a process may be truncated within a character.
    let text = String::from_utf8_lossy(bytes);
    let read = read_foreign(&text).map_err(|error| failed(path, error))?;
    Ok(Traces {
        parts: vec![Part {
            began_us: 0,
            records: read.records,
            disk_of: read.disk_of,
        }],
        are_timed: read.are_timed,
        notices: several(&read.disks).into_iter().collect(),
    })
}

/// A notice about a trace of several disks.
fn several(disks: &[String]) -> Option<String> {
    let named = disks[..disks.len().min(NAMED)].join(" ");
    let more = if disks.len() > NAMED { " …" } else { "" };
    let count = disks.len();
    (count > 1).then(|| {
        format!(
        "the trace has {count} disks or files ({named}{more}), which are all counted; if one of \
         them is stored on another, give a trace of only one"
        )
    })
}
