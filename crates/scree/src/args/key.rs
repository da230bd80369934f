//! `scree key`: wrapping keys.

use clap::Subcommand;

use super::ChangeOptions;

#[derive(Subcommand)]
pub enum KeyCommand {
    /// List wrapping keys and how many volumes each protects.
    List,
    /// Show one wrapping key.
    Show {
        /// Name or id.
        name: String,
    },
    /// Create a wrapping key; new volumes use it.
    Add {
        /// Name of the key in the host's keys.toml.
        name: String,
        /// Host whose keys.toml has the key [default: the controller's own host, or the only one]
        #[arg(long)]
        host: Option<String>,
        #[command(flatten)]
        change: ChangeOptions,
    },
    /// Replace a wrapping key by another one, while volumes are in use.
    ///
    /// Only the keys of volumes are wrapped again; their blocks stay as they are.
    Rotate {
        /// Key that is retired (name or id).
        old: String,
        /// Key that replaces it (name or id).
        new: String,
        /// Wait until the old key wraps nothing.
        #[arg(long)]
        wait: bool,
        #[command(flatten)]
        change: ChangeOptions,
    },
    /// Delete a retired wrapping key.
    Delete {
        /// Name or id.
        name: String,
        #[command(flatten)]
        change: ChangeOptions,
    },
}

impl KeyCommand {
    /// The options of a change; `None` for verbs that change nothing.
    pub const fn change(&self) -> Option<&ChangeOptions> {
        match self {
            Self::Add { change, .. }
            | Self::Rotate { change, .. }
            | Self::Delete { change, .. } => Some(change),
            Self::List | Self::Show { .. } => None,
        }
    }
}
