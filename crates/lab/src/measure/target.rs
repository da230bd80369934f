//! TP and F: a place without encryption.

use crate::cost::{Both, Curve, CurveError, CurvePoint, Flow, Linear, Target};

use crate::measure::layers::{Effort, LARGE_BYTES, SMALL_BYTES, Sizes, per_operation};
use crate::measure::place::{FolderOpened, Opened};
use crate::measure::{MeasureError, Run, Stop, Surface, Work};

/// Sizes of data, relative to memory.
const RATIOS: [f64; 7] = [0.1, 0.25, 0.5, 0.65, 0.8, 1.0, 1.5];

/// Memory holds data of this size relative to it; the paper found up to 0.68.
const HELD_RATIO: f64 = 0.65;

/// Size of sequential requests, in bytes.
const STREAM_BYTES: u64 = 1 << 20;

/// Queue depth for the highest throughput.
const DEPTH: u32 = 16;

/// An open place without encryption, and its measurements.
pub(crate) struct Plain<'a> {
    pub(crate) opened: &'a mut dyn Opened,
    pub(crate) sizes: &'a Sizes,
    /// Its runs of the works.
    pub(crate) runs: &'a [(Work, Run)],
    pub(crate) effort: &'a Effort,
    pub(crate) stop: &'a Stop,
}

impl Plain<'_> {
    /// Measures the place.
    pub(crate) fn measure(&mut self) -> Result<Target, MeasureError> {
        match self.opened.surface() {
            Surface::Export { .. } => self.of_export(),
            Surface::Folder(_) => self.of_folder(),
        }
    }

    fn run(&mut self, work: &Work) -> Result<Run, MeasureError> {
        work.run(self.opened, self.stop)
    }

    /// Measures a volume, and the memory of its user.
    fn of_export(&mut self) -> Result<Target, MeasureError> {
        let bytes = self.sizes.stream_bytes;
        let mut rate = |read_percent| {
            let work = Work::Direct {
                bytes,
                request_bytes: LARGE_BYTES,
                read_percent,
                depth: DEPTH,
            };
            let run = self.run(&work)?;
            Ok::<_, MeasureError>(bytes as f64 / run.run_s)
        };
        let bytes_per_s = Both {
            write: rate(0)?,
            read: rate(100)?,
        };
        let folder = self.opened.plain_folder();
        let folder = folder.map(|folder| FolderOpened::new(folder.to_owned()));
        let reads = match folder.transpose()? {
            Some(mut folder) => above(
                &seen(&mut folder, self.effort, self.stop)?,
                bytes_per_s.read,
            )?,
            None => Curve::flat(),
        };
        Ok(Target {
            bytes_per_s,
            reads,
            writes: Curve::flat(),
            cpu: self.direct_cpu(),
            direct_cpu: self.direct_cpu(),
            direct_latency: self.direct_latency(),
        })
    }

    fn of_folder(&mut self) -> Result<Target, MeasureError> {
        let mut streams = Vec::new();
        for request_bytes in [SMALL_BYTES, STREAM_BYTES] {
            let bytes = self.sizes.stream_bytes;
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
                streams.push((work, self.run(&work)?));
            }
        }
        // Through memory the CPU may be the limit, which is counted separately.
        let rate = |way: fn(&Both<Flow>) -> Flow| {
            let of = |(_, run): &(Work, Run)| way(&run.flow).bytes / run.run_s;
            let all = streams.iter().chain(&self.runs[self.sizes.deep()]);
            all.map(of).fold(1.0, f64::max)
        };
        let bytes_per_s = Both {
            read: rate(|flow| flow.read),
            write: rate(|flow| flow.write),
        };
        let seen = seen(self.opened, self.effort, self.stop)?;
        Ok(Target {
            bytes_per_s,
            reads: curve(seen.iter().map(|one| CurvePoint {
                data_ratio: one.data_ratio,
                speedup: one.read_bytes_per_s / bytes_per_s.read,
                missed: one.missed,
            }))?,
            writes: curve(seen.iter().map(|one| CurvePoint {
                data_ratio: one.data_ratio,
                speedup: one.written_bytes_per_s / bytes_per_s.write,
                missed: 1.0,
            }))?,
            cpu: both(&streams, |run| run.cpu_s),
            direct_cpu: self.direct_cpu(),
            direct_latency: self.direct_latency(),
        })
    }

    fn direct_cpu(&self) -> Both<Linear> {
        both(&self.runs[self.sizes.deep()], |run| run.cpu_s)
    }

    fn direct_latency(&self) -> Both<Linear> {
        both(&self.runs[self.sizes.single()], |run| run.run_s)
    }
}

fn both(runs: &[(Work, Run)], of: fn(&Run) -> f64) -> Both<Linear> {
    Both {
        read: per_operation(runs, |flow| flow.read, of),
        write: per_operation(runs, |flow| flow.write, of),
    }
}

/// The effect of memory on data of one size.
struct MemoryEffect {
    data_ratio: f64,
    /// Until the last write returned.
    written_bytes_per_s: f64,
    /// Reads of data in memory.
    read_bytes_per_s: f64,
    missed: f64,
}

