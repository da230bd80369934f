//! Snapshots.

use clap::Subcommand;

#[derive(Subcommand)]
pub enum SnapshotCommand {
    /// Take a snapshot; at once, whatever the volume's size.
    Create {
        /// Of this volume (name or id).
        volume: String,
        /// Its name. [default: its id]
        #[arg(long, value_name = "S")]
        name: Option<String>,
        /// A tag; may be given again.
        #[arg(long, value_name = "KEY=VALUE")]
        tag: Vec<String>,
        /// Return when it is completed, not while it is pending.
        #[arg(long)]
        wait: bool,
    },
    /// List snapshots.
    List {
        /// Those of this volume (name or id).
        #[arg(long)]
        volume: Option<String>,
        /// Those of this user.
        #[arg(long)]
        owner: Option<String>,
        /// Those in this state: pending, completed or error.
        #[arg(long)]
        state: Option<String>,
        /// Those with this tag; may be given again.
        #[arg(long, value_name = "KEY=VALUE")]
        tag: Vec<String>,
    },
    /// Put these tags in the place of those that a snapshot has.
    Tag {
        /// Name or id.
        name: String,
        /// The tags; none takes all away.
        #[arg(value_name = "KEY=VALUE")]
        tags: Vec<String>,
    },
    /// Show volumes, their snapshots, and what was cloned from them.
    Tree,
    /// Delete a snapshot. Clones of it go on.
    Delete {
        /// Name or id.
        name: String,
    },
}
