//! fio's logs of requests, versions 2 and 3, and the latter as `fio --read_iolog` replays it.
//!
//! A line is `TIMESTAMP FILE ACTION OFFSET LENGTH`, the first in microseconds since the job began
//! and only in version 3; version 2 has pauses instead, in microseconds, too. fio has no verb for
//! zeroes: they are written; nor for prefetching: that is left out.

use std::collections::HashMap;

use base::ByteRange;
use trace::{OpKind, Record};

use super::foreign::range;
use super::{ForeignError, ForeignTrace};

/// The first line of a file of version 2.
pub(crate) const HEAD_2: &str = "fio version 2 iolog";

/// The operation that an action requests from a disk.
fn operation(action: &str) -> Option<OpKind> {
    match action {
        "read" => Some(OpKind::Read),
        "write" => Some(OpKind::Write),
        "trim" => Some(OpKind::Trim),
        "sync" | "datasync" | "syncfs" => Some(OpKind::Flush),
        _ => None,
    }
}

/// The requests of a log; with times in front, or with pauses.
pub(crate) fn read(text: &str, has_time: bool) -> Result<ForeignTrace, ForeignError> {
    let (mut records, mut disk_of) = (Vec::new(), Vec::new());
    let mut files = HashMap::new();
    let mut now_us = 0_u64;
    for (number, line) in (1..).zip(text.lines()).skip(1) {
        let wrong = |why| ForeignError::Line { line: number, why };
        let mut words = line.split_ascii_whitespace().peekable();
        if words.peek().is_none() {
            continue;
        }
        if has_time {
            let time = words.next().and_then(|word| word.parse().ok());
            let time_us = time.ok_or_else(|| wrong("the time is missing"))?;
            if time_us < now_us {
                return Err(wrong("its time is before that of the previous line"));
            }
            now_us = time_us;
        }
        let file = words.next().ok_or_else(|| wrong("the file is missing"))?;
        let action = words.next().ok_or_else(|| wrong("the action is missing"))?;
        let mut number = |what| -> Result<u64, ForeignError> {
            let word = words.next().ok_or_else(|| wrong(what))?;
            word.parse().map_err(|_| wrong(what))
        };
        let kind = match action {
            "wait" if !has_time => {
                now_us = now_us.saturating_add(number("the pause is missing")?);
                continue;
            }
            // Write-back of a range of a file; only writes are requested from a disk.
            "add" | "open" | "close" | "sync_file_range" => continue,
            action => operation(action).ok_or_else(|| wrong("the action is unknown"))?,
        };
        let range = match kind {
            OpKind::Flush => (0, 0),
            _ => range(
                number("the offset is missing")?,
                number("the length is missing")?,
            )
            .ok_or_else(|| wrong("the offset or length is too large"))?,
        };
        let disks = files.len() as u32;
        disk_of.push(*files.entry(file).or_insert(disks));
        records.push(Record::plain(
            kind,
            now_us.saturating_mul(1000),
            ByteRange::new(range.0, range.1),
        ));
    }
    let mut disks: Vec<(&str, u32)> = files.into_iter().collect();
    disks.sort_unstable_by_key(|(_, disk)| *disk);
    Ok(ForeignTrace {
        records,
        are_timed: has_time,
        disks: disks.into_iter().map(|(file, _)| file.to_owned()).collect(),
        disk_of,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traces::read_foreign;
    use trace::{IOLOG_HEAD, iolog_file, iolog_line};

    fn summarized(records: &[Record]) -> Vec<(&'static str, u64, u64, u64)> {
        let summary = records.iter();
        summary
            .map(|one| (one.kind.name(), one.time_ns, one.offset, one.length))
            .collect()
    }

    #[test]
    fn logs_of_fio_are_read() {
        let second = "fio version 2 iolog\n/dev/x add\n/dev/x open\n/dev/x write 0 4096\n\
                      /dev/x wait 20 0\n/dev/x read 4096 8192\n/dev/x sync\n/dev/x close\n";
        let read = read_foreign(second).expect("a trace");
        assert!(!read.are_timed);
        assert_eq!(
            (read.disks, read.disk_of),
            (vec!["/dev/x".to_owned()], vec![0; 3])
        );
        let two = "fio version 2 iolog\n/b read 0 1\n/a read 0 1\n/b sync\n";
        let two = read_foreign(two).expect("a trace");
        assert_eq!(
            (two.disks, two.disk_of),
            (vec!["/b".to_owned(), "/a".to_owned()], vec![0, 1, 0])
        );
        let expected = [
            ("write", 0, 0, 4096),
            ("read", 20_000, 4096, 8192),
            ("flush", 20_000, 0, 0),
        ];
        assert_eq!(summarized(&read.records), expected);
        // As written by fio 3.33, with requests 50 ms apart.
        let third = "fio version 3 iolog\n26 /tmp/disk add\n149 /tmp/disk open\n\
                     154 /tmp/disk read 61440 4096\n818 /tmp/disk write 774144 4096\n\
                     50156 /tmp/disk trim 880640 4096\n50163 /tmp/disk sync 724992 0\n\
                     50170 /tmp/disk sync_file_range 1482752 0\n\
                     100137 /tmp/disk close\n";
        let read = read_foreign(third).expect("a trace");
        assert!(read.are_timed);
        let expected = [
            ("read", 154_000, 61_440, 4096),
            ("write", 818_000, 774_144, 4096),
            ("trim", 50_156_000, 880_640, 4096),
            ("flush", 50_163_000, 0, 0),
        ];
        assert_eq!(summarized(&read.records), expected);
    }

    /// A log that Scree itself writes.
    #[test]
    fn an_exported_log_is_read_back() {
        let wrote = Record::plain(OpKind::Write, 3_000_000, ByteRange::new(8192, 4096));
        let line = iolog_line(3000, "disk", &wrote).expect("a line");
        let begin = iolog_file(0, "disk", &["add", "open"]);
        let text = format!("{IOLOG_HEAD}\n{begin}{line}");
        let read = read_foreign(&text).expect("a trace");
        assert_eq!(read.records, [wrote]);
    }
}
