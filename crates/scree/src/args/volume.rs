//! Volumes, and their exports.

use std::ops::RangeInclusive;

use api::types;
use clap::{ArgGroup, Subcommand};

use super::size;
use crate::moment::{self, Moment};

const REPLICAS: RangeInclusive<i64> = 1..=types::REPLICAS_MAX as i64;

/// A size, or none of its own.
#[derive(Clone, Copy)]
pub struct Wished(pub Option<u64>);

fn wished(text: &str) -> Result<Wished, String> {
    match text {
        "default" => Ok(Wished(None)),
        _ => size(text).map(|bytes| Wished(Some(bytes))),
    }
}

#[derive(Subcommand)]
pub enum VolumeCommand {
    /// Make a volume, empty or from a snapshot.
    Create {
        /// Its name: a-z, 0-9, '.', '_' and '-'.
        name: String,
        /// Its size: 512M, 10G, 1T. A clone has its snapshot's size if left
        /// out.
        #[arg(long, value_parser = size, required_unless_present = "from")]
        size: Option<u64>,
        /// Start from this snapshot (name or id).
        #[arg(long, value_name = "SNAP")]
        from: Option<String>,
        /// 4K, 8K, 16K, 32K or 64K. [default: 4K]
        #[arg(long, value_name = "SIZE", value_parser = size)]
        block_size: Option<u64>,
        /// How its blocks are sealed: aes-256-gcm or none. [default:
        /// aes-256-gcm]
        #[arg(long, value_parser = ["aes-256-gcm", "none"])]
        encryption: Option<String>,
        /// Copies of each segment, on as many units. [default: 2 if there are
        /// two units]
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(REPLICAS))]
        replicas: Option<u8>,
        /// Refuse if two copies had to lie in one zone, rather than only say so.
        #[arg(long)]
        strict_zones: bool,
        /// In the place of copies: K units of data and M of parity, of which any M
        /// may be lost: 2+1, 4+2, 8+3, or others up to 8+3.
        #[arg(long, value_name = "K+M", conflicts_with = "replicas")]
        erasure: Option<String>,
        /// On the account of this project. [default: your only one, or that of
        /// your name]
        #[arg(long)]
        project: Option<String>,
        /// How long its journal is. For administrators. [default: as its host has it for all]
        #[arg(long, value_name = "SIZE", value_parser = size)]
        journal_size: Option<u64>,
        /// What it may have of each host's cache for what volumes read. [default: its fair
        /// share]
        #[arg(long, value_name = "SIZE", value_parser = size)]
        cache_max: Option<u64>,
        /// A tag; may be given again.
        #[arg(long, value_name = "KEY=VALUE")]
        tag: Vec<String>,
    },
    /// Say what a volume may take of hosts.
    #[command(group(ArgGroup::new("what").required(true).multiple(true)))]
    Set {
        /// Name or id.
        name: String,
        /// How long its journal is from its next attachment on; `default` is as its host has it
        /// for all. For administrators, but for that.
        #[arg(long, value_name = "SIZE", value_parser = wished, group = "what")]
        journal_size: Option<Wished>,
        /// What it may have of each host's cache for what volumes read; `default` is its fair
        /// share.
        #[arg(long, value_name = "SIZE", value_parser = wished, group = "what")]
        cache_max: Option<Wished>,
    },
    /// List volumes.
    List {
        /// Those called so.
        #[arg(long)]
        name: Option<String>,
        /// Those of this user.
        #[arg(long)]
        owner: Option<String>,
        /// Those on the account of this project.
        #[arg(long)]
        project: Option<String>,
        /// Those in this state: available, in-use, deleting or error.
        #[arg(long)]
        state: Option<String>,
        /// Those with this tag; may be given again.
        #[arg(long, value_name = "KEY=VALUE")]
        tag: Vec<String>,
    },
    /// Put these tags in the place of those that a volume has.
    Tag {
        /// Name or id.
        name: String,
        /// The tags; none takes all away.
        #[arg(value_name = "KEY=VALUE")]
        tags: Vec<String>,
    },
    /// Give a volume, and its snapshots, to another user; or to yourself, on the
    /// account of another project.
    Transfer {
        /// Name or id.
        name: String,
        /// To this user.
        user: String,
        /// On the account of this project of theirs. [default: their only one,
        /// or that of their name]
        #[arg(long)]
        project: Option<String>,
    },
    /// Show one volume.
    Show {
        /// Name or id.
        name: String,
    },
    /// Make a volume larger.
    Grow {
        /// Name or id.
        name: String,
        /// The new size.
        #[arg(value_parser = size)]
        size: u64,
    },
    /// Delete a volume. Its snapshots stay.
    Delete {
        /// Name or id.
        name: String,
        /// Return when its room is being given back, not at once.
        #[arg(long)]
        wait: bool,
    },
    /// Go back to an earlier state that is still kept.
    Restore {
        /// Name or id.
        name: String,
        /// When: `2026-01-31 09:30` (local time; append UTC for that),
        /// RFC 3339, `-10m`, `10m ago`, or a version's number.
        #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = moment::parse)]
        at: Moment,
    },
    /// List the states that can be gone back to.
    Versions {
        /// Name or id.
        name: String,
    },
    /// Serve a volume on a host and print its NBD URI.
    Export {
        /// Name or id.
        name: String,
        /// On this host. [default: the controller's own, or the only one]
        #[arg(long)]
        host: Option<String>,
        /// Refuse writes.
        #[arg(long)]
        read_only: bool,
    },
    /// Serve it no more; everything written is on the units then.
    Unexport {
        /// Name or id.
        name: String,
    },
}
