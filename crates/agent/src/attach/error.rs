//! Why a volume could not be attached, or detached.

use api::words::MessageCode;
use base::with_causes;
use catalog::CatalogError;
use nbd::{ExportEnded, SpawnError};
use volume::OpenError;
use volume::seal::KeyError;

use crate::background::VersionError;
use crate::context::TaskFailed;
use crate::export::{NbdServerError, VolumeError};
use crate::filters::{ChainError, FilterNoteError};
use crate::journals::JournalsError;
use crate::keys::HostKeyError;
use crate::lease::AcquireError;

/// Why a volume could not be attached, or detached.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// No lease was acquired.
    #[error(transparent)]
    Acquire(#[from] AcquireError),
    /// The controllers did not answer.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// A data key could not be unwrapped.
    #[error("{}", with_causes(.0))]
    Key(#[from] KeyError),
    /// The wrapping key of a data key is missing.
    #[error("{}", with_causes(.0))]
    HostKey(#[from] HostKeyError),
    /// The database has lost the salt of the lease that committed the volume's head.
    #[error(
        "the database has lost the salt of the lease that wrote it last; restore it from a backup"
    )]
    SaltLost,
    /// The folder of the volume's journal cannot be used.
    #[error(transparent)]
    Journals(#[from] JournalsError),
    /// The engine could not open the volume.
    #[error("{}", with_causes(.0))]
    Open(#[from] OpenError),
    /// The attached version cannot be read.
    #[error(transparent)]
    Version(#[from] VersionError),
    /// A journal from before another host's lease could not be quarantined.
    #[error("its old journal cannot be quarantined: {0}")]
    Quarantine(std::io::Error),
    /// A filter of the volume's chain could not be started.
    #[error("its chain: {}", with_causes(.0))]
    Chain(#[from] ChainError),
    /// The note of the filters that the volume was served through cannot be used.
    #[error(transparent)]
    FilterNote(#[from] FilterNoteError),
    /// The volume cannot be served over NBD.
    #[error(transparent)]
    Serving(#[from] NbdServerError),
    /// No thread could be started for the volume.
    #[error("cannot start a thread for the volume: {0}")]
    Thread(std::io::Error),
    /// The open volume failed, or could not be closed.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// The owner wants the volume unencrypted, which this host does not allow.
    #[error("its owner wants it unencrypted, but this host does not allow unencrypted volumes")]
    Unencrypted,
    /// The volume was written, but its key is not in the database.
    #[error("the database has lost its key; restore it from a backup")]
    KeyLost,
    /// A background task failed.
    #[error(transparent)]
    Task(#[from] TaskFailed),
    /// The agent is shutting down.
    #[error("this host's agent is shutting down")]
    ShuttingDown,
}

impl AttachError {
    /// The code of the message about a volume that is not open because of this.
    pub(super) fn message_code(&self) -> MessageCode {
        match self {
            Self::Acquire(AcquireError::Lease(CatalogError::JournalUnavailable { .. }))
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
            Self::Task(_) | Self::ShuttingDown => MessageCode::AgentStopping,
        }
    }

    /// Whether flushed writes are unavailable although they should exist: only an operator's
    /// `--force` abandons them. Without shared journals, an operator moves the local journal away
    /// instead.
    pub(super) fn is_journal_lost(&self, has_shared_journals: bool) -> bool {
        match self {
            Self::Acquire(AcquireError::Lease(CatalogError::JournalUnavailable { .. })) => true,
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
