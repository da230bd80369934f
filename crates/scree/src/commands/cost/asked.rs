//! What is read and written: as it is said, or as it was recorded.

use std::collections::BTreeMap;

use measure::{Calibration, MeasuredPlace};
use model::cost::{Both, Caching, Flow, Workload};
use trace::{Outcome, Record, Verb};

use crate::args::WorkloadArguments;
use crate::commands::Failure;
use crate::commands::traces::{Traces, read_traces};
use crate::output::{Format, print_notice};

/// As it is said, in a place.
pub fn of_arguments(
    asked: &WorkloadArguments,
    calibration: &Calibration,
    place: &MeasuredPlace,
) -> Workload {
    let (read, write) = (asked.read.unwrap_or(0), asked.write.unwrap_or(0));
    let memory = asked.memory.unwrap_or(place.memory_bytes);
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
        cpus: cpus(asked, calibration),
        run_s: None,
    }
}

/// All that reached a disk, as it was recorded. What failed there is not encrypted any more than
/// it was done.
pub fn of_traces(
    format: Format,
    asked: &WorkloadArguments,
    calibration: &Calibration,
) -> Result<Workload, Failure> {
    let Traces { parts, notices } = read_traces(&asked.traces)?;
    for notice in notices {
        print_notice(format, &notice);
    }
    let mut counts: Both<BTreeMap<u64, u64>> = Both::default();
    for record in parts.iter().flatten() {
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
    let run_s: f64 = parts.iter().map(|part| duration_s(part)).sum();
    if run_s == 0.0 {
        let notice = "the trace has no times: how long it takes is worked out by what the target \
                      can do";
        print_notice(format, notice);
    }
    Ok(Workload {
        flow,
        caching: Caching::Direct {
            depth: f64::from(asked.direct.unwrap_or(1)),
        },
        own_cpu_s: asked.own_cpu,
        cpus: cpus(asked, calibration),
        run_s: (run_s > 0.0).then_some(run_s),
    })
}

/// Requests of the same length are alike.
fn by_length(counts: &BTreeMap<u64, u64>) -> Vec<Flow> {
    let each = counts.iter().map(|(length, count)| Flow {
        bytes: *length as f64 * *count as f64,
        operations: *count as f64,
    });
    each.collect()
}

fn cpus(asked: &WorkloadArguments, calibration: &Calibration) -> f64 {
    let calibrated = calibration.machine.cpus as f64;
    asked.cpus.map_or(calibrated, f64::from)
}

/// From when its first request was begun until its last one ended, in seconds.
fn duration_s(records: &[Record]) -> f64 {
    let (mut first, mut last) = (u64::MAX, 0);
    for record in records {
        first = first.min(record.time_ns);
        last = last.max(record.time_ns.saturating_add(record.latency_ns));
    }
    last.saturating_sub(first) as f64 / 1e9
}
