//! Several controllers on one PostgreSQL server, and what they do when it is unavailable.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::host::HostUnit;
use api::types::CreateVolume;
use base::{PartyId, UnitId};
use catalog::retention::Retention;
use control::authority::AuthorityFileError;
use control::database::{Database, DatabaseError, Filter, Page};
use control::folder::{FolderError, Leftovers};
use control::{AuthorizedRequest, Control, ControlError, Settings, StartError};
use sqlx::{Connection as _, Executor as _, PgConnection};
use tempfile::TempDir;
use world::{Millis, World, host};

use crate::postgres::Postgres;

/// The longest time until the lock of a folder is released.
const UNLOCKED_WITHIN: Duration = Duration::from_secs(10);

/// The longest time until a request is answered that cannot be carried out.
const ANSWERED_WITHIN: Duration = Duration::from_secs(8);

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

fn settings(folder: &Path, url: Option<&str>) -> Settings {
    Settings {
        folder: folder.to_owned(),
        database: url.map(|url| url.parse().expect("a URL")),
        remains: Arc::new(|| Ok(Leftovers::default())),
        retention: Retention::default(),
        grace: Duration::ZERO,
        lease: Some(Duration::from_secs(10)),
        overcommit: control::control::OVERCOMMIT,
        scatter_width: control::control::SCATTER_WIDTH,
        replace_after: std::time::Duration::ZERO,
        restored_database: false,
        new_authority: false,
    }
}

