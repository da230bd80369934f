//! What `scree filter-process` and `scree filter-server` are told.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;

use super::address;

#[derive(Args)]
pub struct FilterProcessArguments {
    /// Memory of its own, in bytes.
    #[arg(long, value_name = "BYTES")]
    pub memory: u64,

    /// The number of its user and group, if it begins as root, or may become others
    /// (CAP_SETUID, CAP_SETGID and CAP_KILL).
    #[arg(long, value_name = "UID")]
    pub user: Option<u32>,

    /// Become this program.
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

#[derive(Args)]
pub struct FilterServerArguments {
    /// Where hosts connect.
    #[arg(long, value_name = "ADDR:PORT", value_parser = address)]
    pub listen: SocketAddr,

    /// The folder of this machine's key and filters: DIR/policies/NAME.toml is what the filter
    /// NAME of a chain is here, DIR/keys/NAME are keys (private files), DIR/programs/NAME.toml
    /// programs. The machine's own key is made there with the first start.
    #[arg(long, value_name = "DIR")]
    pub filter_dir: PathBuf,

    /// The certificate (PEM) of the cluster's authority: its hosts are served, and nobody
    /// else. `scree login` keeps it.
    #[arg(long, value_name = "FILE")]
    pub authority: PathBuf,
}
