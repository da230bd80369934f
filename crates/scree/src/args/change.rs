//! The options of every command that changes something through a controller.

use clap::Args;

/// Options of a change.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub struct ChangeOptions {
    /// Check everything and change nothing.
    #[arg(long)]
    pub dry_run: bool,

    /// Carry out the change only once: the same command with the same key within a day returns the
    /// first result.
    #[arg(long, value_name = "KEY")]
    pub idempotency_key: Option<String>,
}

impl ChangeOptions {
    /// The options of a command with a dry run and without an idempotency key.
    pub const fn only_dry(dry_run: bool) -> Self {
        Self {
            dry_run,
            idempotency_key: None,
        }
    }
}
