//! Workloads, from arguments or from a trace.

use std::collections::BTreeMap;

use trace::{OpKind, Outcome, Record};

use crate::args::WorkloadArguments;
use crate::commands::Console;
use crate::commands::Failure;
use crate::cost::{Both, Caching, Flow, Workload};
use crate::measure::{Calibration, MeasuredPlace};
use crate::traces::{Part, Traces, read_traces};

/// The workload of the arguments, at a place.
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

/// Size of the data set, in bytes.
fn data_of(asked: &WorkloadArguments) -> u64 {
    let (read, write) = (asked.read.unwrap_or(0), asked.write.unwrap_or(0));
    asked.data.unwrap_or(read.max(write))
}

/// Whether data is read that may be in memory: data that is read once, and was not read before, is
/// not.
fn is_read_again(asked: &WorkloadArguments) -> bool {
    let read = asked.read.unwrap_or(0);
    asked.direct.is_none() && read > 0 && (asked.warm || read > data_of(asked))
}

/// The assumed size of the memory above a place, if it is not given and matters: for a place on a
/// host, the memory of the machine that uses the disk matters.
pub fn guessed_memory(asked: &WorkloadArguments, place: &MeasuredPlace) -> Option<u64> {
    let is_guessed = asked.memory.is_none() && !place.place.is_in_guest();
    (is_read_again(asked) && is_guessed).then(|| memory_of(asked, place))
}

/// The largest data with which the effect of memory was measured at a place, in bytes, if `times`
/// the given data is larger.
pub fn guessed_from(asked: &WorkloadArguments, place: &MeasuredPlace, times: f64) -> Option<u64> {
    let data_bytes = data_of(asked) as f64 * times;
    let guessed = place.guessed_from(data_bytes, memory_of(asked, place) as f64);
    guessed.filter(|_| is_read_again(asked))
}

/// The workload of a trace: all requests that reached a disk. Failed requests are ignored.
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
    let flow = flow_of(&parts);
    if flow.read.is_empty() && flow.write.is_empty() {
        return Err(Failure::new(
            "the trace has no reads or writes, so nothing would be encrypted",
        ));
    }
    let run_s = match are_timed {
        true => taken_s(&parts),
        false => 0.0,
    };
    if run_s == 0.0 {
        let why = match are_timed {
            true => "all requests of the trace have the same time",
            false => "the trace has no times",
        };
        let notice = format!("{why}: the run time is computed from the throughput of the target");
        console.notice(&notice);
    }
    let depth = match (asked.direct, depth(&parts)) {
        (Some(depth), _) => f64::from(depth),
        (None, Some(depth)) => depth,
        (None, None) => {
            let notice = "the trace has no latencies, so its queue depth is unknown: one \
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

/// The completed reads and writes.
fn flow_of(parts: &[Part]) -> Both<Vec<Flow>> {
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
    Both {
        read: by_length(&counts.read),
        write: by_length(&counts.write),
    }
}

/// The mean queue depth while any read or write was in progress, at least 1; `None` if their
/// durations are unknown. Pauses do not count, and neither do other requests, which are not
/// encrypted.
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

/// One flow for each request length.
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

/// The run time in seconds: for each part, from the start of its first request to the end of its
/// last one. Overlapping parts of different disks count once.
fn taken_s(parts: &[Part]) -> f64 {
    let whole = |part: &Part| {
        let spans = part.records.iter().map(|record| span_ns(part, record));
        spans.reduce(|one, other| (one.0.min(other.0), one.1.max(other.1)))
    };
    covered_ns(parts.iter().filter_map(whole).collect()) / 1e9
}

/// The total time covered by these intervals, in nanoseconds.
fn covered_ns(mut spans: Vec<(u64, u64)>) -> f64 {
    spans.sort_unstable();
    let (mut covered_ns, mut until) = (0.0, 0);
    for (begin, end) in spans {
        covered_ns += end.saturating_sub(begin.max(until)) as f64;
        until = until.max(end);
    }
    covered_ns
}

/// The interval in which a request of a part was in progress, in nanoseconds.
fn span_ns(part: &Part, record: &Record) -> (u64, u64) {
    let began_ns = part.began_us.saturating_mul(1000);
    let from = began_ns.saturating_add(record.time_ns);
    (from, from.saturating_add(record.latency_ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A part that began at `began_s`, with requests of these starts and durations in seconds.
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
    fn overlapping_times_count_once() {
        let one = || part(100, &[(1, 2), (5, 5)]);
        assert_eq!(taken_s(&[one()]), 9.0);
        // Of two disks, and a later one; in any order.
        let later = part(200, &[(0, 1)]);
        assert_eq!(taken_s(&[later, part(102, &[(0, 18)]), one()]), 20.0);
        assert_eq!(taken_s(&[part(0, &[])]), 0.0);
    }

    #[test]
    fn the_queue_depth_follows_from_the_durations() {
        let four = || part(0, &[(0, 10), (0, 10), (0, 10), (0, 10)]);
        assert_eq!(depth(&[four()]), Some(4.0));
        // Another disk at the same time.
        assert_eq!(depth(&[four(), four()]), Some(8.0));
        // Pauses do not count.
        let bursts = part(0, &[(0, 1), (0, 1), (1000, 1), (1000, 1)]);
        assert_eq!(depth(&[bursts]), Some(2.0));
        assert_eq!(depth(&[part(0, &[(0, 1), (5, 1)])]), Some(1.0));
        assert_eq!(depth(&[part(0, &[(0, 0), (3, 0)])]), None);
        // Neither do other requests in progress, or failed ones.
        let mut other = four();
        other.records[0].kind = OpKind::Trim;
        other.records[1].kind = OpKind::Flush;
        other.records[2].outcome = Outcome::Failed;
        assert_eq!(depth(&[other]), Some(1.0));
    }
}
