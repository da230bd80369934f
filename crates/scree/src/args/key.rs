//! Wrapping keys.

use clap::Subcommand;

#[derive(Subcommand)]
pub enum KeyCommand {
    /// List the wrapping keys, and of how many volumes each wraps the keys.
    List,
    /// Show one wrapping key.
    Show {
        /// Name or id.
        name: String,
    },
    /// Found a wrapping key: the one that a host's keys.toml calls NAME. New
    /// volumes use it.
    Add {
        /// Its name in keys.toml.
        name: String,
        /// That of this host. [default: the controller's own, or the only one]
        #[arg(long)]
        host: Option<String>,
    },
    /// Let one wrapping key take the place of another. Volumes stay as they are
    /// and in use: only their keys are wrapped anew.
    Rotate {
        /// The one that retires: name or id.
        old: String,
        /// The one that takes its place: name or id.
        new: String,
        /// Return when the old one wraps nothing any more.
        #[arg(long)]
        wait: bool,
    },
    /// Forget a wrapping key that is retired.
    Delete {
        /// Name or id.
        name: String,
    },
}