/// Starts a controller. A process that another test has forked has this one's open files until it
/// executes its program, and so may hold the lock of a folder for some milliseconds more.
async fn start_with(settings: Settings) -> Result<Control, StartError> {
    let deadline = Instant::now() + UNLOCKED_WITHIN;
    loop {
        match Control::start(World::real(1), settings.clone()).await {
            Err(StartError::Folder(FolderError::Locked { .. })) if Instant::now() < deadline => {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            started => return started,
        }
    }
}

async fn start(folder: &Path, url: &str) -> Result<AuthorizedRequest, StartError> {
    let control = start_with(settings(folder, Some(url))).await?;
    control.set_open(true);
    Ok(control.local_request().await.expect("the operator's own"))
}

/// Why a controller does not start.
async fn refused(settings: Settings) -> StartError {
    match start_with(settings).await {
        Ok(_) => panic!("it started"),
        Err(error) => error,
    }
}

fn copy_authority(from: &TempDir, to: &TempDir) {
    for name in ["authority.key", "authority.pem"] {
        fs::copy(from.path().join(name), to.path().join(name)).expect("copied");
    }
}

/// Two controllers on one database, each with its own data directory.
struct Pair {
    controls: [AuthorizedRequest; 2],
    folders: [TempDir; 2],
    url: String,
}

impl Pair {
    async fn new(url: String) -> Self {
        let folders = [folder(), folder()];
        let first = start(folders[0].path(), &url).await.expect("starts");
        copy_authority(&folders[0], &folders[1]);
        let second = start(folders[1].path(), &url).await.expect("starts");
        Self {
            controls: [first, second],
            folders,
            url,
        }
    }

    async fn shut_down(self) -> [TempDir; 2] {
        for control in self.controls {
            control.shut_down().await;
        }
        self.folders
    }
}

fn run<F: Future<Output = ()>>(test: impl FnOnce(Postgres, String) -> F) {
    let server = Postgres::start();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let url = server.database(&runtime);
    runtime.block_on(test(server, url));
}

fn small(name: &str, replicas: u8) -> CreateVolume {
    CreateVolume {
        name: name.to_owned(),
        size: Some(1 << 20),
        replicas: Some(replicas),
        strict_zones: false,
        erasure: None,
        ..CreateVolume::default()
    }
}

fn units(count: u128) -> Vec<HostUnit> {
    let unit = |number| HostUnit {
        id: UnitId::from_u128(number),
        url: format!("file:///srv/u{number}"),
        is_disabled: false,
    };
    (1..=count).map(unit).collect()
}

/// Closes all connections to a database and refuses new ones.
async fn empty(server: &Postgres, database: &str) {
    for statement in [
        format!("ALTER DATABASE {database} ALLOW_CONNECTIONS false"),
        format!(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity \
             WHERE datname = '{database}'"
        ),
    ] {
        server.execute("postgres", &statement).await;
    }
}

#[test]
fn controllers_with_separate_folders_share_one_cluster() {
    run(async |_server, url| {
        let pair = Pair::new(url).await;
        let [first, second] = &pair.controls;
        let (one, other) = (
            first
                .host(first.local_host())
                .begin()
                .await
                .expect("answered"),
            second
                .host(second.local_host())
                .begin()
                .await
                .expect("answered"),
        );
        assert_eq!(one.id, other.id);
        assert_eq!(one.owner, other.owner, "the same place");
        first
            .unit_registry()
            .register_all(&units(1))
            .await
            .expect("registered");
        first
            .volumes()
            .create(small("disk", 1))
            .await
            .expect("made");
        let seen = second
            .volumes()
            .get("disk")
            .await
            .expect("the other sees it");
        assert_eq!(seen.row.size_bytes, 1 << 20);
        let taken = second.volumes().create(small("disk", 1)).await;
        assert!(matches!(taken, Err(ControlError::Exists { .. })));
        // The controllers start again, in any order.
        let url = pair.url.clone();
        let [first, second] = pair.shut_down().await;
        for folder in [&second, &first] {
            let control = start(folder.path(), &url).await.expect("starts");
            let again = control
                .host(control.local_host())
                .begin()
                .await
                .expect("answered");
            assert_eq!(again.owner, one.owner);
        }
    });
}

/// Each would create certificates that the others refuse.
#[test]
fn a_controller_without_the_clusters_authority_does_not_start() {
    run(async |_server, url| {
        let (first, second) = (folder(), folder());
        start(first.path(), &url)
            .await
            .expect("starts")
            .shut_down()
            .await;
        let missing = refused(settings(second.path(), Some(&url))).await;
        let said = missing.to_string();
        assert!(
            matches!(
                missing,
                StartError::Authority(AuthorityFileError::Missing { .. })
            ),
            "{said}"
        );
        for word in [
            second.path().to_str().expect("UTF-8"),
            "authority.key",
            "copy",
            "600",
        ] {
            assert!(said.contains(word), "{said}");
        }
        // The folder has the authority of another cluster.
        let own = start_with(settings(second.path(), None)).await;
        own.expect("starts").shut_down().await;
        fs::remove_file(second.path().join("scree.db")).expect("removed");
        let other = refused(settings(second.path(), Some(&url))).await;
        let said = other.to_string();
        assert!(
            matches!(
                other,
                StartError::Authority(AuthorityFileError::Other { .. })
            ),
            "{said}"
        );
        assert!(said.contains("--new-authority"), "{said}");
        // The operator confirms that the others are lost.
        let accepted = Settings {
            new_authority: true,
            ..settings(second.path(), Some(&url))
        };
        let control = start_with(accepted).await;
        control.expect("starts").shut_down().await;
        let late = refused(settings(first.path(), Some(&url))).await;
        assert!(matches!(
            late,
            StartError::Authority(AuthorityFileError::Other { .. })
        ));
    });
}

/// Without a single database, each would create its own cluster.
#[test]
fn controllers_that_start_together_on_a_new_database_create_one_cluster() {
    run(async |_server, url| {
        let folders: Vec<TempDir> = (0..4).map(|_| folder()).collect();
        let starts = folders.iter().map(|folder| {
            let (path, url) = (folder.path().to_owned(), url.clone());
            tokio::spawn(async move { start(&path, &url).await })
        });
        let starts: Vec<_> = starts.collect();
        let mut controls = Vec::new();
        for start in starts {
            match start.await.expect("no panic") {
                Ok(control) => controls.push(control),
                // The slower one has its own authority, or none.
                Err(StartError::Authority(
                    AuthorityFileError::Other { .. } | AuthorityFileError::Missing { .. },
                )) => {}
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!(controls.len(), 1, "each of them would sign by its own");
    });
}

#[test]
fn concurrent_controllers_create_the_schema_of_an_empty_database_once() {
    run(async |_server, url| {
        let connect = || {
            let url = url.parse().expect("a URL");
            tokio::spawn(async move { Database::connect(&url).await })
        };
        let (one, other) = (connect(), connect());
        for database in [one, other] {
            let database = database.await.expect("no panic").expect("connected");
            let keys = database.keys().all().await.expect("read");
            assert!(keys.is_empty(), "{keys:?}");
            database.close().await;
        }
    });
}

#[test]
fn a_copied_database_is_told_from_the_original() {
    run(async |server, url| {
        let folder = folder();
        let control = start(folder.path(), &url).await.expect("starts");
        let before = control
            .host(control.local_host())
            .begin()
            .await
            .expect("answered");
        control.shut_down().await;
        drop(control);
        empty(&server, "scree0").await;
        server
            .execute("postgres", "CREATE DATABASE copy TEMPLATE scree0")
            .await;
        server
            .execute("postgres", "ALTER DATABASE scree0 ALLOW_CONNECTIONS true")
            .await;
        let copy = server.url("copy");
        let said = refused(settings(folder.path(), Some(&copy))).await;
        assert!(matches!(said, StartError::Moved { .. }), "{said}");
        assert!(said.to_string().contains("--restored-database"), "{said}");
        // The operator confirms that the original is gone, which makes this copy the owner.
        let accepted = Settings {
            restored_database: true,
            ..settings(folder.path(), Some(&copy))
        };
        let control = start_with(accepted).await;
        let control = control.expect("starts");
        let after = control
            .host(control.local_host())
            .begin()
            .await
            .expect("answered");
        assert_ne!(after.owner.database, before.owner.database);
        assert!(after.owner.generation > before.owner.generation);
        control.shut_down().await;
        drop(control);
        // The original does not have that entry.
        start(folder.path(), &url).await.expect("starts");
    });
}

/// A host name may point to a restored dump while a controller runs.
#[test]
fn a_connection_to_another_database_is_refused() {
    run(async |server, url| {
        let folder = folder();
        let control = start(folder.path(), &url).await.expect("starts");
        // The same name, and another database on the server.
        empty(&server, "scree0").await;
        server
            .execute("postgres", "ALTER DATABASE scree0 RENAME TO original")
            .await;
        server
            .execute("postgres", "CREATE DATABASE scree0 TEMPLATE original")
            .await;
        let refused = control
            .volumes()
            .list(&Filter::default(), &Page::default())
            .await;
        assert!(
            matches!(refused, Err(ControlError::Unavailable { .. })),
            "{refused:?}"
        );
        // The original is available again, and the controller continues.
        empty(&server, "scree0").await;
        server
            .execute("postgres", "ALTER DATABASE scree0 RENAME TO copy")
            .await;
        for statement in [
            "ALTER DATABASE original RENAME TO scree0",
            "ALTER DATABASE scree0 ALLOW_CONNECTIONS true",
        ] {
            server.execute("postgres", statement).await;
        }
        control
            .volumes()
            .list(&Filter::default(), &Page::default())
            .await
            .expect("it continues");
    });
}

#[test]
fn a_data_directory_is_refused_with_another_database() {
    run(async |_server, url| {
        let (first, second) = (folder(), folder());
        start(first.path(), &url)
            .await
            .expect("starts")
            .shut_down()
            .await;
        let forgotten = refused(settings(first.path(), None)).await;
        assert!(
            matches!(forgotten, StartError::Folder(FolderError::Elsewhere { .. })),
            "{forgotten}"
        );
        let own = start_with(settings(second.path(), None)).await;
        own.expect("starts").shut_down().await;
        let moved = refused(settings(second.path(), Some(&url))).await;
        assert!(
            matches!(moved, StartError::Folder(FolderError::Own { .. })),
            "{moved}"
        );
    });
}

#[test]
fn copysets_are_planned_once_by_concurrent_controllers() {
    run(async |_server, url| {
        let pair = Pair::new(url).await;
        let mut asked = Vec::new();
        for turn in 0..8 {
            let control = pair.controls[turn % 2].clone();
            asked.push(tokio::spawn(async move {
                control
                    .unit_registry()
                    .register_all(&units(6))
                    .await
                    .expect("registered");
                for replicas in 1..=4 {
                    let volume = small(&format!("disk-{turn}-{replicas}"), replicas);
                    control.volumes().create(volume).await.expect("made");
                }
            }));
        }
        for one in asked {
            one.await.expect("no panic");
        }
        let database = pair.controls[0].database();
        assert_eq!(database.units().all().await.expect("read").len(), 6);
        let copysets = database.units().copysets().await.expect("read");
        let mut members: Vec<_> = copysets.iter().map(|set| set.members.clone()).collect();
        let count = members.len();
        members.sort_unstable();
        members.dedup();
        assert_eq!(members.len(), count, "no set of units is there twice");
        let widths: Vec<usize> = (1..=4)
            .filter(|width| members.iter().any(|set| set.len() == *width))
            .collect();
        assert_eq!(widths, [1, 2, 3, 4]);
    });
}

#[test]
fn requests_are_answered_while_the_database_is_unavailable_and_carried_out_afterwards() {
    run(async |mut server, url| {
        let pair = Pair::new(url).await;
        pair.controls[0]
            .unit_registry()
            .register_all(&units(1))
            .await
            .expect("registered");
        for (turn, control) in pair.controls.iter().enumerate() {
            server.kill();
            let asked = Instant::now();
            let away = control.volumes().create(small("lost", 1)).await;
            assert!(
                matches!(away, Err(ControlError::Unavailable { .. })),
                "{away:?}"
            );
            assert!(asked.elapsed() < ANSWERED_WITHIN, "{:?}", asked.elapsed());
            server.restart();
            let name = format!("disk-{turn}");
            control
                .volumes()
                .create(small(&name, 1))
                .await
                .expect("made");
        }
        let volumes = pair.controls[0]
            .volumes()
            .list(&Filter::default(), &Page::default())
            .await
            .expect("listed");
        assert_eq!(volumes.volumes.len(), 2, "what was refused was not made");
    });
}

#[test]
fn a_hanging_database_blocks_no_caller_forever() {
    run(async |server, url| {
        let pair = Pair::new(url).await;
        let [control, _] = &pair.controls;
        server.freeze(true);
        let asked = Instant::now();
        let away = control
            .volumes()
            .list(&Filter::default(), &Page::default())
            .await;
        assert!(
            matches!(away, Err(ControlError::Unavailable { .. })),
            "{away:?}"
        );
        assert!(asked.elapsed() < ANSWERED_WITHIN, "{:?}", asked.elapsed());
        server.freeze(false);
        control
            .volumes()
            .list(&Filter::default(), &Page::default())
            .await
            .expect("it continues");
    });
}

/// sqlx hands a connection with an open transaction to the next user, whose changes were then never
/// committed, and whose reads were outdated.
#[test]
fn a_caller_that_stops_waiting_leaves_no_open_transaction() {
    run(async |_server, url| {
        let pair = Pair::new(url.clone()).await;
        let [control, _] = &pair.controls;
        control
            .unit_registry()
            .register_all(&units(1))
            .await
            .expect("registered");
        let mut other = PgConnection::connect(&url).await.expect("it is ready");
        let alone = "BEGIN; LOCK TABLE turns IN EXCLUSIVE MODE";
        other.execute(alone).await.expect("no transaction holds it");
        let unknown = PartyId::from_u128(1);
        for _ in 0..4 {
            let waits = control.database().hosts().record_heard(unknown, Millis(1));
            let told = host::timeout(Duration::from_millis(200), waits).await;
            assert!(told.is_none(), "{told:?}");
        }
        let asked = Instant::now();
        let told = control
            .database()
            .hosts()
            .record_heard(unknown, Millis(1))
            .await;
        assert!(matches!(told, Err(DatabaseError::Busy(_))), "{told:?}");
        assert!(asked.elapsed() < ANSWERED_WITHIN, "{:?}", asked.elapsed());
        other.execute("ROLLBACK").await.expect("done");
        for turn in 0..40 {
            let name = format!("disk-{turn}");
            control
                .volumes()
                .create(small(&name, 1))
                .await
                .expect("made");
            control
                .volumes()
                .get(&name)
                .await
                .expect("what was made is seen");
        }
        let begun = "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() \
                     AND state LIKE 'idle in transaction%'";
        let begun: i64 = sqlx::query_scalar(begun)
            .fetch_one(&mut other)
            .await
            .expect("counted");
        assert_eq!(begun, 0);
    });
}

#[test]
fn a_controller_reconnects_after_its_connections_are_cut() {
    run(async |server, url| {
        let pair = Pair::new(url).await;
        let [control, _] = &pair.controls;
        control
            .unit_registry()
            .register_all(&units(1))
            .await
            .expect("registered");
        for turn in 0..5 {
            server
                .execute(
                    "postgres",
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                     WHERE datname = 'scree0'",
                )
                .await;
            let volume = small(&format!("disk-{turn}"), 1);
            control.volumes().create(volume).await.expect("made");
        }
    });
}

#[test]
fn a_read_only_database_is_read_and_reported() {
    run(async |server, url| {
        let pair = Pair::new(url).await;
        let [control, _] = &pair.controls;
        control
            .unit_registry()
            .register_all(&units(1))
            .await
            .expect("registered");
        control
            .volumes()
            .create(small("disk", 1))
            .await
            .expect("made");
        let read_only = |is_read_only: bool| {
            format!(
                "ALTER DATABASE scree0 SET default_transaction_read_only = {is_read_only}; \
                 SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                 WHERE datname = 'scree0'"
            )
        };
        server.execute("postgres", &read_only(true)).await;
        let refused = control.volumes().create(small("more", 1)).await;
        let Err(ControlError::Unavailable { reason }) = refused else {
            panic!("{refused:?}");
        };
        assert!(reason.contains("is read-only"), "{reason}");
        control.volumes().get("disk").await.expect("it can be read");
        let status = control.status().await.expect("so can the rest");
        let mut problems = status.problems.iter();
        assert!(problems.any(|problem| problem.contains("is read-only")));
        let error = refused_start(&pair).await;
        assert!(
            matches!(error, StartError::Database(DatabaseError::ReadOnly(_))),
            "{error}"
        );
        server.execute("postgres", &read_only(false)).await;
        control
            .volumes()
            .create(small("more", 1))
            .await
            .expect("made");
    });
}

/// The error of a third controller that cannot start.
async fn refused_start(pair: &Pair) -> StartError {
    let folder = folder();
    copy_authority(&pair.folders[0], &folder);
    refused(settings(folder.path(), Some(&pair.url))).await
}

#[test]
fn a_controller_without_its_database_does_not_start_and_names_it() {
    run(async |mut server, url| {
        server.kill();
        let folder = folder();
        let asked = Instant::now();
        let error = refused(settings(folder.path(), Some(&url))).await;
        assert!(
            matches!(error, StartError::Database(DatabaseError::Away(_))),
            "{error}"
        );
        assert!(asked.elapsed() < ANSWERED_WITHIN);
    });
}

/// A user may not have the right to read the system identifier.
#[test]
fn a_database_user_without_the_right_to_read_the_identity_is_told_the_grant() {
    run(async |server, url| {
        let folder = folder();
        for statements in [
            "CREATE ROLE plain LOGIN; ALTER DATABASE scree0 OWNER TO plain",
            "REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC",
        ] {
            let database = if statements.starts_with("CREATE") {
                "postgres"
            } else {
                "scree0"
            };
            server.execute(database, statements).await;
        }
        let url = url.replace("scree@", "plain@");
        let error = refused(settings(folder.path(), Some(&url))).await;
        assert!(error.to_string().contains("GRANT EXECUTE"), "{error}");
        server
            .execute(
                "scree0",
                "GRANT EXECUTE ON FUNCTION pg_control_system() TO plain",
            )
            .await;
        start(folder.path(), &url).await.expect("starts");
    });
}
