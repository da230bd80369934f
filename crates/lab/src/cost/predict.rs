//! Equations 1 to 4, as docs/explanation/cost-model.md has them.

use super::{Both, BySize, Caching, Flow, Layer, Target, Workload};

/// What a layer does to a workload.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prediction {
    /// What goes through the layer.
    pub passed: Both<Flow>,
    /// E(w) + D(r): CPU seconds that come in addition.
    pub cpu_s: f64,
    /// CPU seconds of all without the layer.
    pub plain_cpu_s: f64,
    /// How long it takes without the layer, in seconds.
    pub plain_run_s: f64,
    /// And with it.
    pub run_s: f64,
    /// What a request of the workload takes longer on the mean, in seconds, if nobody asks for
    /// anything else meanwhile and it is not read ahead. What is written to memory takes no
    /// longer, if the layer is below that.
    pub latency_s: f64,
}

impl Prediction {
    /// S (equation 1): CPU time that comes in addition by the time that all of it takes, of one
    /// CPU. More than 1 is more than one CPU.
    #[must_use]
    pub fn share(&self) -> f64 {
        if self.run_s > 0.0 {
            self.cpu_s / self.run_s
        } else {
            0.0
        }
    }

    /// How busy CPUs are in all, of one CPU.
    #[must_use]
    pub fn load(&self) -> f64 {
        let all = self.cpu_s + self.plain_cpu_s;
        if self.run_s > 0.0 {
            all / self.run_s
        } else {
            0.0
        }
    }

    /// What comes in addition, in seconds; below 0 where a layer does the work of another that
    /// takes longer.
    #[must_use]
    pub fn longer_s(&self) -> f64 {
        self.run_s - self.plain_run_s
    }
}

/// What the target is asked for to read this.
fn missed(workload: &Workload, target: &Target) -> f64 {
    let read = workload.asked().read.bytes;
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

/// How long the target takes, in seconds: r/TP_r + w/TP_w, each by its F. Who waits for each
/// request past memory waits for no less than that.
fn target_s(workload: &Workload, target: &Target) -> f64 {
    let Both { read, write } = workload.asked();
    let slow_s = read.bytes / target.bytes_per_s.read;
    // All of it is durable in the end, so memory saves writes no time.
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

/// Which part of requests, of 1, comes apart from others: who works as long as reading and
/// writing take has all of them apart.
fn apart(workload: &Workload, target: &Target) -> f64 {
    if workload.own_cpu_s == 0.0 {
        return 0.0;
    }
    (workload.own_cpu_s / target_s(workload, target)).min(1.0)
}

/// What gets to the layer, in the requests in which it does.
fn passed(workload: &Workload, target: &Target, layer: &Layer) -> Both<Vec<Flow>> {
    let (most, merged) = (layer.request_bytes_max, layer.merged_bytes);
    let is_direct = matches!(workload.caching, Caching::Direct { .. });
    let cut = |flows: &[Flow]| flows.iter().map(|flow| flow.cut(most)).collect();
    let asked = workload.asked();
    Both {
        // What is read through memory is read ahead, in requests as large as memory makes them,
        // however large those are that it was asked for in.
        read: match is_direct {
            true => cut(&workload.flow.read),
            false => {
                let missed = asked.read.part(missed(workload, target));
                vec![missed.cut(merged).merged(merged)]
            }
        },
        write: match is_direct || layer.is_above_memory {
            true => cut(&workload.flow.write),
            false => vec![asked.write.merged(merged).cut(most)],
        },
    }
}

/// What operations take, in seconds, those of each flow by their own size.
fn taken_s(by_size: &BySize, flows: &[Flow]) -> f64 {
    flows.iter().map(|flow| by_size.of(*flow)).sum()
}

/// What encryption in this layer does to a workload.
#[must_use]
pub fn predict(workload: &Workload, target: &Target, layer: &Layer) -> Prediction {
    let asked = workload.asked();
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
    let plain_cpu_s = plain.read.of(asked.read) + plain.write.of(asked.write) + workload.own_cpu_s;
    let cpus = workload.cpus.max(1.0);
    let plain_run_s = workload
        .run_s
        .unwrap_or_else(|| target_s(workload, target).max(plain_cpu_s / cpus));
    let read_s = taken_s(&layer.latency.read, &each.read);
    let write_s = taken_s(&layer.latency.write, &each.write);
    let is_written_past_memory = is_direct || layer.is_above_memory;
    let late_s = read_s + if is_written_past_memory { write_s } else { 0.0 };
    let operations = asked.read.operations + asked.write.operations;
    // Who waits for each request waits longer for each. What is read ahead or written back is
    // waited for by nobody, and has the CPU as its bound.
    let waited_s = match workload.caching {
        Caching::Direct { depth } => late_s / depth.max(1.0),
        Caching::Memory { .. } if layer.is_above_memory => late_s,
        Caching::Memory { .. } => 0.0,
    };
    // Who was traced may have waited for something else: that a layer's requests are shorter
    // makes them no faster for sure.
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

/// How near a prediction is: 1 less how far off it is, of what was measured; 0 at least. Of what
/// measured nothing only nothing is right.
#[must_use]
pub fn accuracy(predicted: f64, measured: f64) -> f64 {
    if measured == 0.0 {
        return if predicted == 0.0 { 1.0 } else { 0.0 };
    }
    (1.0 - (predicted - measured).abs() / measured.abs()).max(0.0)
}

#[cfg(test)]
mod tests;
