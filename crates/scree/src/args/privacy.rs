//! `scree privacy`: what a break-in leaks, by the model and in truth.

use std::path::PathBuf;

use clap::{Args, Subcommand};

#[derive(Subcommand)]
pub enum PrivacyCommand {
    #[cfg(feature = "lab")]
    #[command(flatten)]
    Model(lab::args::ModelCommand),
    /// Find out what some storage units really have of a volume, byte by byte, and which of its
    /// files can be read from them; beside it stands what the model says of as many units. A
    /// host that may open the volume reads it, and what lies on these units.
    Audit(PrivacyAuditArguments),
    /// List the audits of a volume that are under way, or have ended within a day, the newest
    /// one first.
    Audits(PrivacyAuditsArguments),
}

#[derive(Args)]
pub struct PrivacyAuditsArguments {
    /// The volume, by name or id.
    #[arg(value_name = "VOLUME")]
    pub volume: String,

    /// Call this one off, or forget what it has found: for who has asked for it, or administers
    /// the volume.
    #[arg(long, value_name = "ID")]
    pub delete: Option<String>,
}

#[derive(Args)]
pub struct PrivacyAuditArguments {
    /// The volume, by name or id.
    #[arg(value_name = "VOLUME")]
    pub volume: String,

    /// The units that are taken for compromised: ids, names of daemons, or the last part of their
    /// URLs (u1,u3).
    #[arg(long, value_name = "UNIT", value_delimiter = ',', required = true)]
    pub units: Vec<String>,

    /// This snapshot of the volume, in the place of its newest version.
    #[arg(long, value_name = "SNAPSHOT")]
    pub snapshot: Option<String>,

    /// List the files of which something is on these units, those that leak as a whole first.
    #[arg(long)]
    pub files: bool,

    /// Says where the wrapping key of a sealed volume is, as agents are told: what is found of its
    /// files opens with that key only. SCREE_PASSPHRASE does as well, where `main` is a passphrase.
    /// [default: with --dir or SCREE_DIR, that folder's keys]
    #[arg(long, value_name = "FILE")]
    pub keys_file: Option<PathBuf>,
}
