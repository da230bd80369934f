//! `scree snapshot`.

use clap::Subcommand;

use super::ChangeOptions;

#[derive(Subcommand)]
pub enum SnapshotCommand {
    /// Take a snapshot, in milliseconds at any size.
    Create {
        /// Volume (name or id).
        volume: String,
        /// Name of the snapshot [default: its id]
        #[arg(long, value_name = "NAME")]
        name: Option<String>,
        /// Tag of the snapshot; may be repeated.
        #[arg(long, value_name = "KEY=VALUE")]
        tag: Vec<String>,
        /// Wait until it is completed.
        #[arg(long)]
        wait: bool,
        #[command(flatten)]
        change: ChangeOptions,
    },
    /// List snapshots.
    List {
        /// Only snapshots of this volume (name or id).
        #[arg(long)]
        volume: Option<String>,
        /// Only snapshots of this user.
        #[arg(long)]
        owner: Option<String>,
        /// Only snapshots in this state: pending, completed or error.
        #[arg(long)]
        state: Option<String>,
        /// Only snapshots with this tag; may be repeated.
        #[arg(long, value_name = "KEY=VALUE")]
        tag: Vec<String>,
    },
    /// Show volumes with their snapshots and clones.
    Tree,
    /// Replace all tags of a snapshot.
    Tag {
        /// Name or id.
        name: String,
        /// The new tags; none removes all.
        #[arg(value_name = "KEY=VALUE")]
        tags: Vec<String>,
        #[command(flatten)]
        change: ChangeOptions,
    },
    /// Delete a snapshot; its clones stay.
    Delete {
        /// Name or id.
        name: String,
        #[command(flatten)]
        change: ChangeOptions,
    },
}

impl SnapshotCommand {
    /// The options of a change; `None` for verbs that change nothing.
    pub const fn change(&self) -> Option<&ChangeOptions> {
        match self {
            Self::Create { change, .. }
            | Self::Tag { change, .. }
            | Self::Delete { change, .. } => Some(change),
            Self::List { .. } | Self::Tree => None,
        }
    }
}
