//! [`Work`]: what is done, in the same way with encryption and without.

mod text;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::cost::{Both, Caching, Flow, Workload};
use serde::{Deserialize, Serialize};

use crate::measure::place::Opened;
use crate::measure::{MeasureError, PlaceKind, Stop, exports, files, words};

/// Where it is done.
#[derive(Debug, Clone)]
pub enum Surface {
    /// Files in a folder.
    Folder(PathBuf),
    /// An NBD server's export.
    Export {
        /// The server's socket.
        socket: PathBuf,
        /// Its name there.
        name: String,
    },
}

/// One piece of work. All of it ends when what was written is durable.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Work {
    /// A new file is written, one request after another.
    Write {
        /// How long it is.
        bytes: u64,
        /// Each request.
        request_bytes: u64,
    },
    /// A file is read that no memory has.
    ReadCold {
        /// How long it is.
        bytes: u64,
        /// Each request.
        request_bytes: u64,
        /// In any order, and not from its beginning to its end.
        is_random: bool,
    },
    /// A file is read that was written just before.
    ReadWarm {
        /// How long it is.
        bytes: u64,
        /// Each request.
        request_bytes: u64,
    },
    /// Requests at places in any order, each once, past the memory.
    Direct {
        /// How much is read and written.
        bytes: u64,
        /// Each request.
        request_bytes: u64,
        /// Of a hundred requests so many are reads.
        read_percent: u32,
        /// So many are under way together. Files have 1.
        depth: u32,
    },
    /// A file is read that no memory has, by somebody who works in between.
    Apart {
        /// How long it is.
        bytes: u64,
    },
    /// Words are counted, as a map-reduce has it (the paper's §V-C): what maps hand to reduces
    /// lies in files, too.
    Words {
        /// How long the file with the words is.
        bytes: u64,
    },
}

/// What became of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Run {
    /// What was asked for.
    pub flow: Both<Flow>,
    /// How long it took until the last request returned.
    pub returned_s: f64,
    /// And until all was durable.
    pub run_s: f64,
    /// CPU time until all was durable and, in a volume, at its place.
    pub cpu_s: f64,
    /// Bytes that the target was asked for to read, as the kernel counts them for this process.
    pub fetched_bytes: f64,
}

impl Run {
    /// By how much it was more than another one of the same work.
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

    /// Of several of the same work, number by number.
    ///
    /// # Panics
    /// If there is none.
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

/// The one in the middle, or between the two that are; they are sorted then.
///
/// # Panics
/// If there is none.
#[must_use]
pub fn median(all: &mut [f64]) -> f64 {
    all.sort_unstable_by(f64::total_cmp);
    let middle = all.len() / 2;
    match all.len() % 2 {
        0 => f64::midpoint(all[middle - 1], all[middle]),
        _ => all[middle],
    }
}

/// How long it takes, while it is done, and whether it is to go on.
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

    /// The last request has returned; what follows makes it durable.
    pub(crate) fn returned(&mut self) {
        self.returned = Some(self.begun.elapsed());
    }
}

impl Work {
    /// How much data it has.
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

    /// Does it.
    ///
    /// # Errors
    /// If it cannot be done here, or fails.
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
            // A machine's account is told in ticks: of nothing it may be less than nothing.
            cpu_s: meter.read()?.as_secs_f64() - cpu.as_secs_f64(),
            fetched_bytes,
        };
        if let Surface::Folder(folder) = &surface {
            words::clear(folder)?;
            files::clear(folder)?;
        }
        Ok(run)
    }

    /// Why it cannot be done in such a place, if it cannot.
    #[must_use]
    pub fn unfit(&self, kind: PlaceKind) -> Option<String> {
        let is_direct = matches!(self, Self::Direct { .. });
        let why = match kind {
            PlaceKind::Filter | PlaceKind::Agent if !is_direct => {
                "a volume is measured by requests past memory only"
            }
            PlaceKind::GuestStackable if is_direct => {
                "files above memory are not read and written past it"
            }
            PlaceKind::GuestBlock if matches!(self, Self::Direct { depth: 2.., .. }) => {
                "a file is asked for one request at a time"
            }
            _ => return None,
        };
        Some(format!("{self} in {kind}: {why}"))
    }

    /// Makes what is read.
    fn prepare(&self, surface: &Surface, stop: &Stop) -> Result<(), MeasureError> {
        match (surface, self) {
            (Surface::Folder(folder), Self::Words { bytes }) => {
                words::prepare(folder, *bytes, stop)
            }
            (Surface::Folder(folder), _) => files::prepare(self, folder, stop),
            (Surface::Export { socket, name }, _) => exports::prepare(self, (socket, name), stop),
        }
    }

    /// Something of it may still be to be done when all is durable: what it costs counts, too.
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

    /// Memory is to forget what was prepared: it is to be read from the target.
    const fn is_cold(&self) -> bool {
        matches!(
            self,
            Self::ReadCold { .. } | Self::Apart { .. } | Self::Words { .. }
        )
    }

    /// The same for the model: what was asked for, on a machine with so much memory.
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
            // Nothing is read ahead of who reads here and there.
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
