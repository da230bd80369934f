//! The nouns, verbs and options of the command line, but not what they do.
//!
//! Each noun has a file of its own. Options of the processes that serve are in `process`, the
//! examples of all help texts in `examples`.

mod attachment;
mod chain;
mod change;
mod examples;
mod filter_process;
mod grant;
mod image;
mod key;
mod party;
mod privacy;
mod process;
mod project;
mod relay;
mod snapshot;
#[cfg(all(test, feature = "lab"))]
mod tests;
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
pub use chain::{ChainCommand, ChainSelector, MonitorArguments, TraceArguments};
pub use change::ChangeOptions;
pub use filter_process::{FilterProcessArguments, FilterServerArguments};
pub use grant::GrantCommand;
pub use image::ImageCommand;
pub use key::KeyCommand;
pub use party::{HostCommand, JoinArguments, LoginArguments, UserCommand};
pub use privacy::{PrivacyAuditArguments, PrivacyAuditsArguments, PrivacyCommand};
pub use process::{
    AgentArguments, CacheArguments, ControllerArguments, FilterArguments, KeepArguments,
    KeyArguments, NbdArguments, ServeArguments, TlsArguments, UpArguments,
};
pub use project::{ProjectCommand, QuotaArguments};
pub use relay::{Flush, RelayArguments, RelayTarget};
pub use snapshot::SnapshotCommand;
pub use top::TopArguments;
pub use unit::{DaemonArguments, RestoreArguments, UnitArguments, UnitCommand};
pub use volume::{
    CreateArguments as CreateVolumeArguments, ListArguments as ListVolumesArguments, VolumeCommand,
};

/// Encrypted virtual disks for virtual machines, scattered over untrusted storage.
#[derive(Parser)]
#[command(
    name = "scree",
    version,
    arg_required_else_help = true,
    after_help = examples::SCREE
)]
pub struct Arguments {
    /// Data directory of `scree up`, a controller, an agent or a unit daemon.
    #[arg(
        long = "dir",
        value_name = "DIR",
        env = "SCREE_DIR",
        hide_env = true,
        help_heading = "Global options",
        global = true
    )]
    pub folder: Option<PathBuf>,

    /// Controller, as a profile of `scree login` [default: the last login].
    #[arg(
        long,
        value_name = "NAME",
        env = "SCREE_PROFILE",
        hide_env = true,
        help_heading = "Global options",
        global = true
    )]
    pub profile: Option<String>,

    /// Output format: table, json or yaml.
    #[arg(
        short,
        long,
        value_enum,
        hide_possible_values = true,
        default_value_t,
        help_heading = "Global options",
        global = true
    )]
    pub output: Format,

    #[command(subcommand)]
    pub command: Command,
}

impl Arguments {
    /// The arguments of this process. Exits with a usage error if they are wrong.
    pub fn of_process() -> Self {
        let arguments = Self::parse();
        if let Command::Api(ApiCommand::Unit(unit)) = &arguments.command {
            refuse_mixture(unit);
        }
        arguments
    }
}

#[derive(Subcommand)]
pub enum Command {
    /// Run a controller, an agent and folder units in one process.
    ///
    /// It runs until SIGTERM, and continues when it is started again on the same data directory.
    #[command(after_help = examples::UP)]
    Up(Box<UpArguments>),

    /// Run a controller: the API and the database, for agents on other machines.
    #[command(after_help = examples::CONTROLLER)]
    Controller(Box<ControllerArguments>),

    /// Run the agent of this host, which has joined a cluster.
    #[command(after_help = examples::AGENT)]
    Agent(Box<AgentArguments>),

    /// Relay an NBD export through filters, or through a journal.
    ///
    /// It runs between NBD clients and an NBD server. With --active, its journal acknowledges
    /// writes before the server does.
    #[command(after_help = examples::RELAY)]
    Relay(Box<RelayArguments>),

    /// Serve filters for chains on other machines.
    #[command(after_help = examples::FILTER_SERVER)]
    FilterServer(FilterServerArguments),

    /// Run one filter of a chain; agents start this command.
    #[command(hide = true)]
    FilterProcess(FilterProcessArguments),

    /// Log in to a controller with a token.
    #[command(after_help = examples::LOGIN)]
    Login(LoginArguments),

    #[command(flatten)]
    Api(ApiCommand),

    /// Compare cache policies on a trace.
    #[cfg(feature = "lab")]
    #[command(subcommand, disable_help_subcommand = true, after_help = examples::CACHE)]
    Cache(lab::args::CacheCommand),

    /// Predict or measure what compromised units reveal.
    #[command(subcommand, disable_help_subcommand = true, after_help = examples::PRIVACY)]
    Privacy(PrivacyCommand),

    /// Predict the cost of encryption for a workload.
    #[cfg(feature = "lab")]
    #[command(subcommand, disable_help_subcommand = true, after_help = examples::COST)]
    Cost(lab::args::CostCommand),

    /// Print a completion script for a shell.
    Completions {
        /// The shell.
        shell: Shell,
    },

    /// Write manual pages into a folder.
    Man {
        /// An existing folder.
        #[arg(value_name = "DIR")]
        folder: PathBuf,
    },
}

/// Commands that a controller or a running `scree up` carries out.
#[derive(Subcommand)]
pub enum ApiCommand {
    /// Create, list, export, restore and delete virtual disks.
    #[command(subcommand, disable_help_subcommand = true, after_help = examples::VOLUME)]
    Volume(VolumeCommand),

    /// Take, list and delete snapshots of volumes.
    #[command(subcommand, disable_help_subcommand = true, after_help = examples::SNAPSHOT)]
    Snapshot(SnapshotCommand),

