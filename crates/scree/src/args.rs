//! The command line's words: nouns, verbs and options, and nothing of what
//! they do.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use api::{size as sizes, types};
use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand};
use clap_complete::Shell;

use crate::moment::{self, Moment};
use crate::output::Format;

const REPLICAS: RangeInclusive<i64> = 1..=types::REPLICAS_MAX as i64;

/// Virtual disks for virtual machines, sealed and scattered over storage that
/// nobody has to trust.
#[derive(Parser)]
#[command(
    name = "scree",
    version,
    propagate_version = true,
    arg_required_else_help = true
)]
pub struct Arguments {
    /// The folder of a `scree up`, controller or agent. Commands ask whoever
    /// serves it, rather than the controller of a profile, unless one is named.
    #[arg(long = "dir", value_name = "D", env = "SCREE_DIR", global = true)]
    pub folder: Option<PathBuf>,

    /// Which controller to ask, and as whom, if no folder is given: what
    /// `scree login` named so. [default: that of the last `scree login`]
    #[arg(long, value_name = "NAME", env = "SCREE_PROFILE", global = true)]
    pub profile: Option<String>,

    /// How results are printed, of every command that has some. With json, a
    /// failure is {"error": {…}} on standard error.
    #[arg(short, long, value_enum, default_value_t, global = true)]
    pub output: Format,

    /// Check everything, and change nothing.
    #[arg(long, global = true)]
    pub dry_run: bool,

    /// Make what is made under this key: the same command under the same key,
    /// within a day, makes nothing twice.
    #[arg(long, value_name = "KEY", global = true)]
    pub idempotency_key: Option<String>,

    #[command(subcommand)]
    pub command: Command,
}

impl Arguments {
    /// Ends the program, as for any option that a command does not have: nobody
    /// must take for a trial what is carried out.
    pub fn refuse_meaningless(&self) {
        let is_asked = match &self.command {
            Command::Api(ApiCommand::Host(HostCommand::Enrol { .. })) => false,
            Command::Api(_) => true,
            _ => false,
        };
        let option = match (self.dry_run, &self.idempotency_key) {
            (true, _) => "--dry-run",
            (_, Some(_)) => "--idempotency-key",
            _ => return,
        };
        if !is_asked {
            let reason = format!("this command has no '{option}'");
            let kind = ErrorKind::UnknownArgument;
            Self::command().error(kind, reason).exit();
        }
    }
}

#[derive(Subcommand)]
pub enum Command {
    /// Run everything in one process, until SIGTERM. Restartable on the same
    /// folder.
    Up(Box<UpArguments>),

    /// Run a controller: the API, on one database, for agents on other
    /// machines.
    Controller(Box<ControllerArguments>),

    /// Run the agent of this host, once it is enrolled.
    Agent(Box<AgentArguments>),

    /// Become a user of a controller, with a token.
    Login(LoginArguments),

    #[command(flatten)]
    Api(ApiCommand),

    /// Print a completion script for a shell.
    Completions {
        /// Which shell.
        shell: Shell,
    },

    /// Write manual pages into a folder.
    Man {
        /// The folder, which must exist.
        #[arg(value_name = "DIR")]
        folder: PathBuf,
    },
}

/// What is asked of a controller, or of a running `scree up`.
#[derive(Subcommand)]
pub enum ApiCommand {
    /// Virtual disks.
    #[command(subcommand)]
    Volume(VolumeCommand),

    /// Named, read-only moments of volumes.
    #[command(subcommand)]
    Snapshot(SnapshotCommand),

    /// Plug a volume into a running VM.
    Attach(AttachArguments),

    /// Take a volume out of its VM; everything written is on the units then.
    Detach(DetachArguments),

    /// Volumes in VMs, and exports.
    #[command(subcommand)]
    Attachment(AttachmentCommand),

    /// Projects: on whose account volumes are, and how many there may be.
    #[command(subcommand)]
    Project(ProjectCommand),

    /// Rights that users give to each other on their volumes, and
    /// administrators on hosts.
    #[command(subcommand)]
    Grant(GrantCommand),

    /// Places where sealed blocks lie.
    #[command(subcommand)]
    Unit(UnitCommand),

    /// Wrapping keys: what opens the volumes' own keys.
    #[command(subcommand)]
    Key(KeyCommand),

    /// Users of this cluster.
    #[command(subcommand)]
    User(PartyCommand),

    /// Hosts of this cluster.
    #[command(subcommand)]
    Host(HostCommand),

    /// Who is asking, as the controller knows it.
    Whoami,

