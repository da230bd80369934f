//! What the database may answer instead.

use base::VolumeId;
use catalog::CatalogError;

/// Why a database call failed.
#[derive(Debug, thiserror::Error)]
pub enum DatabaseError {
    /// The caller's lease is over, or the head has moved.
    #[error("the lease on {volume} was lost: {reason}")]
    Fenced {
        /// The volume.
        volume: VolumeId,
        /// What was found.
        reason: String,
    },
    /// No such thing.
    #[error("{what} does not exist")]
    NotFound {
        /// What was asked for.
        what: String,
    },
    /// The name belongs to something else.
    #[error("{what} exists already")]
    Taken {
        /// What has the name.
        what: String,
    },
    /// Who asks may not.
    #[error("{reason}")]
    Forbidden {
        /// Who may.
        reason: String,
    },
    /// The project has no room for it.
    #[error("{reason}")]
    Quota {
        /// What is full, and what to do.
        reason: String,
    },
    /// An idempotency key was used for another request.
    #[error("the idempotency key {key:?} was used for another request; take a new one")]
    OtherRequest {
        /// The key.
        key: String,
    },
    /// The change is refused, and will be until something else changes.
    #[error("{reason}")]
    Refused {
        /// Why, and what to do.
        reason: String,
    },
    /// A field holds what this program never writes there.
    #[error("the database is damaged: {what}; restore scree.db from a backup")]
    Damaged {
        /// Where, and what was found.
        what: String,
    },
    /// The database was made by a newer Scree.
    #[error(
        "the database was made by a newer version of Scree (its schema has step {step}, which \
         this program does not know); start that version, or a later one"
    )]
    Newer {
        /// The first step that is not known.
        step: i64,
    },
    /// SQLite failed.
    #[error("the database failed: {0}")]
    Sql(#[from] sqlx::Error),
}

impl From<DatabaseError> for CatalogError {
    fn from(error: DatabaseError) -> Self {
        match error {
            DatabaseError::Fenced { volume, reason } => Self::Fenced { volume, reason },
            DatabaseError::NotFound { what } => Self::NotFound { what },
            DatabaseError::Refused { reason } => Self::Refused { reason },
            DatabaseError::Taken { .. }
            | DatabaseError::Forbidden { .. }
            | DatabaseError::Quota { .. }
            | DatabaseError::OtherRequest { .. } => Self::Refused {
                reason: error.to_string(),
            },
            DatabaseError::Damaged { .. } | DatabaseError::Newer { .. } | DatabaseError::Sql(_) => {
                Self::Unavailable {
                    reason: error.to_string(),
                }
            }
        }
    }
}
