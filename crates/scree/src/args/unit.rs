//! `scree unit`: storage units and their daemons.

use std::net::SocketAddr;
use std::time::Duration;

use base::SegmentId;
use clap::{Args, Subcommand};

use super::process::MonitorArguments;
use super::{ChangeOptions, JoinArguments, address};
use crate::times;

/// A verb, or with --listen the daemon of a unit.
#[derive(Args)]
pub struct UnitArguments {
    #[command(subcommand)]
    pub command: Option<UnitCommand>,

    #[command(flatten)]
    pub daemon: DaemonArguments,
}

/// Options of a unit daemon.
#[derive(Args)]
#[command(next_help_heading = "Daemon options")]
pub struct DaemonArguments {
    /// Run the daemon of the unit in DIR, and accept hosts at this address.
    #[arg(long, value_name = "ADDR:PORT", value_parser = address)]
    pub listen: Option<SocketAddr>,

    /// Address by which hosts reach it [default: that of --listen, if it is a single address]
    #[arg(long, value_name = "IP:PORT", value_parser = address, requires = "listen")]
    pub address: Option<SocketAddr>,

    /// Largest number of connections, relayed ones included: 1 to 65535.
    #[arg(long, value_name = "N", default_value_t = 1024, requires = "listen",
          hide_short_help = true, value_parser = clap::value_parser!(u16).range(1..))]
    pub connections: u16,

    /// How long deleted data can be restored (`scree unit restore`); 0s disables it.
    #[arg(long, value_name = "TIME", default_value = "1d", requires = "listen",
          value_parser = times::duration)]
    pub undelete_window: Duration,

    /// Percentage of the file system that deleted data may fill, 0 to 100. Beyond it, the oldest is
    /// destroyed.
    #[arg(long, value_name = "PERCENT", default_value_t = 10, requires = "listen",
          hide_short_help = true, value_parser = clap::value_parser!(u8).range(0..=100))]
    pub undelete_room: u8,

    #[command(flatten)]
    pub monitor: MonitorArguments,
}

impl DaemonArguments {
    /// Whether an option of the daemon was given.
    pub fn is_any(&self) -> bool {
        self.listen.is_some() || self.monitor.listen_metrics.is_some()
    }
}

/// Arguments of `scree unit restore`.
#[derive(Args)]
pub struct RestoreArguments {
    /// Restore what was deleted from this time on, by this machine's clock: 2026-01-31 09:30, -2h
    /// or '2h ago'.
    #[arg(long, value_name = "TIME", value_parser = times::milliseconds,
          allow_hyphen_values = true)]
    pub since: i64,

    /// Restore what was deleted until this time [default: now]
    #[arg(long, value_name = "TIME", value_parser = times::milliseconds,
          allow_hyphen_values = true)]
    pub until: Option<i64>,

    /// Restore only this segment, named as its file is: 003-00000002a.
    #[arg(long, value_name = "SEGMENT", value_parser = segment)]
    pub segment: Option<SegmentId>,

    /// Restore segments that were replaced since, too; the replacement is kept for undelete.
    #[arg(long)]
    pub replaced: bool,

    /// Check everything and change nothing.
    #[arg(long)]
    pub dry_run: bool,
}

fn segment(text: &str) -> Result<SegmentId, String> {
    unit_daemon::segment_of(text)
        .ok_or_else(|| format!("{text:?} is not a segment: write it as 003-00000002a"))
}

/// The verbs of `scree unit`.
#[derive(Subcommand)]
pub enum UnitCommand {
    /// List units and their health.
    List,
    /// Show one unit and its backend.
    Show {
        /// Id, or name of its daemon.
        unit: String,
    },
    /// Add an empty folder, bucket or Ceph pool as a unit.
    ///
    /// It may be a folder on any mounted file system, a bucket of an object store or a prefix of
    /// one, or a Ceph pool or a namespace of one, with nothing in it. Credentials of buckets come
    /// from the environment of `scree agent` or `scree up`; those of pools from Ceph's own files.
    Add {
        /// file:///path/to/folder or the path; s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or
        /// az://CONTAINER/PREFIX; rados://POOL/NAMESPACE or rados://USER@POOL/NAMESPACE.
        url: String,
        /// Failure domain, such as a rack: copies lie in different zones where possible [default:
        /// a zone of its own]
        #[arg(long)]
        zone: Option<String>,
        /// Host that can reach it [default: the controller's own host, or the only one]
        #[arg(long)]
        host: Option<String>,
        #[command(flatten)]
        change: ChangeOptions,
    },
    /// Move all data off units, then remove them.
    Drain {
        /// Ids, URLs, paths of folders or names of daemons; all are drained, or none.
        #[arg(required = true)]
        units: Vec<String>,
        /// Cancel draining: the units stay, and are rebuilt.
        #[arg(long)]
        cancel: bool,
        #[command(flatten)]
        change: ChangeOptions,
    },
    /// Remove an empty unit, or with --lost one that is lost.
    Remove {
        /// Id, URL or name of its daemon.
        unit: String,
        /// The unit is lost: other units replace it, from the remaining copies.
        #[arg(long)]
        lost: bool,
        /// Remove it even if it may have had the last copy of some blocks: volumes may lose data.
        #[arg(long, requires = "lost")]
        accept_data_loss: bool,
        #[command(flatten)]
        change: ChangeOptions,
    },
    /// Compare the copies on all units and repair them.
    Repair {
        #[command(flatten)]
        change: ChangeOptions,
    },
    /// Read and verify every slot, and repair damaged ones.
    Scrub {
        /// Only copysets with this unit [default: all]
        unit: Option<String>,
        #[command(flatten)]
        change: ChangeOptions,
    },
    /// Move copysets from units with more of them to units with fewer.
    Rebalance {
        #[command(flatten)]
        change: ChangeOptions,
    },
    /// List repair jobs that run or wait.
    Jobs,
    /// Register a unit daemon and print a join token for `scree unit join`.
    Create {
        /// Name of the daemon.
        name: String,
        /// Failure domain of its unit [default: a zone of its own]
        #[arg(long)]
        zone: Option<String>,
        #[command(flatten)]
        change: ChangeOptions,
    },
    /// Join this machine to a cluster; then start `scree unit --listen`.
    Join {
        #[command(flatten)]
        join: JoinArguments,
    },
    /// Set the failure domain of a unit.
    SetZone {
        /// Id, or name of its daemon.
        unit: String,
        /// Name of the zone [default: a zone of its own]
        zone: Option<String>,
        #[command(flatten)]
        change: ChangeOptions,
    },
    /// Print a new join token for a daemon, such as one whose certificate has expired.
    Token {
        /// Name of the daemon.
        name: String,
        #[command(flatten)]
        change: ChangeOptions,
    },
    /// Refuse a daemon's requests from now on.
    ///
    /// Hosts put no new blocks on its unit, and read from it until its certificate expires, within
    /// a day.
    Disable {
        /// Name of the daemon.
        name: String,
        #[command(flatten)]
        change: ChangeOptions,
    },
    /// Accept a daemon's requests again.
    Enable {
        /// Name of the daemon.
        name: String,
        #[command(flatten)]
        change: ChangeOptions,
    },
    /// Undelete slots on the unit in DIR, while its daemon is stopped.
    ///
    /// It restores slots and segments that hosts have freed, deleted or replaced within the
    /// undelete window.
    Restore(RestoreArguments),
}

