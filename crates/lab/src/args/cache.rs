//! Caches: the laboratory.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::size;
use crate::policies::PolicyKind;
use crate::policies::{Contestant, WriteRule};

/// The verbs of `scree cache`.
#[derive(Subcommand)]
pub enum CacheCommand {
    /// Replay what was asked of a disk against policies of caches, and show how much of it each
    /// would have had, by the size of the cache. Nothing that runs is asked or changed.
    Simulate(SimulateArguments),
}

/// Arguments of `scree cache simulate`.
#[derive(Args)]
pub struct SimulateArguments {
    /// The trace: files of a filter `trace` (its newest and older ones, in any order), or a log of
    /// fio (--write_iolog), or what blkparse prints.
    #[arg(long = "trace", value_name = "FILE", required = true, num_args = 1..)]
    pub traces: Vec<PathBuf>,

    /// Which policies: fifo, lru, lirs, s3-fifo, arc; belady is what somebody who knows the
    /// future would keep. [default: all of them]
    #[arg(
        long = "policy",
        value_name = "NAMES",
        value_delimiter = ',',
        value_parser = contestant
    )]
    pub policies: Vec<Contestant>,

    /// Sizes of the cache. [default: 1, 2, 5, 10, 20, 50 and 100 % of what is ever read]
    #[arg(long, value_name = "SIZES", value_delimiter = ',', value_parser = size)]
    pub sizes: Vec<u64>,

    /// What a write does to what it writes.
    #[arg(long, value_enum, value_name = "RULE", default_value_t)]
    pub writes: Writes,

    /// Draw the hit ratios into this file, as SVG.
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

/// What a write does in a simulation.
#[derive(Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Writes {
    /// It is not in the cache any more: what is written lies elsewhere, as with Scree.
    #[default]
    Forget,
    /// It is kept as if it had been read.
    Keep,
    /// Nothing.
    Ignore,
}

impl Writes {
    pub const fn rule(self) -> WriteRule {
        match self {
            Self::Forget => WriteRule::Forget,
            Self::Keep => WriteRule::Keep,
            Self::Ignore => WriteRule::Ignore,
        }
    }
}
