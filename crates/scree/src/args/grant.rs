//! `scree grant`: rights on volumes, snapshots and hosts.

use clap::{Args, Subcommand};

use super::ChangeOptions;

/// The resource that a right is on.
#[derive(Args)]
#[group(multiple = false)]
pub struct ResourceArguments {
    /// On this volume and its snapshots (name or id).
    #[arg(long)]
    pub volume: Option<String>,
    /// On this snapshot (name or id).
    #[arg(long)]
    pub snapshot: Option<String>,
    /// On this host (name or id).
    #[arg(long)]
    pub host: Option<String>,
}

#[derive(Subcommand)]
pub enum GrantCommand {
    /// Grant a right to a user.
    Add {
        /// User who receives the right.
        user: String,
        /// read: attach read-only and clone. use: attach. snapshot: take snapshots. administer: all
        /// but transfer. A snapshot has only read, a host only use.
        #[arg(value_parser = ["read", "use", "snapshot", "administer"])]
        right: String,
        #[command(flatten)]
        on: ResourceArguments,
        /// With --host: only for VMs whose address begins with this, such as libvirt:alice-.
        #[arg(long, value_name = "PREFIX", requires = "host")]
        vm: Option<String>,
        #[command(flatten)]
        change: ChangeOptions,
    },
    /// List the rights that you have or can revoke.
    List {
        #[command(flatten)]
        on: ResourceArguments,
    },
    /// Revoke a right; attached volumes stay attached.
    Delete {
        /// Id of the grant.
        id: String,
        #[command(flatten)]
        change: ChangeOptions,
    },
}

impl GrantCommand {
    /// The options of a change; `None` for verbs that change nothing.
    pub const fn change(&self) -> Option<&ChangeOptions> {
        match self {
            Self::Add { change, .. } | Self::Delete { change, .. } => Some(change),
            Self::List { .. } => None,
        }
    }
}
