//! Opening the database, and bringing its schema up to date.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use sqlx::any::{AnyConnectOptions, AnyPoolOptions, install_default_drivers};
use sqlx::migrate::{MigrateError, Migrator};
use sqlx::postgres::PgListener;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{AnyConnection, AnyPool, ConnectOptions as _, Connection as _, Executor as _};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::cluster::owner::server_place;
use super::schema::{self, Schema};
use super::{Backend, Database, DatabaseError, PostgresUrl, ServerPlace};
use world::host;

/// The number of connections for reading. A reader never waits for the writer, so few are enough.
const READERS_MAX: u32 = 4;

/// The number of connections to PostgreSQL, which is the number of concurrent changes.
const CONNECTIONS_MAX: u32 = 16;

/// How long a change on SQLite waits for those before it.
const WRITER_WAIT_MAX: Duration = Duration::from_secs(10);

/// How long to wait for a connection to PostgreSQL. Callers get the error before a host's leases
/// end.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// The settings of each connection to PostgreSQL. No transaction takes nearly as long as the
/// timeouts; the server soon gives up what a controller had begun whose machine failed.
///
/// A controller that hangs in the middle of a transaction holds up the others no longer than a host
/// takes to renew a lease.
const POSTGRES_SETTINGS: &str = "SET statement_timeout = '30s'; \
     SET idle_in_transaction_session_timeout = '4s'; \
     SET lock_timeout = '6s'; \
     SET tcp_keepalives_idle = 5; \
     SET tcp_keepalives_interval = 5; \
     SET tcp_keepalives_count = 3; \
     SET tcp_user_timeout = '15s'";

/// The settings of each connection to SQLite. With them, a deleted wrapped key is erased from the
/// file, too.
const SQLITE_SETTINGS: &str = "PRAGMA journal_mode = WAL; \
     PRAGMA synchronous = FULL; \
     PRAGMA foreign_keys = ON; \
     PRAGMA busy_timeout = 10000; \
     PRAGMA secure_delete = ON";

/// The channel on which controllers notify each other of changes.
const CHANNEL: &str = "scree_changes";

/// The statement that notifies the other controllers.
pub(super) const NOTIFY: &str = "NOTIFY scree_changes";

/// Waiting requests look again after this time, in case a notification was lost.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

impl Database {
    /// Opens the SQLite database at `path`, or creates it, and checks that it is intact and its
    /// schema is not newer than this program.
    ///
    /// # Errors
    /// [`DatabaseError::Newer`], [`DatabaseError::Damaged`], or an error of SQLite.
    pub async fn open(path: &Path) -> Result<Self, DatabaseError> {
        install_default_drivers();
        // Only the owner may read it. SQLite gives its other files the same mode.
        host::open_private(path).map_err(|error| {
            let kind = error.kind();
            let error = sqlx::Error::Io(error);
            match kind {
                ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
                    DatabaseError::ReadOnly(error)
                }
                ErrorKind::StorageFull => DatabaseError::Full(error),
                _ => DatabaseError::Sql(error),
            }
        })?;
        let options = SqliteConnectOptions::new().filename(path);
        // A pool would retry again and again.
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
        upgrade(schema::SQLITE, &writer).await?;
        let reader = sqlite_pool(&options.read_only(true), READERS_MAX).await?;
        Ok(Self {
            backend: Backend::Sqlite,
            writer,
            reader,
            changes: watch::Sender::new(0),
            place: Arc::default(),
            _listener: None,
        })
    }

    /// Connects to the PostgreSQL database at `url`, and creates its schema if it is empty.
    /// Controllers that do so at the same time do it one after the other.
    ///
    /// # Errors
    /// [`DatabaseError::Away`] if no server answers,
    /// [`DatabaseError::Newer`], or an error of PostgreSQL.
    pub async fn connect(url: &PostgresUrl) -> Result<Self, DatabaseError> {
        install_default_drivers();
        let options: AnyConnectOptions = url.reveal().parse()?;
        // A pool would retry without reporting why.
        let first = host::timeout(CONNECT_WITHIN, AnyConnection::connect_with(&options)).await;
        let first = first.ok_or_else(|| sqlx::Error::from(timed_out()))??;
        first.close().await?;
        // On a connection without a statement timeout.
        let patient = AnyPoolOptions::new().max_connections(1);
        let patient = patient.connect_with(options.clone()).await?;
        upgrade(schema::POSTGRES, &patient).await?;
        patient.close().await;
        let place = Arc::new(OnceLock::new());
        let expected = Arc::clone(&place);
        let pool = AnyPoolOptions::new()
            .max_connections(CONNECTIONS_MAX)
            .acquire_timeout(CONNECT_WITHIN)
            .after_connect(move |connection, _| {
                let expected = Arc::clone(&expected);
                Box::pin(async move {
                    connection.execute(POSTGRES_SETTINGS).await?;
                    check_place(connection, expected.get()).await
                })
            })
            .connect_with(options)
            .await?;
        let changes = watch::Sender::new(0);
        let listener = listen(url, changes.clone()).await?;
        Ok(Self {
            backend: Backend::Postgres,
            writer: pool.clone(),
            reader: pool,
            changes,
            place,
            _listener: Some(Arc::new(Listening(listener))),
        })
    }
}

