//! Equations 1 to 4 of docs/explanation/cost-model.md.

use super::{Both, BySize, Caching, Flow, Layer, Target, Workload};

/// The effect of a layer on a workload.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prediction {
    /// The requests that pass through the layer.
    pub passed: Both<Flow>,
    /// E(w) + D(r): added CPU seconds.
    pub cpu_s: f64,
    /// CPU seconds without the layer.
    pub plain_cpu_s: f64,
    /// Run time without the layer, in seconds.
    pub plain_run_s: f64,
    /// Run time with the layer, in seconds.
    pub run_s: f64,
    /// Added latency of a request on average, in seconds, if it is the only one and is not read
    /// ahead. Writes to memory above the layer have none.
    pub latency_s: f64,
}

impl Prediction {
    /// S (equation 1): added CPU time per run time, in CPUs; may exceed 1.
    #[must_use]
    pub fn share(&self) -> f64 {
        if self.run_s > 0.0 {
            self.cpu_s / self.run_s
        } else {
            0.0
        }
    }

    /// Total CPU load, in CPUs.
    #[must_use]
    pub fn load(&self) -> f64 {
        let all = self.cpu_s + self.plain_cpu_s;
        if self.run_s > 0.0 {
            all / self.run_s
        } else {
            0.0
        }
    }

    /// Added run time in seconds; negative if the layer replaces work that takes longer.
    #[must_use]
    pub fn longer_s(&self) -> f64 {
        self.run_s - self.plain_run_s
    }
}

/// Bytes that reads request from the target.
fn missed(workload: &Workload, target: &Target) -> f64 {
    let read = workload.total().read.bytes;
    match workload.caching {
        Caching::Direct { .. } => 1.0,
        Caching::Memory { is_warm: true, .. } => target.reads.at(workload.data_ratio()).missed,
        Caching::Memory { data_bytes, .. } if read <= data_bytes => 1.0,
        Caching::Memory { data_bytes, .. } => {
            let again = target.reads.at(workload.data_ratio()).missed;
            (data_bytes + (read - data_bytes) * again) / read
        }
    }
}

/// Seconds that the target needs: r/TP_r + w/TP_w, each divided by its F. A program that waits for
/// each direct request waits at least that long.
fn target_s(workload: &Workload, target: &Target) -> f64 {
    let Both { read, write } = workload.total();
    let slow_s = read.bytes / target.bytes_per_s.read;
    // In the end all data is durable, so memory saves no time of writes.
    let write_s = write.bytes / target.bytes_per_s.write;
    let fast = target.reads.at(workload.data_ratio()).speedup;
    match workload.caching {
        Caching::Direct { depth } => {
            let latency = &target.direct_latency;
            let alone_s = latency.read.of(read) + latency.write.of(write);
            (slow_s + write_s).max(alone_s / depth.max(1.0))
        }
        Caching::Memory { is_warm: true, .. } => slow_s / fast + write_s,
        Caching::Memory { data_bytes, .. } => {
            let first = (data_bytes / read.bytes.max(1.0)).min(1.0);
            slow_s * (first + (1.0 - first) / fast) + write_s
        }
    }
}

/// Part of the requests, from 0 to 1, that are isolated: all are if the program itself works as
/// long as reading and writing take.
fn apart(workload: &Workload, target: &Target) -> f64 {
    if workload.own_cpu_s == 0.0 {
        return 0.0;
    }
    (workload.own_cpu_s / target_s(workload, target)).min(1.0)
}

/// The requests that reach the layer, with the sizes that they have there.
fn passed(workload: &Workload, target: &Target, layer: &Layer) -> Both<Vec<Flow>> {
    let (most, merged) = (layer.request_bytes_max, layer.merged_bytes);
    let is_direct = matches!(workload.caching, Caching::Direct { .. });
    let cut = |flows: &[Flow]| flows.iter().map(|flow| flow.cut(most)).collect();
    let total = workload.total();
    Both {
        // Buffered reads are read ahead in requests of memory's own size, independent of the size
        // of the program's requests.
        read: match is_direct {
            true => cut(&workload.flow.read),
            false => {
                let missed = total.read.part(missed(workload, target));
                vec![missed.cut(merged).merged(merged)]
            }
        },
        write: match is_direct || layer.is_above_memory {
            true => cut(&workload.flow.write),
            false => vec![total.write.merged(merged).cut(most)],
        },
    }
}

/// Seconds of all operations, each flow by its size.
fn taken_s(by_size: &BySize, flows: &[Flow]) -> f64 {
    flows.iter().map(|flow| by_size.of(*flow)).sum()
}

/// Predicts the effect of encryption in this layer on a workload.
#[must_use]
pub fn predict(workload: &Workload, target: &Target, layer: &Layer) -> Prediction {
    let total = workload.total();
    let is_direct = matches!(workload.caching, Caching::Direct { .. });
    let each = passed(workload, target, layer);
    let passed = Both {
        read: each.read.iter().copied().sum::<Flow>(),
        write: each.write.iter().copied().sum::<Flow>(),
    };
    let apart = apart(workload, target);
    let cpu_s = taken_s(&layer.cpu.read, &each.read)
        + taken_s(&layer.cpu.write, &each.write)
        + apart * layer.apart_s.read * passed.read.operations
        + apart * layer.apart_s.write * passed.write.operations;
    let plain = if is_direct {
        target.direct_cpu
    } else {
        target.cpu
    };
    let plain_cpu_s = plain.read.of(total.read) + plain.write.of(total.write) + workload.own_cpu_s;
    let cpus = workload.cpus.max(1.0);
    let plain_run_s = workload
        .run_s
        .unwrap_or_else(|| target_s(workload, target).max(plain_cpu_s / cpus));
    let read_s = taken_s(&layer.latency.read, &each.read);
    let write_s = taken_s(&layer.latency.write, &each.write);
    let is_written_past_memory = is_direct || layer.is_above_memory;
    let late_s = read_s + if is_written_past_memory { write_s } else { 0.0 };
    let operations = total.read.operations + total.write.operations;
    // A program that waits for each request waits longer for each. No program waits for read-ahead
    // and write-back, which are limited by the CPU.
    let waited_s = match workload.caching {
        Caching::Direct { depth } => late_s / depth.max(1.0),
        Caching::Memory { .. } if layer.is_above_memory => late_s,
        Caching::Memory { .. } => 0.0,
    };
    // A traced program may have waited for something else: smaller requests of a layer do not
    // certainly make it faster.
    let waited_s = match workload.run_s {
        Some(_) => waited_s.max(0.0),
        None => waited_s,
    };
    let busy_s = (plain_cpu_s + cpu_s) / cpus;
    Prediction {
        passed,
        cpu_s,
        plain_cpu_s,
        plain_run_s,
        run_s: (plain_run_s + waited_s).max(busy_s).max(0.0),
        latency_s: if operations > 0.0 {
            late_s / operations
        } else {
            0.0
        },
    }
}

/// Accuracy of a prediction: 1 minus its error relative to the measurement, at least 0. If the
/// measurement is 0, only 0 is accurate.
#[must_use]
pub fn accuracy(predicted: f64, measured: f64) -> f64 {
    if measured == 0.0 {
        return if predicted == 0.0 { 1.0 } else { 0.0 };
    }
    (1.0 - (predicted - measured).abs() / measured.abs()).max(0.0)
}

#[cfg(test)]
mod tests;
