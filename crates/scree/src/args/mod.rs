//! The command line's words: nouns, verbs and options, and nothing of what
//! they do. What serves has its options in `process`, every noun its verbs in a
//! file of its own.

mod attachment;
mod chain;
mod filter_process;
mod grant;
mod image;
mod key;
mod options;
mod party;
mod privacy;
mod process;
mod project;
mod relay;
mod snapshot;
mod top;
mod unit;
mod volume;

use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::path::PathBuf;

use base::size as sizes;
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;

use crate::output::Format;

pub use attachment::{AttachArguments, AttachmentCommand, DetachArguments};
pub use chain::{ChainCommand, MonitorArguments, TraceArguments, WhichChain};
pub use filter_process::{FilterProcessArguments, FilterServerArguments};
pub use grant::GrantCommand;
pub use image::ImageCommand;
pub use key::KeyCommand;
pub use options::command_line;
pub use party::{HostCommand, JoinArguments, LoginArguments, PartyCommand};
pub use privacy::{PrivacyAuditArguments, PrivacyAuditsArguments, PrivacyCommand};
pub use process::{
    AgentArguments, ControllerArguments, KeepArguments, ServeArguments, TlsArguments, UpArguments,
};
pub use project::{ProjectCommand, QuotaArguments};
pub use relay::{Flush, RelayArguments, RelayTarget};
pub use snapshot::SnapshotCommand;
pub use top::TopArguments;
pub use unit::{DaemonArguments, RestoreArguments, UnitArguments, UnitCommand};
pub use volume::VolumeCommand;

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
    /// The folder of a `scree up`, controller, agent or unit daemon. Commands ask
    /// whoever serves it, rather than the controller of a profile, unless one is
    /// named.
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
    #[arg(long)]
    pub dry_run: bool,

    /// Make what is made under this key: the same command under the same key,
    /// within a day, makes nothing twice.
    #[arg(long, value_name = "KEY")]
    pub idempotency_key: Option<String>,

    #[command(subcommand)]
    pub command: Command,
}

impl Arguments {
    /// What was said to the program, which ends where that makes no sense.
    pub fn given() -> Self {
        let given = options::given();
        if let Command::Api(ApiCommand::Unit(unit)) = &given.command {
            refuse_mixture(unit);
        }
        given
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

    /// Run the agent of this host, once it is joined.
    Agent(Box<AgentArguments>),

    /// Stand between an NBD client and an NBD server, with filters of a policy, or with a
    /// journal that acknowledges writes before the server does.
    Relay(Box<RelayArguments>),

    /// Serve filters for disks of other machines.
    FilterServer(FilterServerArguments),

    /// Be one filter of a chain: agents start this.
    #[command(hide = true)]
    FilterProcess(FilterProcessArguments),

    /// Become a user of a controller, with a token.
    Login(LoginArguments),

    #[command(flatten)]
    Api(ApiCommand),

    /// Policies of caches, tried on what was asked of a disk.
    #[command(subcommand)]
    #[cfg(feature = "lab")]
    Cache(lab::args::CacheCommand),

    /// What whoever captures storage units can read: known beforehand, and found out.
    #[command(subcommand)]
    Privacy(PrivacyCommand),

    /// What encryption costs, known beforehand.
    #[command(subcommand)]
    #[cfg(feature = "lab")]
    Cost(lab::args::CostCommand),

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

    /// Filters between a volume and whoever uses it.
    #[command(subcommand)]
    Chain(ChainCommand),

    /// Base images, which hosts keep in their caches for all that are cloned from them.
    #[command(subcommand)]
    Image(ImageCommand),

    /// What a volume's filters tell: what happens to its files, if one of them is a monitor.
    Monitor(MonitorArguments),

    /// What was asked of a volume, if one of its filters is a trace. To be run on its host: it
    /// reads what lies in the host's folder, as long as that is there.
    Trace(TraceArguments),

    /// Projects: on whose account volumes are, and how many there may be.
    #[command(subcommand)]
    Project(ProjectCommand),

    /// Rights that users give to each other on their volumes, and
    /// administrators on hosts.
    #[command(subcommand)]
    Grant(GrantCommand),

    /// Places where sealed blocks lie; with --listen, the daemon of one.
    Unit(UnitArguments),

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

    /// It is said as `scree privacy audit`.
    #[command(skip)]
    PrivacyAudit(PrivacyAuditArguments),

    /// And this as `scree privacy audits`.
    #[command(skip)]
    PrivacyAudits(PrivacyAuditsArguments),

    /// What hosts have to do, and what their caches spare them: again and again, until it is
    /// stopped. For administrators.
    Top(TopArguments),
}

/// Ends the program if it is not clear whether a daemon is to run.
fn refuse_mixture(unit: &UnitArguments) {
    match &unit.command {
        Some(_) if unit.daemon.is_any() => {
            let reason = "what is said to a daemon is not for a command; leave one of them out";
            let kind = ErrorKind::ArgumentConflict;
            Arguments::command().error(kind, reason).exit();
        }
        None if unit.daemon.listen.is_none() => {
            let mut scree = command_line();
            scree.build();
            let help = scree
                .find_subcommand_mut("unit")
                .map(|unit| unit.render_help());
            // Where this cannot be said, the exit code says enough.
            let help = help.map(|help| help.to_string()).unwrap_or_default();
            let _ = io::stderr().write_all(help.as_bytes());
            std::process::exit(2);
        }
        _ => {}
    }
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
