//! What other programs have recorded: fio's logs, and what `blkparse` prints.
//!
//! Whatever is read may be made to harm, or be cut: a line that makes no sense is told by its
//! number, and no more is kept than there are lines.

use trace::{IOLOG_HEAD, Record};

use super::{blkparse, iolog};

/// No disk is larger, in bytes: files have signed offsets.
const DISK_BYTES_MAX: u64 = i64::MAX as u64;

/// No request is larger, in bytes: kernels, fio and NBD count them in 32 bits.
const REQUEST_BYTES_MAX: u64 = u32::MAX as u64;

/// Why a text is no record of requests.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ForeignError {
    /// A line makes no sense.
    #[error("line {line}: {why}")]
    Line {
        /// Which, from 1.
        line: usize,
        /// What is wrong.
        why: &'static str,
    },
    /// It is none of these.
    #[error(
        "it is no trace of a filter, no log of fio (which begins with \"fio version 2 iolog\" or 3), \
         and nothing that blkparse prints"
    )]
    Unknown,
    /// There is no request in it.
    #[error("it has no request")]
    Empty,
}

/// What a text tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Foreign {
    /// The requests, in the order in which they were begun.
    pub records: Vec<Record>,
    /// Their times are those of requests. fio's version 2 tells only for how long nothing was
    /// asked for on purpose.
    pub are_timed: bool,
    /// The block devices (`MAJOR,MINOR`), or files, that they are of.
    pub disks: Vec<String>,
    /// Of which of these each is.
    pub disk_of: Vec<u32>,
}

/// What a text tells.
///
/// # Errors
/// [`ForeignError`].
pub fn read_foreign(text: &str) -> Result<Foreign, ForeignError> {
    let first_line = text.lines().next().unwrap_or_default().trim();
    let read = match first_line {
        iolog::HEAD_2 => iolog::read(text, false),
        IOLOG_HEAD => iolog::read(text, true),
        _ => blkparse::read(text),
    };
    // What is said of a line before counts more: a text of something else has no end either.
    let read = read?;
    if !text.ends_with('\n') {
        return Err(ForeignError::Line {
            line: text.lines().count(),
            why: "it is cut: the line has no end",
        });
    }
    match read.records.is_empty() {
        true => Err(ForeignError::Empty),
        false => Ok(read),
    }
}

/// Where a request is and how much it is of, in bytes, if there can be such a one.
pub(crate) fn range(offset: u64, length: u64) -> Option<(u64, u64)> {
    let end = offset.checked_add(length)?;
    (length <= REQUEST_BYTES_MAX && end <= DISK_BYTES_MAX).then_some((offset, length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_none_of_these_is_said_with_its_line() {
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
