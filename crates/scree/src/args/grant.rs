//! Rights, and on what they are.

use clap::{Args, Subcommand};

/// On what a right is.
#[derive(Args)]
#[group(multiple = false)]
pub struct OnArguments {
    /// On this volume, and its snapshots (name or id).
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
    /// Give a right.
    Add {
        /// To this user.
        user: String,
        /// read: attach read-only, clone. use: attach. snapshot: take snapshots.
        /// administer: everything but giving it away. On a snapshot only read, on
        /// a host only use.
        #[arg(value_parser = ["read", "use", "snapshot", "administer"])]
        right: String,
        #[command(flatten)]
        on: OnArguments,
        /// On a host: only for VMs whose address begins so, such as
        /// libvirt:alice-.
        #[arg(long, value_name = "PREFIX", requires = "host")]
        vm: Option<String>,
    },
    /// List the rights that you have been given, or can take away.
    List {
        #[command(flatten)]
        on: OnArguments,
    },
    /// Take a right away. What is attached stays so.
    Delete {
        /// Its id.
        id: String,
    },
}
