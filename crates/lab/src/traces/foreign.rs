//! Traces of other programs: logs of fio and the output of `blkparse`.
//!
//! The text may be hostile or truncated: an invalid line is an error with its number, and memory is
//! proportional to the number of lines.

use trace::{IOLOG_HEAD, Record};

use super::{blkparse, iolog};

/// The largest disk in bytes: offsets of files are signed.
const DISK_BYTES_MAX: u64 = i64::MAX as u64;

/// The largest request in bytes: kernels, fio and NBD count them in 32 bits.
const REQUEST_BYTES_MAX: u64 = u32::MAX as u64;

/// Why a text is not a trace.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ForeignError {
    /// A line is invalid.
    #[error("line {line}: {why}")]
    Line {
        /// Its number, from 1.
        line: usize,
        /// What is wrong.
        why: &'static str,
    },
    /// The format is unknown.
    #[error(
        "the format is unknown: use files of a filter `trace`, a log of fio (which begins with \
         \"fio version 2 iolog\" or 3), or the output of blkparse"
    )]
    Unknown,
    /// The trace has no request.
    #[error("the trace has no request")]
    Empty,
}

/// A trace of another program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeignTrace {
    /// The requests in the order of their start.
    pub records: Vec<Record>,
    /// Whether the times of requests are known. Version 2 of fio's log has deliberate pauses only.
    pub are_timed: bool,
    /// The block devices (`MAJOR,MINOR`) or files of the trace.
    pub disks: Vec<String>,
    /// For each request, the index of its disk.
    pub disk_of: Vec<u32>,
}

/// Reads a trace of another program.
///
/// # Errors
/// [`ForeignError`].
pub fn read_foreign(text: &str) -> Result<ForeignTrace, ForeignError> {
    let first_line = text.lines().next().unwrap_or_default().trim();
    let read = match first_line {
        iolog::HEAD_2 => iolog::read(text, false),
        IOLOG_HEAD => iolog::read(text, true),
        _ => blkparse::read(text),
    };
    // Report a parse error before the missing last newline: a file of another format may have
    // no last newline either, and its first error is the useful one.
    let read = read?;
    if !text.ends_with('\n') {
        return Err(ForeignError::Line {
            line: text.lines().count(),
            why: "the trace is truncated: this line has no end",
        });
    }
    match read.records.is_empty() {
        true => Err(ForeignError::Empty),
        false => Ok(read),
    }
}

/// Offset and length in bytes, if a disk can have such a request.
pub(crate) fn range(offset: u64, length: u64) -> Option<(u64, u64)> {
    let end = offset.checked_add(length)?;
    (length <= REQUEST_BYTES_MAX && end <= DISK_BYTES_MAX).then_some((offset, length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_trace_is_refused_with_its_line() {
        assert_eq!(read_foreign(""), Err(ForeignError::Unknown));
        assert_eq!(read_foreign("hello\nworld\n"), Err(ForeignError::Unknown));
        assert_eq!(
            read_foreign("fio version 3 iolog\n0 x add\n"),
            Err(ForeignError::Empty)
        );
        let far = format!("fio version 2 iolog\nx read {} 2\n", u64::MAX);
        let beyond = format!("fio version 2 iolog\nx read {} 1\n", i64::MAX);
        for (text, line) in [
            ("fio version 2 iolog\nx read 0\n", 2),
            ("fio version 2 iolog\nx open\nx jump 0 1\n", 3),
            ("fio version 3 iolog\nsoon x read 0 1\n", 2),
            ("fio version 3 iolog\n5 x read 0 1\n4 x read 0 1\n", 3),
            ("fio version 3 iolog\n5 x wait 1 0\n", 2),
            ("fio version 3 iolog\n5 x read 0 4096\n6 x read 0 409", 3),
            ("fio version 2 iolog\nx read 0 4294967296\n", 2),
            ("fio version 2 iolog\nx read 0 18446744073709551615\n", 2),
            (&far, 2),
            (&beyond, 2),
            ("8,0 1 1 0.5 1 Q R 8 8 [x]\n", 1),
            ("8,0 1 1 soon 1 Q R 8 + 8 [x]\n", 1),
            ("8,0 1 1 0.5 1 Q R 36893488147419103232 + 8 [x]\n", 1),
            ("8,0 1 1 0.5 1 Q R 8 + 8388608 [x]\n", 1),
            ("8,0 1 1 0.5 1 Q R 8 + 8 [x]\n8,0 1 1 0.6 1 Q R 8 + 1", 2),
        ] {
            let refused = read_foreign(text);
            assert!(
                matches!(refused, Err(ForeignError::Line { line: at, .. }) if at == line),
                "{text}: {refused:?}"
            );
        }
    }
}
