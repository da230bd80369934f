//! [`Workload`]: what is read and written.

use super::{Both, Flow};

/// What is between a workload and what keeps its data.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Caching {
    /// Nothing: each request reaches it, so many at once.
    Direct {
        /// How many are under way together, at least 1.
        depth: f64,
    },
    /// The operating system's memory.
    Memory {
        /// The size of the data that is read and written, in bytes.
        data_bytes: f64,
        /// The memory of the machine, in bytes.
        memory_bytes: f64,
        /// What is read was read or written before. If not, it is read from the target once,
        /// and is there from the second time on.
        is_warm: bool,
    },
}

/// What a program asks for until all of it is durable.
#[derive(Debug, Clone, PartialEq)]
pub struct Workload {
    /// What it asks for. The requests of one flow are alike.
    pub flow: Both<Vec<Flow>>,
    /// How.
    pub caching: Caching,
    /// CPU seconds of its own, besides reading and writing.
    pub own_cpu_s: f64,
    /// How many CPUs there are where it runs.
    pub cpus: f64,
    /// How long it takes without encryption, in seconds, if that is known; as of a trace.
    pub run_s: Option<f64>,
}

impl Workload {
    /// All that it asks for, together.
    #[must_use]
    pub fn asked(&self) -> Both<Flow> {
        Both {
            read: self.flow.read.iter().copied().sum(),
            write: self.flow.write.iter().copied().sum(),
        }
    }

    /// Which part of the memory its data is; 0 where there is none between.
    #[must_use]
    pub fn data_ratio(&self) -> f64 {
        match self.caching {
            Caching::Direct { .. } => 0.0,
            Caching::Memory {
                data_bytes,
                memory_bytes,
                ..
            } => data_bytes / memory_bytes.max(1.0),
        }
    }
}
