//! What is read and written: as it is said, or as it was recorded.

use std::collections::BTreeMap;

use trace::{OpKind, Outcome, Record};

use crate::args::WorkloadArguments;
use crate::commands::Console;
use crate::commands::Failure;
use crate::cost::{Both, Caching, Flow, Workload};
use crate::measure::{Calibration, MeasuredPlace};
use crate::traces::{Part, Traces, read_traces};

/// As it is said, in a place.
pub fn of_arguments(
    asked: &WorkloadArguments,
    calibration: &Calibration,
    place: &MeasuredPlace,
) -> Workload {
    let (read, write) = (asked.read.unwrap_or(0), asked.write.unwrap_or(0));
    let memory = memory_of(asked, place);
    let caching = match asked.direct {
        Some(depth) => Caching::Direct {
            depth: f64::from(depth),
        },
        None => Caching::Memory {
            data_bytes: data_of(asked) as f64,
            memory_bytes: memory as f64,
            is_warm: asked.warm,
        },
    };
    Workload {
        flow: Both {
            read: vec![Flow::of(read, asked.request)],
            write: vec![Flow::of(write, asked.request)],
        },
        caching,
        own_cpu_s: asked.own_cpu,
        cpus: cpus(asked.cpus, calibration),
        run_s: None,
    }
}

fn memory_of(asked: &WorkloadArguments, place: &MeasuredPlace) -> u64 {
    asked.memory.unwrap_or(place.memory_bytes)
}

/// How large the data is, in bytes.
fn data_of(asked: &WorkloadArguments) -> u64 {
    let (read, write) = (asked.read.unwrap_or(0), asked.write.unwrap_or(0));
    asked.data.unwrap_or(read.max(write))
}

/// Something is read that memory may have: what is read once, and was not before, it has not.
fn is_read_again(asked: &WorkloadArguments) -> bool {
    let read = asked.read.unwrap_or(0);
    asked.direct.is_none() && read > 0 && (asked.warm || read > data_of(asked))
}

/// Whose memory a place is taken to be below of, where that is a guess and counts: on a host it is
/// the memory of the machine that has the disk which does.
pub fn guessed_memory(asked: &WorkloadArguments, place: &MeasuredPlace) -> Option<u64> {
    let is_guessed = asked.memory.is_none() && !place.place.is_in_guest();
    (is_read_again(asked) && is_guessed).then(|| memory_of(asked, place))
}

/// With how much data the effect of memory was tried in a place, in bytes, if more than that is
/// asked for, `times` as much as is said.
pub fn guessed_from(asked: &WorkloadArguments, place: &MeasuredPlace, times: f64) -> Option<u64> {
    let data_bytes = data_of(asked) as f64 * times;
    let guessed = place.guessed_from(data_bytes, memory_of(asked, place) as f64);
    guessed.filter(|_| is_read_again(asked))
}

/// All that reached a disk, as it was recorded. What failed there is not encrypted any more than
/// it was done.
pub fn of_traces(
    console: &dyn Console,
    asked: &WorkloadArguments,
) -> Result<impl Fn(&Calibration) -> Workload, Failure> {
    let Traces {
        parts,
        notices,
        are_timed,
    } = read_traces(&asked.traces)?;
    for notice in notices {
        console.notice(&notice);
    }
    let mut counts: Both<BTreeMap<u64, u64>> = Both::default();
    for record in parts.iter().flat_map(|part| &part.records) {
        let way = match (record.kind, record.outcome) {
            (OpKind::Read, Outcome::Done) => &mut counts.read,
            (OpKind::Write, Outcome::Done) => &mut counts.write,
            _ => continue,
        };
        if record.length > 0 {
            *way.entry(record.length).or_default() += 1;
        }
    }
    let flow = Both {
        read: by_length(&counts.read),
        write: by_length(&counts.write),
    };
    if flow.read.is_empty() && flow.write.is_empty() {
        return Err(Failure::new(
            "nothing is read or written in this trace: there is nothing to encrypt",
        ));
    }
    let run_s = match are_timed {
        true => taken_s(&parts),
        false => 0.0,
    };
    if run_s == 0.0 {
        let why = match are_timed {
            true => "all in the trace was asked for at one instant",
            false => "the trace has no times",
        };
        let notice = format!("{why}: how long it takes is worked out by what the target can do");
        console.notice(&notice);
    }
    let depth = match (asked.direct, depth(&parts)) {
        (Some(depth), _) => f64::from(depth),
        (None, Some(depth)) => depth,
        (None, None) => {
            let notice = "the trace does not tell how many requests were under way together: one \
                          at a time is taken for it; if there were more, say --direct";
            console.notice(notice);
            1.0
        }
    };
    let (own_cpu_s, asked_cpus) = (asked.own_cpu, asked.cpus);
    Ok(move |calibration: &Calibration| Workload {
        flow: flow.clone(),
        caching: Caching::Direct { depth },
        own_cpu_s,
        cpus: cpus(asked_cpus, calibration),
        run_s: (run_s > 0.0).then_some(run_s),
    })
}

