//! What is read and written: as it is said, or as it was recorded.

use std::collections::BTreeMap;

use measure::{Calibration, MeasuredPlace};
use model::cost::{Both, Caching, Flow, Workload};
use trace::{Outcome, Record, Verb};

use crate::args::WorkloadArguments;
use crate::commands::Failure;
use crate::commands::traces::{Part, Traces, read_traces};
use crate::output::{Format, print_notice};

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
            data_bytes: asked.data.unwrap_or(read.max(write)) as f64,
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

/// Whose memory a place is taken to be below of, where that is a guess: on a host it is the memory
/// of the machine that has the disk which counts.
pub fn guessed_memory(asked: &WorkloadArguments, place: &MeasuredPlace) -> Option<u64> {
    let is_asked = asked.direct.is_none() && asked.traces.is_empty() && asked.read.is_some();
    let is_guessed = asked.memory.is_none() && !place.place.is_in_guest();
    (is_asked && is_guessed).then(|| memory_of(asked, place))
}

/// With how much data the effect of memory was tried in a place, in bytes, if what is asked for is
/// read from it more than once, and more than that.
pub fn guessed_from(asked: &WorkloadArguments, place: &MeasuredPlace) -> Option<u64> {
    let read = asked.read.filter(|_| asked.direct.is_none())?;
    let data = asked.data.unwrap_or(read.max(asked.write.unwrap_or(0)));
    let is_again = asked.warm || read > data;
    let guessed = place.guessed_from(data as f64, memory_of(asked, place) as f64);
    guessed.filter(|_| is_again)
}

/// All that reached a disk, as it was recorded. What failed there is not encrypted any more than
/// it was done.
pub fn of_traces(
    format: Format,
    asked: &WorkloadArguments,
) -> Result<impl Fn(&Calibration) -> Workload, Failure> {
    let Traces {
        parts,
        notices,
        are_timed,
    } = read_traces(&asked.traces)?;
    for notice in notices {
        print_notice(format, &notice);
    }
    let mut counts: Both<BTreeMap<u64, u64>> = Both::default();
    for record in parts.iter().flat_map(|part| &part.records) {
        let way = match (record.verb, record.outcome) {
            (Verb::Read, Outcome::Done) => &mut counts.read,
            (Verb::Write, Outcome::Done) => &mut counts.write,
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
        print_notice(format, &notice);
    }
    let depth = match (asked.direct, depth(&parts, run_s)) {
        (Some(depth), _) => f64::from(depth),
        (None, Some(depth)) => depth,
        (None, None) => {
            let notice = "the trace does not tell how many requests were under way together: one \
                          at a time is taken for it; if there were more, say --direct";
            print_notice(format, notice);
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

/// How many requests were under way together on the mean, but one at least (Little's law): `None`,
/// if nothing tells how long they took. Those of which it is not known, as their ends were not
/// recorded, are taken to be as the others.
fn depth(parts: &[Part], run_s: f64) -> Option<f64> {
    let latencies = || {
        let records = parts.iter().flat_map(|part| &part.records);
        records.map(|record| record.latency_ns as f64 / 1e9)
    };
    let known = latencies().filter(|latency_s| *latency_s > 0.0).count();
    let mean_s = latencies().sum::<f64>() / known as f64;
    let waited_s = mean_s * latencies().count() as f64;
    (known > 0 && run_s > 0.0).then(|| (waited_s / run_s).max(1.0))
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
    let mut all: Vec<(u64, u64)> = parts.iter().filter_map(span_ns).collect();
    all.sort_unstable();
    let (mut taken_ns, mut until) = (0.0, 0);
    for (begin, end) in all {
        taken_ns += end.saturating_sub(begin.max(until)) as f64;
        until = until.max(end);
    }
    taken_ns / 1e9
}

/// From when to when, in nanoseconds; nothing without requests.
fn span_ns(part: &Part) -> Option<(u64, u64)> {
    let records = || part.records.iter();
    let end = |record: &Record| record.time_ns.saturating_add(record.latency_ns);
    let first = records().map(|record| record.time_ns).min()?;
    let last = records().map(end).max()?;
    let began_ns = part.began_us.saturating_mul(1000);
    Some((
        began_ns.saturating_add(first),
        began_ns.saturating_add(last),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A part that began then, with requests of so many seconds from then on.
    fn part(began_s: u64, requests: &[(u64, u64)]) -> Part {
        let records = requests.iter().map(|(at, took)| Record {
            latency_ns: took * 1_000_000_000,
            ..Record::plain(Verb::Read, at * 1_000_000_000, (0, 4096))
        });
        Part {
            began_us: began_s * 1_000_000,
            records: records.collect(),
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
        let four = part(0, &[(0, 10), (0, 10), (0, 10), (0, 10)]);
        assert_eq!(depth(&[four], 10.0), Some(4.0));
        assert_eq!(depth(&[part(0, &[(0, 1)])], 10.0), Some(1.0));
        assert_eq!(depth(&[part(0, &[(0, 0), (3, 0)])], 3.0), None);
        // One whose end nobody saw is as the others.
        let unseen = part(0, &[(0, 10), (0, 10), (5, 0), (5, 0)]);
        assert_eq!(depth(&[unseen], 10.0), Some(4.0));
    }
}
