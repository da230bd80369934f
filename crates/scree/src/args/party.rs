//! `scree user`, `scree host` and `scree login`: users and hosts, and how to become one.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::ChangeOptions;

/// How a user, host or unit daemon proves who it is the first time.
#[derive(Args)]
pub struct JoinArguments {
    /// URLs of the cluster's controllers, or of one of them: https://HOST:PORT. Separate several
    /// with commas or spaces.
    #[arg(value_name = "URL", required = true, value_delimiter = ',')]
    pub urls: Vec<String>,
    /// Token from an administrator.
    #[arg(long, value_name = "TOKEN", required_unless_present = "cert")]
    pub token: Option<String>,
    /// Fingerprint of the cluster's authority, which came with the token: sha256:…
    #[arg(
        long,
        value_name = "FINGERPRINT",
        required_unless_present = "ca",
        conflicts_with = "ca"
    )]
    pub authority: Option<String>,
    /// Trust controllers whose certificate is signed by this authority (PEM).
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// Use this certificate (PEM) in place of a token; its authority must be known to the
    /// controller (--client-ca). The file is read each time it is used.
    #[arg(long, value_name = "FILE", requires_all = ["key", "ca"], conflicts_with = "token")]
    pub cert: Option<PathBuf>,
    /// Key (PEM) of that certificate.
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub key: Option<PathBuf>,
}

#[derive(Args)]
pub struct LoginArguments {
    #[command(flatten)]
    pub join: JoinArguments,
}

/// The verbs of `scree user`.
#[derive(Subcommand)]
pub enum UserCommand {
    /// Add a user and print a join token for `scree login`.
    Add {
        /// Name of the user.
        name: String,
        /// Make the user an administrator, who may do everything but read volumes.
        #[arg(long)]
        administrator: bool,
        /// Make the user a member of this project [default: a new project of the user's name]
        #[arg(long)]
        project: Option<String>,
        #[command(flatten)]
        change: ChangeOptions,
    },
    /// List the users and their state.
    List,
    /// Print a new join token for a user, such as one whose certificate has expired.
    Token {
        /// Name of the user.
        name: String,
        #[command(flatten)]
        change: ChangeOptions,
    },
    /// Refuse all requests of a user from now on.
    Disable {
        /// Name of the user.
        name: String,
        #[command(flatten)]
        change: ChangeOptions,
    },
    /// Accept requests of a disabled user again.
    Enable {
        /// Name of the user.
        name: String,
        #[command(flatten)]
        change: ChangeOptions,
    },
}

impl UserCommand {
    /// The options of a change; `None` for verbs that change nothing.
    pub const fn change(&self) -> Option<&ChangeOptions> {
        match self {
            Self::Add { change, .. }
            | Self::Token { change, .. }
            | Self::Disable { change, .. }
            | Self::Enable { change, .. } => Some(change),
            Self::List => None,
        }
    }
}

/// The verbs of `scree host`.
#[derive(Subcommand)]
pub enum HostCommand {
    /// Add a host and print a join token for `scree host join`.
    Add {
        /// Name of the host.
        name: String,
        #[command(flatten)]
        change: ChangeOptions,
    },
    /// List the hosts and their state.
    List,
    /// Print a new join token for a host, such as one whose certificate has expired.
    Token {
        /// Name of the host.
        name: String,
        #[command(flatten)]
        change: ChangeOptions,
    },
    /// Refuse all requests of a host from now on.
    Disable {
        /// Name of the host.
        name: String,
        #[command(flatten)]
        change: ChangeOptions,
    },
    /// Accept requests of a disabled host again.
    Enable {
        /// Name of the host.
        name: String,
        #[command(flatten)]
        change: ChangeOptions,
    },
    /// Join this machine to a cluster; then start `scree agent`.
    Join {
        #[command(flatten)]
        join: JoinArguments,
    },
}

impl HostCommand {
    /// The options of a change; `None` for verbs that change nothing through the API.
    pub const fn change(&self) -> Option<&ChangeOptions> {
        match self {
            Self::Add { change, .. }
            | Self::Token { change, .. }
            | Self::Disable { change, .. }
            | Self::Enable { change, .. } => Some(change),
            Self::List | Self::Join { .. } => None,
        }
    }
}