impl UnitCommand {
    /// The options of a change; `None` for verbs that change nothing through the API.
    pub const fn change(&self) -> Option<&ChangeOptions> {
        match self {
            Self::Add { change, .. }
            | Self::Drain { change, .. }
            | Self::Remove { change, .. }
            | Self::Repair { change }
            | Self::Scrub { change, .. }
            | Self::Rebalance { change }
            | Self::Create { change, .. }
            | Self::SetZone { change, .. }
            | Self::Token { change, .. }
            | Self::Disable { change, .. }
            | Self::Enable { change, .. } => Some(change),
            Self::List | Self::Show { .. } | Self::Jobs | Self::Join { .. } | Self::Restore(_) => {
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;
    use crate::args::{ApiCommand, Arguments, Command};

    fn unit(words: &str) -> Option<UnitArguments> {
        let words = ["scree", "unit"].into_iter().chain(words.split(' '));
        let parsed = Arguments::try_parse_from(words).ok()?;
        match parsed.command {
            Command::Api(ApiCommand::Unit(unit)) => Some(unit),
            _ => None,
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn a_unit_command_is_a_verb_or_a_daemon_that_listens() {
        let daemon = unit("--listen 0.0.0.0:7070 --address 10.0.0.1:7070 --dir /srv/u");
        let daemon = daemon.expect("a daemon");
        assert!(daemon.command.is_none() && daemon.daemon.is_any());
        let shown = daemon.daemon.address.map(|address| address.to_string());
        assert_eq!(shown.as_deref(), Some("10.0.0.1:7070"));
        assert_eq!(daemon.daemon.connections, 1024);

        // A global option is no option of the daemon.
        let list = unit("--dir /srv/u list").expect("a command");
        assert!(matches!(list.command, Some(UnitCommand::List)));
        assert!(!list.daemon.is_any());
        for verb in ["create", "token", "disable", "enable"] {
            let command = unit(&format!("{verb} store1")).expect("a command").command;
            assert!(command.is_some(), "{verb}");
            assert!(unit(verb).is_none(), "{verb} without a name");
        }
        let join = "join https://c1:8443 --token t --authority sha256:a";
        let join = unit(join).expect("a command").command;
        assert!(matches!(join, Some(UnitCommand::Join { .. })));
    }

    #[test]
    fn restore_takes_a_range_of_times() {
        let restore = |words: &str| match unit(words)?.command {
            Some(UnitCommand::Restore(restore)) => Some(restore),
            _ => None,
        };
        let words = "restore --since -2h --until 2126-01-01T00:00:00Z --segment 003-00000002a";
        let parsed = restore(words).expect("a command");
        let until = parsed.until.expect("given");
        assert!(parsed.since < until && !parsed.replaced);
        assert_eq!(until, 4_922_899_200_000);
        let segment = parsed.segment.expect("given");
        assert_eq!(segment.to_string(), "003-00000002a");
        for words in [
            "restore",
            "restore --since 17",
            "restore --since -2h --segment 3-2a",
        ] {
            assert!(restore(words).is_none(), "{words}");
        }
        let daemon = unit("--listen 127.0.0.1:0 --undelete-window 2h --undelete-room 30");
        let daemon = daemon.expect("a daemon").daemon;
        assert_eq!(daemon.undelete_window, Duration::from_secs(7200));
        assert_eq!(daemon.undelete_room, 30);
    }

    #[test]
    fn impossible_daemon_options_are_refused() {
        for words in [
            "--address 10.0.0.1:7070",
            "--connections 5",
            "--undelete-window 1h",
            "--listen 127.0.0.1:7070 --undelete-room 101",
            "--listen localhost:7070",
            "--listen 127.0.0.1:7070 --connections 0",
            "--listen 127.0.0.1:7070 --address store1:7070",
        ] {
            assert!(unit(words).is_none(), "{words}");
        }
    }
}
