//! What `scree box-process` is told.

use clap::Args;

#[derive(Args)]
pub struct BoxProcessArguments {
    /// Memory of its own, in bytes.
    #[arg(long, value_name = "BYTES")]
    pub memory: u64,

    /// The number of its user and group, if it begins as root.
    #[arg(long, value_name = "UID")]
    pub user: Option<u32>,

    /// Become this program.
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}
