//! `scree project`: projects and their quotas.

use clap::{Args, Subcommand};

use super::{ChangeOptions, size};

/// A project's quota.
#[derive(Args)]
pub struct QuotaArguments {
    /// Largest number of volumes [default: unlimited]
    #[arg(long, value_name = "N")]
    pub volumes: Option<u64>,
    /// Largest number of snapshots [default: unlimited]
    #[arg(long, value_name = "N")]
    pub snapshots: Option<u64>,
    /// Largest sum of the sizes of all volumes, as guests see them [default: unlimited]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub size: Option<u64>,
}

#[derive(Subcommand)]
pub enum ProjectCommand {
    /// Create a project.
    Add {
        /// Name of the project.
        name: String,
        #[command(flatten)]
        quota: QuotaArguments,
        #[command(flatten)]
        change: ChangeOptions,
    },
    /// List your projects, or all of them as an administrator.
    List,
    /// Show a project, its quota and its usage.
    Show {
        /// Name or id.
        name: String,
    },
    /// Set a project's quota; limits that are left out become unlimited.
    Quota {
        /// Name or id.
        name: String,
        #[command(flatten)]
        quota: QuotaArguments,
        #[command(flatten)]
        change: ChangeOptions,
    },
    /// Make a user a member of a project.
    Join {
        /// Name or id of the project.
        name: String,
        /// The user.
        user: String,
        #[command(flatten)]
        change: ChangeOptions,
    },
    /// Remove a user from a project; their volumes stay in it.
    Leave {
        /// Name or id of the project.
        name: String,
        /// The user.
        user: String,
        #[command(flatten)]
        change: ChangeOptions,
    },
    /// Delete an empty project.
    Delete {
        /// Name or id.
        name: String,
        #[command(flatten)]
        change: ChangeOptions,
    },
}

impl ProjectCommand {
    /// The options of a change; `None` for verbs that change nothing.
    pub const fn change(&self) -> Option<&ChangeOptions> {
        match self {
            Self::Add { change, .. }
            | Self::Quota { change, .. }
            | Self::Join { change, .. }
            | Self::Leave { change, .. }
            | Self::Delete { change, .. } => Some(change),
            Self::List | Self::Show { .. } => None,
        }
    }
}
