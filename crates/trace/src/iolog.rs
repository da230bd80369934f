//! fio's logs of requests, versions 2 and 3, and the latter as `fio --read_iolog` replays it.
//!
//! A line is `TIMESTAMP FILE ACTION OFFSET LENGTH`, the first in microseconds since the job began
//! and only in version 3; version 2 has pauses instead, in microseconds, too. fio has no verb for
//! zeroes: they are written; nor for prefetching: that is left out.

use std::fmt::Write as _;

use crate::{OpKind, Record};

/// The first line of a file of version 3.
pub const IOLOG_HEAD: &str = "fio version 3 iolog";

/// That `file` is used from now on, or not any more.
#[must_use]
pub fn iolog_file(time_us: u64, file: &str, actions: &[&str]) -> String {
    let mut lines = String::new();
    for action in actions {
        let _ = writeln!(lines, "{time_us} {file} {action}");
    }
    lines
}

/// A record, begun `time_us` after the first one; none, if fio has no verb for it.
#[must_use]
pub fn iolog_line(time_us: u64, file: &str, record: &Record) -> Option<String> {
    let action = match record.kind {
        OpKind::Read => "read",
        OpKind::Write | OpKind::WriteZeroes => "write",
        OpKind::Trim => "trim",
        OpKind::Flush => return Some(format!("{time_us} {file} sync 0 0\n")),
        OpKind::Prefetch | OpKind::Extents => return None,
    };
    let (offset, length) = (record.offset, record.length);
    (length > 0).then(|| format!("{time_us} {file} {action} {offset} {length}\n"))
}
