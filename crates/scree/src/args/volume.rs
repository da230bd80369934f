//! `scree volume`: virtual disks and their exports.

use std::ops::RangeInclusive;

use api::types;
use clap::{Args, Subcommand};

use super::{ChangeOptions, size};
use crate::times::{self, RestoreTarget};
use crate::volume_settings::SettingOptions;

const REPLICAS: RangeInclusive<i64> = 1..=types::REPLICAS_MAX as i64;

/// A new volume.
#[derive(Args)]
pub struct CreateArguments {
    /// Name of the volume: a-z, 0-9, '.', '_' and '-'.
    pub name: String,
    /// Size, such as 512M, 10G or 1T. A clone has the size of its snapshot by default.
    #[arg(long, value_parser = size, required_unless_present = "from")]
    pub size: Option<u64>,
    /// Create a clone of this snapshot (name or id).
    #[arg(long, value_name = "SNAPSHOT")]
    pub from: Option<String>,
    /// Block size: 4K, 8K, 16K, 32K or 64K [default: 4K]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub block_size: Option<u64>,
    /// Encryption of the blocks: aes-256-gcm or none [default: aes-256-gcm]
    #[arg(long, value_name = "CIPHER", value_parser = ["aes-256-gcm", "none"])]
    pub encryption: Option<String>,
    /// Copies of each segment, 1 to 4, each on a unit of its own [default: 2 if there are two
    /// units, otherwise 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(REPLICAS))]
    pub replicas: Option<u8>,
    /// Refuse the volume if two copies would be in one zone; without this, it is only reported.
    #[arg(long)]
    pub strict_zones: bool,
    /// Erasure code in place of copies: K data and M parity units, of which any M may fail, such as
    /// 2+1 or 4+2, and at most 8+3.
    #[arg(long, value_name = "K+M", conflicts_with = "replicas")]
    pub erasure: Option<String>,
    /// Project whose quota the volume counts against [default: your only project, or the one
    /// with your name]
    #[arg(long)]
    pub project: Option<String>,
    #[command(flatten)]
    pub settings: SettingOptions,
    /// Tag of the volume; may be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    pub tag: Vec<String>,
    #[command(flatten)]
    pub change: ChangeOptions,
}

/// The volumes that a list shows.
#[derive(Args)]
pub struct ListArguments {
    /// Only volumes of this name.
    #[arg(long)]
    pub name: Option<String>,
    /// Only volumes of this user.
    #[arg(long)]
    pub owner: Option<String>,
    /// Only volumes of this project.
    #[arg(long)]
    pub project: Option<String>,
    /// Only volumes in this state: available, in-use, deleting or error.
    #[arg(long)]
    pub state: Option<String>,
    /// Only volumes with this tag; may be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    pub tag: Vec<String>,
}

#[derive(Subcommand)]
pub enum VolumeCommand {
    /// Create a volume, empty or from a snapshot.
    Create(CreateArguments),
    /// List volumes.
    List(ListArguments),
    /// Show one volume.
    Show {
        /// Name or id.
        name: String,
    },
    /// Serve a volume on a host and print its NBD URI.
    Export {
        /// Name or id.
        name: String,
        /// Host that serves it [default: the controller's own host, or the only one]
        #[arg(long)]
        host: Option<String>,
        /// Refuse writes.
        #[arg(long)]
        read_only: bool,
        #[command(flatten)]
        change: ChangeOptions,
    },
    /// Destage a volume and stop serving it.
    Unexport {
        /// Name or id.
        name: String,
        #[command(flatten)]
        change: ChangeOptions,
    },
    /// Enlarge a volume.
    Grow {
        /// Name or id.
        name: String,
        /// New size.
        #[arg(value_parser = size)]
        size: u64,
        #[command(flatten)]
        change: ChangeOptions,
    },
    /// Change settings of a volume; the others stay.
    #[command(mut_group("settings", |group| group.required(true)))]
    Set {
        /// Name or id.
        name: String,
        #[command(flatten)]
        settings: SettingOptions,
        #[command(flatten)]
        change: ChangeOptions,
    },
    /// Replace all tags of a volume.
    Tag {
        /// Name or id.
        name: String,
        /// The new tags; none removes all.
        #[arg(value_name = "KEY=VALUE")]
        tags: Vec<String>,
        #[command(flatten)]
        change: ChangeOptions,
    },
    /// Transfer a volume and its snapshots to another user or project.
    Transfer {
        /// Name or id.
        name: String,
        /// User who receives it; yourself, to move it to another project of yours.
        user: String,
        /// Project of that user [default: their only project, or the one with their name]
        #[arg(long)]
        project: Option<String>,
        #[command(flatten)]
        change: ChangeOptions,
    },
    /// List the earlier versions that a volume can be restored to.
    Versions {
        /// Name or id.
        name: String,
    },
    /// Restore a volume to an earlier version that is still kept.
    Restore {
        /// Name or id.
        name: String,
        /// Time or version: `2026-01-31 09:30` (local time, or with UTC appended), RFC 3339,
        /// `-10m`, `10m ago`, or the number of a version.
        #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = times::parse)]
        at: RestoreTarget,
        #[command(flatten)]
        change: ChangeOptions,
    },
    /// Delete a volume; its snapshots stay.
    Delete {
        /// Name or id.
        name: String,
        /// Wait until the volume is deleted and its space is being reclaimed.
        #[arg(long)]
        wait: bool,
        #[command(flatten)]
        change: ChangeOptions,
    },
}

impl VolumeCommand {
    /// The options of a change; `None` for verbs that change nothing.
    pub const fn change(&self) -> Option<&ChangeOptions> {
        match self {
            Self::Create(CreateArguments { change, .. })
            | Self::Export { change, .. }
            | Self::Unexport { change, .. }
            | Self::Grow { change, .. }
            | Self::Set { change, .. }
            | Self::Tag { change, .. }
            | Self::Transfer { change, .. }
            | Self::Restore { change, .. }
            | Self::Delete { change, .. } => Some(change),
            Self::List(_) | Self::Show { .. } | Self::Versions { .. } => None,
        }
    }
}
