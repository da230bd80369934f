//! E and D of a place: the same work with and without encryption.
//!
//! They are differences of the CPU time of a request with and without encryption in the same round
//! (`rounds`), and of these the median, by request size.

use std::ops::Range;

use crate::cost::{Both, BySize, Flow, Layer, Linear};
use jiff::Timestamp;

use crate::measure::calibration::{MeasuredLayer, MeasuredPlace};
use crate::measure::chance::within;
use crate::measure::place::{Place, PlaceKind};
use crate::measure::rounds::{Round, Rounds, differences, median_of};
use crate::measure::target::{Plain, tried};
use crate::measure::{Cipher, MeasureError, Run, Waiting, Work};

/// The extent of a measurement.
#[derive(Debug, Clone)]
pub struct Effort {
    /// Number of rounds; the median counts.
    pub rounds: u32,
    /// Bytes that small requests read and write; large ones use more.
    pub bytes: u64,
    /// The memory to which F relates, in bytes.
    pub memory_bytes: u64,
    /// The largest data with which F is measured, in bytes.
    pub curve_bytes_max: u64,
}

/// The works of a measurement.
pub(crate) struct Sizes {
    /// Bytes for measuring TP.
    pub stream_bytes: u64,
    /// The works that measure a layer's CPU time: requests of several sizes.
    pub works: Vec<Work>,
    /// The works that measure latency: the same requests, one at a time. Empty if `works` measure
    /// it.
    pub alone: Vec<Work>,
    /// Reads with read-ahead by memory: sequential ones, and isolated ones.
    pub apart: Option<[Work; 2]>,
}

/// Small requests, and medium ones, in bytes.
pub(crate) const SMALL_BYTES: u64 = 4096;

const MIDDLE_BYTES: u64 = 32 << 10;

/// The size of read-ahead, and of a FUSE request.
pub(crate) const LARGE_BYTES: u64 = 128 << 10;

/// The size of unmerged requests, and of a large write of a program.
const HUGE_BYTES: u64 = 1 << 20;

/// Large requests cost less per byte, so there are more of them.
const LARGE_SHARE: u64 = 4;

/// Queue depth while the CPU time of a volume is measured.
const DEEP: u64 = 8;

/// Writes and reads with direct I/O.
fn direct(bytes: u64, request_bytes: u64, depth: u64) -> [Work; 2] {
    [0, 100].map(|read_percent| Work::Direct {
        bytes: bytes.max(request_bytes),
        request_bytes,
        read_percent,
        depth: depth as u32,
    })
}

impl Sizes {
    pub(crate) fn of(kind: PlaceKind, effort: &Effort) -> Self {
        let large = LARGE_SHARE * effort.bytes;
        let sizes = [
            (SMALL_BYTES, effort.bytes),
            (MIDDLE_BYTES, 2 * effort.bytes),
            (LARGE_BYTES, large),
            (HUGE_BYTES, 2 * large),
        ];
        let (mut works, mut alone) = (Vec::new(), Vec::new());
        for (request_bytes, bytes) in sizes {
            match kind {
                // The layer is above memory, so it gets the requests of programs.
                PlaceKind::GuestStackable => {
                    works.push(Work::Write {
                        bytes,
                        request_bytes,
                    });
                    // Memory above the layer reads no more at once than its read-ahead.
                    if request_bytes <= LARGE_BYTES {
                        works.push(Work::ReadCold {
                            bytes,
                            request_bytes,
                            is_random: request_bytes < LARGE_BYTES,
                        });
                    }
                }
                PlaceKind::GuestBlock => works.extend(direct(bytes.min(large), request_bytes, 1)),
                // At queue depth 1 a thread mostly wakes up, which hides the cost of requests.
                PlaceKind::Filter | PlaceKind::Agent => {
                    works.extend(direct(bytes.min(large), request_bytes, DEEP));
                    alone.extend(direct(bytes.min(large) / DEEP, request_bytes, 1));
                }
            }
        }
        let bytes = 2 * effort.bytes;
        let together = Work::ReadCold {
            bytes,
            request_bytes: LARGE_BYTES,
            is_random: false,
        };
        Self {
            stream_bytes: LARGE_SHARE * effort.bytes,
            works,
            alone,
            apart: kind
                .is_in_guest()
                .then_some([together, Work::Apart { bytes }]),
        }
    }

    /// The range of works that measure CPU time.
    pub(crate) fn deep(&self) -> Range<usize> {
        0..self.works.len()
    }

