//! The laboratory's commands. They compute and measure; their caller passes a [`Console`], which
//! shows notices, progress and results.

mod cache;
mod cost;
pub mod files;
mod privacy;

pub use cache::run_cache;
pub use cost::run_cost;
pub use privacy::run_privacy;

use std::fmt;
use std::io;

use serde::Serialize;

use crate::measure::Stop;

/// Why a command failed: one sentence for its user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure(String);

impl Failure {
    /// A failure with this message.
    #[must_use]
    pub fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for Failure {}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self(base::with_causes(&error))
    }
}

/// The result of a command, in both of its forms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandOutput {
    /// For programs: one JSON document.
    pub json: String,
    /// For people: tables and sentences.
    pub text: String,
}

/// Progress that is shown until it is dropped.
pub trait Progress: Send + Sync {
    /// Shows the current step.
    fn say(&self, doing: String);

    /// Counts `count` more steps as done.
    fn add(&self, count: u64);
}

/// The output of a command.
pub trait Console: Sync {
    /// Shows a sentence in addition to the result.
    fn notice(&self, text: &str);

    /// Shows a task whose end is unknown.
    fn progress(&self, doing: &str) -> Box<dyn Progress>;

    /// Shows a task of `count` steps.
    fn progress_of(&self, doing: &str, count: u64) -> Box<dyn Progress>;

    /// Prints a result.
    ///
    /// # Errors
    /// If it could not be written.
    fn print(&self, output: &CommandOutput) -> io::Result<()>;

    /// Returns the flag that an interrupting signal sets. From this call on, the first such signal
    /// stops the measurement, and the second one ends the process.
    ///
    /// # Errors
    /// If signal handlers cannot be installed.
    fn stop_on_signal(&self) -> Result<Stop, Failure>;
}

/// Prints `value`, in the text form of `text`.
fn print<T: Serialize>(
    console: &dyn Console,
    value: &T,
    text: impl FnOnce(&T) -> String,
) -> io::Result<()> {
    console.print(&CommandOutput {
        json: serde_json::to_string_pretty(value)?,
        text: text(value),
    })
}
