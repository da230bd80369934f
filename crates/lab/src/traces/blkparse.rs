//! The default output of `blkparse`: `DEV CPU SEQ TIME PID ACTION RWBS SECTOR + COUNT [PROCESS]`.
//!
//! A request has several events. It begins when it is queued (`Q`); on a device without such
//! events, when it is issued (`D`); or, without those as well, when it completes (`C`). Its
//! duration ends with its completion (`in_flight`).

use std::collections::BTreeMap;

use base::ByteRange;
use trace::{OpKind, Outcome, Record};

use super::foreign::range;
use super::in_flight::InFlight;
use super::{ForeignError, ForeignTrace};

/// The size of a sector of blkparse, in bytes.
const SECTOR_BYTES: u64 = 512;

/// The kind of an event. Requests of a device begin with the first kind that the trace has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Action {
    /// `Q`: a request was queued.
    Queue,
    /// `D`: it was issued to the device.
    Issue,
    /// `C`: it completed.
    Complete,
}

/// The most words of a line that matter: the name of a process may have any number.
const WORDS_MAX: usize = 16;

/// A line with an event of a request.
struct Event<'a> {
    device: &'a str,
    action: Action,
    time_ns: u64,
    kind: OpKind,
    /// Offset and length in bytes; 0 for a flush.
    range: (u64, u64),
    is_fua: bool,
    has_failed: bool,
}

impl<'a> Event<'a> {
    /// The lane in which requests are merged and completed.
    fn lane(&self) -> (&'a str, &'static str) {
        (self.device, self.kind.name())
    }
}

/// The requests of a text, and their devices.
pub(crate) fn read(text: &str) -> Result<ForeignTrace, ForeignError> {
    let mut events = Vec::new();
    let mut is_any = false;
    for (number, line) in (1..).zip(text.lines()) {
        let words: Vec<&str> = line.split_ascii_whitespace().take(WORDS_MAX).collect();
        // Other lines summarize the events, or are printed between them.
        if !is_event(&words) {
            continue;
        }
        is_any = true;
        let event = event(&words).map_err(|why| ForeignError::Line { line: number, why })?;
        events.extend(event);
    }
    // Each CPU prints its own events, possibly after later events of other CPUs.
    events.sort_by_key(|event: &Event<'_>| event.time_ns);
    match is_any {
        true => Ok(foreign(&events)),
        false => Err(ForeignError::Unknown),
    }
}

fn is_event(words: &[&str]) -> bool {
    let is_number = |word: &str| word.parse::<u32>().is_ok();
    let is_device = |(major, minor)| is_number(major) && is_number(minor);
    words.len() >= 7 && words[0].split_once(',').is_some_and(is_device)
}

/// Parses an event; `None` if it neither begins nor ends a request for content.
fn event<'a>(words: &[&'a str]) -> Result<Option<Event<'a>>, &'static str> {
    let (device, rwbs) = (words[0], words[6]);
    let action = match words[5] {
        "Q" => Action::Queue,
        "D" => Action::Issue,
        "C" => Action::Complete,
        _ => return Ok(None),
    };
    let time_ns = seconds(words[3]).ok_or("the time is missing")?;
    // A leading F is a flush before the request, a trailing one makes it durable when it completes.
    let is_flush = rwbs.starts_with('F');
    let own = rwbs.trim_start_matches('F');
    let kind = match own.chars().next() {
        Some('R') => Some(OpKind::Read),
        Some('W') => Some(OpKind::Write),
        Some('D') => Some(OpKind::Trim),
        _ => None,
    };
    let (kind, range) = match (kind, &words[7..]) {
        (Some(kind), [sector, "+", count, ..]) => {
            let bytes = |word: &str| word.parse::<u64>().ok()?.checked_mul(SECTOR_BYTES);
            let both = bytes(sector).zip(bytes(count));
            let range = both.and_then(|(offset, length)| range(offset, length));
            (kind, range.ok_or("the sectors are invalid")?)
        }
        // Without sectors; a completion may have an offset before the brackets.
        (_, [name, ..] | [_, name, ..]) if is_flush && is_bracket(name) => (OpKind::Flush, (0, 0)),
        // On the device, a flush completes like a write.
        (Some(OpKind::Write), [_, name, ..]) if action == Action::Complete && is_bracket(name) => {
            (OpKind::Flush, (0, 0))
        }
        // A command that is passed through to the device: a number of bytes, or its text.
        (_, [name, ..] | [_, name, ..]) if is_bracket(name) => return Ok(None),
        (Some(_), _) => return Err("the sectors are missing"),
        _ => return Ok(None),
    };
    Ok(Some(Event {
        device,
        action,
        time_ns,
        kind,
        range,
        is_fua: own.contains('F'),
        has_failed: action == Action::Complete && words.last().is_some_and(|one| *one != "[0]"),
    }))
}

