//! Storage units.

use clap::Subcommand;

#[derive(Subcommand)]
pub enum UnitCommand {
    /// List the units and how they are.
    List,
    /// Add an empty folder on any mounted file system as a unit.
    Add {
        /// file:///path/to/folder, or the path.
        url: String,
        /// As this host sees it. [default: the controller's own, or the only
        /// one]
        #[arg(long)]
        host: Option<String>,
    },
}
