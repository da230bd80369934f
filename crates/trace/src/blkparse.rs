//! What `blkparse` prints, as it does by itself:
//! `DEV CPU SEQ TIME PID ACTION RWBS SECTOR + COUNT [PROCESS]`.
//!
//! Of a request there are several events. It begins where it was queued (`Q`); in a text without
//! any such, where it went to the device (`D`), or, if that is not in it either, with its end
//! (`C`). How long it took is known by its end: what ends is all that had begun at the sectors of
//! that event, as requests are merged, and split, between.

use std::collections::{BTreeMap, VecDeque};

use crate::foreign::range;
use crate::{ForeignError, Outcome, Record, Verb};

/// It counts in sectors of so many bytes.
const SECTOR_BYTES: u64 = 512;

/// What an event tells, and which one begins a request if there is one of several.
const BEGINNINGS: [&str; 3] = ["Q", "D", "C"];

/// A line that tells of a request.
struct Event<'a> {
    device: &'a str,
    action: &'a str,
    time_ns: u64,
    verb: Verb,
    /// Where and how much, in bytes; 0 of a flush.
    range: (u64, u64),
    is_fua: bool,
    has_failed: bool,
}

/// The requests of a text, in the order in which they began.
pub(crate) fn read(text: &str) -> Result<Vec<Record>, ForeignError> {
    let mut events = Vec::new();
    let mut is_any = false;
    for (number, line) in (1..).zip(text.lines()) {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        // Others sum up the events, or are told beside them.
        if !is_event(&words) {
            continue;
        }
        is_any = true;
        let event = event(&words).map_err(|why| ForeignError::Line { line: number, why })?;
        events.extend(event);
    }
    match is_any {
        true => Ok(requests(&events)),
        false => Err(ForeignError::Unknown),
    }
}

fn is_event(words: &[&str]) -> bool {
    let is_number = |word: &str| word.parse::<u32>().is_ok();
    let is_device = |(major, minor)| is_number(major) && is_number(minor);
    words.len() >= 7 && words[0].split_once(',').is_some_and(is_device)
}

/// Nothing, if it is not of the beginning or end of a request for content.
fn event<'a>(words: &[&'a str]) -> Result<Option<Event<'a>>, &'static str> {
    let (device, action, rwbs) = (words[0], words[5], words[6]);
    if !BEGINNINGS.contains(&action) {
        return Ok(None);
    }
    let time_ns = seconds(words[3]).ok_or("no time")?;
    // A flush before it is an F in front, one behind it an F at the end.
    let is_flush = rwbs.starts_with('F');
    let own = rwbs.trim_start_matches('F');
    let verb = match own.chars().next() {
        Some('R') => Some(Verb::Read),
        Some('W') => Some(Verb::Write),
        Some('D') => Some(Verb::Trim),
        _ => None,
    };
    let (verb, range) = match (verb, &words[7..]) {
        (Some(verb), [sector, "+", count, ..]) => {
            let bytes = |word: &str| word.parse::<u64>().ok()?.checked_mul(SECTOR_BYTES);
            let both = bytes(sector).zip(bytes(count));
            let range = both.and_then(|(offset, length)| range(offset, length));
            (verb, range.ok_or("no sectors that there can be")?)
        }
        // Without sectors; of one that ends with a 0 before what is in brackets.
        (_, [name, ..] | [_, name, ..]) if is_flush && name.starts_with(['[', '(']) => {
            (Verb::Flush, (0, 0))
        }
        // A flush ends as the write that it is to the device.
        (Some(Verb::Write), ["0", name, ..]) if action == "C" && name.starts_with(['[', '(']) => {
            (Verb::Flush, (0, 0))
        }
        (Some(_), [name, ..]) if !name.starts_with('[') => return Err("no sectors"),
        _ => return Ok(None),
    };
    Ok(Some(Event {
        device,
        action,
        time_ns,
        verb,
        range,
        is_fua: own.contains('F'),
        has_failed: action == "C" && words.last().is_some_and(|error| *error != "[0]"),
    }))
}

fn requests(events: &[Event<'_>]) -> Vec<Record> {
    let has = |action: &&&str| events.iter().any(|event| event.action == **action);
    let Some(begins) = BEGINNINGS.iter().find(has) else {
        return Vec::new();
    };
    let mut records = Vec::new();
    let mut open = Open::default();
    for event in events {
        if event.action == *begins {
            let mut record = Record::plain(event.verb, event.time_ns, event.range);
            record.is_fua = event.is_fua;
            open.begin(event, records.len());
            records.push(record);
        }
        if event.action == "C" {
            for number in open.end(event) {
                let record = &mut records[number];
                record.latency_ns = event.time_ns.saturating_sub(record.time_ns);
                if event.has_failed {
                    record.outcome = Outcome::Failed;
                }
            }
        }
    }
    records
}

/// Where a request that has not ended is: its device, what it does, and the first byte of which
/// nobody said that it was done.
type Place<'a> = (&'a str, &'static str, u64);

/// What has begun and not ended, by where it is: those at the same place in the order in which
/// they began, each with its number and the end of its range, in bytes.
#[derive(Default)]
struct Open<'a> {
    requests: BTreeMap<Place<'a>, VecDeque<(usize, u64)>>,
}