/// Whether a word is what follows a request's sectors, or its kind if it has none.
fn is_bracket(word: &str) -> bool {
    word.starts_with(['[', '('])
}

/// The devices, each with its number and the kind of event with which its requests begin.
fn devices<'a>(events: &[Event<'a>]) -> BTreeMap<&'a str, (u32, Action)> {
    let mut found = BTreeMap::new();
    for event in events {
        let (_, begins) = found.entry(event.device).or_insert((0, event.action));
        *begins = event.action.min(*begins);
    }
    for (number, (device, _)) in (0..).zip(found.values_mut()) {
        *device = number;
    }
    found
}

fn foreign(events: &[Event<'_>]) -> ForeignTrace {
    let devices = devices(events);
    let (mut records, mut disk_of) = (Vec::new(), Vec::new());
    let mut open = InFlight::default();
    for event in events {
        let (device, begins) = devices[event.device];
        if event.action == begins {
            let mut record = Record::plain(
                event.kind,
                event.time_ns,
                ByteRange::new(event.range.0, event.range.1),
            );
            record.is_fua = event.is_fua;
            open.begin(event.lane(), event.range, records.len());
            records.push(record);
            disk_of.push(device);
        }
        if event.action == Action::Complete {
            for (number, has_failed) in open.end(event.lane(), event.range, event.has_failed) {
                let record = &mut records[number];
                record.latency_ns = event.time_ns.saturating_sub(record.time_ns);
                if has_failed {
                    record.outcome = Outcome::Failed;
                }
            }
        }
    }
    ForeignTrace {
        records,
        are_timed: true,
        disks: devices.into_keys().map(str::to_owned).collect(),
        disk_of,
    }
}

/// Parses `12.000345678` into nanoseconds.
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
    use std::collections::BTreeSet;
    use std::fmt::Write as _;

    use proptest::prelude::*;

    use super::*;
    use crate::traces::read_foreign;

    fn summarized(text: &str) -> Vec<(&'static str, u64, u64, u64)> {
        let records = read_foreign(text).expect("a trace").records;
        let summary = records.iter();
        summary
            .map(|one| (one.kind.name(), one.time_ns, one.offset, one.length))
            .collect()
    }

    /// The duration of each request, in nanoseconds.
    fn latencies(text: &str) -> Vec<u64> {
        let records = read_foreign(text).expect("a trace").records;
        records.iter().map(|record| record.latency_ns).collect()
    }

    #[test]
    fn the_output_of_blkparse_is_parsed() {
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
        assert_eq!(summarized(text), expected);
        assert_eq!(latencies(text), [0; 4]);
        let ended = "8,0 1 1 2.5 1 C R 8 + 8 [0]\n";
        assert_eq!(summarized(ended), [("read", 2_500_000_000, 4096, 4096)]);
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
        // The trace does not tell which of two requests at one offset completes first: together
        // they took a second.
        assert_eq!(latencies(text), ms(&[700, 300, 0, 200]));
        let records = read_foreign(text).expect("a trace").records;
        let failed = records
            .iter()
            .map(|record| record.outcome == Outcome::Failed);
        assert_eq!(failed.collect::<Vec<_>>(), [true, false, false, false]);
        // If nothing was queued, the duration starts when the request is issued.
        let issued = "8,0 0 4 1.2 9 D R 0 + 8 [fio]\n8,0 0 6 1.4 0 C R 0 + 8 [0]\n";
        assert_eq!(latencies(issued), ms(&[200]));
    }

    #[test]
    fn merged_requests_complete_together_and_a_split_one_with_its_last_part() {
        let merged = "8,0 0 1 1.0 9 Q W 0 + 8 [x]\n8,0 0 2 1.1 9 Q W 8 + 8 [x]\n\
                      8,0 0 3 1.2 9 D W 0 + 16 [x]\n8,0 0 4 1.3 9 Q W 16 + 8 [x]\n\
                      8,0 0 5 1.5 9 C W 0 + 16 [0]\n";
        assert_eq!(latencies(merged), [500_000_000, 400_000_000, 0]);
        // In any order; also if another request was merged with it.
        for parts in [[0, 8], [8, 0]] {
            let [first, last] = parts;
            let split = format!(
                "8,0 0 1 1.0 9 Q W 0 + 16 [x]\n8,0 0 2 1.1 9 C W {first} + 8 [0]\n\
                 8,0 0 3 1.4 9 C W {last} + 8 [0]\n\
                 8,0 0 4 2.0 9 Q W 8 + 8 [x]\n8,0 0 5 2.1 9 C W 8 + 8 [0]\n"
            );
            assert_eq!(latencies(&split), [400_000_000, 100_000_000], "{parts:?}");
        }
        let both = "8,0 0 1 1.0 9 Q W 0 + 16 [x]\n8,0 0 2 1.1 9 Q W 16 + 8 [x]\n\
                    8,0 0 3 1.2 9 C W 8 + 16 [0]\n8,0 0 4 1.5 9 C W 0 + 8 [0]\n";
        assert_eq!(latencies(both), [500_000_000, 100_000_000]);
    }

    /// Regression: parsing never ended.
    #[test]
    fn empty_requests_are_part_of_nothing() {
        let text = "8,0 0 1 1.0 9 Q R 8 + 0 [x]\n8,0 0 2 1.1 9 Q R 8 + 8 [x]\n\
                    8,0 0 3 1.2 9 C R 8 + 16 [0]\n8,0 0 4 1.3 9 C R 8 + 0 [0]\n";
        assert_eq!(latencies(text), [300_000_000, 100_000_000]);
    }

    #[test]
    fn a_request_with_a_failed_part_has_failed() {
        for (first, last) in [(5, 0), (0, 5)] {
            let text = format!(
                "8,0 0 1 1.0 9 Q R 0 + 16 [x]\n8,0 0 2 1.1 9 C R 0 + 8 [{first}]\n\
                 8,0 0 3 1.2 9 C R 8 + 8 [{last}]\n"
            );
            let records = read_foreign(&text).expect("a trace").records;
            assert_eq!(records[0].outcome, Outcome::Failed, "{first} {last}");
        }
    }

    /// Events are lost under load.
    #[test]
    fn a_lost_completion_costs_no_other_request() {
        let again = "8,0 0 1 1.0 9 Q W 0 + 8 [x]\n8,0 0 2 100.0 9 Q W 0 + 8 [x]\n\
                     8,0 0 3 100.5 9 C W 0 + 8 [0]\n8,0 0 4 199.0 9 Q W 0 + 8 [x]\n\
                     8,0 0 5 199.5 9 C W 0 + 8 [0]\n";
        assert_eq!(latencies(again), [0, 500_000_000, 500_000_000]);
        // Two requests that begin at one offset are completed by their lengths.
        let lengths = "8,0 0 1 1.0 9 Q R 0 + 8 [x]\n8,0 0 2 1.1 9 Q R 0 + 16 [x]\n\
                       8,0 0 3 1.2 9 C R 0 + 16 [0]\n8,0 0 4 1.5 9 C R 0 + 8 [0]\n";
        assert_eq!(latencies(lengths), [500_000_000, 100_000_000]);
        let lengths = "8,0 0 1 1.0 9 Q R 0 + 16 [x]\n8,0 0 2 1.1 9 Q R 0 + 8 [x]\n\
                       8,0 0 3 1.2 9 C R 0 + 16 [0]\n8,0 0 4 1.5 9 C R 0 + 8 [0]\n";
        assert_eq!(latencies(lengths), [200_000_000, 400_000_000]);
        // A longer request is not completed by a merge of later ones.
        let merged = "8,0 0 1 1.0 9 Q W 0 + 16 [x]\n8,0 0 2 100.0 9 Q W 0 + 8 [x]\n\
                      8,0 0 3 100.1 9 Q W 8 + 8 [x]\n8,0 0 4 100.5 9 C W 0 + 16 [0]\n";
        assert_eq!(latencies(merged), [0, 500_000_000, 400_000_000]);
        let part = "8,0 0 1 1.0 9 Q R 0 + 64 [x]\n8,0 0 2 100.0 9 Q R 8 + 16 [x]\n\
                    8,0 0 3 100.2 9 C R 16 + 8 [0]\n8,0 0 4 100.5 9 C R 8 + 8 [0]\n";
        assert_eq!(latencies(part), [0, 500_000_000]);
        // A trace that begins in the middle has completions of requests that were not traced.
        let middle = "8,0 0 1 1.0 9 C R 0 + 64 [0]\n8,0 0 2 1.1 9 Q R 32 + 8 [x]\n\
                      8,0 0 3 1.3 9 C R 0 + 64 [0]\n8,0 0 4 1.4 9 C R 32 + 8 [0]\n";
        assert_eq!(latencies(middle), [200_000_000]);
    }

    /// Such as requests of udev, smartd and multipathd.
    #[test]
    fn commands_that_are_passed_through_are_ignored() {
        let text = "8,0 0 1 1.0 9 Q R 0 + 8 [x]\n8,0 0 2 1.1 9 D R 36 (12 00 00) [udev]\n\
                    8,0 0 3 1.2 9 D R 36 [udev]\n8,0 0 4 1.3 9 C R (12 00 00) [0]\n\
                    8,0 0 5 1.4 9 C R 0 + 8 [0]\n8,0 0 6 1.5 9 C N 0 [0]\n";
        assert_eq!(latencies(text), [400_000_000]);
    }

    #[test]
    fn devices_are_distinguished() {
        let text = "8,0 0 1 1.0 9 Q R 0 + 8 [x]\n253,0 0 1 1.1 9 Q R 0 + 8 [x]\n\
                    8,0 0 2 1.2 9 C R 0 + 8 [0]\n";
        let read = read_foreign(text).expect("a trace");
        assert_eq!(
            (read.disks, read.disk_of),
            (vec!["253,0".to_owned(), "8,0".to_owned()], vec![1, 0])
        );
        assert_eq!(latencies(text), [200_000_000, 0]);
        // Requests of each device begin with its own first kind of event.
        let text = "8,0 0 1 1.0 9 Q R 0 + 8 [x]\n8,16 0 1 1.1 9 D R 0 + 8 [x]\n\
                    8,0 0 2 1.2 9 C R 0 + 8 [0]\n8,16 0 2 1.4 9 C R 0 + 8 [0]\n";
        assert_eq!(latencies(text), [200_000_000, 300_000_000]);
    }

    #[test]
    fn events_that_are_printed_late_are_sorted() {
        let text = "8,0 0 1 1.2 9 Q R 8 + 8 [x]\n8,0 0 2 1.5 9 C R 8 + 8 [0]\n\
                    8,0 1 1 1.1 9 Q R 0 + 8 [x]\n8,0 1 2 1.4 9 C R 0 + 8 [0]\n";
        assert_eq!(latencies(text), [300_000_000; 2]);
        assert_eq!(summarized(text)[0], ("read", 1_100_000_000, 0, 4096));
    }

    #[test]
    fn flushes_end_without_sectors() {
        let text = "8,0 0 1 1.0 9 Q FWS [x]\n8,0 0 2 1.1 9 Q FN [x]\n\
                    8,0 0 3 1.3 9 C FN 0 [0]\n8,0 0 4 1.6 9 C WS 2048 [0]\n\
                    8,0 0 5 1.7 9 Q FWFS 8 + 8 [x]\n8,0 0 6 1.8 9 C WFS 8 + 8 [0]\n";
        assert_eq!(latencies(text), [600_000_000, 200_000_000, 100_000_000]);
        let records = read_foreign(text).expect("a trace").records;
        assert!(records[2].is_fua && records[2].kind == OpKind::Write);
        assert!(!records[0].is_fua);
    }

    /// 64 sectors, cut into ranges at these.
    fn ranges(cuts: &BTreeSet<u64>) -> Vec<(u64, u64)> {
        let ends: Vec<u64> = [0, 64].into_iter().chain(cuts.iter().copied()).collect();
        let ends: BTreeSet<u64> = ends.into_iter().collect();
        let ends: Vec<u64> = ends.into_iter().collect();
        ends.windows(2).map(|two| (two[0], two[1])).collect()
    }

    proptest! {
        /// However requests are merged and split, and in whatever order parts complete, each takes
        /// until the last of its parts completes.
        #[test]
        fn a_request_takes_until_all_its_parts_are_complete(
            asked in proptest::collection::btree_set(1_u64..64, 0..12),
            ended in proptest::collection::btree_set(1_u64..64, 0..12),
            order in Just((0..13_usize).collect::<Vec<_>>()).prop_shuffle(),
        ) {
            let (asked, parts) = (ranges(&asked), ranges(&ended));
            let mut text = String::new();
            for (begin, end) in &asked {
                let _ = writeln!(text, "8,0 0 1 1.0 9 Q R {begin} + {} [x]", end - begin);
            }
            let order: Vec<usize> = order.into_iter().filter(|one| *one < parts.len()).collect();
            for (at, part) in order.iter().enumerate() {
                let (begin, end) = parts[*part];
                let _ = writeln!(text, "8,0 0 1 2.{at:02} 0 C R {begin} + {} [0]", end - begin);
            }
            let took = |(begin, end): &(u64, u64)| {
                let of_it = |part: &usize| parts[*part].0 < *end && parts[*part].1 > *begin;
                let last = order.iter().rposition(of_it).expect("all parts completed") as u64;
                1_000_000_000 + last * 10_000_000
            };
            prop_assert_eq!(latencies(&text), asked.iter().map(took).collect::<Vec<_>>());
        }

        /// Any input is parsed completely, and nothing completes before it began.
        #[test]
        fn any_input_is_parsed_to_completion(
            events in proptest::collection::vec((0..3_usize, 0..5_usize, 0..9_u64, 0..5_u64, 0..40_u64), 1..60),
        ) {
            let mut text = String::new();
            for (action, rwbs, sector, count, time) in events {
                let (action, rwbs) = (["Q", "D", "C"][action], ["R", "W", "DS", "FWFS", "FN"][rwbs]);
                let _ = match rwbs {
                    "FN" => writeln!(text, "8,0 0 1 1.{time:02} 9 {action} FN {sector} [0]"),
                    _ => writeln!(text, "8,0 0 1 1.{time:02} 9 {action} {rwbs} {sector} + {count} [0]"),
                };
            }
            if let Ok(read) = read_foreign(&text) {
                prop_assert_eq!(read.records.len(), read.disk_of.len());
                let last_ns = 1_400_000_000;
                for record in read.records {
                    prop_assert!(record.time_ns + record.latency_ns < last_ns);
                }
            }
        }
    }
}
