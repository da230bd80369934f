//! Lease counts on units: a database that is older than the data is not written with.

use std::fs;
use std::path::Path;

use control::ControlError;

use super::end;
use super::rig::{Rig, Scree};

fn wal_is_empty(database: &Path) -> bool {
    match fs::metadata(database.with_extension("db-wal")) {
        Ok(wal) => wal.len() == 0,
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    }
}

/// Regression: after the operator restored yesterday's database, as documented, the next lease
/// reused epochs and segment serials.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_is_older_than_the_units_is_not_written_with() {
    let rig = Rig::new();
    let export = async |control: &Scree| control.export("disk").await;
    let control = rig.start().await;
    control.create("disk").await;
    let database = control.control.folder().database();
    let kept = rig.folder.path().join("yesterday.db");
    end(control).await;
    assert!(wal_is_empty(&database), "all of it is in one file");
    fs::copy(&database, &kept).expect("copied");

    let control = rig.start().await;
    export(&control).await.expect("a lease");
    let epoch = control
        .control
        .volumes()
        .get("disk")
        .await
        .expect("there")
        .row
        .epoch;
    end(control).await;
    fs::copy(&kept, &database).expect("copied");
    assert!(wal_is_empty(&database), "no other file has part of it");

    // One unit with the count is enough.
    let away = rig.folder.path().join("away");
    fs::rename(rig.unit(2), &away).expect("renamed");
    let control = rig.start().await;
    let refused = export(&control).await.expect_err("refused").to_string();
    // For every process and database.
    for word in ["`scree up`, or one controller", "`--restored-database`"] {
        assert!(refused.contains(word), "{refused}");
    }
    assert!(!refused.contains("scree.db"), "{refused}");
    let status = control.control.status().await.expect("answers");
    assert!(
        status
            .problems
            .iter()
            .any(|why| why.contains("older than the data")),
        "{:?}",
        status.problems
    );
    end(control).await;

    let mut settings = rig.settings();
    settings.restored_database = true;
    let control = rig.try_start(settings).await.expect("starts");
    export(&control).await.expect("a lease");
    let row = control
        .control
        .volumes()
        .get("disk")
        .await
        .expect("there")
        .row;
    assert!(row.epoch > epoch + 60_000, "{} after {epoch}", row.epoch);
    end(control).await;

    fs::rename(&away, rig.unit(2)).expect("renamed");
    let mut settings = rig.settings();
    settings.restored_database = true;
    let control = rig.try_start(settings).await.expect("starts");
    let again = control
        .control
        .volumes()
        .get("disk")
        .await
        .expect("there")
        .row;
    assert!(again.epoch <= row.epoch + 1, "it is moved ahead once");
    end(control).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_needs_one_unit_that_notes_it() {
    let rig = Rig::new();
    let control = rig.start().await;
    control.create("disk").await;
    let (units, away) = (rig.path().join("units"), rig.folder.path().join("away"));
    fs::rename(&units, &away).expect("renamed");
    let refused = control.export("disk").await;
    assert!(
        matches!(refused, Err(ControlError::Unavailable { .. })),
        "{refused:?}"
    );
    fs::create_dir(&units).expect("made");
    fs::rename(away.join("u2"), rig.unit(2)).expect("renamed");
    control.export("disk").await.expect("one unit is enough");
    assert!(rig.unit(2).join("leases").exists());
    assert!(
        !rig.unit(1).exists(),
        "nothing is written without the marker"
    );
    end(control).await;
}