fn timed_out() -> std::io::Error {
    ErrorKind::TimedOut.into()
}

/// Refuses a connection to another database than before: the name may lead to a copy by now.
async fn check_place(
    connection: &mut AnyConnection,
    expected: Option<&ServerPlace>,
) -> Result<(), sqlx::Error> {
    let Some(expected) = expected else {
        return Ok(());
    };
    let found = server_place(connection).await;
    let found = found.map_err(|error| sqlx::Error::Configuration(error.into()))?;
    if found == *expected {
        return Ok(());
    }
    tracing::error!(
        %found, %expected,
        "controller refused database: the address leads to another database than before"
    );
    let why = "another database than before";
    Err(sqlx::Error::Configuration(why.into()))
}

async fn sqlite_pool(options: &SqliteConnectOptions, size: u32) -> Result<AnyPool, sqlx::Error> {
    let options: AnyConnectOptions = options.to_url_lossy().as_str().parse()?;
    AnyPoolOptions::new()
        .max_connections(size)
        .acquire_timeout(WRITER_WAIT_MAX)
        .after_connect(|connection, _| {
            Box::pin(async move {
                connection.execute(SQLITE_SETTINGS).await?;
                Ok(())
            })
        })
        .connect_with(options)
        .await
}

/// The task that listens for changes of other controllers. It ends with the last handle of the
/// database.
#[derive(Debug)]
pub(super) struct Listening(JoinHandle<()>);

impl Drop for Listening {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Notifies `changes` of every change by any controller.
async fn listen(
    url: &PostgresUrl,
    changes: watch::Sender<u64>,
) -> Result<JoinHandle<()>, DatabaseError> {
    let mut listener = PgListener::connect(url.reveal()).await?;
    listener.listen(CHANNEL).await?;
    Ok(tokio::spawn(async move {
        let ring = || changes.send_modify(|count| *count += 1);
        // The listener reconnects by itself. Until then, the timer replaces it.
        let listening = async {
            let mut is_deaf = false;
            loop {
                match listener.recv().await {
                    Ok(_) => is_deaf = false,
                    Err(error) => {
                        if !is_deaf {
                            tracing::warn!(%error, "controller gets no notices and will retry");
                        }
                        is_deaf = true;
                        host::sleep(LOOK_AGAIN).await;
                    }
                }
                ring();
            }
        };
        let ticking = async {
            let mut ticks = host::ticks(LOOK_AGAIN);
            loop {
                ticks.tick().await;
                ring();
            }
        };
        tokio::join!(listening, ticking);
    }))
}

/// Has SQLite check the file's structure. The catalog is small: about a kilobyte for each kept
/// version.
async fn check(pool: &AnyPool) -> Result<(), DatabaseError> {
    let found: Vec<String> = sqlx::query_scalar("PRAGMA quick_check(100)")
        .fetch_all(pool)
        .await?;
    // A volume's row is checked when it is read, so that a damaged one keeps no other volume from
    // being served.
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
        _ => error.into(),
    }
}

/// Runs the steps of a schema that the database does not have yet.
async fn upgrade(schema: Schema, pool: &AnyPool) -> Result<(), DatabaseError> {
    let migrator = Migrator::new(schema).await.map_err(migrate_error)?;
    migrator.run(pool).await.map_err(migrate_error)
}

fn migrate_error(error: MigrateError) -> DatabaseError {
    match error {
        MigrateError::VersionMissing(step) => DatabaseError::Newer { step },
        MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => error.into(),
        other => DatabaseError::Damaged {
            what: other.to_string(),
        },
    }
}