    /// Who changed what, newest first.
    Audit {
        /// At most so many lines.
        #[arg(long, value_name = "N", default_value_t = 50)]
        limit: u32,
    },

    /// How the whole is doing, and what needs attention.
    Status,
}

/// How to become somebody.
#[derive(Args)]
pub struct EnrolArguments {
    /// The controllers of one cluster, or one of them: https://HOST:PORT; each
    /// can be asked when another one is away. Several with commas or spaces
    /// between them.
    #[arg(value_name = "URL", required = true, value_delimiter = ',')]
    pub urls: Vec<String>,
    /// The token that an administrator handed out.
    #[arg(long, value_name = "TOKEN", required_unless_present = "cert")]
    pub token: Option<String>,
    /// The authority's fingerprint that came with it: sha256:…
    #[arg(
        long,
        value_name = "FINGERPRINT",
        required_unless_present = "ca",
        conflicts_with = "ca"
    )]
    pub authority: Option<String>,
    /// Trust a controller whose certificate is signed by this authority (PEM).
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// Be whom this certificate (PEM) names, of an authority that the controller
    /// was told of, rather than to use a token. The file is read again when it is
    /// used.
    #[arg(long, value_name = "FILE", requires_all = ["key", "ca"], conflicts_with = "token")]
    pub cert: Option<PathBuf>,
    /// The key (PEM) of that certificate.
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub key: Option<PathBuf>,
}

#[derive(Args)]
pub struct LoginArguments {
    #[command(flatten)]
    pub enrol: EnrolArguments,
}

/// Users, and hosts too.
#[derive(Subcommand)]
pub enum PartyCommand {
    /// Make one, and hand out its first token.
    Add {
        /// Its name.
        name: String,
        /// It may everything but read volumes. (Users only.)
        #[arg(long)]
        administrator: bool,
        /// Make it a member of this project, not of a new one of its own name.
        /// (Users only.)
        #[arg(long)]
        project: Option<String>,
    },
    /// List all.
    List,
    /// Hand out another token.
    Token {
        /// Its name.
        name: String,
    },
    /// Refuse its requests, from the next one on.
    Disable {
        /// Its name.
        name: String,
    },
    /// Refuse them no longer.
    Enable {
        /// Its name.
        name: String,
    },
}

/// As [`PartyCommand`], for hosts.
#[derive(Subcommand)]
pub enum HostCommand {
    #[command(flatten)]
    Party(PartyCommand),
    /// Enrol this machine, with a token: `scree agent` can be started then.
    Enrol {
        #[command(flatten)]
        enrol: EnrolArguments,
    },
}

#[derive(Args)]
pub struct UpArguments {
    /// How many folder units to make in D if it is new. [default: 8]
    #[arg(long, value_name = "N", 
          value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub units: Option<u16>,

    #[command(flatten)]
    pub serve: ServeArguments,

    #[command(flatten)]
    pub keep: KeepArguments,

    /// Serve the API over TLS here as well.
    #[arg(long, value_name = "ADDR:PORT", value_parser = address)]
    pub listen_api: Option<SocketAddr>,

    /// A name or address by which others reach that; may be given again.
    #[arg(
        long,
        value_name = "NAME",
        default_value = "localhost",
        requires = "listen_api"
    )]
    pub api_name: Vec<String>,

    #[command(flatten)]
    pub monitor: MonitorArguments,
}

#[derive(Args)]
pub struct ControllerArguments {
    /// Serve the API over TLS here.
    #[arg(long, value_name = "ADDR:PORT", value_parser = address)]
    pub listen: SocketAddr,

    /// A name or address by which others reach that; may be given again.
    #[arg(long, value_name = "NAME", default_value = "localhost")]
    pub name: Vec<String>,

    /// The database, which several controllers may share:
    /// postgres://USER@HOST/DATABASE, with sslmode=verify-full and
    /// sslrootcert=FILE for TLS. Give a URL with a password in a file, or in the
    /// environment variable SCREE_DATABASE: others can read a command line.
    /// [default: D/scree.db]
    #[arg(long, value_name = "URL", conflicts_with = "database_file")]
    pub database: Option<String>,

    /// A private file (mode 600) whose first line is the database's URL.
    #[arg(long, value_name = "FILE")]
    pub database_file: Option<PathBuf>,

    /// The authority in D, or a new one if there is none, takes the place of the
    /// cluster's, which is lost. Everybody enrols anew, and the other controllers
    /// get its files. Give it once.
    #[arg(long)]
    pub new_authority: bool,

    #[command(flatten)]
    pub tls: TlsArguments,

    /// How long a host's leases hold after it was last heard of: then others
    /// may have its volumes.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = moment::duration)]
    pub lease: Duration,

