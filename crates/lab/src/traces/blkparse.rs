//! What `blkparse` prints, as it does by itself:
//! `DEV CPU SEQ TIME PID ACTION RWBS SECTOR + COUNT [PROCESS]`.
//!
//! Of a request there are several events. It begins where it was queued (`Q`); of a device
//! without any such, where it went to that (`D`), or, if that is not told either, with its end
//! (`C`). How long it took is known by its end (`in_flight`).

use std::collections::BTreeMap;

use base::ByteRange;
use trace::{OpKind, Outcome, Record};

use super::foreign::range;
use super::in_flight::InFlight;
use super::{ForeignError, ForeignTrace};

/// It counts in sectors of so many bytes.
const SECTOR_BYTES: u64 = 512;

/// What happened. Requests of a device begin with the first of these that is told of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Action {
    /// `Q`: a request was queued.
    Queue,
    /// `D`: it went to the device.
    Issue,
    /// `C`: it has ended.
    Complete,
}

/// No line has more words that count: the name of a process may have any.
const WORDS_MAX: usize = 16;

/// A line that tells of a request.
struct Event<'a> {
    device: &'a str,
    action: Action,
    time_ns: u64,
    kind: OpKind,
    /// Where and how much, in bytes; 0 of a flush.
    range: (u64, u64),
    is_fua: bool,
    has_failed: bool,
}

impl<'a> Event<'a> {
    /// What it may be merged with, or ends.
    fn lane(&self) -> (&'a str, &'static str) {
        (self.device, self.kind.name())
    }
}

/// The requests of a text, and the devices that they are of.
pub(crate) fn read(text: &str) -> Result<ForeignTrace, ForeignError> {
    let mut events = Vec::new();
    let mut is_any = false;
    for (number, line) in (1..).zip(text.lines()) {
        let words: Vec<&str> = line.split_ascii_whitespace().take(WORDS_MAX).collect();
        // Others sum up the events, or are told beside them.
        if !is_event(&words) {
            continue;
        }
        is_any = true;
        let event = event(&words).map_err(|why| ForeignError::Line { line: number, why })?;
        events.extend(event);
    }
    // Each CPU has events of its own, which may be told after later ones of others.
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

/// Nothing, if it is not of the beginning or end of a request for content.
fn event<'a>(words: &[&'a str]) -> Result<Option<Event<'a>>, &'static str> {
    let (device, rwbs) = (words[0], words[6]);
    let action = match words[5] {
        "Q" => Action::Queue,
        "D" => Action::Issue,
        "C" => Action::Complete,
        _ => return Ok(None),
    };
    let time_ns = seconds(words[3]).ok_or("no time")?;
    // An F in front is a flush before it; one behind, that it is durable when it ends.
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
            (kind, range.ok_or("no sectors that there can be")?)
        }
        // Without sectors; of one that ends with a place before what is in brackets.
        (_, [name, ..] | [_, name, ..]) if is_flush && is_bracket(name) => (OpKind::Flush, (0, 0)),
        // A flush ends as the write that it is to the device.
        (Some(OpKind::Write), [_, name, ..]) if action == Action::Complete && is_bracket(name) => {
            (OpKind::Flush, (0, 0))
        }
        // A command that is passed to the device as it is: a number of bytes, or what it says.
        (_, [name, ..] | [_, name, ..]) if is_bracket(name) => return Ok(None),
        (Some(_), _) => return Err("no sectors"),
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

/// What follows a request's sectors, or, without any, its kind.
fn is_bracket(word: &str) -> bool {
    word.starts_with(['[', '('])
}

