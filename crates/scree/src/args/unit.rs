//! Storage units, and their daemons.

use std::net::SocketAddr;
use std::time::Duration;

use base::SegmentId;
use clap::{Args, Subcommand};

use super::process::MonitorArguments;
use super::{JoinArguments, address};
use crate::moment;

/// A verb of the noun, or, without one, a daemon that runs.
#[derive(Args)]
pub struct UnitArguments {
    #[command(subcommand)]
    pub command: Option<UnitCommand>,

    #[command(flatten)]
    pub daemon: DaemonArguments,
}

/// What a unit daemon is told.
#[derive(Args)]
#[command(next_help_heading = "Options of a daemon")]
pub struct DaemonArguments {
    /// Run the daemon of the unit in D, once it is joined, and let hosts in
    /// here.
    #[arg(long, value_name = "ADDR:PORT", value_parser = address)]
    pub listen: Option<SocketAddr>,

    /// By which address hosts reach that; needed if it listens on all addresses
    /// of this machine. [default: where it listens]
    #[arg(long, value_name = "IP:PORT", value_parser = address, requires = "listen")]
    pub address: Option<SocketAddr>,

    /// So many connections at a time at most, those to other daemons that are
    /// passed on included.
    #[arg(long, value_name = "N", default_value_t = 1024, requires = "listen",
          value_parser = clap::value_parser!(u16).range(1..))]
    pub connections: u16,

    /// Keep what hosts free or delete for so long, while the daemon runs: `scree unit
    /// restore` brings it back; 0s: not at all.
    #[arg(long, value_name = "TIME", default_value = "1d", requires = "listen",
          value_parser = moment::duration)]
    pub undelete_window: Duration,

    /// At most so much of the unit's file system, in percent; the oldest goes first,
    /// and whenever the unit is full.
    #[arg(long, value_name = "PERCENT", default_value_t = 10, requires = "listen",
          value_parser = clap::value_parser!(u8).range(0..=100))]
    pub undelete_room: u8,

    #[command(flatten)]
    pub monitor: MonitorArguments,
}

impl DaemonArguments {
    /// Whether any of it was said.
    pub fn is_any(&self) -> bool {
        self.listen.is_some() || self.monitor.listen_metrics.is_some()
    }
}

/// What of what was freed is to be brought back.
#[derive(Args)]
pub struct RestoreArguments {
    /// What was freed from then on: 2026-01-31 09:30, -2h, '2h ago'. By this
    /// machine's clock.
    #[arg(long, value_name = "WHEN", value_parser = moment::milliseconds,
          allow_hyphen_values = true)]
    pub since: i64,

    /// What was freed up to then. [default: until now]
    #[arg(long, value_name = "WHEN", value_parser = moment::milliseconds,
          allow_hyphen_values = true)]
    pub until: Option<i64>,

    /// Only of this segment, by the name of its file: 003-00000002a.
    #[arg(long, value_name = "SEGMENT", value_parser = segment)]
    pub segment: Option<SegmentId>,

    /// Also segments in whose place another one was put since: the old one takes
    /// that place again, and what is there now is kept aside for a while.
    #[arg(long)]
    pub replaced: bool,
}

fn segment(text: &str) -> Result<SegmentId, String> {
    unit_daemon::segment_of(text)
        .ok_or_else(|| format!("{text:?} is no segment: write it as 003-00000002a"))
}

