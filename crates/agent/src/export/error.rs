//! Why an open volume could not be used, or closed.

use base::IoError;
use nbd::ExportEnded;

use crate::context::TaskEnded;

/// Why an open volume could not be used, or closed. Its journal keeps what was not destaged.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// The engine had to stop.
    #[error("the engine stopped: {0}")]
    Stopped(#[from] IoError),
    /// The volume is missing writes that its filters have acknowledged; the text says which.
    #[error("{0}")]
    Incomplete(String),
    /// No unit takes the data.
    #[error("it cannot destage: {0}")]
    Stalled(String),
    /// A unit does not answer.
    #[error("nothing was put on any unit for {0} s and nothing failed: a unit does not answer")]
    Unresponsive(u64),
    /// Its thread has ended.
    #[error(transparent)]
    Ended(#[from] ExportEnded),
    /// A task ended before its time.
    #[error(transparent)]
    Task(#[from] TaskEnded),
}
