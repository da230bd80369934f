//! Errors of open volumes.

use base::IoError;
use nbd::ExportEnded;

use crate::context::TaskFailed;

/// Why an open volume could not be used or closed. Its journal holds the writes that are not
/// destaged.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// The engine stopped.
    #[error("the engine stopped: {0}")]
    Stopped(#[from] IoError),
    /// The volume is missing writes that its filters have acknowledged; the text names them.
    #[error("{0}")]
    Incomplete(String),
    /// No unit accepts the data.
    #[error("the volume cannot be destaged: {0}")]
    Stalled(String),
    /// A unit does not answer.
    #[error("no unit accepted data for {0} s although nothing failed: a unit does not answer")]
    Unresponsive(u64),
    /// The thread of the volume has ended.
    #[error(transparent)]
    Ended(#[from] ExportEnded),
    /// A background task failed.
    #[error(transparent)]
    Task(#[from] TaskFailed),
}
