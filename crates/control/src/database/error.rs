//! Errors of the database.

use std::fmt;

use base::VolumeId;
use catalog::CatalogError;

/// The kinds of objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectKind {
    /// A volume.
    Volume,
    /// A snapshot.
    Snapshot,
    /// An attachment.
    Attachment,
    /// A chain of filters.
    Chain,
    /// A version of a volume.
    Version,
    /// The data key of a lineage.
    LineageKey,
    /// A key that wraps data keys.
    WrappingKey,
    /// A project.
    Project,
    /// A granted right.
    Grant,
    /// A user.
    User,
    /// A host.
    Host,
    /// A controller.
    Controller,
    /// A unit daemon.
    Unit,
    /// A job of a host.
    Job,
    /// A free plan.
    Plan,
    /// An audit of a volume.
    Audit,
}

impl fmt::Display for ObjectKind {
    /// The noun before the object's name.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Volume => "volume",
            Self::Snapshot => "snapshot",
            Self::Attachment => "attachment",
            Self::Chain => "chain",
            Self::Version => "version",
            Self::LineageKey => "the key of",
            Self::WrappingKey => "wrapping key",
            Self::Project => "project",
            Self::Grant => "grant",
            Self::User => "user",
            Self::Host => "host",
            Self::Controller => "controller",
            Self::Unit => "unit daemon",
            Self::Job => "job",
            Self::Audit => "audit",
            Self::Plan => "plan",
        })
    }
}

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
    /// The last flushed writes are in a journal that the caller does not reach.
    #[error("the journal of {volume} is out of reach: {reason}")]
    JournalUnavailable {
        /// The volume.
        volume: VolumeId,
        /// The journal's location, and what to do.
        reason: String,
    },
    /// The object does not exist, or the principal may not see it.
    #[error("{thing} {name} does not exist")]
    NotFound {
        /// The kind of object.
        thing: ObjectKind,
        /// The name or id in the request.
        name: String,
    },
    /// The name is taken.
    #[error("{what} already exists; {remedy}")]
    Taken {
        /// The kind of object and the name.
        what: String,
        /// What to do.
        remedy: &'static str,
    },
    /// The principal does not have the right.
    #[error("{reason}")]
    Forbidden {
        /// Who has the right, or what to do.
        reason: String,
    },
    /// A limit of a project, a user or a volume is reached.
    #[error("{reason}")]
    Quota {
        /// Which limit was reached, and what to do.
        reason: String,
    },
    /// An idempotency key was used for another request.
    #[error("the idempotency key {key:?} was used for another request; use a new one")]
    OtherRequest {
        /// The idempotency key.
        key: String,
    },
    /// The change is refused, and will be until something else changes.
    #[error("{reason}")]
    Refused {
        /// Why, and what to do.
        reason: String,
    },
    /// The operation was carried out on members that have been replaced since.
    #[error("the members of the copyset have changed: {reason}")]
    MembersChanged {
        /// The place, and what was found.
        reason: String,
    },
    /// A column has a value that this program never writes.
    #[error("the database is damaged: {what}; restore scree.db from a backup")]
    Damaged {
        /// The place, and what was found.
        what: String,
    },
    /// The database was made by a newer Scree.
    #[error(
        "the database was created by a newer version of Scree (its schema has step {step}, which \
         this program does not know); start that version, or a later one"
    )]
    Newer {
        /// The first schema version that is unknown.
        step: i64,
    },
    /// The database does not answer.
    #[error("the database does not answer: {0}")]
    Away(sqlx::Error),
    /// Other transactions held a needed lock for too long. Nothing was changed.
    #[error(
        "the database is busy: other transactions take too long ({0}). Nothing was changed; try \
         again. If this persists, check which session holds PostgreSQL's locks (pg_locks)"
    )]
    Busy(sqlx::Error),
    /// The database is read-only.
    #[error(
        "the database is read-only: {0}; make it writable again (see its file's mode and file \
         system; PostgreSQL's default_transaction_read_only, and whether it is a standby)"
    )]
    ReadOnly(sqlx::Error),
    /// The disk of the database is full. Nothing was changed.
    #[error(
        "the database is full: {0}. Nothing was changed; free space in its file system (that of \
         scree.db, or PostgreSQL's), and try again"
    )]
    Full(sqlx::Error),
    /// SQLite or PostgreSQL failed.
    #[error("the database failed: {0}")]
    Sql(sqlx::Error),
}