    /// The range of works that measure latency.
    pub(crate) fn single(&self) -> Range<usize> {
        let deep = self.works.len();
        match self.alone.len() {
            0 => self.deep(),
            alone => deep..deep + alone,
        }
    }
}

/// Measures a place with these ciphers.
///
/// # Errors
/// If it cannot be measured here.
pub fn calibrate(
    kind: PlaceKind,
    place: &mut dyn Place,
    ciphers: &[Cipher],
    effort: &Effort,
    waiting: &mut Waiting<'_>,
) -> Result<MeasuredPlace, MeasureError> {
    let sizes = Sizes::of(kind, effort);
    let ways: Vec<Option<Cipher>> = std::iter::once(None)
        .chain(ciphers.iter().copied().map(Some))
        .collect();
    let works: Vec<Work> = sizes
        .works
        .iter()
        .copied()
        .chain(sizes.alone.iter().copied())
        .chain(sizes.apart.into_iter().flatten())
        .collect();
    let mut target = None;
    let rounds = Rounds {
        kind,
        ciphers: &ways,
        works: &works,
        count: effort.rounds,
    };
    let runs = rounds.run(place, waiting, |opened, runs, waiting| {
        (waiting.say)(format!("{kind}: throughput and memory"));
        let mut plain = Plain {
            opened,
            sizes: &sizes,
            runs: &medians(&works, runs),
            effort,
            stop: waiting.stop,
        };
        target = Some(plain.measure()?);
        Ok(())
    })?;
    let (plain, sealed) = runs
        .split_first()
        .ok_or_else(|| MeasureError::Unfit("nothing was measured".to_owned()))?;
    let at = now();
    let layers = ciphers.iter().zip(sealed).map(|(cipher, runs)| {
        Ok(MeasuredLayer {
            cipher: *cipher,
            at,
            layer: layer(kind, &sizes, &added(&works, plain, runs))?,
            unsure: unsure(sizes.deep(), plain, runs),
            measured: sizes.works.len(),
        })
    });
    Ok(MeasuredPlace {
        place: kind,
        at,
        memory_bytes: effort.memory_bytes,
        tried_bytes: Some(tried(effort).last().copied().unwrap_or(0)),
        target: target.ok_or_else(|| MeasureError::Unfit("no round was requested".to_owned()))?,
        layers: layers.collect::<Result<_, MeasureError>>()?,
    })
}

