//! `scree image`: base images, whose blocks hosts share among all their clones.

use clap::Subcommand;

use super::ChangeOptions;

#[derive(Subcommand)]
pub enum ImageCommand {
    /// Make a volume a base image.
    ///
    /// Hosts keep the blocks that its clones share in the image area of their caches.
    Mark {
        /// Volume (name or id).
        volume: String,
        #[command(flatten)]
        change: ChangeOptions,
    },
    /// Make a base image an ordinary volume again; its clones stay.
    Unmark {
        /// Volume (name or id).
        volume: String,
        #[command(flatten)]
        change: ChangeOptions,
    },
    /// List base images and how much of them hosts have cached.
    List,
    /// Read an image into the caches of hosts before it is needed.
    ///
    /// Hosts read the blocks that are on units now.
    Preload {
        /// Volume (name or id).
        volume: String,
        /// Host that reads it; may be repeated [default: all responsive hosts that you may use
        /// and that have a cache]
        #[arg(long, conflicts_with = "cancel")]
        host: Vec<String>,
        /// Do not wait until all hosts have read it.
        #[arg(long)]
        no_wait: bool,
        /// Cancel a preload; what hosts have read stays cached.
        #[arg(long, conflicts_with = "no_wait")]
        cancel: bool,
        #[command(flatten)]
        change: ChangeOptions,
    },
    /// Never evict an image's blocks from caches of hosts (administrators only).
    ///
    /// At most 90 % of the image area can be pinned. A volume that is no image becomes one.
    Pin {
        /// Volume (name or id).
        volume: String,
        #[command(flatten)]
        change: ChangeOptions,
    },
    /// Let hosts evict an image's blocks again; it stays an image.
    Unpin {
        /// Volume (name or id).
        volume: String,
        #[command(flatten)]
        change: ChangeOptions,
    },
}

impl ImageCommand {
    /// The options of a change; `None` for verbs that change nothing.
    pub const fn change(&self) -> Option<&ChangeOptions> {
        match self {
            Self::Mark { change, .. }
            | Self::Unmark { change, .. }
            | Self::Preload { change, .. }
            | Self::Pin { change, .. }
            | Self::Unpin { change, .. } => Some(change),
            Self::List => None,
        }
    }
}
