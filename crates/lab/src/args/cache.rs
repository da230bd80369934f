//! Arguments of `scree cache`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::size;
use crate::policies::PolicyKind;
use crate::policies::{Contestant, WriteRule};

/// The verbs of `scree cache`.
#[derive(Subcommand)]
pub enum CacheCommand {
    /// Replay a trace against cache policies and show their hit ratios by cache size.
    ///
    /// It uses the trace only, and no running Scree.
    Simulate(SimulateArguments),
}

/// Arguments of `scree cache simulate`.
#[derive(Args)]
pub struct SimulateArguments {
    /// The trace: all files of a filter `trace` in any order, one log of fio (--write_iolog), or
    /// the output of blkparse.
    #[arg(long = "trace", value_name = "FILE", required = true, num_args = 1..)]
    pub traces: Vec<PathBuf>,

    /// Policies: fifo, lru, lirs, s3-fifo, arc, or belady, the offline optimum [default: all]
    #[arg(
        long = "policy",
        value_name = "NAMES",
        value_delimiter = ',',
        value_parser = contestant
    )]
    pub policies: Vec<Contestant>,

    /// Cache sizes [default: 1, 2, 5, 10, 20, 50 and 100 % of the blocks that are read]
    #[arg(long, value_name = "SIZES", value_delimiter = ',', value_parser = size)]
    pub sizes: Vec<u64>,

    /// What a write does to cached blocks: `forget` removes them, as Scree does; `keep` inserts
    /// them, as a read does; `ignore` changes nothing.
    #[arg(long, value_enum, value_name = "RULE", default_value_t)]
    pub writes: Writes,

    /// Draw the hit ratios into this SVG file.
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
}

fn contestant(name: &str) -> Result<Contestant, String> {
    match name {
        "belady" => Ok(Contestant::Belady),
        name => {
            let kind = name.parse::<PolicyKind>();
            let kind = kind.map_err(|error| format!("{error}, and belady"))?;
            Ok(Contestant::Policy(kind))
        }
    }
}

/// What a write does to cached blocks in a simulation.
#[derive(Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Writes {
    /// It removes them: new data lies elsewhere, as in Scree.
    #[default]
    Forget,
    /// It inserts them, as a read does.
    Keep,
    /// It does nothing.
    Ignore,
}

impl Writes {
    /// The rule of the replay.
    #[must_use]
    pub const fn rule(self) -> WriteRule {
        match self {
            Self::Forget => WriteRule::Forget,
            Self::Keep => WriteRule::Keep,
            Self::Ignore => WriteRule::Ignore,
        }
    }
}
