//! What goes wrong while it is measured.

use std::io;
use std::path::{Path, PathBuf};

use base::IoError;

/// Why something could not be measured.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// A file or device.
    #[error("{}: {error}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What the operating system says.
        #[source]
        error: io::Error,
    },
    /// A program cannot be started.
    #[error("`{program}` cannot be started ({error}); {hint}")]
    Program {
        /// Its name.
        program: String,
        /// What the operating system says.
        #[source]
        error: io::Error,
        /// What to do about it.
        hint: &'static str,
    },
    /// A program has failed.
    #[error("`{command}` failed: {said}")]
    Failed {
        /// With its arguments.
        command: String,
        /// Its last words.
        said: String,
    },
    /// It did not come true in time.
    #[error("{what} within {seconds} s")]
    Late {
        /// What did not happen.
        what: String,
        /// How long it was waited for.
        seconds: u64,
    },
    /// A volume that is measured.
    #[error("the volume that is measured: {0}")]
    Volume(#[from] IoError),
    /// The connection to it.
    #[error("the volume that is measured: {0}")]
    Connection(String),
    /// The kernel's accounts cannot be read.
    #[error("the CPU time of {whose}: {error}")]
    Account {
        /// Whose.
        whose: String,
        /// What the operating system says.
        #[source]
        error: io::Error,
    },
    /// Somebody wanted it to end.
    #[error("ended before its end")]
    Stopped,
    /// What is asked for does not go together.
    #[error("{0}")]
    Unfit(String),
}

/// Names the file that an error is about.
pub(crate) trait At<T> {
    fn at(self, path: &Path) -> Result<T, MeasureError>;
}

impl<T> At<T> for io::Result<T> {
    fn at(self, path: &Path) -> Result<T, MeasureError> {
        self.map_err(|error| MeasureError::File {
            path: path.to_owned(),
            error,
        })
    }
}