/// The devices, each with its number and with what its requests begin.
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
    use std::collections::BTreeSet;
    use std::fmt::Write as _;

    use proptest::prelude::*;

    use super::*;
    use crate::traces::read_foreign;

    fn told(text: &str) -> Vec<(&'static str, u64, u64, u64)> {
        let records = read_foreign(text).expect("it is one").records;
        let told = records.iter();
        told.map(|one| (one.kind.name(), one.time_ns, one.offset, one.length))
            .collect()
    }

    /// How long each takes, in nanoseconds.
    fn latencies(text: &str) -> Vec<u64> {
        let records = read_foreign(text).expect("it is one").records;
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
        // Which of two at one place ends first nobody says: they took a second together.
        assert_eq!(latencies(text), ms(&[700, 300, 0, 200]));
        let records = read_foreign(text).expect("it is one").records;
        let failed = records.iter().map(|one| one.outcome == Outcome::Failed);
        assert_eq!(failed.collect::<Vec<_>>(), [true, false, false, false]);
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
        // In any order; what another one was merged with as well.
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

    /// Reading never came to its end.
    #[test]
    fn requests_of_nothing_are_part_of_nothing() {
        let text = "8,0 0 1 1.0 9 Q R 8 + 0 [x]\n8,0 0 2 1.1 9 Q R 8 + 8 [x]\n\
                    8,0 0 3 1.2 9 C R 8 + 16 [0]\n8,0 0 4 1.3 9 C R 8 + 0 [0]\n";
        assert_eq!(latencies(text), [300_000_000, 100_000_000]);
    }

    #[test]
    fn one_of_which_a_part_failed_has_failed() {
        for (first, last) in [(5, 0), (0, 5)] {
            let text = format!(
                "8,0 0 1 1.0 9 Q R 0 + 16 [x]\n8,0 0 2 1.1 9 C R 0 + 8 [{first}]\n\
                 8,0 0 3 1.2 9 C R 8 + 8 [{last}]\n"
            );
            let records = read_foreign(&text).expect("it is one").records;
            assert_eq!(records[0].outcome, Outcome::Failed, "{first} {last}");
        }
    }

    /// Events are lost when much happens.
    #[test]
    fn one_whose_end_was_lost_costs_no_other() {
        let again = "8,0 0 1 1.0 9 Q W 0 + 8 [x]\n8,0 0 2 100.0 9 Q W 0 + 8 [x]\n\
                     8,0 0 3 100.5 9 C W 0 + 8 [0]\n8,0 0 4 199.0 9 Q W 0 + 8 [x]\n\
                     8,0 0 5 199.5 9 C W 0 + 8 [0]\n";
        assert_eq!(latencies(again), [0, 500_000_000, 500_000_000]);
        // Of two that begin at one place, each ends by its own length.
        let lengths = "8,0 0 1 1.0 9 Q R 0 + 8 [x]\n8,0 0 2 1.1 9 Q R 0 + 16 [x]\n\
                       8,0 0 3 1.2 9 C R 0 + 16 [0]\n8,0 0 4 1.5 9 C R 0 + 8 [0]\n";
        assert_eq!(latencies(lengths), [500_000_000, 100_000_000]);
        let lengths = "8,0 0 1 1.0 9 Q R 0 + 16 [x]\n8,0 0 2 1.1 9 Q R 0 + 8 [x]\n\
                       8,0 0 3 1.2 9 C R 0 + 16 [0]\n8,0 0 4 1.5 9 C R 0 + 8 [0]\n";
        assert_eq!(latencies(lengths), [200_000_000, 400_000_000]);
        // A longer one is not what others were merged to later.
        let merged = "8,0 0 1 1.0 9 Q W 0 + 16 [x]\n8,0 0 2 100.0 9 Q W 0 + 8 [x]\n\
                      8,0 0 3 100.1 9 Q W 8 + 8 [x]\n8,0 0 4 100.5 9 C W 0 + 16 [0]\n";
        assert_eq!(latencies(merged), [0, 500_000_000, 400_000_000]);
        let part = "8,0 0 1 1.0 9 Q R 0 + 64 [x]\n8,0 0 2 100.0 9 Q R 8 + 16 [x]\n\
                    8,0 0 3 100.2 9 C R 16 + 8 [0]\n8,0 0 4 100.5 9 C R 8 + 8 [0]\n";
        assert_eq!(latencies(part), [0, 500_000_000]);
        // What begins in the middle of a trace has ends of what nobody saw begin.
        let middle = "8,0 0 1 1.0 9 C R 0 + 64 [0]\n8,0 0 2 1.1 9 Q R 32 + 8 [x]\n\
                      8,0 0 3 1.3 9 C R 0 + 64 [0]\n8,0 0 4 1.4 9 C R 32 + 8 [0]\n";
        assert_eq!(latencies(middle), [200_000_000]);
    }

    /// As udev, smartd and multipathd ask of disks.
    #[test]
    fn commands_that_are_passed_on_are_none_of_these() {
        let text = "8,0 0 1 1.0 9 Q R 0 + 8 [x]\n8,0 0 2 1.1 9 D R 36 (12 00 00) [udev]\n\
                    8,0 0 3 1.2 9 D R 36 [udev]\n8,0 0 4 1.3 9 C R (12 00 00) [0]\n\
                    8,0 0 5 1.4 9 C R 0 + 8 [0]\n8,0 0 6 1.5 9 C N 0 [0]\n";
        assert_eq!(latencies(text), [400_000_000]);
    }

    #[test]
    fn devices_are_told_apart() {
        let text = "8,0 0 1 1.0 9 Q R 0 + 8 [x]\n253,0 0 1 1.1 9 Q R 0 + 8 [x]\n\
                    8,0 0 2 1.2 9 C R 0 + 8 [0]\n";
        let read = read_foreign(text).expect("it is one");
        assert_eq!(
            (read.disks, read.disk_of),
            (vec!["253,0".to_owned(), "8,0".to_owned()], vec![1, 0])
        );
        assert_eq!(latencies(text), [200_000_000, 0]);
        // Each begins as it is told of that one.
        let text = "8,0 0 1 1.0 9 Q R 0 + 8 [x]\n8,16 0 1 1.1 9 D R 0 + 8 [x]\n\
                    8,0 0 2 1.2 9 C R 0 + 8 [0]\n8,16 0 2 1.4 9 C R 0 + 8 [0]\n";
        assert_eq!(latencies(text), [200_000_000, 300_000_000]);
    }

    #[test]
    fn events_that_are_told_late_are_where_they_were() {
        let text = "8,0 0 1 1.2 9 Q R 8 + 8 [x]\n8,0 0 2 1.5 9 C R 8 + 8 [0]\n\
                    8,0 1 1 1.1 9 Q R 0 + 8 [x]\n8,0 1 2 1.4 9 C R 0 + 8 [0]\n";
        assert_eq!(latencies(text), [300_000_000; 2]);
        assert_eq!(told(text)[0], ("read", 1_100_000_000, 0, 4096));
    }

    #[test]
    fn flushes_end_without_sectors() {
        let text = "8,0 0 1 1.0 9 Q FWS [x]\n8,0 0 2 1.1 9 Q FN [x]\n\
                    8,0 0 3 1.3 9 C FN 0 [0]\n8,0 0 4 1.6 9 C WS 2048 [0]\n\
                    8,0 0 5 1.7 9 Q FWFS 8 + 8 [x]\n8,0 0 6 1.8 9 C WFS 8 + 8 [0]\n";
        assert_eq!(latencies(text), [600_000_000, 200_000_000, 100_000_000]);
        let records = read_foreign(text).expect("it is one").records;
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
        /// However requests are merged and split, and in whatever order parts end, each takes
        /// until the last of those that have something of it.
        #[test]
        fn a_request_takes_until_all_of_it_has_ended(
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
                let last = order.iter().rposition(of_it).expect("all has ended") as u64;
                1_000_000_000 + last * 10_000_000
            };
            prop_assert_eq!(latencies(&text), asked.iter().map(took).collect::<Vec<_>>());
        }

        /// Whatever somebody makes up is read to its end, and nothing ends before it began.
        #[test]
        fn whatever_is_read_ends(
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
