//! Predictions, compared with a simulation of each request.

use proptest::prelude::*;

use super::*;
use crate::cost::{BySize, Curve, CurvePoint, Linear};

const MIB: f64 = 1_048_576.0;

fn linear(byte_s: f64, operation_s: f64) -> Linear {
    Linear {
        byte_s,
        operation_s,
    }
}

/// A line, given by two sizes.
fn by_size(byte_s: f64, operation_s: f64) -> BySize {
    let at = |bytes: f64| (bytes, operation_s + byte_s * bytes);
    BySize::new(vec![at(4096.0), at(131_072.0)]).expect("sizes")
}

fn target() -> Target {
    let point = |data_ratio, speedup, missed| CurvePoint {
        data_ratio,
        speedup,
        missed,
    };
    Target {
        bytes_per_s: Both {
            read: 100.0 * MIB,
            write: 50.0 * MIB,
        },
        reads: Curve::new(vec![point(0.5, 10.0, 0.0), point(1.0, 1.0, 1.0)]).expect("a curve"),
        writes: Curve::flat(),
        cpu: Both {
            read: linear(1e-9, 2e-6),
            write: linear(2e-9, 3e-6),
        },
        direct_cpu: Both {
            read: linear(1e-9, 4e-6),
            write: linear(2e-9, 5e-6),
        },
        direct_latency: Both::default(),
    }
}

fn layer() -> Layer {
    Layer {
        cpu: Both {
            read: by_size(3e-9, 5e-6),
            write: by_size(4e-9, 6e-6),
        },
        latency: Both {
            read: by_size(3e-9, 20e-6),
            write: by_size(4e-9, 30e-6),
        },
        request_bytes_max: 131_072.0,
        merged_bytes: 131_072.0,
        apart_s: Both::default(),
        is_above_memory: false,
    }
}

fn direct(read: Flow, write: Flow, depth: f64) -> Workload {
    Workload {
        flow: Both {
            read: vec![read],
            write: vec![write],
        },
        caching: Caching::Direct { depth },
        own_cpu_s: 0.0,
        cpus: 2.0,
        run_s: None,
    }
}

fn warm(bytes: u64, memory_bytes: f64) -> Workload {
    Workload {
        caching: Caching::Memory {
            data_bytes: bytes as f64,
            memory_bytes,
            is_warm: true,
        },
        ..direct(Flow::of(bytes, 4096), Flow::default(), 1.0)
    }
}

#[test]
fn without_an_effect_of_memory_it_is_the_equation_of_the_paper() {
    // 500 MB in each direction, E and D of the paper, and no time per request.
    let (bytes, e_s, d_s) = (500e6, 4.558, 3.956);
    let flow = Flow {
        bytes,
        operations: 1.0,
    };
    let mut plain = target();
    plain.direct_cpu = Both::default();
    let mut one = layer();
    one.request_bytes_max = f64::MAX;
    one.merged_bytes = f64::MAX;
    one.latency = Both {
        read: BySize::nothing(),
        write: BySize::nothing(),
    };
    one.cpu = Both {
        read: by_size(d_s / bytes, 0.0),
        write: by_size(e_s / bytes, 0.0),
    };
    let prediction = predict(&direct(flow, flow, 1.0), &plain, &one);
    let time_s = bytes / plain.bytes_per_s.read + bytes / plain.bytes_per_s.write;
    assert!((prediction.cpu_s - (e_s + d_s)).abs() < 1e-9);
    assert!((prediction.share() - (e_s + d_s) / time_s).abs() < 1e-9);
    assert_eq!(prediction.longer_s(), 0.0);
}

#[test]
fn data_in_memory_is_not_decrypted_and_takes_less_time() {
    let small = predict(&warm(100 << 20, 400.0 * MIB), &target(), &layer());
    assert_eq!((small.passed.read.bytes, small.cpu_s), (0.0, 0.0));
    let large = predict(&warm(400 << 20, 400.0 * MIB), &target(), &layer());
    assert_eq!(large.passed.read.bytes, 400.0 * MIB);
    // Four times the bytes, each in a tenth of the time.
    assert!((large.plain_run_s / small.plain_run_s - 40.0).abs() < 1e-6);
}