/// How many reads and writes were under way together on the mean while any was, but one at least:
/// `None`, if nothing tells how long they took. Nobody waits for what lies between them, and what
/// else is asked of a disk is not encrypted.
fn depth(parts: &[Part]) -> Option<f64> {
    let is_counted = |record: &&Record| {
        let is_encrypted = matches!(record.kind, OpKind::Read | OpKind::Write);
        is_encrypted && record.outcome == Outcome::Done && record.latency_ns > 0
    };
    let of_part = |part: &Part| {
        let counted = part.records.iter().filter(is_counted);
        let spans = counted.map(|record| span_ns(part, record));
        spans.collect::<Vec<_>>()
    };
    let spans: Vec<(u64, u64)> = parts.iter().flat_map(of_part).collect();
    let waited_ns: f64 = spans
        .iter()
        .map(|(from, until)| (until - from) as f64)
        .sum();
    let busy_ns = covered_ns(spans);
    (busy_ns > 0.0).then(|| (waited_ns / busy_ns).max(1.0))
}

/// Requests of the same length are alike.
fn by_length(counts: &BTreeMap<u64, u64>) -> Vec<Flow> {
    let each = counts.iter().map(|(length, count)| Flow {
        bytes: *length as f64 * *count as f64,
        operations: *count as f64,
    });
    each.collect()
}

fn cpus(asked: Option<u32>, calibration: &Calibration) -> f64 {
    let calibrated = calibration.machine.cpus as f64;
    asked.map_or(calibrated, f64::from)
}

/// How long something was under way, in seconds: of each part from when its first request was begun
/// until its last one ended. Parts of several disks may have been at the same time.
fn taken_s(parts: &[Part]) -> f64 {
    let whole = |part: &Part| {
        let spans = part.records.iter().map(|record| span_ns(part, record));
        spans.reduce(|one, other| (one.0.min(other.0), one.1.max(other.1)))
    };
    covered_ns(parts.iter().filter_map(whole).collect()) / 1e9
}

/// For how long any of these went on, in nanoseconds, each from when to when.
fn covered_ns(mut spans: Vec<(u64, u64)>) -> f64 {
    spans.sort_unstable();
    let (mut covered_ns, mut until) = (0.0, 0);
    for (begin, end) in spans {
        covered_ns += end.saturating_sub(begin.max(until)) as f64;
        until = until.max(end);
    }
    covered_ns
}

/// From when to when a request of a part was under way, in nanoseconds.
fn span_ns(part: &Part, record: &Record) -> (u64, u64) {
    let began_ns = part.began_us.saturating_mul(1000);
    let from = began_ns.saturating_add(record.time_ns);
    (from, from.saturating_add(record.latency_ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A part that began then, with requests of so many seconds from then on.
    fn part(began_s: u64, requests: &[(u64, u64)]) -> Part {
        let records = requests.iter().map(|(at, took)| Record {
            latency_ns: took * 1_000_000_000,
            ..Record::plain(
                OpKind::Read,
                at * 1_000_000_000,
                base::ByteRange::new(0, 4096),
            )
        });
        Part {
            began_us: began_s * 1_000_000,
            records: records.collect(),
            disk_of: Vec::new(),
        }
    }

    #[test]
    fn what_was_at_the_same_time_counts_once() {
        let one = || part(100, &[(1, 2), (5, 5)]);
        assert_eq!(taken_s(&[one()]), 9.0);
        // Of two disks, and of one later on; in any order.
        let later = part(200, &[(0, 1)]);
        assert_eq!(taken_s(&[later, part(102, &[(0, 18)]), one()]), 20.0);
        assert_eq!(taken_s(&[part(0, &[])]), 0.0);
    }

    #[test]
    fn how_many_were_under_way_is_worked_out_by_how_long_they_took() {
        let four = || part(0, &[(0, 10), (0, 10), (0, 10), (0, 10)]);
        assert_eq!(depth(&[four()]), Some(4.0));
        // Another disk at the same time.
        assert_eq!(depth(&[four(), four()]), Some(8.0));
        // Nobody waits while nothing is asked for.
        let bursts = part(0, &[(0, 1), (0, 1), (1000, 1), (1000, 1)]);
        assert_eq!(depth(&[bursts]), Some(2.0));
        assert_eq!(depth(&[part(0, &[(0, 1), (5, 1)])]), Some(1.0));
        assert_eq!(depth(&[part(0, &[(0, 0), (3, 0)])]), None);
        // Nor is what else is under way any of them, or what failed.
        let mut other = four();
        other.records[0].kind = OpKind::Trim;
        other.records[1].kind = OpKind::Flush;
        other.records[2].outcome = Outcome::Failed;
        assert_eq!(depth(&[other]), Some(1.0));
    }
}
