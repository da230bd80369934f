//! `scree chain`, `scree trace` and `scree monitor`: filters between a volume and its users.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::ChangeOptions;

#[derive(Subcommand)]
pub enum ChainCommand {
    /// Put the filters of a policy in front of a volume, even while it is in use.
    ///
    /// They replace the filters that are there. No request is lost.
    Apply {
        /// The policy, a TOML file; `-` reads standard input.
        file: PathBuf,
        /// Do not wait for the hosts.
        #[arg(long)]
        no_wait: bool,
        #[command(flatten)]
        change: ChangeOptions,
    },
    /// List the chains of the volumes that you administer.
    List {
        /// Only chains of this volume (name or id).
        #[arg(long)]
        volume: Option<String>,
    },
    /// Show a volume's chain: its policy and where it is in use.
    Show(ChainSelector),
    /// Serve a volume without filters.
    ///
    /// A disk that is in use keeps its size: a filter that makes it smaller (`encrypt`) stays until
    /// the volume is detached.
    Delete {
        #[command(flatten)]
        which: ChainSelector,
        /// Do not wait for the hosts.
        #[arg(long)]
        no_wait: bool,
        #[command(flatten)]
        change: ChangeOptions,
    },
}

impl ChainCommand {
    /// The options of a change; `None` for verbs that change nothing.
    pub const fn change(&self) -> Option<&ChangeOptions> {
        match self {
            Self::Apply { change, .. } | Self::Delete { change, .. } => Some(change),
            Self::List { .. } | Self::Show(_) => None,
        }
    }
}

/// Names one chain.
#[derive(Args)]
pub struct ChainSelector {
    /// Volume (name or id), or the id of the chain.
    pub volume: String,
    /// The chain for this VM [default: the chain for all others]
    #[arg(long, value_name = "ADDRESS")]
    pub vm: Option<String>,
}

#[derive(Args)]
pub struct TraceArguments {
    /// Volume: its name, or its id, which needs no running controller.
    pub volume: String,
    /// Name of the filter that recorded the trace.
    #[arg(long = "filter", value_name = "NAME", default_value = "trace")]
    pub name: String,
    /// Print a log that `fio --read_iolog` replays (version 3).
    #[arg(long, value_enum)]
    pub format: Option<TraceFormat>,
    /// Name of the disk in such a log.
    #[arg(long, value_name = "FILE", default_value = "disk")]
    pub device: String,
}

// Formats of a trace beside those of --output.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TraceFormat {
    // The log format of fio.
    Iolog,
}

#[derive(Args)]
pub struct MonitorArguments {
    /// Volume (name or id).
    pub volume: String,
    /// The VM, if the volume is attached to several.
    #[arg(long, value_name = "ADDRESS")]
    pub vm: Option<String>,
    /// Print events as they happen, until interrupted.
    #[arg(long)]
    pub follow: bool,
}
