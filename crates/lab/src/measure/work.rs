//! [`Work`]: a piece of work that runs in the same way with and without encryption.

mod text;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::cost::{Both, Caching, Flow, Workload};
use serde::{Deserialize, Serialize};

use crate::measure::place::Opened;
use crate::measure::{MeasureError, PlaceKind, Stop, exports, files, words};

/// Where work is done.
#[derive(Debug, Clone)]
pub enum Surface {
    /// Files in a folder.
    Folder(PathBuf),
    /// An export of an NBD server.
    Export {
        /// The socket of the server.
        socket: PathBuf,
        /// The name of the export.
        name: String,
    },
}

/// A piece of work. It ends when its writes are durable.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Work {
    /// Writes a new file sequentially.
    Write {
        /// Length of the file.
        bytes: u64,
        /// Size of a request.
        request_bytes: u64,
    },
    /// Reads a file that is not in memory.
    ReadCold {
        /// Length of the file.
        bytes: u64,
        /// Size of a request.
        request_bytes: u64,
        /// Whether the file is read in random order.
        is_random: bool,
    },
    /// Reads a file that was just written.
    ReadWarm {
        /// Length of the file.
        bytes: u64,
        /// Size of a request.
        request_bytes: u64,
    },
    /// Direct I/O at random offsets, each once.
    Direct {
        /// Bytes that are read and written.
        bytes: u64,
        /// Size of a request.
        request_bytes: u64,
        /// Percentage of reads.
        read_percent: u32,
        /// Queue depth; 1 for files.
        depth: u32,
    },
    /// Reads a file that is not in memory, with work between the requests.
    Apart {
        /// Length of the file.
        bytes: u64,
    },
    /// Counts words by map-reduce (the paper's §V-C); intermediate results are in files, too.
    Words {
        /// Length of the file with the words.
        bytes: u64,
    },
}

/// The result of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Run {
    /// The requests.
    pub flow: Both<Flow>,
    /// Seconds until the last request returned.
    pub returned_s: f64,
    /// Seconds until all writes were durable.
    pub run_s: f64,
    /// CPU seconds until all writes were durable and, in a volume, destaged.
    pub cpu_s: f64,
    /// Bytes that were fetched from the target, as the kernel counts them for this process.
    pub fetched_bytes: f64,
}

impl Run {
    /// The difference to another run of the same work.
    #[must_use]
    pub fn less(&self, other: &Self) -> Self {
        Self {
            flow: other.flow,
            returned_s: self.returned_s - other.returned_s,
            run_s: self.run_s - other.run_s,
            cpu_s: self.cpu_s - other.cpu_s,
            fetched_bytes: self.fetched_bytes - other.fetched_bytes,
        }
    }

    /// The median of each number over several runs of the same work.
    ///
    /// # Panics
    /// If there are no runs.
    #[must_use]
    pub fn median(runs: &[Self]) -> Self {
        let of = |of: fn(&Self) -> f64| median(&mut runs.iter().map(of).collect::<Vec<_>>());
        Self {
            flow: runs[0].flow,
            returned_s: of(|run| run.returned_s),
            run_s: of(|run| run.run_s),
            cpu_s: of(|run| run.cpu_s),
            fetched_bytes: of(|run| run.fetched_bytes),
        }
    }
}

/// The median of numbers, which are sorted by this.
///
/// # Panics
/// If there are no numbers.
#[must_use]
pub fn median(all: &mut [f64]) -> f64 {
    all.sort_unstable_by(f64::total_cmp);
    let middle = all.len() / 2;
    match all.len() % 2 {
        0 => f64::midpoint(all[middle - 1], all[middle]),
        _ => all[middle],
    }
}

/// Measures the time of a run, and stops it early if requested.
pub(crate) struct Stopwatch<'a> {
    pub(crate) stop: &'a Stop,
    begun: Instant,
    returned: Option<Duration>,
}

impl<'a> Stopwatch<'a> {
    pub(crate) fn start(stop: &'a Stop) -> Self {
        Self {
            stop,
            begun: Instant::now(),
            returned: None,
        }
    }

    /// Notes that the last request has returned; what follows makes the writes durable.
    pub(crate) fn returned(&mut self) {
        self.returned = Some(self.begun.elapsed());
    }
}

