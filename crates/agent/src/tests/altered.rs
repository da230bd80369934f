//! Databases that someone has altered.

use std::path::Path;

use sqlx::SqlitePool;

use super::rig::{Rig, Scree};
use super::{end, writes};
use control::ControlError;
use control::database::{Filter, Page, Tags};

pub async fn open(database: &Path) -> SqlitePool {
    let pool = SqlitePool::connect(database.to_str().expect("UTF-8")).await;
    pool.expect("opens")
}

/// Writes a row that violates the checks of the database.
pub async fn alter(pool: &SqlitePool, statement: &str) {
    let mut one = pool.acquire().await.expect("a connection");
    for statement in ["PRAGMA ignore_check_constraints = 1", statement] {
        let altered = sqlx::query(statement).execute(&mut *one).await;
        altered.expect("altered");
    }
}

/// The listed reason for the error of volume "disk".
async fn shown_reason(control: &Scree) -> String {
    let list = control
        .control
        .volumes()
        .list(&Filter::default(), &Page::default())
        .await
        .expect("listed");
    assert!(list.volumes.iter().all(|view| view.row.name != "disk"));
    let [disk] = &list.damaged[..] else {
        panic!("{list:?}");
    };
    assert_eq!(disk.name, "disk");
    disk.reason.clone()
}

/// Regression: the reason was that the keys do not open, or that the volume was never attached.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_whose_lease_salt_is_lost_reports_that() {
    let rig = Rig::new();
    let control = rig.start().await;
    control.create("disk").await;
    writes(&control, 0, 7).await;
    let pool = open(&control.control.folder().database()).await;
    let forgotten = sqlx::query("DELETE FROM lease_salts").execute(&pool).await;
    forgotten.expect("deleted");
    let why = control.export("disk").await;
    let why = why.expect_err("no key").to_string();
    assert!(why.contains("lost the salt of the lease"), "{why}");
    pool.close().await;
    end(control).await;
}

/// Regression: an altered size reached the engine, with wrong results or a failed assertion.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn impossible_sizes_and_copy_counts_are_errors() {
    let rig = Rig::new();
    let control = rig.start().await;
    control.create("disk").await;
    let taken = control
        .control
        .snapshots()
        .create("disk", Some("held"), Tags::new())
        .await;
    taken.expect("taken");
    let pool = open(&control.control.folder().database()).await;
    let is_damaged = |error: &ControlError| {
        let said = error.to_string();
        matches!(error, ControlError::Internal { .. }) && said.contains("the database is damaged")
    };
    let bad = [0, 1, 4097, (64 << 40) + 4096, i64::MAX, i64::MIN, -4096];
    let sizes = bad.map(|bytes| ("size_bytes", bytes, 8 << 20));
    for (column, altered, was) in sizes
        .into_iter()
        .chain([("replicas", 0, 2), ("replicas", 5, 2)])
    {
        alter(&pool, &format!("UPDATE volumes SET {column} = {altered}")).await;
        let shown = control.control.volumes().get("disk").await;
        let served = control.export("disk").await;
        for error in [shown.expect_err("damaged"), served.expect_err("damaged")] {
            assert!(is_damaged(&error), "{column} {altered}: {error}");
        }
        let reason = shown_reason(&control).await;
        assert!(reason.contains("the database is damaged"), "{reason}");
        alter(&pool, &format!("UPDATE volumes SET {column} = {was}")).await;
    }
    alter(&pool, "UPDATE snapshots SET size_bytes = 1").await;
    control.control.status().await.expect("reported");
    let error = control
        .control
        .snapshots()
        .list(&Filter::default(), &Page::default())
        .await
        .expect_err("damaged");
    assert!(is_damaged(&error), "{error}");
    let served = control.export("disk").await;
    served.expect("served");
    pool.close().await;
    end(control).await;
}

/// Regression: one size was altered, and `scree up` did not start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_altered_volume_delays_no_other() {
    let rig = Rig::new();
    let control = rig.start().await;
    let disk = control.create("disk").await;
    control.create("other").await;
    for block in 0..3 {
        writes(&control, block, 7).await;
    }
    for name in ["disk", "other"] {
        let served = control.export(name).await;
        served.expect("served");
    }
    let database = control.control.folder().database();
    end(control).await;
    for size in [1, 0] {
        let pool = open(&database).await;
        alter(
            &pool,
            &format!("UPDATE volumes SET size_bytes = {size} WHERE name = 'disk'"),
        )
        .await;
        pool.close().await;

        let control = rig.start().await;
        let other = control.control.volumes().get("other").await.expect("there");
        assert!(other.served().is_some());
        let reason = shown_reason(&control).await;
        assert!(reason.contains("the database is damaged"), "{reason}");
        let status = control.control.status().await.expect("answers");
        assert_eq!((status.volumes, status.exported), (2, 1));
        let problem = status
            .problems
            .iter()
            .find(|why| why.contains("\"disk\" is in error"));
        assert!(
            problem.is_some_and(|why| why.contains(&reason)),
            "{status:?}"
        );

        // Its versions wait until the row is repaired.
        let kept = control
            .control
            .database()
            .catalog()
            .versions_of(disk.row.id)
            .await;
        let kept = kept.expect("read").len();
        assert!(kept > 1, "{kept}");
        let removed = control
            .agent
            .parts
            .maintenance
            .cleaning
            .remove_unneeded()
            .await;
        removed.expect("the versions of other volumes");
        let left = control
            .control
            .database()
            .catalog()
            .versions_of(disk.row.id)
            .await;
        assert_eq!(left.expect("read").len(), kept);
        end(control).await;
    }
    let pool = open(&database).await;
    alter(
        &pool,
        "UPDATE volumes SET size_bytes = 8 << 20 WHERE name = 'disk'",
    )
    .await;
    pool.close().await;
    let control = rig.start().await;
    let disk = control.control.volumes().get("disk").await.expect("there");
    assert!(disk.served().is_some());
    end(control).await;
}
