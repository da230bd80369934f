//! Projects and their quotas.

use clap::{Args, Subcommand};

use super::size;

/// How much a project may have.
#[derive(Args)]
pub struct QuotaArguments {
    /// So many volumes. [default: no limit]
    #[arg(long, value_name = "N")]
    pub volumes: Option<u64>,
    /// So many snapshots. [default: no limit]
    #[arg(long, value_name = "N")]
    pub snapshots: Option<u64>,
    /// So much in all its volumes together, as their guests see them. [default:
    /// no limit]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub size: Option<u64>,
}

#[derive(Subcommand)]
pub enum ProjectCommand {
    /// Make a project.
    Add {
        /// Its name.
        name: String,
        #[command(flatten)]
        quota: QuotaArguments,
    },
    /// List your projects; all, for an administrator.
    List,
    /// Show a project: its quota, and how much of it is used.
    Show {
        /// Name or id.
        name: String,
    },
    /// Set how much a project may have. What is left out has no limit.
    Quota {
        /// Name or id.
        name: String,
        #[command(flatten)]
        quota: QuotaArguments,
    },
    /// Make a user a member.
    Join {
        /// Name or id.
        name: String,
        /// The user.
        user: String,
    },
    /// Make a user no longer a member. What they own there stays.
    Leave {
        /// Name or id.
        name: String,
        /// The user.
        user: String,
    },
    /// Delete a project that has nothing.
    Delete {
        /// Name or id.
        name: String,
    },
}