    /// Plug a volume into a running VM.
    #[command(after_help = examples::ATTACH)]
    Attach(AttachArguments),

    /// Destage a volume and unplug it from its VM.
    #[command(after_help = examples::DETACH)]
    Detach(DetachArguments),

    /// List and move attachments.
    #[command(subcommand, disable_help_subcommand = true, after_help = examples::ATTACHMENT)]
    Attachment(AttachmentCommand),

    /// Put filters between a volume and its users.
    #[command(subcommand, disable_help_subcommand = true, after_help = examples::CHAIN)]
    Chain(ChainCommand),

    /// Share base images among clones in the caches of hosts.
    #[command(subcommand, disable_help_subcommand = true, after_help = examples::IMAGE)]
    Image(ImageCommand),

    /// Show file operations that a volume's filter `monitor` has seen.
    #[command(after_help = examples::MONITOR)]
    Monitor(MonitorArguments),

    /// Print the requests that a volume's filter `trace` has recorded.
    ///
    /// Run it on the volume's host: it reads files in the host's data directory.
    #[command(after_help = examples::TRACE)]
    Trace(TraceArguments),

    /// Manage projects, their members and quotas.
    #[command(subcommand, disable_help_subcommand = true, after_help = examples::PROJECT)]
    Project(ProjectCommand),

    /// Grant rights on volumes, snapshots and hosts to users.
    #[command(subcommand, disable_help_subcommand = true, after_help = examples::GRANT)]
    Grant(GrantCommand),

    /// Manage storage units; with --listen, run the daemon of one.
    #[command(disable_help_subcommand = true, after_help = examples::UNIT)]
    Unit(UnitArguments),

    /// Manage the wrapping keys of volumes.
    #[command(subcommand, disable_help_subcommand = true, after_help = examples::KEY)]
    Key(KeyCommand),

    /// Manage the users of a cluster.
    #[command(subcommand, disable_help_subcommand = true, after_help = examples::USER)]
    User(UserCommand),

    /// Manage the hosts of a cluster.
    #[command(subcommand, disable_help_subcommand = true, after_help = examples::HOST)]
    Host(HostCommand),

    /// Show the user as which you are logged in.
    Whoami,

    /// Show the log of changes, newest first.
    Audit {
        /// Largest number of lines.
        #[arg(long, value_name = "N", default_value_t = 50)]
        limit: u32,
    },

    /// Show the cluster's health and its problems.
    Status,

    // Parsed as `scree privacy audit`.
    #[command(skip)]
    PrivacyAudit(PrivacyAuditArguments),

    // Parsed as `scree privacy audits`.
    #[command(skip)]
    PrivacyAudits(PrivacyAuditsArguments),

    /// Show the load of hosts and caches continuously (administrators only).
    #[command(after_help = examples::TOP)]
    Top(TopArguments),
}

impl ApiCommand {
    /// The options of a change; the defaults of a command that changes nothing.
    pub fn change(&self) -> ChangeOptions {
        let change = match self {
            Self::Volume(command) => command.change(),
            Self::Snapshot(command) => command.change(),
            Self::Attach(arguments) => Some(&arguments.change),
            Self::Detach(arguments) => Some(&arguments.change),
            Self::Attachment(command) => command.change(),
            Self::Chain(command) => command.change(),
            Self::Image(command) => command.change(),
            Self::Project(command) => command.change(),
            Self::Grant(command) => command.change(),
            Self::Unit(unit) => unit.command.as_ref().and_then(UnitCommand::change),
            Self::Key(command) => command.change(),
            Self::User(command) => command.change(),
            Self::Host(command) => command.change(),
            Self::PrivacyAudit(arguments) => return ChangeOptions::only_dry(arguments.dry_run),
            Self::PrivacyAudits(arguments) => return ChangeOptions::only_dry(arguments.dry_run),
            Self::Monitor(_)
            | Self::Trace(_)
            | Self::Whoami
            | Self::Audit { .. }
            | Self::Status
            | Self::Top(_) => None,
        };
        change.cloned().unwrap_or_default()
    }
}

/// Exits with a usage error if both a verb and options of a daemon were given, or neither.
fn refuse_mixture(unit: &UnitArguments) {
    match &unit.command {
        Some(_) if unit.daemon.is_any() => {
            let message = "options of a daemon cannot be combined with a verb: leave out --listen and \
                           --listen-metrics, or the verb";
            let kind = ErrorKind::ArgumentConflict;
            Arguments::command().error(kind, message).exit();
        }
        None if unit.daemon.listen.is_none() => {
            let mut scree = Arguments::command();
            scree.build();
            let help = scree
                .find_subcommand_mut("unit")
                .map(|unit| unit.render_help());
            // If this cannot be printed, the exit code says enough.
            let help = help.map(|help| help.to_string()).unwrap_or_default();
            let _ = io::stderr().write_all(help.as_bytes());
            std::process::exit(2);
        }
        _ => {}
    }
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        "write an IP address and a port, as 127.0.0.1:10809 or [::1]:10809; host names are not \
         resolved"
            .to_owned()
    })
}

/// Parses a size, such as `512M` or `10G`, in bytes.
pub fn size(text: &str) -> Result<u64, String> {
    sizes::parse(text)
}

/// The data directory. Exits with a usage error if none was given.
pub fn folder(dir: Option<PathBuf>) -> PathBuf {
    dir.unwrap_or_else(|| {
        Arguments::command()
            .error(
                ErrorKind::MissingRequiredArgument,
                "no data directory and no controller: add --dir DIR or set SCREE_DIR; or, to use a \
                 controller elsewhere, run `scree login URL --token TOKEN --authority FINGERPRINT`",
            )
            .exit()
    })
}
