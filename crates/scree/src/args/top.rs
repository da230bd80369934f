//! `scree top`.

use std::time::Duration;

use clap::Args;

use crate::moment;

#[derive(Args)]
pub struct TopArguments {
    /// How often to look.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = moment::duration)]
    pub interval: Duration,

    /// Look once. With --output json or yaml it is always once.
    #[arg(long)]
    pub once: bool,
}
