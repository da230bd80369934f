//! E and D where encryption runs: the same work with it and without.
//!
//! A request's CPU time with it less that without in the same round (see `rounds`), and of these
//! the median, by size of requests.

use std::ops::Range;

use crate::cost::{Both, BySize, Flow, Layer, Linear};
use jiff::Timestamp;

use crate::measure::calibration::{MeasuredLayer, MeasuredPlace};
use crate::measure::chance::within;
use crate::measure::place::{Place, PlaceKind};
use crate::measure::rounds::{Round, Rounds, differences, median_of};
use crate::measure::target::{Plain, tried};
use crate::measure::{Cipher, MeasureError, Run, Waiting, Work};

/// How much is done.
#[derive(Debug, Clone)]
pub struct Effort {
    /// Each work is done so often in each way; what counts is the median.
    pub rounds: u32,
    /// Work that is small beside others has so many bytes of requests; others more.
    pub bytes: u64,
    /// The memory that F is of, in bytes.
    pub memory_bytes: u64,
    /// F is not tried with more data, in bytes.
    pub curve_bytes_max: u64,
}

/// How large which work is.
pub(crate) struct Sizes {
    /// TP is measured with so many bytes.
    pub stream_bytes: u64,
    /// What a layer's CPU time is measured with: requests of several sizes.
    pub works: Vec<Work>,
    /// What its latency is measured with, where that is something else: the same requests, one
    /// at a time. None: by the same works.
    pub alone: Vec<Work>,
    /// The same reads, where memory reads ahead: one right after the other, and apart.
    pub apart: Option<[Work; 2]>,
}

/// Requests, in bytes: small ones, and some between these and large ones.
pub(crate) const SMALL_BYTES: u64 = 4096;

const MIDDLE_BYTES: u64 = 32 << 10;

/// As much as memory reads ahead, or FUSE takes, at once.
pub(crate) const LARGE_BYTES: u64 = 128 << 10;

/// As much as requests that no memory merges have, or what a program may write at once.
const HUGE_BYTES: u64 = 1 << 20;

/// Large requests cost less for a byte, so there are more of them.
const LARGE_SHARE: u64 = 4;

/// So many requests to a volume are under way while its CPU time is measured.
const DEEP: u64 = 8;

/// Writes, and reads.
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
                // It sees what programs ask for, and memory is below it.
                PlaceKind::GuestStackable => {
                    works.push(Work::Write {
                        bytes,
                        request_bytes,
                    });
                    // Memory above it reads no more at once than it reads ahead.
                    if request_bytes <= LARGE_BYTES {
                        works.push(Work::ReadCold {
                            bytes,
                            request_bytes,
                            is_random: request_bytes < LARGE_BYTES,
                        });
                    }
                }
                PlaceKind::GuestBlock => works.extend(direct(bytes.min(large), request_bytes, 1)),
                // One request at a time is mostly woken up for, which hides what it costs.
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

    /// Of all works, those that CPU time is measured with.
    pub(crate) fn deep(&self) -> Range<usize> {
        0..self.works.len()
    }

    /// Of all works, those that latency is measured with.
    pub(crate) fn single(&self) -> Range<usize> {
        let deep = self.works.len();
        match self.alone.len() {
            0 => self.deep(),
            alone => deep..deep + alone,
        }
    }
}

/// Measures a place, with these ciphers.
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
        target: target.ok_or_else(|| MeasureError::Unfit("no round was asked for".to_owned()))?,
        layers: layers.collect::<Result<_, MeasureError>>()?,
    })
}

/// The time by this machine's clock.
#[must_use]
pub fn now() -> Timestamp {
    let wall = world::World::real(1).clock.wall();
    Timestamp::from_millisecond(wall.0).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// Of each work, its median over all rounds.
fn medians(works: &[Work], rounds: &[Round]) -> Vec<(Work, Run)> {
    let each = works.iter().enumerate();
    each.map(|(index, work)| (*work, median_of(index, rounds)))
        .collect()
}

/// What a request takes, by its size, of those runs that go one way only.
pub(crate) fn per_operation(
    runs: &[(Work, Run)],
    way: fn(&Both<Flow>) -> Flow,
    of: fn(&Run) -> f64,
) -> Linear {
    Linear::through(&each_operation(runs, way, of))
}

/// Of those runs that go one way: how large a request is, in bytes, and what it takes.
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

/// What encryption adds to each work: the median over all rounds of how much more it was.
fn added(works: &[Work], plain: &[Round], sealed: &[Round]) -> Vec<(Work, Run)> {
    let each = works.iter().enumerate();
    each.map(|(index, work)| (*work, Run::median(&differences(index, plain, sealed))))
        .collect()
}

/// How many of these works may have nothing added to them, for all that rounds tell.
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
            // A way in which nothing goes.
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
    fn a_layer_is_what_it_adds() {
        let work = Work::Words { bytes: 1 };
        let pair = |cpu_s: [f64; 2]| {
            vec![
                (work, run(4096e3, 1e3, cpu_s[0])),
                (work, run(131_072e3, 1e3, cpu_s[1])),
            ]
        };
        // 5 µs a request and 2 ns a byte more.
        let more = [4096.0, 131_072.0].map(|bytes| 1e3 * (5e-6 + 2e-9 * bytes));
        let runs = |cpu_s| pair(cpu_s).into_iter().map(|(_, run)| run).collect();
        let plain: Vec<Run> = runs([0.1, 0.2]);
        let sealed = runs([0.1 + more[0], 0.2 + more[1]]);
        // A round that was slow in both ways tells the same.
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
    fn what_rounds_do_not_agree_on_is_told() {
        let runs = |all: [f64; 3]| all.map(|cpu_s| vec![run(1.0, 1.0, cpu_s)]);
        let plain = runs([1.0, 1.0, 1.0]);
        assert_eq!(unsure(0..1, &plain, &runs([2.0, 0.5, 1.1])), 1);
        assert_eq!(unsure(0..1, &plain, &runs([2.0, 2.1, 1.9])), 0);
        // Less than three say nothing of each other.
        assert_eq!(unsure(0..1, &plain[..2], &runs([2.0, 0.5, 0.0])[..2]), 0);
    }

    #[test]
    fn each_work_has_its_median() {
        let work = Work::Words { bytes: 1 };
        let rounds = [1.0, 9.0, 2.0].map(|cpu_s| vec![run(1.0, 1.0, cpu_s)]);
        assert_eq!(medians(&[work], &rounds)[0].1.cpu_s, 2.0);
    }
}