#[test]
fn read_ahead_has_the_request_size_of_memory() {
    let workload = |request| Workload {
        flow: Both {
            read: vec![Flow::of(64 << 20, request)],
            write: vec![Flow::default()],
        },
        ..warm(64 << 20, 1.0)
    };
    let [small, large] =
        [4096, 16 << 20].map(|bytes| predict(&workload(bytes), &target(), &layer()));
    assert_eq!(small.passed.read, large.passed.read);
    assert_eq!(large.passed.read.operations, 512.0);
    // Writes are at most as large as the layer's largest request.
    let mut written = workload(16 << 20);
    std::mem::swap(&mut written.flow.read, &mut written.flow.write);
    let prediction = predict(&written, &target(), &layer());
    assert_eq!(prediction.passed.write.operations, 512.0);
}

#[test]
fn a_traced_program_does_not_get_faster() {
    let mut fast = layer();
    fast.latency.read = BySize::new(vec![(4096.0, -1e-3)]).expect("a size");
    let mut traced = direct(Flow::of(1 << 30, 4096), Flow::default(), 1.0);
    traced.run_s = Some(100.0);
    let prediction = predict(&traced, &target(), &fast);
    assert_eq!((prediction.run_s, prediction.plain_run_s), (100.0, 100.0));
    // Nothing takes negative time, either.
    traced.run_s = None;
    assert!(predict(&traced, &target(), &fast).run_s >= 0.0);
}

#[test]
fn cold_data_is_read_once_from_the_target() {
    let mut cold = warm(300 << 20, 1000.0 * MIB);
    cold.caching = Caching::Memory {
        data_bytes: 100.0 * MIB,
        memory_bytes: 1000.0 * MIB,
        is_warm: false,
    };
    let prediction = predict(&cold, &target(), &layer());
    assert_eq!(prediction.passed.read.bytes.round(), 100.0 * MIB);
    let expected_s = 1.0 + 2.0 / 10.0;
    assert!(
        (prediction.plain_run_s - expected_s).abs() < 1e-9,
        "{prediction:?}"
    );
}

#[test]
fn a_layer_above_memory_gets_single_writes_and_one_below_merged_ones() {
    let mut small = warm(0, 400.0 * MIB);
    small.flow.write = vec![Flow::of(1 << 20, 4096)];
    let below = predict(&small, &target(), &layer());
    assert_eq!(below.passed.write.operations, 8.0);
    let mut above = layer();
    above.is_above_memory = true;
    let above = predict(&small, &target(), &above);
    assert_eq!(above.passed.write.operations, 256.0);
}

#[test]
fn a_program_that_waits_for_each_request_waits_for_all_of_them() {
    let mut slow = target();
    slow.direct_latency.read = linear(0.0, 1e-3);
    let flow = Flow::of(4096 * 1000, 4096);
    let at = |depth| predict(&direct(flow, Flow::default(), depth), &slow, &layer()).plain_run_s;
    assert!((at(1.0) - 1.0).abs() < 1e-9);
    assert!((at(4.0) - 0.25).abs() < 1e-9);
    // The throughput of the target is the limit.
    assert!((at(1e6) - flow.bytes / slow.bytes_per_s.read).abs() < 1e-9);
}

#[test]
fn requests_with_work_in_between_are_isolated() {
    let mut sleepy = layer();
    sleepy.apart_s.read = 1e-3;
    let mut work = direct(Flow::of(131_072 * 100, 131_072), Flow::default(), 1.0);
    let together = predict(&work, &target(), &sleepy).cpu_s;
    // The disk needs 125 ms for the reads.
    work.own_cpu_s = 0.0625;
    let half = predict(&work, &target(), &sleepy).cpu_s;
    assert!((half - together - 0.05).abs() < 1e-9, "{half} {together}");
    work.own_cpu_s = 100.0;
    let all = predict(&work, &target(), &sleepy).cpu_s;
    assert!((all - together - 0.1).abs() < 1e-9, "{all} {together}");
}

#[test]
fn a_busy_cpu_limits_the_run_time() {
    let flow = Flow::of(1 << 30, 4096);
    let mut slow = layer();
    slow.cpu.write = by_size(1e-6, 0.0);
    let mut work = direct(Flow::default(), flow, 1e9);
    work.cpus = 1.0;
    let prediction = predict(&work, &target(), &slow);
    assert!((prediction.run_s - prediction.cpu_s - prediction.plain_cpu_s).abs() < 1e-9);
    assert!((prediction.load() - 1.0).abs() < 1e-9);
}

