//! TP and F: a place without encryption.

use model::cost::{Both, Curve, CurveError, CurvePoint, Linear, Target};

use crate::layers::{Effort, Sizes, per_operation};
use crate::place::Opened;
use crate::{MeasureError, Run, Surface, Work};

/// Data of these sizes, of the memory.
const RATIOS: [f64; 7] = [0.1, 0.25, 0.5, 0.65, 0.8, 1.0, 1.5];

/// Requests of those who read and write from one end to the other, in bytes.
const STREAM_BYTES: u64 = 1 << 20;

/// Measures a place that is open without encryption; `runs` are those of the layers' work there.
pub(crate) fn measure(
    opened: &mut dyn Opened,
    sizes: &Sizes,
    runs: &[(Work, Run)],
    effort: &Effort,
) -> Result<Target, MeasureError> {
    let cpu = Both {
        read: per_operation(runs, |both| both.read),
        write: per_operation(runs, |both| both.write),
    };
    match opened.surface() {
        Surface::Export { .. } => {
            let rate = |way: fn(&Both<model::cost::Flow>) -> f64| {
                let of = |(_, run): &(Work, Run)| way(&run.flow) / run.run_s;
                runs.iter().map(of).fold(1.0, f64::max)
            };
            Ok(Target {
                bytes_per_s: Both {
                    read: rate(|flow| flow.read.bytes),
                    write: rate(|flow| flow.write.bytes),
                },
                reads: Curve::flat(),
                writes: Curve::flat(),
                cpu,
            })
        }
        Surface::Folder(_) => streams(opened, sizes, effort, cpu),
    }
}

fn streams(
    opened: &mut dyn Opened,
    sizes: &Sizes,
    effort: &Effort,
    cpu: Both<Linear>,
) -> Result<Target, MeasureError> {
    let stream = |bytes| Work::Write {
        bytes,
        request_bytes: STREAM_BYTES,
    };
    let written = stream(sizes.stream_bytes).run(opened)?;
    let cold = Work::ReadCold {
        bytes: sizes.stream_bytes,
        request_bytes: STREAM_BYTES,
        is_random: false,
    };
    let read = cold.run(opened)?;
    let rate = |run: &Run| sizes.stream_bytes as f64 / run.run_s;
    let bytes_per_s = Both {
        read: rate(&read),
        write: rate(&written),
    };
    let (mut reads, mut writes) = (Vec::new(), Vec::new());
    for data_ratio in RATIOS {
        let bytes = (data_ratio * effort.memory_bytes as f64) as u64 / STREAM_BYTES * STREAM_BYTES;
        if bytes == 0 || bytes > effort.curve_bytes_max {
            continue;
        }
        let written = stream(bytes).run(opened)?;
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
    Ok(Target {
        bytes_per_s,
        reads: curve(reads).map_err(unfit)?,
        writes: curve(writes).map_err(unfit)?,
        cpu,
    })
}
