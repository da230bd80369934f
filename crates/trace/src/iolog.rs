//! Writes records as a log of fio, version 3, which `fio --read_iolog` replays.
//!
//! A line is `TIMESTAMP FILE ACTION OFFSET LENGTH`, with the time in microseconds since the start.
//! fio has no action for writing zeroes, which becomes `write`, nor for prefetching and requests
//! for extents, which are left out.

use std::fmt::Write as _;

use crate::{OpKind, Record};

/// The first line of a file of version 3.
pub const IOLOG_HEAD: &str = "fio version 3 iolog";

/// Lines with actions on `file` that have no range, such as `open` and `close`.
#[must_use]
pub fn iolog_file(time_us: u64, file: &str, actions: &[&str]) -> String {
    let mut lines = String::new();
    for action in actions {
        let _ = writeln!(lines, "{time_us} {file} {action}");
    }
    lines
}

/// The line of a record that began at `time_us`; `None` if fio has no action for it.
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
