//! Arguments of `scree filter-process` and `scree filter-server`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;

use super::address;

#[derive(Args)]
pub struct FilterProcessArguments {
    /// Memory limit, in bytes.
    #[arg(long, value_name = "BYTES")]
    pub memory: u64,

    /// User and group id to run as; needs root, or CAP_SETUID, CAP_SETGID and CAP_KILL.
    #[arg(long, value_name = "UID")]
    pub user: Option<u32>,

    /// Program to run.
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

#[derive(Args)]
pub struct FilterServerArguments {
    /// Address that hosts connect to.
    #[arg(long, value_name = "ADDR:PORT", value_parser = address)]
    pub listen: SocketAddr,

    /// Folder of this machine's key and filters: DIR/policies/NAME.toml defines the filter NAME of
    /// a chain, DIR/keys/NAME are keys (private files), DIR/programs/NAME.toml external programs.
    /// The machine's own key is created there at the first start.
    #[arg(long, value_name = "DIR")]
    pub filter_dir: PathBuf,

    /// Certificate (PEM) of the cluster's authority, which `scree login` keeps: only hosts of this
    /// cluster are served.
    #[arg(long, value_name = "FILE")]
    pub authority: PathBuf,
}