#[derive(Subcommand)]
pub enum UnitCommand {
    /// List the units and how they are.
    List,
    /// Show a unit, and what was found out of the place that it is.
    Show {
        /// Its id, or the name of its daemon.
        unit: String,
    },
    /// Add a place as a unit: an empty folder on any mounted file system, a bucket of
    /// an object store or a prefix of one, or a Ceph pool or a namespace of one, with nothing
    /// in it. Credentials for a bucket come from the environment of `scree agent` or
    /// `scree up`, those for a pool from where Ceph's own tools take them.
    Add {
        /// file:///path/to/folder, or the path; s3://bucket/prefix, gs://…,
        /// az://container/prefix; rados://POOL/NAMESPACE or rados://USER@POOL/NAMESPACE.
        url: String,
        /// What may be lost at once, as a rack is: copies lie in different zones,
        /// where there are enough. [default: one of its own]
        #[arg(long)]
        zone: Option<String>,
        /// As this host sees it. [default: the controller's own, or the only
        /// one]
        #[arg(long)]
        host: Option<String>,
    },
    /// Have other units take over what some hold, and remove these then.
    Drain {
        /// Their ids, URLs, or daemons' names: all of them at once, or none.
        #[arg(required = true)]
        units: Vec<String>,
        /// Let them keep what they hold, and take back what others have not taken over
        /// yet.
        #[arg(long)]
        cancel: bool,
    },
    /// Remove a unit that holds nothing any more.
    Remove {
        /// Its id, its URL, or its daemon's name.
        unit: String,
        /// It is gone for good: others take its place, from what the other copies
        /// have.
        #[arg(long)]
        lost: bool,
        /// Give up what nobody else has, or what only units have that are gone, too:
        /// volumes may lose blocks.
        #[arg(long, requires = "lost")]
        accept_data_loss: bool,
    },
    /// Compare all units now, and copy what one lacks.
    Repair,
    /// Read every slot, compare it, and put anew what has rotted.
    Scrub {
        /// Only where this unit is a member. [default: everywhere]
        unit: Option<String>,
    },
    /// Let units take over from those that have more.
    Rebalance,
    /// List what is repaired, or waits for it.
    Tasks,
    /// Make the party of a unit daemon, and hand out its first token.
    Create {
        /// Its name.
        name: String,
        /// In which zone its unit is. [default: one of its own]
        #[arg(long)]
        zone: Option<String>,
    },
    /// Say in which zone a unit is.
    SetZone {
        /// Its id, or the name of its daemon.
        unit: String,
        /// The zone's name. [default: one of its own]
        zone: Option<String>,
    },
    /// Hand out another token to a daemon.
    Token {
        /// Its name.
        name: String,
    },
    /// Refuse a daemon's requests, from the next one on. Hosts go on with its
    /// unit until its certificate ends, within a day.
    Disable {
        /// Its name.
        name: String,
    },
    /// Refuse them no longer.
    Enable {
        /// Its name.
        name: String,
    },
    /// Join this machine, with a token: `scree unit --listen` can be started
    /// then.
    Join {
        #[command(flatten)]
        join: JoinArguments,
    },
    /// Bring back what hosts have freed, deleted or replaced on the unit of the daemon
    /// in D, on its machine and while it does not run: as far as that is still kept.
    Restore(RestoreArguments),
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
    fn the_command_line_is_sound() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn a_daemon_listens_and_a_command_has_a_verb() {
        let daemon = unit("--listen 0.0.0.0:7070 --address 10.0.0.1:7070 --dir /srv/u");
        let daemon = daemon.expect("a daemon");
        assert!(daemon.command.is_none() && daemon.daemon.is_any());
        let shown = daemon.daemon.address.map(|address| address.to_string());
        assert_eq!(shown.as_deref(), Some("10.0.0.1:7070"));
        assert_eq!(daemon.daemon.connections, 1024);

        // An option of all commands is not taken for one of a daemon.
        let list = unit("--dir /srv/u list").expect("a command");
        assert!(matches!(list.command, Some(UnitCommand::List)));
        assert!(!list.daemon.is_any());
        for verb in ["create", "token", "disable", "enable"] {
            let command = unit(&format!("{verb} store1")).expect("a command").command;
            assert!(command.is_some(), "{verb}");
            assert!(unit(verb).is_none(), "{verb} of whom?");
        }
        let join = "join https://c1:8443 --token t --authority sha256:a";
        let join = unit(join).expect("a command").command;
        assert!(matches!(join, Some(UnitCommand::Join { .. })));
    }

    #[test]
    fn what_was_freed_is_brought_back_by_when_that_was() {
        let restore = |words: &str| match unit(words)?.command {
            Some(UnitCommand::Restore(restore)) => Some(restore),
            _ => None,
        };
        let words = "restore --since -2h --until 2126-01-01T00:00:00Z --segment 003-00000002a";
        let told = restore(words).expect("a command");
        let until = told.until.expect("said");
        assert!(told.since < until && !told.replaced);
        assert_eq!(until, 4_922_899_200_000);
        let segment = told.segment.expect("said");
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
    fn what_no_daemon_can_do_is_refused() {
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