impl DatabaseError {
    /// The error for an object that does not exist.
    pub(super) fn not_found(thing: ObjectKind, name: impl fmt::Display) -> Self {
        Self::NotFound {
            thing,
            name: name.to_string(),
        }
    }
}

impl From<sqlx::Error> for DatabaseError {
    fn from(error: sqlx::Error) -> Self {
        let code = error.as_database_error().and_then(|error| error.code());
        match code.as_deref() {
            Some(code) if is_read_only(code) => Self::ReadOnly(error),
            Some(code) if is_ending(code) => Self::Away(error),
            Some(SQLITE_FULL | POSTGRESQL_DISK_FULL) => Self::Full(error),
            Some(LOCK_NOT_AVAILABLE) => Self::Busy(error),
            Some(_) => Self::Sql(error),
            None => match &error {
                sqlx::Error::Io(_)
                | sqlx::Error::Tls(_)
                | sqlx::Error::PoolTimedOut
                | sqlx::Error::PoolClosed
                | sqlx::Error::WorkerCrashed => Self::Away(error),
                _ => Self::Sql(error),
            },
        }
    }
}

/// PostgreSQL's code after `lock_timeout`.
const LOCK_NOT_AVAILABLE: &str = "55P03";

/// SQLite's code for a full disk.
const SQLITE_FULL: &str = "13";
const POSTGRESQL_DISK_FULL: &str = "53100";

/// PostgreSQL's codes have five characters. `read_only_sql_transaction`; for
/// SQLite, `SQLITE_READONLY` in the low byte.
fn is_read_only(code: &str) -> bool {
    match code.len() {
        5 => code == "25006",
        _ => code.parse::<u32>().is_ok_and(|code| code & 0xff == 8),
    }
}

/// PostgreSQL's codes of a failed connection, and of a server that stops, starts, or has no free
/// connection.
fn is_ending(code: &str) -> bool {
    const CODES: [&str; 4] = ["57P01", "57P02", "57P03", "53300"];
    code.len() == 5 && (code.starts_with("08") || CODES.contains(&code))
}

impl From<DatabaseError> for CatalogError {
    fn from(error: DatabaseError) -> Self {
        match error {
            DatabaseError::Fenced { volume, reason } => Self::Fenced { volume, reason },
            DatabaseError::JournalUnavailable { volume, reason } => {
                Self::JournalUnavailable { volume, reason }
            }
            DatabaseError::NotFound { thing, name } => Self::NotFound {
                what: format!("{thing} {name}"),
            },
            DatabaseError::Refused { reason } => Self::Refused { reason },
            DatabaseError::MembersChanged { reason } => Self::MembersChanged { reason },
            DatabaseError::Taken { .. }
            | DatabaseError::Forbidden { .. }
            | DatabaseError::Quota { .. }
            | DatabaseError::OtherRequest { .. } => Self::Refused {
                reason: error.to_string(),
            },
            DatabaseError::Damaged { .. }
            | DatabaseError::Newer { .. }
            | DatabaseError::Away(_)
            | DatabaseError::Busy(_)
            | DatabaseError::ReadOnly(_)
            | DatabaseError::Full(_)
            | DatabaseError::Sql(_) => Self::Unavailable {
                reason: error.to_string(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use sqlx::{AnyConnection, Connection, Executor};

    use super::*;

    #[tokio::test]
    async fn a_full_database_names_where_to_free_space() {
        sqlx::any::install_default_drivers();
        let mut connection = AnyConnection::connect("sqlite::memory:")
            .await
            .expect("one");
        let mut execute = async |statement| connection.execute(statement).await;
        execute("PRAGMA max_page_count = 2").await.expect("set");
        execute("CREATE TABLE rows (bytes BLOB)")
            .await
            .expect("made");
        let error = execute("INSERT INTO rows VALUES (zeroblob(65536))").await;
        let error = DatabaseError::from(error.map(|_| ()).expect_err("there is no room"));
        assert!(matches!(error, DatabaseError::Full(_)), "{error:?}");
        assert!(
            error.to_string().contains("the database is full"),
            "{error}"
        );
    }
}