/// The time of this machine's clock.
#[must_use]
pub fn now() -> Timestamp {
    let wall = world::World::real(1).clock.wall();
    Timestamp::from_millisecond(wall.0).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// The median of each work over all rounds.
fn medians(works: &[Work], rounds: &[Round]) -> Vec<(Work, Run)> {
    let each = works.iter().enumerate();
    each.map(|(index, work)| (*work, median_of(index, rounds)))
        .collect()
}

/// Time of an operation by its size, from runs in one direction.
pub(crate) fn per_operation(
    runs: &[(Work, Run)],
    way: fn(&Both<Flow>) -> Flow,
    of: fn(&Run) -> f64,
) -> Linear {
    Linear::through(&each_operation(runs, way, of))
}

/// Size and time of an operation, for runs in one direction.
fn each_operation(
    runs: &[(Work, Run)],
    way: fn(&Both<Flow>) -> Flow,
    of: fn(&Run) -> f64,
) -> Vec<(f64, f64)> {
    let each = |(_, run): &(Work, Run)| {
        let flow = way(&run.flow);
        (flow.operations > 0.0).then(|| (flow.bytes / flow.operations, of(run) / flow.operations))
    };
    runs.iter().filter_map(each).collect()
}

/// The added cost of each work: the median of the differences of all rounds.
fn added(works: &[Work], plain: &[Round], sealed: &[Round]) -> Vec<(Work, Run)> {
    let each = works.iter().enumerate();
    each.map(|(index, work)| (*work, Run::median(&differences(index, plain, sealed))))
        .collect()
}

/// The number of works whose added cost is not significant.
fn unsure(works: Range<usize>, plain: &[Round], sealed: &[Round]) -> usize {
    let is_unsure = |index: &usize| {
        let more = differences(*index, plain, sealed);
        within(&more).is_some_and(|within_s| Run::median(&more).cpu_s.abs() <= within_s)
    };
    works.filter(is_unsure).count()
}

fn layer(kind: PlaceKind, sizes: &Sizes, added: &[(Work, Run)]) -> Result<Layer, MeasureError> {
    let of_work = |wanted: &Work| added.iter().find(|(work, _)| work == wanted);
    let apart = sizes.apart.and_then(|[together, apart]| {
        let more = of_work(&apart)?.1.cpu_s - of_work(&together)?.1.cpu_s;
        Some(more / Flow::of(apart.bytes(), LARGE_BYTES).operations)
    });
    let by_size = |range: Range<usize>, way: fn(&Both<Flow>) -> Flow, of: fn(&Run) -> f64| {
        match each_operation(&added[range], way, of) {
            // A direction without requests.
            points if points.is_empty() => Ok(BySize::nothing()),
            points => BySize::new(points).map_err(|error| MeasureError::Unfit(error.to_string())),
        }
    };
    let both = |range: Range<usize>, of: fn(&Run) -> f64| {
        Ok::<_, MeasureError>(Both {
            read: by_size(range.clone(), |flow| flow.read, of)?,
            write: by_size(range, |flow| flow.write, of)?,
        })
    };
    let is_above_memory = kind == PlaceKind::GuestStackable;
    Ok(Layer {
        cpu: both(sizes.deep(), |run| run.cpu_s)?,
        latency: both(sizes.single(), |run| run.run_s)?,
        request_bytes_max: HUGE_BYTES as f64,
        merged_bytes: LARGE_BYTES as f64,
        apart_s: Both {
            read: apart.unwrap_or(0.0),
            write: 0.0,
        },
        is_above_memory,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(bytes: f64, operations: f64, cpu_s: f64) -> Run {
        let flow = Both {
            read: Flow::default(),
            write: Flow { bytes, operations },
        };
        Run {
            flow,
            returned_s: 1.0,
            run_s: 2.0 * cpu_s,
            cpu_s,
            fetched_bytes: 0.0,
        }
    }

    #[test]
    fn a_layer_is_its_added_cost() {
        let work = Work::Words { bytes: 1 };
        let pair = |cpu_s: [f64; 2]| {
            vec![
                (work, run(4096e3, 1e3, cpu_s[0])),
                (work, run(131_072e3, 1e3, cpu_s[1])),
            ]
        };
        // 5 µs per request and 2 ns per byte more.
        let more = [4096.0, 131_072.0].map(|bytes| 1e3 * (5e-6 + 2e-9 * bytes));
        let runs = |cpu_s| pair(cpu_s).into_iter().map(|(_, run)| run).collect();
        let plain: Vec<Run> = runs([0.1, 0.2]);
        let sealed = runs([0.1 + more[0], 0.2 + more[1]]);
        // A round that was slow with and without encryption gives the same result.
        let slow = [runs([7.1, 7.2]), runs([7.1 + more[0], 7.2 + more[1]])];
        let plain = [plain, slow[0].clone()];
        let sealed = [sealed, slow[1].clone()];
        let added = added(&[work, work], &plain, &sealed);
        let sizes = Sizes {
            stream_bytes: 1,
            works: vec![work; 2],
            alone: Vec::new(),
            apart: None,
        };
        let found = layer(PlaceKind::GuestBlock, &sizes, &added).expect("sizes");
        let line = found.cpu.write.line();
        assert!((line.operation_s - 5e-6).abs() < 1e-9, "{found:?}");
        assert!((line.byte_s - 2e-9).abs() < 1e-13, "{found:?}");
        assert!((found.latency.write.line().operation_s - 1e-5).abs() < 1e-9);
        assert_eq!(found.cpu.read, BySize::nothing());
    }

    #[test]
    fn insignificant_differences_are_counted() {
        let runs = |all: [f64; 3]| all.map(|cpu_s| vec![run(1.0, 1.0, cpu_s)]);
        let plain = runs([1.0, 1.0, 1.0]);
        assert_eq!(unsure(0..1, &plain, &runs([2.0, 0.5, 1.1])), 1);
        assert_eq!(unsure(0..1, &plain, &runs([2.0, 2.1, 1.9])), 0);
        // Fewer than three rounds have no spread.
        assert_eq!(unsure(0..1, &plain[..2], &runs([2.0, 0.5, 0.0])[..2]), 0);
    }

    #[test]
    fn each_work_has_its_median() {
        let work = Work::Words { bytes: 1 };
        let rounds = [1.0, 9.0, 2.0].map(|cpu_s| vec![run(1.0, 1.0, cpu_s)]);
        assert_eq!(medians(&[work], &rounds)[0].1.cpu_s, 2.0);
    }
}