impl<'a> Open<'a> {
    fn begin(&mut self, event: &Event<'a>, number: usize) {
        let (offset, length) = event.range;
        let place = (event.device, event.verb.name(), offset);
        let there = self.requests.entry(place).or_default();
        there.push_back((number, offset + length));
    }

    /// The numbers of all that ends with this. Of several at one place that is the first one.
    fn end(&mut self, event: &Event<'a>) -> Vec<usize> {
        let (offset, length) = event.range;
        let end = offset + length;
        let (device, verb) = (event.device, event.verb.name());
        let places = (device, verb, offset)..(device, verb, end.max(offset + 1));
        let places: Vec<Place<'_>> = self.requests.range(places).map(|(at, _)| *at).collect();
        let mut ended = Vec::new();
        for place in places {
            let Some(there) = self.requests.get_mut(&place) else {
                continue;
            };
            let first = there.pop_front();
            if there.is_empty() {
                self.requests.remove(&place);
            }
            match first {
                // It was split: the rest ends later.
                Some((number, until)) if until > end => {
                    let rest = self.requests.entry((device, verb, end)).or_default();
                    rest.push_back((number, until));
                }
                Some((number, _)) => ended.push(number),
                None => {}
            }
        }
        ended
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
    use crate::read_foreign;

    fn told(text: &str) -> Vec<(&'static str, u64, u64, u64)> {
        let records = read_foreign(text).expect("it is one");
        let told = records.iter();
        told.map(|one| (one.verb.name(), one.time_ns, one.offset, one.length))
            .collect()
    }

    /// How long each takes, in nanoseconds.
    fn latencies(text: &str) -> Vec<u64> {
        let records = read_foreign(text).expect("it is one");
        records.iter().map(|one| one.latency_ns).collect()
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
        let expected = [
            ("write", 500_002_135, 223_490 * 512, 4096),
            ("read", 1_000_002_135, 4096, 8192),
            ("flush", 1_000_002_136, 0, 0),
            ("flush", 1_000_002_137, 0, 0),
        ];
        assert_eq!(told(text), expected);
        assert_eq!(latencies(text), [0; 4]);
        let ended = "8,0 1 1 2.5 1 C R 8 + 8 [0]\n";
        assert_eq!(told(ended), [("read", 2_500_000_000, 4096, 4096)]);
    }

    #[test]
    fn a_request_takes_until_it_is_completed() {
        let text = "8,0 0 1 1.0 9 Q R 0 + 8 [fio]\n\
                    8,0 0 2 1.1 9 Q R 0 + 8 [fio]\n\
                    8,16 0 3 1.1 9 Q R 0 + 8 [fio]\n\
                    8,0 0 4 1.2 9 D R 0 + 8 [fio]\n\
                    8,0 0 5 1.3 9 Q W 0 + 8 [fio]\n\
                    8,0 0 6 1.4 0 C R 0 + 8 [0]\n\
                    8,0 0 7 1.5 9 C W 0 + 8 [0]\n\
                    8,0 0 8 1.7 9 C R 0 + 8 (  600000) [5]\n\
                    8,0 0 9 1.8 9 C R 800 + 8 [0]\n";
        let ms = |all: &[u64]| all.iter().map(|one| one * 1_000_000).collect::<Vec<_>>();
        assert_eq!(latencies(text), ms(&[400, 600, 0, 200]));
        let records = read_foreign(text).expect("it is one");
        let failed = records.iter().map(|one| one.outcome == Outcome::Failed);
        assert_eq!(failed.collect::<Vec<_>>(), [false, true, false, false]);
        // If nothing was queued: from where it went to the device.
        let issued = "8,0 0 4 1.2 9 D R 0 + 8 [fio]\n8,0 0 6 1.4 0 C R 0 + 8 [0]\n";
        assert_eq!(latencies(issued), ms(&[200]));
    }

    #[test]
    fn what_was_merged_ends_together_and_what_was_split_with_its_last_part() {
        let merged = "8,0 0 1 1.0 9 Q W 0 + 8 [x]\n8,0 0 2 1.1 9 Q W 8 + 8 [x]\n\
                      8,0 0 3 1.2 9 D W 0 + 16 [x]\n8,0 0 4 1.3 9 Q W 16 + 8 [x]\n\
                      8,0 0 5 1.5 9 C W 0 + 16 [0]\n";
        assert_eq!(latencies(merged), [500_000_000, 400_000_000, 0]);
        let split = "8,0 0 1 1.0 9 Q W 0 + 16 [x]\n8,0 0 2 1.1 9 C W 0 + 8 [0]\n\
                     8,0 0 3 1.4 9 C W 8 + 8 [0]\n";
        assert_eq!(latencies(split), [400_000_000]);
    }

    #[test]
    fn flushes_end_without_sectors() {
        let text = "8,0 0 1 1.0 9 Q FWS [x]\n8,0 0 2 1.1 9 Q FN [x]\n\
                    8,0 0 3 1.3 9 C FN 0 [0]\n8,0 0 4 1.6 9 C WS 0 [0]\n\
                    8,0 0 5 1.7 9 Q FWFS 8 + 8 [x]\n8,0 0 6 1.8 9 C WFS 8 + 8 [0]\n";
        assert_eq!(latencies(text), [300_000_000, 500_000_000, 100_000_000]);
        let records = read_foreign(text).expect("it is one");
        assert!(records[2].is_fua && records[2].verb == Verb::Write);
        assert!(!records[0].is_fua);
    }
}