/// The data sizes to measure in bytes, in ascending order: sizes above the limit are replaced by
/// the limit.
pub(crate) fn tried(effort: &Effort) -> Vec<u64> {
    let whole = |bytes: u64| bytes / STREAM_BYTES * STREAM_BYTES;
    let of_memory = RATIOS.map(|ratio| (ratio * effort.memory_bytes as f64) as u64);
    let mut tried: Vec<u64> = of_memory
        .into_iter()
        .map(|bytes| whole(bytes.min(effort.curve_bytes_max)))
        .filter(|bytes| *bytes > 0)
        .collect();
    tried.dedup();
    tried
}

fn seen(
    opened: &mut dyn Opened,
    effort: &Effort,
    stop: &Stop,
) -> Result<Vec<MemoryEffect>, MeasureError> {
    let mut all = Vec::new();
    for bytes in tried(effort) {
        let write = Work::Write {
            bytes,
            request_bytes: STREAM_BYTES,
        };
        let written = write.run(opened, stop)?;
        let warm = Work::ReadWarm {
            bytes,
            request_bytes: STREAM_BYTES,
        };
        let read = warm.run(opened, stop)?;
        let bytes = bytes as f64;
        all.push(MemoryEffect {
            data_ratio: bytes / effort.memory_bytes.max(1) as f64,
            written_bytes_per_s: bytes / written.returned_s,
            read_bytes_per_s: bytes / read.run_s,
            missed: (read.fetched_bytes / bytes).min(1.0),
        });
    }
    Ok(all)
}

/// F of a target below memory, from what memory misses above another target: missed bytes take as
/// long as this target needs, and the others as long as memory.
fn above(seen: &[MemoryEffect], target_bytes_per_s: f64) -> Result<Curve, MeasureError> {
    let rates = seen.iter().map(|one| one.read_bytes_per_s);
    let memory_bytes_per_s = rates.fold(target_bytes_per_s, f64::max);
    curve(seen.iter().map(|one| {
        let hit = 1.0 - one.missed;
        CurvePoint {
            data_ratio: one.data_ratio,
            speedup: 1.0 / (one.missed + hit * target_bytes_per_s / memory_bytes_per_s),
            missed: one.missed,
        }
    }))
}

/// Completes a curve beyond the measured data: data of the size of memory and more counts as
/// uncached, and data that memory holds for sure counts as the largest measured one.
fn curve(points: impl Iterator<Item = CurvePoint>) -> Result<Curve, MeasureError> {
    let mut points: Vec<CurvePoint> = points.collect();
    if points.last().is_none_or(|last| last.data_ratio < 1.0) {
        let last = points.last().copied();
        points.extend(
            last.filter(|last| last.data_ratio < HELD_RATIO)
                .map(|last| CurvePoint {
                    data_ratio: HELD_RATIO,
                    ..last
                }),
        );
        points.push(CurvePoint {
            data_ratio: 1.0,
            speedup: 1.0,
            missed: 1.0,
        });
    }
    Curve::new(points).map_err(|error: CurveError| MeasureError::Unfit(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_above_a_target_speeds_it_up_by_what_it_does_not_miss() {
        let one = |data_ratio, read_bytes_per_s, missed| MemoryEffect {
            data_ratio,
            written_bytes_per_s: 1.0,
            read_bytes_per_s,
            missed,
        };
        let seen = [one(0.5, 1e9, 0.0), one(0.9, 1e8, 0.5)];
        let curve = above(&seen, 1e8).expect("a curve");
        let factor = |data_ratio| curve.at(data_ratio).speedup;
        assert!((factor(0.5) - 10.0).abs() < 1e-9);
        assert!((factor(0.9) - 1.0 / 0.55).abs() < 1e-9);
        assert_eq!((factor(1.0), curve.at(2.0).missed), (1.0, 1.0));
        // A target that is faster than memory is not slowed down by it.
        assert_eq!(above(&seen, 1e10).expect("a curve").at(0.5).speedup, 1.0);
    }

    #[test]
    fn with_more_memory_than_can_be_tried_the_largest_possible_data_is_tried() {
        let effort = |memory_gib: u64, max_gib: u64| Effort {
            rounds: 1,
            bytes: 1,
            memory_bytes: memory_gib << 30,
            curve_bytes_max: max_gib << 30,
        };
        assert_eq!(tried(&effort(64, 4)), [4 << 30]);
        assert_eq!(tried(&effort(10, 4)), [1 << 30, 2560 << 20, 4 << 30]);
        assert_eq!(tried(&effort(2, 4)).len(), RATIOS.len());
        assert_eq!(tried(&effort(64, 0)), [] as [u64; 0]);
        // All data of a 16th of the memory was found there: the same is assumed up to the size that
        // memory holds for sure.
        let point = CurvePoint {
            data_ratio: 0.0625,
            speedup: 20.0,
            missed: 0.0,
        };
        let curve = curve(std::iter::once(point)).expect("a curve");
        assert_eq!(curve.at(0.5).missed, 0.0);
        assert_eq!((curve.at(1.0).missed, curve.at(1.0).speedup), (1.0, 1.0));
    }
}
