//! Errors of measurements.

use std::io;
use std::path::{Path, PathBuf};

use base::IoError;

/// Why a measurement failed.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// A file or device failed.
    #[error("{}: {error}", path.display())]
    File {
        /// The file or device.
        path: PathBuf,
        /// The cause.
        #[source]
        error: io::Error,
    },
    /// A program cannot be started.
    #[error("`{program}` cannot be started ({error}); {hint}")]
    Program {
        /// Its name.
        program: String,
        /// The cause.
        #[source]
        error: io::Error,
        /// How to install or allow it.
        hint: &'static str,
    },
    /// The output or the end of a program that was started is unknown.
    #[error("`{command}` was started, and its output cannot be read: {error}")]
    Output {
        /// The program with its arguments.
        command: String,
        /// The cause.
        #[source]
        error: io::Error,
    },
    /// A program has failed.
    #[error("`{command}` failed: {message}")]
    Failed {
        /// The program with its arguments.
        command: String,
        /// The end of its standard error.
        message: String,
    },
    /// Something did not happen in time.
    #[error("{what} within {seconds} s")]
    Late {
        /// What was expected, as a sentence that ends before the time.
        what: String,
        /// The time limit in seconds.
        seconds: u64,
    },
    /// The measured volume failed.
    #[error("the measured volume: {0}")]
    Volume(#[from] IoError),
    /// The connection to the measured volume failed.
    #[error("the measured volume: {0}")]
    Connection(String),
    /// CPU time cannot be read.
    #[error("the CPU time of {whose}: {error}")]
    Account {
        /// The process or machine.
        whose: String,
        /// The cause.
        #[source]
        error: io::Error,
    },
    /// The measurement was stopped.
    #[error("stopped before its end")]
    Stopped,
    /// The arguments contradict each other.
    #[error("{0}")]
    Unfit(String),
}

/// Adds the path to an I/O error.
pub(crate) trait PathContext<T> {
    fn at(self, path: &Path) -> Result<T, MeasureError>;
}

impl<T> PathContext<T> for io::Result<T> {
    fn at(self, path: &Path) -> Result<T, MeasureError> {
        self.map_err(|error| MeasureError::File {
            path: path.to_owned(),
            error,
        })
    }
}
