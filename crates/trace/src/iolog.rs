//! fio's logs of requests, version 3, which `fio --read_iolog` replays.
//!
//! A line is `TIMESTAMP FILE ACTION OFFSET LENGTH`, the first in milliseconds since the trace
//! began. fio has no verb for zeroes: they are written; nor for prefetching: that is left out.

use std::fmt::Write as _;

use crate::{Record, Verb};

/// How such a file begins.
pub const IOLOG_HEAD: &str = "fio version 3 iolog\n";

/// That `file` is used from now on, or not any more.
#[must_use]
pub fn iolog_file(time_ms: u64, file: &str, actions: &[&str]) -> String {
    let mut lines = String::new();
    for action in actions {
        let _ = writeln!(lines, "{time_ms} {file} {action}");
    }
    lines
}

/// A record, begun `time_ms` after the first one; none, if fio has no verb for it.
#[must_use]
pub fn iolog_line(time_ms: u64, file: &str, record: &Record) -> Option<String> {
    let action = match record.verb {
        Verb::Read => "read",
        Verb::Write | Verb::WriteZeroes => "write",
        Verb::Trim => "trim",
        Verb::Flush => return Some(format!("{time_ms} {file} sync 0 0\n")),
        Verb::Prefetch => return None,
    };
    let (offset, length) = (record.offset, record.length);
    (length > 0).then(|| format!("{time_ms} {file} {action} {offset} {length}\n"))
}
