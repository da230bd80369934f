//! What other programs have recorded: fio's logs, and what `blkparse` prints.
//!
//! Whatever is read may be made to harm: a line that makes no sense is told by its number, and
//! no more is kept than there are lines.

use crate::{Record, Verb};

/// `blkparse` counts in sectors of so many bytes.
const SECTOR_BYTES: u64 = 512;

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
        "it is no trace of a box, no log of fio (which begins with \"fio version 2 iolog\" or 3), \
         and nothing that blkparse prints"
    )]
    Unknown,
    /// There is no request in it.
    #[error("it has no request")]
    Empty,
}

const IOLOG_2: &str = "fio version 2 iolog";

/// Whether a text tells when requests were made. fio's version 2 tells only for how long nothing
/// was asked for on purpose.
#[must_use]
pub fn has_times(text: &str) -> bool {
    first_line(text) != IOLOG_2
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default().trim()
}

/// The requests in a text, in its order, of all files or disks that it is of.
///
/// # Errors
/// [`ForeignError`].
pub fn read_foreign(text: &str) -> Result<Vec<Record>, ForeignError> {
    let records = match first_line(text) {
        IOLOG_2 => iolog(text, false)?,
        "fio version 3 iolog" => iolog(text, true)?,
        _ => blkparse(text)?,
    };
    match records.is_empty() {
        true => Err(ForeignError::Empty),
        false => Ok(records),
    }
}

/// `FILE ACTION [OFFSET LENGTH]`; with the time in milliseconds in front, in version 3.
fn iolog(text: &str, has_time: bool) -> Result<Vec<Record>, ForeignError> {
    let mut records = Vec::new();
    // Of version 2, what was waited for so far, in microseconds.
    let mut waited_us = 0_u64;
    for (number, line) in (1..).zip(text.lines()).skip(1) {
        let wrong = |why| ForeignError::Line { line: number, why };
        let mut words = line.split_ascii_whitespace();
        let time_ms = match has_time {
            true => match words.next() {
                None => continue,
                Some(word) => Some(word.parse::<u64>().map_err(|_| wrong("no time"))?),
            },
            false => None,
        };
        let Some(_file) = words.next() else {
            continue;
        };
        let action = words.next().ok_or_else(|| wrong("no action"))?;
        let verb = match action {
            "add" | "open" | "close" => continue,
            "read" => Some(Verb::Read),
            "write" => Some(Verb::Write),
            "trim" => Some(Verb::Trim),
            "sync" | "datasync" => {
                let time_ns = nanoseconds(time_ms, waited_us);
                records.push(Record::plain(Verb::Flush, time_ns, (0, 0)));
                continue;
            }
            "wait" => None,
            _ => return Err(wrong("an action that fio does not have")),
        };
        let mut number = |what| -> Result<u64, ForeignError> {
            let word = words.next().ok_or_else(|| wrong(what))?;
            word.parse().map_err(|_| wrong(what))
        };
        let offset = number("no offset")?;
        let Some(verb) = verb else {
            waited_us = waited_us.saturating_add(offset);
            continue;
        };
        let length = number("no length")?;
        if offset.checked_add(length).is_none() {
            return Err(wrong("it ends beyond any disk"));
        }
        let time_ns = nanoseconds(time_ms, waited_us);
        records.push(Record::plain(verb, time_ns, (offset, length)));
    }
    Ok(records)
}

fn nanoseconds(time_ms: Option<u64>, waited_us: u64) -> u64 {
    match time_ms {
        Some(time_ms) => time_ms.saturating_mul(1_000_000),
        None => waited_us.saturating_mul(1000),
    }
}

/// `DEV CPU SEQ TIME PID ACTION RWBS SECTOR + COUNT [PROCESS]`, as the program prints it by
/// itself. Of a request's events one counts: that it was queued, or, if nothing was, that it
/// went to the device, or that it ended.
fn blkparse(text: &str) -> Result<Vec<Record>, ForeignError> {
    let mut of = [Vec::new(), Vec::new(), Vec::new()];
    let mut is_any = false;
    for (number, line) in (1..).zip(text.lines()) {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let is_event = words.len() >= 7
            && words[0].split_once(',').is_some_and(|(major, minor)| {
                [major, minor]
                    .iter()
                    .all(|word| word.parse::<u32>().is_ok())
            });
        if !is_event {
            // What is summed up below the events, or told beside them.
            continue;
        }
        is_any = true;
        let Some(at) = ["Q", "D", "C"].iter().position(|one| *one == words[5]) else {
            continue;
        };
        let wrong = |why| ForeignError::Line { line: number, why };
        let time_ns = seconds(words[3]).ok_or_else(|| wrong("no time"))?;
        let rwbs = words[6];
        let verb = match rwbs.trim_start_matches('F').chars().next() {
            Some('R') => Verb::Read,
            Some('W') => Verb::Write,
            Some('D') => Verb::Trim,
            _ if rwbs.starts_with('F') => Verb::Flush,
            _ => continue,
        };
        let (verb, range) = match &words[7..] {
            // A flush alone; what else has no place is of no use here.
            [] => continue,
            [name, ..] if name.starts_with('[') && !rwbs.starts_with('F') => continue,
            [name, ..] if name.starts_with('[') => (Verb::Flush, (0, 0)),
            [sector, "+", count, ..] => {
                let bytes = |word: &str| word.parse::<u64>().ok()?.checked_mul(SECTOR_BYTES);
                let range = bytes(sector).zip(bytes(count));
                let range = range.filter(|(offset, length)| offset.checked_add(*length).is_some());
                (verb, range.ok_or_else(|| wrong("no sectors"))?)
            }
            _ => return Err(wrong("no sectors")),
        };
        of[at].push(Record::plain(verb, time_ns, range));
    }
    match is_any {
        true => Ok(of
            .into_iter()
            .find(|one| !one.is_empty())
            .unwrap_or_default()),
        false => Err(ForeignError::Unknown),
    }
}

