//! Why a volume could not be attached, or detached.

use api::words::MessageCode;
use base::with_causes;
use catalog::CatalogError;
use nbd::{ExportEnded, SpawnError};
use volume::OpenError;
use volume::seal::KeyError;

use crate::background::VersionError;
use crate::context::TaskEnded;
use crate::export::{NbdServerError, VolumeError};
use crate::filters::{ChainError, FilterNoteError};
use crate::journals::JournalsError;
use crate::keys::HostKeyError;
use crate::lease::AcquireError;

/// Why a volume could not be attached, or detached.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// There is no lease that may be used.
    #[error(transparent)]
    Acquire(#[from] AcquireError),
    /// The controllers did not answer.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// The data keys do not open.
    #[error("{}", with_causes(.0))]
    Key(#[from] KeyError),
    /// There is no wrapping key for the data key.
    #[error("{}", with_causes(.0))]
    HostKey(#[from] HostKeyError),
    /// The database has lost the salt of the lease that wrote the volume's head.
    #[error(
        "the database has lost the salt of the lease that wrote it last; restore it from a backup"
    )]
    SaltLost,
    /// The folder of its journal cannot be used.
    #[error(transparent)]
    Journals(#[from] JournalsError),
    /// The engine could not open it.
    #[error("{}", with_causes(.0))]
    Open(#[from] OpenError),
    /// The version that is shown cannot be read.
    #[error(transparent)]
    Version(#[from] VersionError),
    /// A journal from before another host's lease could not be quarantined.
    #[error("its old journal cannot be put aside: {0}")]
    Quarantine(std::io::Error),
    /// The filters of its chain do not begin.
    #[error("its chain: {}", with_causes(.0))]
    Chain(#[from] ChainError),
    /// It is not known which filters it was served through.
    #[error(transparent)]
    FilterNote(#[from] FilterNoteError),
    /// It cannot be served over NBD.
    #[error(transparent)]
    Serving(#[from] NbdServerError),
    /// No thread could be started for it.
    #[error("no thread could be started for it: {0}")]
    Thread(std::io::Error),
    /// The open volume could not be used, or closed.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// Its owner wants it unencrypted, and this host does not write such volumes.
    #[error("it is not to be encrypted, and this host writes no unencrypted volumes")]
    Unencrypted,
    /// It was written, and its key is not in the database.
    #[error("the database has lost its key; restore it from a backup")]
    KeyLost,
    /// A task ended before its time.
    #[error(transparent)]
    Task(#[from] TaskEnded),
    /// The agent is ending.
    #[error("this host's agent is ending")]
    Ending,
}

impl AttachError {
    /// The code of the message about a volume that is not open because of this.
    pub(super) fn message_code(&self) -> MessageCode {
        match self {
            Self::Acquire(AcquireError::Lease(CatalogError::JournalAway { .. }))
            | Self::Journals(_)
            | Self::Quarantine(_)
            | Self::Open(OpenError::Journal(_)) => MessageCode::JournalUnavailable,
            Self::Acquire(_) => MessageCode::LeaseUnavailable,
            Self::Catalog(_) => MessageCode::ControllerUnavailable,
            Self::Key(_) | Self::HostKey(_) => MessageCode::KeyUnavailable,
            Self::SaltLost | Self::KeyLost => MessageCode::KeyLost,
            Self::Open(_) | Self::Version(_) => MessageCode::ContentUnavailable,
            Self::Chain(_) | Self::FilterNote(_) => MessageCode::ChainUnavailable,
            Self::Serving(_) | Self::Thread(_) => MessageCode::ExportFailed,
            Self::Volume(_) => MessageCode::VolumeStopped,
            Self::Unencrypted => MessageCode::EncryptionRequired,
            Self::Task(_) | Self::Ending => MessageCode::AgentStopping,
        }
    }

    /// Whether flushed writes cannot be had, though they should be there: only an operator's
    /// force gives them up. `has_shared_journals`: a journal that is in D alone, its operator
    /// moves away.
    pub(super) fn is_journal_lost(&self, has_shared_journals: bool) -> bool {
        match self {
            Self::Acquire(AcquireError::Lease(CatalogError::JournalAway { .. })) => true,
            Self::Open(OpenError::Journal(error)) => has_shared_journals && error.is_loss(),
            _ => false,
        }
    }
}

impl From<ExportEnded> for AttachError {
    fn from(error: ExportEnded) -> Self {
        Self::Volume(error.into())
    }
}

impl From<SpawnError<Self>> for AttachError {
    fn from(error: SpawnError<Self>) -> Self {
        match error {
            SpawnError::Device(error) => error,
            SpawnError::Thread(error) => Self::Thread(error),
        }
    }
}