    #[command(flatten)]
    pub keep: KeepArguments,

    #[command(flatten)]
    pub monitor: MonitorArguments,
}

/// Certificates of the operator's own.
#[derive(Args)]
pub struct TlsArguments {
    /// Know users and hosts also by certificates of this authority (PEM), which
    /// name one scree://user/NAME or scree://host/NAME; may be given again.
    #[arg(long, value_name = "FILE")]
    pub client_ca: Vec<PathBuf>,

    /// Serve with this certificate (PEM), with what lies between it and its root,
    /// rather than with one of the cluster's own authority.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,

    /// The key (PEM) of that certificate.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
}

#[derive(Args)]
pub struct AgentArguments {
    /// How many folder units to make here if the cluster has none.
    #[arg(long, value_name = "N", 
          value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub units: Option<u16>,

    /// Volumes may be written in the clear, where that is what was asked for.
    #[arg(long)]
    pub allow_unsealed: bool,

    /// Keep journals in this folder, which other hosts mount too: whoever takes a
    /// volume from this host when it is dead finds there what it had flushed. The
    /// folder must be there. [default: D/journal, which this host alone has]
    #[arg(long, value_name = "FOLDER")]
    pub journals: Option<PathBuf>,

    #[command(flatten)]
    pub serve: ServeArguments,

    #[command(flatten)]
    pub monitor: MonitorArguments,
}

/// What those who watch are told, and where.
#[derive(Args)]
pub struct MonitorArguments {
    /// Answer /healthz, /readyz and /metrics (for Prometheus) over plain HTTP
    /// here, to anybody: use a loopback address or a management network.
    #[arg(long, value_name = "ADDR:PORT", value_parser = address)]
    pub listen_metrics: Option<SocketAddr>,
}

/// What agents are told.
#[derive(Args)]
pub struct ServeArguments {
    /// Serve NBD over TCP here as well.
    #[arg(long, value_name = "ADDR:PORT", value_parser = address)]
    pub listen_nbd: Option<SocketAddr>,

    /// Certificates (PEM) that sign those of NBD clients over TCP.
    #[arg(long, value_name = "FILE", requires_all = ["nbd_tls_cert", "nbd_tls_key", "listen_nbd"])]
    pub nbd_tls_ca: Option<PathBuf>,

    /// This server's certificate (PEM) for NBD over TCP.
    #[arg(long, value_name = "FILE", requires_all = ["nbd_tls_ca", "nbd_tls_key"])]
    pub nbd_tls_cert: Option<PathBuf>,

    /// The key (PEM) of that certificate.
    #[arg(long, value_name = "FILE", requires_all = ["nbd_tls_ca", "nbd_tls_cert"])]
    pub nbd_tls_key: Option<PathBuf>,

    /// The number of the user who runs the VMs, and may connect to their disks.
    /// [default: the owner of a VM's QMP socket]
    #[arg(long, value_name = "UID")]
    pub vm_user: Option<u32>,

    /// Says where this host's wrapping keys are. [default: D/keys/keys.toml, if
    /// it is there]
    #[arg(long, value_name = "FILE")]
    pub keys_file: Option<PathBuf>,

    /// The key file of the wrapping key `main`, the first one of a cluster; made
    /// if it does not exist. [default: D/keys/master.key]
    #[arg(long, value_name = "FILE", conflicts_with = "passphrase_file")]
    pub key_file: Option<PathBuf>,

    /// A file whose first line is the passphrase that the wrapping key `main` is
    /// made of. The environment variable SCREE_PASSPHRASE does as well.
    #[arg(long, value_name = "FILE")]
    pub passphrase_file: Option<PathBuf>,

    /// Size of each attached volume's journal.
    #[arg(long, value_name = "SIZE", default_value = "100M", value_parser = size)]
    pub journal_size: u64,

    /// How long a write may stay in the journal only, when the volume is idle.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = moment::duration)]
    pub destage_after: Duration,
}

/// What controllers are told.
#[derive(Args)]
pub struct KeepArguments {
    /// How many automatic versions of a volume are kept.
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub retain_count: usize,

    /// How long automatic versions are kept.
    #[arg(long, value_name = "TIME", default_value = "1d", value_parser = moment::duration)]
    pub retain_age: Duration,

    /// How many times the units' free room may be promised to volumes, as if
    /// all were full.
    #[arg(long, value_name = "N", default_value_t = control::control::OVERCOMMIT,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub overcommit: u32,

    /// How long the blocks of a removed version stay, against mistakes.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = moment::duration)]
    pub grace: Duration,