#[test]
fn each_request_counts_with_its_own_size() {
    // Not linear: 4 KiB and 128 KiB cost more than two of 66 KiB.
    let mut bent = layer();
    let points = vec![(4096.0, 1e-6), (67_584.0, 2e-6), (131_072.0, 9e-6)];
    bent.cpu.write = BySize::new(points).expect("sizes");
    let mut work = direct(Flow::default(), Flow::default(), 1.0);
    work.flow.write = vec![Flow::of(4096, 4096), Flow::of(131_072, 131_072)];
    assert!((predict(&work, &target(), &bent).cpu_s - 10e-6).abs() < 1e-12);
    work.flow.write = vec![Flow::of(135_168, 67_584)];
    assert!((predict(&work, &target(), &bent).cpu_s - 4e-6).abs() < 1e-12);
}

#[test]
fn the_latency_is_what_a_request_must_wait_for() {
    let one = |work: &Workload, layer: &Layer| predict(work, &target(), layer).latency_s;
    // A split request waits for all of its parts.
    let write = Flow::of(1 << 20, 1 << 20);
    let huge = direct(Flow::default(), write, 4.0);
    let expected_s = 8.0 * (131_072.0 * 4e-9 + 30e-6);
    assert!((one(&huge, &layer()) - expected_s).abs() < 1e-9);
    // Memory accepts the write, and writes it back later.
    let mut through = warm(0, 400.0 * MIB);
    through.flow.write = vec![write];
    assert_eq!(one(&through, &layer()), 0.0);
    let mut above = layer();
    above.is_above_memory = true;
    assert!((one(&through, &above) - expected_s).abs() < 1e-9);
    // Data that is not in memory is waited for, unless it is read ahead.
    let cold = warm(400 << 20, 400.0 * MIB);
    assert!(one(&cold, &layer()) > 0.0);
}

#[test]
fn accuracy_is_relative_to_the_measurement() {
    assert_eq!(accuracy(1.0, 0.0), 0.0);
    assert_eq!(accuracy(0.0, 0.0), 1.0);
    assert!((accuracy(1.1, 1.0) - 0.9).abs() < 1e-12);
    assert!((accuracy(0.9, 1.0) - 0.9).abs() < 1e-12);
    assert_eq!(accuracy(5.0, 1.0), 0.0);
}

proptest! {
    /// Simulates one request after another: splits each, and adds its cost.
    #[test]
    fn single_requests_cost_what_is_predicted(
        requests in prop::collection::vec((any::<bool>(), 1_u64..64), 1..50),
        depth in 1_u32..8,
    ) {
        // Multiples of 128 KiB or a part of it, so that splitting is exact.
        let (target, layer) = (target(), layer());
        let (reads, writes) = ((3e-9, 5e-6, 20e-6), (4e-9, 6e-6, 30e-6));
        let mut flow = Both::<Flow>::default();
        let (mut cpu_s, mut longer_s) = (0.0, 0.0);
        for (is_read, pieces) in requests {
            let bytes = (pieces * 131_072) as f64;
            let (way, (byte_s, cpu, latency)) = match is_read {
                true => (&mut flow.read, reads),
                false => (&mut flow.write, writes),
            };
            way.bytes += bytes;
            way.operations += 1.0;
            for _ in 0..pieces {
                cpu_s += 131_072.0 * byte_s + cpu;
                longer_s += 131_072.0 * byte_s + latency;
            }
        }
        let work = direct(flow.read, flow.write, f64::from(depth));
        let prediction = predict(&work, &target, &layer);
        prop_assert!((prediction.cpu_s / cpu_s - 1.0).abs() < 1e-9, "{} {cpu_s}", prediction.cpu_s);
        let expected = longer_s / f64::from(depth);
        prop_assert!((prediction.longer_s() - expected).abs() < 1e-6 * expected + 1e-9);
    }

    #[test]
    fn more_requests_never_cost_less(
        bytes in 0_u64..1 << 32, more in 0_u64..1 << 32, memory in 1.0_f64..4096.0,
        is_warm in any::<bool>(),
    ) {
        let work = |bytes: u64| {
            let mut work = warm(bytes, memory * MIB);
            work.flow.write = vec![Flow::of(bytes / 2, 65_536)];
            if let Caching::Memory { is_warm: warm, .. } = &mut work.caching {
                *warm = is_warm;
            }
            work
        };
        let (little, much) = (work(bytes), work(bytes + more));
        let of = |work: &Workload| predict(work, &target(), &layer());
        prop_assert!(of(&much).cpu_s >= of(&little).cpu_s * (1.0 - 1e-9));
        prop_assert!(of(&much).run_s >= of(&little).run_s * (1.0 - 1e-9));
        prop_assert!(of(&much).share().is_finite() && of(&much).share() >= 0.0);
    }
}
