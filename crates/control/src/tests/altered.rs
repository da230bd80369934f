//! A database that somebody has altered.

use sqlx::SqlitePool;

use super::end;
use super::rig::{Rig, small};
use crate::database::Access;
use crate::error::ControlError;

/// It said that the keys do not open, or that it was never attached.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_from_before_leases_had_keys_says_so() {
    let rig = Rig::new();
    let control = rig.start().await;
    control.create_volume(small("disk")).await.expect("made");
    super::thin::write(&control, 0).await;
    let path = control.folder().database();
    let pool = SqlitePool::connect(path.to_str().expect("UTF-8")).await;
    let pool = pool.expect("opens");
    let forgotten = sqlx::query("DELETE FROM lease_salts").execute(&pool).await;
    forgotten.expect("as it was before they were kept");
    let why = control.export_volume("disk", Access::ReadWrite).await;
    let why = why.expect_err("no key").to_string();
    assert!(why.contains("written by an earlier Scree"), "{why}");
    pool.close().await;
    end(control).await;
}

/// The size went into the engine as it was: nonsense, or the end of the process
/// at the first assertion that did not hold.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sizes_and_copies_that_no_volume_has_are_an_error() {
    let rig = Rig::new();
    let control = rig.start().await;
    control.create_volume(small("disk")).await.expect("made");
    let taken = control.create_snapshot("disk", Some("held")).await;
    taken.expect("taken");
    let path = control.folder().database();
    let pool = SqlitePool::connect(path.to_str().expect("UTF-8")).await;
    let pool = pool.expect("opens");
    let alter = async |statement: String| {
        let mut one = pool.acquire().await.expect("a connection");
        for statement in ["PRAGMA ignore_check_constraints = 1", &statement] {
            let altered = sqlx::query(statement).execute(&mut *one).await;
            altered.expect("altered");
        }
    };
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
        alter(format!("UPDATE volumes SET {column} = {altered}")).await;
        let shown = control.volume("disk").await.map(|_| ());
        let listed = control.volumes().await.map(|_| ());
        let served = control.export_volume("disk", Access::ReadWrite).await;
        for result in [shown, listed, served.map(|_| ())] {
            let error = result.expect_err("damaged");
            assert!(is_damaged(&error), "{column} {altered}: {error}");
        }
        alter(format!("UPDATE volumes SET {column} = {was}")).await;
    }
    alter("UPDATE snapshots SET size_bytes = 1".to_owned()).await;
    let error = control.snapshots().await.expect_err("damaged");
    assert!(is_damaged(&error), "{error}");
    let served = control.export_volume("disk", Access::ReadWrite).await;
    served.expect("as it was");
    pool.close().await;
    end(control).await;
}