    /// Go on with a database that was put back from a backup, or in a folder
    /// that was copied or moved. What was committed elsewhere after that is
    /// given up, and the units are taken over. Give it once.
    #[arg(long)]
    pub restored_database: bool,
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
        seal: Option<String>,
        /// Copies of each segment, on as many units. [default: 2 if there are
        /// two units]
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(REPLICAS))]
        replicas: Option<u8>,
        /// On the account of this project. [default: your only one, or that of
        /// your name]
        #[arg(long)]
        project: Option<String>,
        /// A tag; may be given again.
        #[arg(long, value_name = "KEY=VALUE")]
        tag: Vec<String>,
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
    Give {
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
        #[arg(long, required_unless_present = "call_off")]
        host: Option<String>,
        /// Plugged into this VM there: qmp:/path/to/its/socket or libvirt:NAME. [default: an export]
        #[arg(long, value_name = "ADDRESS")]
        vm: Option<String>,
        /// It is to stay where it is after all. Possible until the host that has it has let go.
        #[arg(long, conflicts_with_all = ["host", "vm"])]
        call_off: bool,
        /// Return at once.
        #[arg(long)]
        no_wait: bool,
    },
}

#[derive(Subcommand)]
pub enum SnapshotCommand {
    /// Take a snapshot; at once, whatever the volume's size.
    Create {
        /// Of this volume (name or id).
        volume: String,
        /// Its name. [default: its id]
        #[arg(long, value_name = "S")]
        name: Option<String>,
        /// A tag; may be given again.
        #[arg(long, value_name = "KEY=VALUE")]
        tag: Vec<String>,
        /// Return when it is completed, not while it is pending.
        #[arg(long)]
        wait: bool,
    },
    /// List snapshots.
    List {
        /// Those of this volume (name or id).
        #[arg(long)]
        volume: Option<String>,
        /// Those of this user.
        #[arg(long)]
        owner: Option<String>,
        /// Those in this state: pending, completed or error.
        #[arg(long)]
        state: Option<String>,
        /// Those with this tag; may be given again.
        #[arg(long, value_name = "KEY=VALUE")]
        tag: Vec<String>,
    },
    /// Put these tags in the place of those that a snapshot has.
    Tag {
        /// Name or id.
        name: String,
        /// The tags; none takes all away.
        #[arg(value_name = "KEY=VALUE")]
        tags: Vec<String>,
    },
    /// Show volumes, their snapshots, and what was cloned from them.
    Tree,
    /// Delete a snapshot. Clones of it go on.
    Delete {
        /// Name or id.
        name: String,
    },
}

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

#[derive(Subcommand)]
pub enum UnitCommand {
    /// List the units and how they are.
    List,
    /// Add an empty folder on any mounted file system as a unit.
    Add {
        /// file:///path/to/folder, or the path.
        url: String,
        /// As this host sees it. [default: the controller's own, or the only
        /// one]
        #[arg(long)]
        host: Option<String>,
    },
}

#[derive(Subcommand)]
pub enum KeyCommand {
    /// List the wrapping keys, and of how many volumes each wraps the keys.
    List,
    /// Show one wrapping key.
    Show {
        /// Name or id.
        name: String,
    },
    /// Found a wrapping key: the one that a host's keys.toml calls NAME. New
    /// volumes use it.
    Add {
        /// Its name in keys.toml.
        name: String,
        /// That of this host. [default: the controller's own, or the only one]
        #[arg(long)]
        host: Option<String>,
    },
    /// Let one wrapping key take the place of another. Volumes stay as they are
    /// and in use: only their keys are wrapped anew.
    Rotate {
        /// The one that retires: name or id.
        old: String,
        /// The one that takes its place: name or id.
        new: String,
        /// Return when the old one wraps nothing any more.
        #[arg(long)]
        wait: bool,
    },
    /// Forget a wrapping key that is retired.
    Delete {
        /// Name or id.
        name: String,
    },
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        "it takes an IP address and a port, as in 127.0.0.1:10809 or [::1]:10809; names are not \
         looked up"
            .to_owned()
    })
}

fn size(text: &str) -> Result<u64, String> {
    sizes::parse(text)
}

/// D, or the end: without it nothing can be done.
pub fn folder(given: Option<PathBuf>) -> PathBuf {
    given.unwrap_or_else(|| {
        Arguments::command()
            .error(
                ErrorKind::MissingRequiredArgument,
                "say which folder is meant: --dir D, or SCREE_DIR in the environment; or, to ask a \
                 controller elsewhere, run `scree login` first",
            )
            .exit()
    })
}
