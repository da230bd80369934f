//! `scree privacy`: leakage from compromised units, by the model and measured.

use std::path::PathBuf;

use clap::{Args, Subcommand};

#[derive(Subcommand)]
pub enum PrivacyCommand {
    #[cfg(feature = "lab")]
    #[command(flatten)]
    Model(lab::args::ModelCommand),
    /// Find out which files of a volume can be read from some of its units.
    ///
    /// A host that may open the volume compares it with the slots on these units, byte by byte. The
    /// result is shown beside the prediction of the model.
    Audit(PrivacyAuditArguments),
    /// List a volume's audits that run or ended within a day.
    Audits(PrivacyAuditsArguments),
}

#[derive(Args)]
pub struct PrivacyAuditsArguments {
    /// Volume (name or id).
    #[arg(value_name = "VOLUME")]
    pub volume: String,

    /// Cancel this audit, or delete its result; for its requester and administrators of the volume.
    #[arg(long, value_name = "ID")]
    pub delete: Option<String>,

    /// Check everything and change nothing.
    #[arg(long)]
    pub dry_run: bool,
}

#[derive(Args)]
pub struct PrivacyAuditArguments {
    /// Volume (name or id).
    #[arg(value_name = "VOLUME")]
    pub volume: String,

    /// Units that are assumed to be compromised: ids, names of daemons, or the last part of their
    /// URLs (u1,u3).
    #[arg(long, value_name = "UNIT", value_delimiter = ',', required = true)]
    pub units: Vec<String>,

    /// Audit this snapshot of the volume [default: the newest version]
    #[arg(long, value_name = "SNAPSHOT")]
    pub snapshot: Option<String>,

    /// List the files that these units have a part of, completely readable ones first.
    #[arg(long)]
    pub files: bool,

    /// File that says where the wrapping key of an encrypted volume is, as for `scree agent`: only
    /// that key opens the list of files. If `main` is a passphrase, SCREE_PASSPHRASE works, too
    /// [default: the keys of --dir]
    #[arg(long, value_name = "FILE")]
    pub keys_file: Option<PathBuf>,

    /// Check everything and change nothing.
    #[arg(long)]
    pub dry_run: bool,
}