impl Work {
    /// Size of its data, in bytes.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        match *self {
            Self::Write { bytes, .. }
            | Self::ReadCold { bytes, .. }
            | Self::ReadWarm { bytes, .. }
            | Self::Direct { bytes, .. }
            | Self::Apart { bytes }
            | Self::Words { bytes } => bytes,
        }
    }

    /// Runs the work.
    ///
    /// # Errors
    /// If it cannot be run here, or fails.
    pub fn run(&self, opened: &mut dyn Opened, stop: &Stop) -> Result<Run, MeasureError> {
        stop.check()?;
        let surface = opened.surface().clone();
        let meter = opened.meter();
        self.prepare(&surface, stop)?;
        opened.settle()?;
        if self.is_cold() {
            files::forget(&opened.folders())?;
        }
        let (cpu, fetched) = (meter.read()?, files::fetched()?);
        let mut watch = Stopwatch::start(stop);
        let flow = match &surface {
            Surface::Folder(folder) => match self {
                Self::Words { bytes } => words::count(folder, *bytes, &mut watch)?,
                _ => files::run(self, folder, &mut watch)?,
            },
            Surface::Export { socket, name } => exports::run(self, (socket, name), &mut watch)?,
        };
        let run_s = watch.begun.elapsed().as_secs_f64();
        let fetched_bytes = files::fetched()?.saturating_sub(fetched) as f64;
        if self.leaves_work() {
            opened.settle()?;
        }
        let run = Run {
            flow,
            returned_s: watch.returned.map_or(run_s, |time| time.as_secs_f64()),
            run_s,
            // CPU time of a machine is counted in ticks, so the difference may be negative.
            cpu_s: meter.read()?.as_secs_f64() - cpu.as_secs_f64(),
            fetched_bytes,
        };
        if let Surface::Folder(folder) = &surface {
            words::clear(folder)?;
            files::clear(folder)?;
        }
        Ok(run)
    }

    /// Why the work cannot be run at such a place; `None` if it can.
    #[must_use]
    pub fn unfit(&self, kind: PlaceKind) -> Option<String> {
        let is_direct = matches!(self, Self::Direct { .. });
        let why = match kind {
            PlaceKind::Filter | PlaceKind::Agent if !is_direct => {
                "a volume can only be measured with direct I/O"
            }
            PlaceKind::GuestStackable if is_direct => {
                "files above the page cache cannot be measured with direct I/O"
            }
            PlaceKind::GuestBlock if matches!(self, Self::Direct { depth: 2.., .. }) => {
                "files are measured with one request at a time"
            }
            _ => return None,
        };
        Some(format!("{self} in {kind}: {why}"))
    }

    /// Creates the data that the work reads.
    fn prepare(&self, surface: &Surface, stop: &Stop) -> Result<(), MeasureError> {
        match (surface, self) {
            (Surface::Folder(folder), Self::Words { bytes }) => {
                words::prepare(folder, *bytes, stop)
            }
            (Surface::Folder(folder), _) => files::prepare(self, folder, stop),
            (Surface::Export { socket, name }, _) => exports::prepare(self, (socket, name), stop),
        }
    }

    /// Whether background work may remain when all writes are durable; its cost counts, too.
    const fn leaves_work(&self) -> bool {
        !matches!(
            self,
            Self::ReadCold { .. }
                | Self::ReadWarm { .. }
                | Self::Apart { .. }
                | Self::Direct {
                    read_percent: 100..,
                    ..
                }
        )
    }

    /// Whether prepared data must be dropped from memory, so that it is read from the target.
    const fn is_cold(&self) -> bool {
        matches!(
            self,
            Self::ReadCold { .. } | Self::Apart { .. } | Self::Words { .. }
        )
    }

    /// The workload of the model for these requests on a machine with this memory.
    #[must_use]
    pub fn workload(&self, flow: Both<Flow>, memory_bytes: f64, cpus: f64) -> Workload {
        let memory = |data_bytes: u64, is_warm| Caching::Memory {
            data_bytes: data_bytes as f64,
            memory_bytes,
            is_warm,
        };
        let caching = match *self {
            Self::Direct { depth, .. } => Caching::Direct {
                depth: f64::from(depth),
            },
            // Random reads are not read ahead.
            Self::ReadCold {
                is_random: true, ..
            } => Caching::Direct { depth: 1.0 },
            Self::Write { bytes, .. } | Self::ReadWarm { bytes, .. } => memory(bytes, true),
            Self::ReadCold { bytes, .. } | Self::Apart { bytes } | Self::Words { bytes } => {
                memory(bytes, false)
            }
        };
        let one = |flow: Flow| Vec::from_iter((flow.operations > 0.0).then_some(flow));
        Workload {
            flow: Both {
                read: one(flow.read),
                write: one(flow.write),
            },
            caching,
            own_cpu_s: 0.0,
            cpus,
            run_s: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&mut [4.0, 1.0, 2.0, 3.0]), 2.5);
    }
}