/// `12.000345678`, in nanoseconds.
fn seconds(word: &str) -> Option<u64> {
    let (whole, part) = word.split_once('.')?;
    let is_short = part.len() <= 9 && part.bytes().all(|byte| byte.is_ascii_digit());
    let part: u64 = is_short.then(|| format!("{part:0<9}"))?.parse().ok()?;
    whole
        .parse::<u64>()
        .ok()?
        .checked_mul(1_000_000_000)?
        .checked_add(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(records: &[Record]) -> Vec<(&'static str, u64, u64, u64)> {
        let told = records.iter();
        told.map(|one| (one.verb.name(), one.time_ns, one.offset, one.length))
            .collect()
    }

    #[test]
    fn logs_of_fio_are_read() {
        let second = "fio version 2 iolog\n/dev/x add\n/dev/x open\n/dev/x write 0 4096\n\
                      /dev/x wait 20 0\n/dev/x read 4096 8192\n/dev/x sync\n/dev/x close\n";
        let read = read_foreign(second).expect("it is one");
        assert!(!has_times(second));
        let expected = [
            ("write", 0, 0, 4096),
            ("read", 20_000, 4096, 8192),
            ("flush", 20_000, 0, 0),
        ];
        assert_eq!(told(&read), expected);
        let third = "fio version 3 iolog\n0 x add\n0 x open\n7 x trim 512 512\n9 x datasync\n";
        let read = read_foreign(third).expect("it is one");
        assert!(has_times(third));
        assert_eq!(
            told(&read),
            [("trim", 7_000_000, 512, 512), ("flush", 9_000_000, 0, 0)]
        );
    }

    /// What Scree itself writes as such a log.
    #[test]
    fn what_is_written_as_a_log_is_read_again() {
        let wrote = Record::plain(Verb::Write, 3_000_000, (8192, 4096));
        let line = crate::iolog_line(3, "disk", &wrote).expect("it has one");
        let text = format!(
            "{}{}{line}",
            crate::IOLOG_HEAD,
            crate::iolog_file(0, "disk", &["add", "open"])
        );
        assert_eq!(read_foreign(&text), Ok(vec![wrote]));
    }

    #[test]
    fn what_blkparse_prints_is_read() {
        let text = "  8,0    3        1     0.000000000   697  G   W 223490 + 8 [kjournald]\n\
                    8,0    3        3     0.000001829   697  P   R [kjournald]\n\
                    8,0    3        4     0.500002135   697  Q   W 223490 + 8 [kjournald]\n\
                    8,0    3        5     1.000002135   697  Q  RA 8 + 16 [cat]\n\
                    8,0    3        6     1.000002136   697  Q FWS [sync]\n\
                    8,0    3        7     1.000002137   697  Q  FN [sync]\n\
                    8,0    3        8     2.1   697  D   W 223490 + 8 [kjournald]\n\
                    CPU3 (8,0):\n Reads Queued:           1,        8KiB\n";
        let read = read_foreign(text).expect("it is one");
        let expected = [
            ("write", 500_002_135, 223_490 * 512, 4096),
            ("read", 1_000_002_135, 4096, 8192),
            ("flush", 1_000_002_136, 0, 0),
            ("flush", 1_000_002_137, 0, 0),
        ];
        assert_eq!(told(&read), expected);
        let ended = "8,0 1 1 2.5 1 C R 8 + 8 [0]\n";
        assert_eq!(
            told(&read_foreign(ended).expect("it is one")),
            [("read", 2_500_000_000, 4096, 4096)]
        );
    }

    #[test]
    fn what_is_none_of_these_is_said_with_its_line() {
        assert_eq!(read_foreign(""), Err(ForeignError::Unknown));
        assert_eq!(read_foreign("hello\nworld\n"), Err(ForeignError::Unknown));
        assert_eq!(
            read_foreign("fio version 3 iolog\n0 x add\n"),
            Err(ForeignError::Empty)
        );
        let far = format!("fio version 2 iolog\nx read {} 2\n", u64::MAX);
        for (text, line) in [
            ("fio version 2 iolog\nx read 0\n", 2),
            ("fio version 2 iolog\nx open\nx jump 0 1\n", 3),
            ("fio version 3 iolog\nsoon x read 0 1\n", 2),
            (&far, 2),
            ("8,0 1 1 0.5 1 Q R 8 8 [x]\n", 1),
            ("8,0 1 1 soon 1 Q R 8 + 8 [x]\n", 1),
            ("8,0 1 1 0.5 1 Q R 36893488147419103232 + 8 [x]\n", 1),
        ] {
            let refused = read_foreign(text);
            assert!(
                matches!(refused, Err(ForeignError::Line { line: at, .. }) if at == line),
                "{text}: {refused:?}"
            );
        }
    }
}
