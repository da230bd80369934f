//! Users and hosts: what is done with them, and how to become one.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// How to become somebody.
#[derive(Args)]
pub struct JoinArguments {
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
    pub join: JoinArguments,
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
    /// Join this machine, with a token: `scree agent` can be started then.
    Join {
        #[command(flatten)]
        join: JoinArguments,
    },
}
