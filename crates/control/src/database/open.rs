//! Opening the database, and bringing its schema up to date.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sqlx::any::{AnyConnectOptions, AnyPoolOptions, install_default_drivers};
use sqlx::migrate::{MigrateError, Migrator};
use sqlx::postgres::PgListener;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{AnyConnection, AnyPool, ConnectOptions as _, Connection as _, Executor as _};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::{Backend, Database, DatabaseError};
use world::host;

static SQLITE_STEPS: Migrator = sqlx::migrate!("migrations/sqlite");
static POSTGRES_STEPS: Migrator = sqlx::migrate!("migrations/postgres");

/// A reader never waits for the writer, so these are few.
const READERS_MAX: u32 = 4;

/// Connections to PostgreSQL: as many changes at a time.
const CONNECTIONS_MAX: u32 = 16;

/// How long to wait for a connection before saying that there is none.
const CONNECT_WAIT_MAX: Duration = Duration::from_secs(10);

/// What each connection to SQLite is told first. A wrapped key that was deleted
/// is then gone from the file too.
const SQLITE_SETTINGS: &str = "PRAGMA journal_mode = WAL; \
     PRAGMA synchronous = FULL; \
     PRAGMA foreign_keys = ON; \
     PRAGMA busy_timeout = 10000; \
     PRAGMA secure_delete = ON";

/// The channel on which instances tell each other that something changed.
const CHANNEL: &str = "scree_changes";

/// Tells them.
pub(super) const NOTIFY: &str = "NOTIFY scree_changes";

/// Those who wait look again after this long, in case a notice was lost.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

impl Database {
    /// Opens the SQLite database at `path`, or makes it, and checks that it is
    /// whole and not from the future.
    ///
    /// # Errors
    /// [`DatabaseError::Newer`], [`DatabaseError::Damaged`], or what SQLite
    /// says.
    pub async fn open(path: &Path) -> Result<Self, DatabaseError> {
        install_default_drivers();
        // For its owner only; SQLite gives its other files the same mode.
        host::open_private(path).map_err(sqlx::Error::Io)?;
        let options = SqliteConnectOptions::new().filename(path);
        // A pool would try again and again.
        let mut first = AnyConnection::connect(options.to_url_lossy().as_str()).await?;
        first
            .execute(SQLITE_SETTINGS)
            .await
            .map_err(damaged_if_no_database)?;
        let writer = sqlite_pool(&options, 1).await?;
        check(&writer).await.map_err(|error| match error {
            DatabaseError::Sql(error) => damaged_if_no_database(error),
            other => other,
        })?;
        SQLITE_STEPS.run(&writer).await.map_err(migrate_error)?;
        let reader = sqlite_pool(&options.read_only(true), READERS_MAX).await?;
        let database = Self {
            backend: Backend::Sqlite,
            writer,
            reader,
            changes: watch::Sender::new(0),
            _listener: None,
        };
        database.spell_former_key().await?;
        Ok(database)
    }

    /// Connects to the PostgreSQL database at `url`, and makes its tables if
    /// it has none.
    ///
    /// # Errors
    /// [`DatabaseError::Newer`], or what PostgreSQL says.
    pub async fn connect(url: &str) -> Result<Self, DatabaseError> {
        install_default_drivers();
        let options: AnyConnectOptions = url.parse()?;
        let pool = AnyPoolOptions::new()
            .max_connections(CONNECTIONS_MAX)
            .acquire_timeout(CONNECT_WAIT_MAX)
            .connect_with(options)
            .await?;
        POSTGRES_STEPS.run(&pool).await.map_err(migrate_error)?;
        let changes = watch::Sender::new(0);
        let listener = listen(url, changes.clone()).await?;
        let database = Self {
            backend: Backend::Postgres,
            writer: pool.clone(),
            reader: pool,
            changes,
            _listener: Some(Arc::new(Listening(listener))),
        };
        database.spell_former_key().await?;
        Ok(database)
    }
}

async fn sqlite_pool(options: &SqliteConnectOptions, size: u32) -> Result<AnyPool, sqlx::Error> {
    let options: AnyConnectOptions = options.to_url_lossy().as_str().parse()?;
    AnyPoolOptions::new()
        .max_connections(size)
        .acquire_timeout(CONNECT_WAIT_MAX)
        .after_connect(|connection, _| {
            Box::pin(async move {
                connection.execute(SQLITE_SETTINGS).await?;
                Ok(())
            })
        })
        .connect_with(options)
        .await
}

/// The task that listens for other instances. It ends with the last copy of
/// the database's handle.
#[derive(Debug)]
pub(super) struct Listening(JoinHandle<()>);

impl Drop for Listening {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Rings `changes` whenever an instance has changed something.
async fn listen(url: &str, changes: watch::Sender<u64>) -> Result<JoinHandle<()>, DatabaseError> {
    let mut listener = PgListener::connect(url).await?;
    listener.listen(CHANNEL).await?;
    Ok(tokio::spawn(async move {
        let mut ticks = host::ticks(LOOK_AGAIN);
        loop {
            // The listener connects again by itself; until it has, the ticks
            // do its work.
            tokio::select! {
                heard = listener.recv() => if let Err(error) = heard {
                    tracing::warn!(%error, "no notices from the database; it is tried again");
                    ticks.tick().await;
                },
                _ = ticks.tick() => {}
            }
            changes.send_modify(|count| *count += 1);
        }
    }))
}

/// Asks SQLite to look through the file's structure. The catalog is small:
/// about a kilobyte for each version kept.
async fn check(pool: &AnyPool) -> Result<(), DatabaseError> {
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
