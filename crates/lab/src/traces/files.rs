//! Traces, whoever has recorded them.

use std::path::PathBuf;

use trace::{Record, Trace};

use super::read_foreign;
use crate::commands::Failure;
use crate::commands::files::{failed, read_file};

/// No file of a trace is longer, in bytes.
const FILE_BYTES_MAX: u64 = 8 << 30;

/// So many disks are named.
const NAMED: usize = 4;

/// What was recorded in one go.
pub struct Part {
    /// When it began, in microseconds since 1970; 0, if nothing says so.
    pub began_us: u64,
    /// Requests, with times from then on.
    pub records: Vec<Record>,
    /// Of which disk each is; empty, if all are of one.
    pub disk_of: Vec<u32>,
}

impl Part {
    /// The requests, each with its disk.
    pub fn by_disk(&self) -> impl Iterator<Item = (u32, &Record)> + Clone {
        let disk = |number: usize| self.disk_of.get(number).copied().unwrap_or(0);
        let each = self.records.iter().enumerate();
        each.map(move |(number, record)| (disk(number), record))
    }
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
            "of several files all have to be of one filter `trace`; of other traces give one",
        ));
    };
    // The name of a process may be cut within a character.
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

/// What is to be known of a trace of several disks.
fn several(disks: &[String]) -> Option<String> {
    let named = disks[..disks.len().min(NAMED)].join(" ");
    let more = if disks.len() > NAMED { " …" } else { "" };
    let count = disks.len();
    (count > 1).then(|| {
        format!(
            "the trace is of {count} disks or files ({named}{more}), all of which count; of a disk \
             that lies on another one give one of them alone"
        )
    })
}
