//! [`Work`]: what is done, in the same way with encryption and without.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use model::cost::{Both, Caching, Flow, Workload};
use serde::{Deserialize, Serialize};

use crate::place::Opened;
use crate::{MeasureError, PlaceKind, Stop, exports, files, words};

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
            PlaceKind::Box | PlaceKind::Agent if !is_direct => {
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

impl std::fmt::Display for Work {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let size = base::size::exact_bytes;
        match *self {
            Self::Write {
                bytes,
                request_bytes,
            } => write!(
                formatter,
                "write {} by {}",
                size(bytes),
                size(request_bytes)
            ),
            Self::ReadCold {
                bytes,
                request_bytes,
                is_random,
            } => {
                let order = if is_random { " here and there" } else { "" };
                let (bytes, request) = (size(bytes), size(request_bytes));
                write!(formatter, "read {bytes} by {request}{order}, cold")
            }
            Self::ReadWarm {
                bytes,
                request_bytes,
            } => write!(
                formatter,
                "read {} by {}, warm",
                size(bytes),
                size(request_bytes)
            ),
            Self::Direct {
                bytes,
                request_bytes,
                read_percent,
                depth,
            } => {
                let (bytes, request) = (size(bytes), size(request_bytes));
                write!(
                    formatter,
                    "{read_percent} % reads of {bytes} by {request}, {depth} at once"
                )
            }
            Self::Apart { bytes } => {
                write!(formatter, "read {} with work in between, cold", size(bytes))
            }
            Self::Words { bytes } => write!(formatter, "count the words in {}", size(bytes)),
        }
    }
}

/// How works are written.
const FORMS: &str = "write:SIZE:REQUEST, cold:SIZE:REQUEST, random:SIZE:REQUEST, \
    warm:SIZE:REQUEST, apart:SIZE, direct:SIZE:REQUEST:READ_PERCENT:DEPTH or words:SIZE";

/// No request is larger, in bytes.
const REQUEST_BYTES_MAX: u64 = 16 << 20;

/// No more requests are under way together.
const DEPTH_MAX: u32 = 128;

impl std::str::FromStr for Work {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let words: Vec<&str> = text.split(':').collect();
        let bytes_of = |bytes: &str| match base::size::parse(bytes)? {
            0 => Err("it has at least one byte".to_owned()),
            bytes => Ok(bytes),
        };
        let request_of = |bytes: &str| match base::size::parse(bytes)? {
            bytes @ 1..=REQUEST_BYTES_MAX => Ok(bytes),
            _ => Err("requests have 1 byte to 16M".to_owned()),
        };
        let two =
            |bytes: &str, request: &str| Ok::<_, String>((bytes_of(bytes)?, request_of(request)?));
        match words[..] {
            ["write", bytes, request] => {
                let (bytes, request_bytes) = two(bytes, request)?;
                Ok(Self::Write {
                    bytes,
                    request_bytes,
                })
            }
            [order @ ("cold" | "random"), bytes, request] => {
                let (bytes, request_bytes) = two(bytes, request)?;
                Ok(Self::ReadCold {
                    bytes,
                    request_bytes,
                    is_random: order == "random",
                })
            }
            ["warm", bytes, request] => {
                let (bytes, request_bytes) = two(bytes, request)?;
                Ok(Self::ReadWarm {
                    bytes,
                    request_bytes,
                })
            }
            ["direct", bytes, request, percent, depth] => {
                let (bytes, request_bytes) = two(bytes, request)?;
                if request_bytes % 4096 != 0 || bytes < request_bytes {
                    return Err(
                        "past memory, requests are of whole 4K, and there is one".to_owned()
                    );
                }
                let number = |text: &str, most| {
                    let parsed = text.parse::<u32>().ok().filter(|number| *number <= most);
                    parsed.ok_or_else(|| format!("{text:?} is no number up to {most}"))
                };
                Ok(Self::Direct {
                    bytes,
                    request_bytes,
                    read_percent: number(percent, 100)?,
                    depth: number(depth, DEPTH_MAX)?.max(1),
                })
            }
            ["apart", bytes] => Ok(Self::Apart {
                bytes: bytes_of(bytes)?,
            }),
            ["words", bytes] => Ok(Self::Words {
                bytes: bytes_of(bytes)?,
            }),
            _ => Err(format!("{text:?} is none of: {FORMS}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn works_are_written_in_words() {
        let parse = |text: &str| text.parse::<Work>().map(|work| work.to_string());
        assert_eq!(parse("write:1M:4K").as_deref(), Ok("write 1M by 4K"));
        assert_eq!(parse("cold:1M:4K").as_deref(), Ok("read 1M by 4K, cold"));
        assert_eq!(parse("words:10M").as_deref(), Ok("count the words in 10M"));
        let direct = parse("direct:8M:64K:30:4");
        assert_eq!(direct.as_deref(), Ok("30 % reads of 8M by 64K, 4 at once"));
        for bad in [
            "",
            "write",
            "write:1M",
            "write:0:4K",
            "write:1M:1G",
            "direct:1M:100:0:1",
            "direct:1M:4K:101:1",
            "direct:1M:4K:0:1000",
            "words:x",
            "read:1M:4K",
        ] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&mut [4.0, 1.0, 2.0, 3.0]), 2.5);
    }
}
