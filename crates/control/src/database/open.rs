//! Opening the database file, and bringing its schema up to date.

use std::path::Path;
use std::time::Duration;

use sqlx::migrate::{MigrateError, Migrator};
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};
use tokio::sync::watch;

use super::{Database, DatabaseError};
use crate::host;

static MIGRATOR: Migrator = sqlx::migrate!();

/// A reader never waits for the writer, so these are few.
const READERS_MAX: u32 = 4;

impl Database {
    /// Opens the database at `path`, or makes it, and checks that it is whole
    /// and not from the future.
    ///
    /// # Errors
    /// [`DatabaseError::Newer`], [`DatabaseError::Damaged`], or what SQLite
    /// says.
    pub async fn open(path: &Path) -> Result<Self, DatabaseError> {
        // For its owner only; SQLite gives its other files the same mode.
        host::open_private(path).map_err(sqlx::Error::Io)?;
        let options = SqliteConnectOptions::new()
            .filename(path)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .foreign_keys(true)
            // A wrapped key that was deleted is gone from the file too.
            .pragma("secure_delete", "ON")
            .busy_timeout(Duration::from_secs(10));
        let writer = SqlitePoolOptions::new()
            .max_connections(1)
            .connect_with(options.clone())
            .await
            .map_err(damaged_if_no_database)?;
        check(&writer).await.map_err(|error| match error {
            DatabaseError::Sql(error) => damaged_if_no_database(error),
            other => other,
        })?;
        MIGRATOR.run(&writer).await.map_err(migrate_error)?;
        let reader = SqlitePoolOptions::new()
            .max_connections(READERS_MAX)
            .connect_with(options.read_only(true))
            .await?;
        Ok(Self {
            writer,
            reader,
            changes: watch::Sender::new(0),
        })
    }
}

/// Asks SQLite to look through the file's structure. The catalog is small:
/// about a kilobyte for each version kept.
async fn check(pool: &SqlitePool) -> Result<(), DatabaseError> {
    let found: Vec<String> = sqlx::query_scalar("PRAGMA quick_check(100)")
        .fetch_all(pool)
        .await?;
    // What a volume's row says is looked at when it is read: then one that is
    // wrong keeps no other volume from being served.
    let is_well = |found: &str| found == "ok" || found == "CHECK constraint failed in volumes";
    match found.into_iter().find(|found| !is_well(found)) {
        None => Ok(()),
        Some(what) => Err(DatabaseError::Damaged { what }),
    }
}

/// SQLITE_CORRUPT is 11 and SQLITE_NOTADB 26, in the low byte.
fn damaged_if_no_database(error: sqlx::Error) -> DatabaseError {
    let code = error
        .as_database_error()
        .and_then(|error| error.code())
        .and_then(|code| code.parse::<u32>().ok());
    match code.map(|code| code & 0xff) {
        Some(11 | 26) => DatabaseError::Damaged {
            what: error.to_string(),
        },
        _ => DatabaseError::Sql(error),
    }
}

fn migrate_error(error: MigrateError) -> DatabaseError {
    match error {
        MigrateError::VersionMissing(step) => DatabaseError::Newer { step },
        MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => {
            DatabaseError::Sql(error)
        }
        other => DatabaseError::Damaged {
            what: other.to_string(),
        },
    }
}
