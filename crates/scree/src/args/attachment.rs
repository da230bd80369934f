//! Volumes in VMs: `attach`, `detach`, and what is attached where.

use clap::{Args, Subcommand};

#[derive(Args)]
pub struct AttachArguments {
    /// Name or id.
    pub volume: String,
    /// The VM: qmp:/path/to/its/socket or libvirt:NAME.
    #[arg(long)]
    pub vm: String,
    /// The host that it runs on. [default: where the controller is]
    #[arg(long)]
    pub host: Option<String>,
    /// Refuse writes. Several VMs may have a volume so.
    #[arg(long)]
    pub read_only: bool,
    /// Return when it is attached, or cannot be. This is the default.
    #[arg(long, conflicts_with = "no_wait")]
    pub wait: bool,
    /// Return at once.
    #[arg(long)]
    pub no_wait: bool,
}

#[derive(Args)]
pub struct DetachArguments {
    /// Name or id.
    pub volume: String,
    /// The VM, if there are several attachments.
    #[arg(long)]
    pub vm: Option<String>,
    /// The host, if there are several attachments.
    #[arg(long)]
    pub host: Option<String>,
    /// Whether or not the guest lets go of it, and without its host if that is
    /// dead. What was not flushed may be lost.
    #[arg(long)]
    pub force: bool,
    /// Return when it is detached, or cannot be. This is the default.
    #[arg(long, conflicts_with = "no_wait")]
    pub wait: bool,
    /// Return at once.
    #[arg(long)]
    pub no_wait: bool,
}

#[derive(Subcommand)]
pub enum AttachmentCommand {
    /// List the attachments that are not detached.
    List {
        /// Of this volume (name or id).
        #[arg(long)]
        volume: Option<String>,
        /// On this host (name or id).
        #[arg(long)]
        host: Option<String>,
        /// In this state; `detached` shows those that ended last.
        #[arg(long)]
        state: Option<String>,
    },
    /// Show one attachment.
    Show {
        /// Its id.
        id: String,
    },
    /// Move one to another host, or to another VM: the host that has it brings all to the units
    /// and lets go, the other one takes over, and nobody comes in between.
    Move {
        /// Its id.
        id: String,
        /// To this host (name or id).
        #[arg(long, required_unless_present = "cancel")]
        host: Option<String>,
        /// Plugged into this VM there: qmp:/path/to/its/socket or libvirt:NAME. [default: an export]
        #[arg(long, value_name = "ADDRESS")]
        vm: Option<String>,
        /// It is to stay where it is after all. Possible until the host that has it has let go.
        #[arg(long, conflicts_with_all = ["host", "vm"])]
        cancel: bool,
        /// Return at once.
        #[arg(long)]
        no_wait: bool,
    },
}
