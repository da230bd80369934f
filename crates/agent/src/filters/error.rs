//! Why a volume is not served through its filters.

use chain::HotSwapError;
use chain_policy::PolicyError;
use nbd::ExportEnded;

use crate::context::TaskEnded;

/// Why a volume is not served through the desired filters.
#[derive(Debug, thiserror::Error)]
pub enum ChainError {
    /// This program cannot parse the policy.
    #[error("this host does not know its policy, and may be older than the controller: {0}")]
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
    /// A task ended before its time.
    #[error(transparent)]
    Task(#[from] TaskEnded),
}

/// Why it is not known which filters a volume is to be opened with.
#[derive(Debug, thiserror::Error)]
pub enum FilterNoteError {
    /// Acknowledged writes may be nowhere else.
    #[error(
        "the journal of filter {0} is gone, or is none any more, and the volume is in use through \
         it: what it had acknowledged and not carried out is lost, unless it is put back; \
         `scree detach --force` gives that up"
    )]
    JournalLost(String),
    /// The note cannot be read, or written.
    #[error("what is noted of its filters cannot be read, or kept: {0}")]
    Note(std::io::Error),
    /// The journals of filters cannot be read, or quarantined.
    #[error("the journals of its filters cannot be looked through: {0}")]
    Journals(std::io::Error),
    /// A task ended before its time.
    #[error(transparent)]
    Task(#[from] TaskEnded),
}
