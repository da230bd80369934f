//! [`Workload`]: reads and writes of a program.

use super::{Both, Flow};

/// What lies between a workload and its storage.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Caching {
    /// Nothing: each request reaches the storage.
    Direct {
        /// Queue depth, at least 1.
        depth: f64,
    },
    /// The page cache of the operating system.
    Memory {
        /// Size of the data set, in bytes.
        data_bytes: f64,
        /// Memory of the machine, in bytes.
        memory_bytes: f64,
        /// Whether the data set is in memory at the start. Otherwise its first read comes from the
        /// storage.
        is_warm: bool,
    },
}

/// The requests of a program until all of its data is durable.
#[derive(Debug, Clone, PartialEq)]
pub struct Workload {
    /// The requests; those of one flow have the same size.
    pub flow: Both<Vec<Flow>>,
    /// What lies between the program and the storage.
    pub caching: Caching,
    /// CPU seconds of the program itself.
    pub own_cpu_s: f64,
    /// Number of CPUs of its machine.
    pub cpus: f64,
    /// Run time without encryption in seconds, if it is known, as from a trace.
    pub run_s: Option<f64>,
}

impl Workload {
    /// The sum of all requests.
    #[must_use]
    pub fn total(&self) -> Both<Flow> {
        Both {
            read: self.flow.read.iter().copied().sum(),
            write: self.flow.write.iter().copied().sum(),
        }
    }

    /// Size of the data set relative to memory; 0 for direct I/O.
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
