//! Chains: the filters between a volume and whoever uses it.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

#[derive(Subcommand)]
pub enum ChainCommand {
    /// Put the filters of a policy between its volume and whoever uses that, in the place of
    /// those that are there; while it is used, and no request is lost.
    Apply {
        /// The policy, a TOML file; `-` for standard input.
        file: PathBuf,
        /// Return at once, and not when every host has said what came of it.
        #[arg(long)]
        no_wait: bool,
    },
    /// List the chains of the volumes that you administer.
    List {
        /// Those of this volume (name or id).
        #[arg(long)]
        volume: Option<String>,
    },
    /// Show a volume's chain: its policy, and where it is in use.
    Show(WhichChain),
    /// Serve a volume without its filters. Whoever has the disk keeps it as large as it is: a filter
    /// that makes it smaller (`encrypt`) stays until the volume is detached.
    Delete {
        /// Which.
        #[command(flatten)]
        which: WhichChain,
        /// Return at once, and not when every host has said what came of it.
        #[arg(long)]
        no_wait: bool,
    },
}

#[derive(Args)]
pub struct WhichChain {
    /// The volume (name or id), or the chain's id.
    pub volume: String,
    /// The one for this VM. [default: the one for all others]
    #[arg(long)]
    pub vm: Option<String>,
}

#[derive(Args)]
pub struct TraceArguments {
    /// The volume: its name, or its id, which does without a running Scree.
    pub volume: String,
    /// The filter that has recorded it.
    #[arg(long = "filter", value_name = "NAME", default_value = "trace")]
    pub name: String,
    /// As a log that `fio --read_iolog` replays (version 3).
    #[arg(long, value_enum)]
    pub format: Option<TraceFormat>,
    /// What the disk is called in such a log.
    #[arg(long, value_name = "FILE", default_value = "disk")]
    pub device: String,
}

/// How a trace is exported, beside `-o`.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TraceFormat {
    /// fio's.
    Iolog,
}

#[derive(Args)]
pub struct MonitorArguments {
    /// The volume (name or id).
    pub volume: String,
    /// The VM, if it is attached to several.
    #[arg(long)]
    pub vm: Option<String>,
    /// Go on with what happens from now on, until this is stopped.
    #[arg(long)]
    pub follow: bool,
}
