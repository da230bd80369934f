//! TP and F: a place without encryption.

use model::cost::{Both, Curve, CurveError, CurvePoint, Flow, Linear, Target};

use crate::layers::{Effort, LARGE_BYTES, Sizes, per_operation};
use crate::place::Opened;
use crate::{MeasureError, Run, Surface, Work};

/// Data of these sizes, of the memory.
const RATIOS: [f64; 7] = [0.1, 0.25, 0.5, 0.65, 0.8, 1.0, 1.5];

/// Requests of those who read and write from one end to the other, in bytes.
const STREAM_BYTES: u64 = 1 << 20;

/// Small ones, for what each request takes by itself.
const SMALL_BYTES: u64 = 4096;

/// So many requests are under way where it is to do as much as it can.
const DEPTH: u32 = 16;

/// Measures a place that is open without encryption; `direct` are runs of it past memory, one
/// request at a time.
pub(crate) fn measure(
    opened: &mut dyn Opened,
    sizes: &Sizes,
    direct: &[(Work, Run)],
    effort: &Effort,
) -> Result<Target, MeasureError> {
    let cpu = |run: &Run| run.cpu_s;
    let alone = |run: &Run| run.run_s;
    let direct_cpu = both(direct, cpu);
    let direct_latency = both(direct, alone);
    if let Surface::Export { .. } = opened.surface() {
        let mut rate = |read_percent| {
            let work = Work::Direct {
                bytes: sizes.stream_bytes,
                request_bytes: LARGE_BYTES,
                read_percent,
                depth: DEPTH,
            };
            let run = work.run(opened)?;
            Ok::<_, MeasureError>(sizes.stream_bytes as f64 / run.run_s)
        };
        return Ok(Target {
            bytes_per_s: Both {
                write: rate(0)?,
                read: rate(100)?,
            },
            reads: Curve::flat(),
            writes: Curve::flat(),
            cpu: direct_cpu,
            direct_cpu,
            direct_latency,
        });
    }
    let mut streams = Vec::new();
    for request_bytes in [SMALL_BYTES, STREAM_BYTES] {
        let bytes = sizes.stream_bytes;
        let write = Work::Write {
            bytes,
            request_bytes,
        };
        let read = Work::ReadCold {
            bytes,
            request_bytes,
            is_random: false,
        };
        for work in [write, read] {
            streams.push((work, work.run(opened)?));
        }
    }
    // Through memory the CPU may be what bounds it; that is counted by itself.
    let rate = |way: fn(&Both<Flow>) -> Flow| {
        let of = |(_, run): &(Work, Run)| way(&run.flow).bytes / run.run_s;
        streams.iter().chain(direct).map(of).fold(1.0, f64::max)
    };
    let bytes_per_s = Both {
        read: rate(|flow| flow.read),
        write: rate(|flow| flow.write),
    };
    let (reads, writes) = curves(opened, &bytes_per_s, effort)?;
    Ok(Target {
        bytes_per_s,
        reads,
        writes,
        cpu: both(&streams, cpu),
        direct_cpu,
        direct_latency,
    })
}

fn both(runs: &[(Work, Run)], of: fn(&Run) -> f64) -> Both<Linear> {
    Both {
        read: per_operation(runs, |flow| flow.read, of),
        write: per_operation(runs, |flow| flow.write, of),
    }
}

/// F, of reads and of writes.
fn curves(
    opened: &mut dyn Opened,
    bytes_per_s: &Both<f64>,
    effort: &Effort,
) -> Result<(Curve, Curve), MeasureError> {
    let (mut reads, mut writes) = (Vec::new(), Vec::new());
    for data_ratio in RATIOS {
        let bytes = (data_ratio * effort.memory_bytes as f64) as u64 / STREAM_BYTES * STREAM_BYTES;
        if bytes == 0 || bytes > effort.curve_bytes_max {
            continue;
        }
        let write = Work::Write {
            bytes,
            request_bytes: STREAM_BYTES,
        };
        let written = write.run(opened)?;
        writes.push(CurvePoint {
            data_ratio,
            speedup: bytes as f64 / written.returned_s / bytes_per_s.write,
            missed: 1.0,
        });
        let warm = Work::ReadWarm {
            bytes,
            request_bytes: STREAM_BYTES,
        };
        let read = warm.run(opened)?;
        reads.push(CurvePoint {
            data_ratio,
            speedup: bytes as f64 / read.run_s / bytes_per_s.read,
            missed: (read.fetched_bytes / bytes as f64).min(1.0),
        });
    }
    // What was too much to be tried is taken to be as if there were no memory.
    let curve = |mut points: Vec<CurvePoint>| {
        if points.last().is_none_or(|last| last.data_ratio < 1.0) {
            points.push(CurvePoint {
                data_ratio: 1.0,
                speedup: 1.0,
                missed: 1.0,
            });
        }
        Curve::new(points)
    };
    let unfit = |error: CurveError| MeasureError::Unfit(error.to_string());
    Ok((curve(reads).map_err(unfit)?, curve(writes).map_err(unfit)?))
}
