//! Arguments of `scree top`.

use std::time::Duration;

use clap::Args;

use crate::times;

#[derive(Args)]
pub struct TopArguments {
    /// Time between two readings.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = times::duration)]
    pub interval: Duration,

    /// Read once and exit, as --output json and yaml always do.
    #[arg(long)]
    pub once: bool,
}
