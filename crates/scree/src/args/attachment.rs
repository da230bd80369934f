//! `scree attach`, `scree detach` and `scree attachment`: volumes in VMs.

use clap::{Args, Subcommand};

use super::ChangeOptions;

#[derive(Args)]
pub struct AttachArguments {
    /// Volume (name or id).
    pub volume: String,
    /// The VM: qmp:/path/to/its/socket or libvirt:NAME.
    #[arg(long, value_name = "ADDRESS")]
    pub vm: String,
    /// Host that runs the VM [default: the controller's own host]
    #[arg(long)]
    pub host: Option<String>,
    /// Refuse writes; several VMs may have a volume read-only at once.
    #[arg(long)]
    pub read_only: bool,
    /// Wait until it is attached or has failed (the default).
    #[arg(long, conflicts_with = "no_wait")]
    pub wait: bool,
    /// Do not wait.
    #[arg(long)]
    pub no_wait: bool,
    #[command(flatten)]
    pub change: ChangeOptions,
}

#[derive(Args)]
pub struct DetachArguments {
    /// Volume (name or id).
    pub volume: String,
    /// The VM, if the volume is attached more than once.
    #[arg(long, value_name = "ADDRESS")]
    pub vm: Option<String>,
    /// The host, if the volume is attached more than once.
    #[arg(long)]
    pub host: Option<String>,
    /// Detach even if the guest does not release the disk, or the host is dead; writes that were
    /// not flushed may be lost.
    #[arg(long)]
    pub force: bool,
    /// Wait until it is detached or has failed (the default).
    #[arg(long, conflicts_with = "no_wait")]
    pub wait: bool,
    /// Do not wait.
    #[arg(long)]
    pub no_wait: bool,
    #[command(flatten)]
    pub change: ChangeOptions,
}

#[derive(Subcommand)]
pub enum AttachmentCommand {
    /// List attachments and exports.
    List {
        /// Only attachments of this volume (name or id).
        #[arg(long)]
        volume: Option<String>,
        /// Only attachments on this host (name or id).
        #[arg(long)]
        host: Option<String>,
        /// Only attachments in this state; `detached` lists those that ended last.
        #[arg(long)]
        state: Option<String>,
    },
    /// Show one attachment.
    Show {
        /// Id of the attachment.
        id: String,
    },
    /// Move an attachment to another host or VM.
    ///
    /// The current host writes all data to the units and releases the volume; the new host takes
    /// over, and no third host can take the volume in between.
    Move {
        /// Id of the attachment.
        id: String,
        /// New host (name or id).
        #[arg(long, required_unless_present = "cancel")]
        host: Option<String>,
        /// VM on the new host: qmp:/path/to/its/socket or libvirt:NAME [default: an export]
        #[arg(long, value_name = "ADDRESS")]
        vm: Option<String>,
        /// Cancel a move; possible until the current host has released the volume.
        #[arg(long, conflicts_with_all = ["host", "vm"])]
        cancel: bool,
        /// Do not wait.
        #[arg(long)]
        no_wait: bool,
        #[command(flatten)]
        change: ChangeOptions,
    },
}

impl AttachmentCommand {
    /// The options of a change; `None` for verbs that change nothing.
    pub const fn change(&self) -> Option<&ChangeOptions> {
        match self {
            Self::Move { change, .. } => Some(change),
            Self::List { .. } | Self::Show { .. } => None,
        }
    }
}
