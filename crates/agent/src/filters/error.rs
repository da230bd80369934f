//! Errors of filter chains.

use chain::HotSwapError;
use chain_policy::PolicyError;
use nbd::ExportEnded;

use crate::context::TaskFailed;

/// Why a volume is not served through the desired filters.
#[derive(Debug, thiserror::Error)]
pub enum ChainError {
    /// The policy cannot be parsed.
    #[error(
        "this host cannot parse the policy of the chain; it may be older than the controller: {0}"
    )]
    Policy(#[from] PolicyError),
    /// The hot swap of the filters failed; the former ones stay in use.
    #[error(transparent)]
    HotSwap(#[from] HotSwapError),
    /// Too many journals are quarantined.
    #[error("{0}")]
    Quarantined(String),
    /// The folder of the filters cannot be used.
    #[error("the folder of its filters cannot be used: {0}")]
    Folder(#[from] std::io::Error),
    /// The volume's thread has ended.
    #[error(transparent)]
    Ended(#[from] ExportEnded),
    /// A background task failed.
    #[error(transparent)]
    Task(#[from] TaskFailed),
}

/// Why the filters of a volume at its next open are unknown.
#[derive(Debug, thiserror::Error)]
pub enum FilterNoteError {
    /// Acknowledged writes may exist only in a journal that is missing.
    #[error(
        "the journal of filter {0} is missing or damaged, and the volume is used through it: \
         writes that it acknowledged and did not apply are lost unless it is restored; \
         `scree detach VOLUME --force` abandons them"
    )]
    JournalLost(String),
    /// The note of the filters cannot be read or written.
    #[error("the note about the volume's filters cannot be read or written: {0}")]
    Note(std::io::Error),
    /// The journals of filters cannot be read or quarantined.
    #[error("the journals of the volume's filters cannot be read: {0}")]
    Journals(std::io::Error),
    /// A background task failed.
    #[error(transparent)]
    Task(#[from] TaskFailed),
}
