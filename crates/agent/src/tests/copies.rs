//! Two copies of a folder are served.

use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use base::DatabaseId;

use super::rig::{Rig, RigSettings, Scree};
use super::{end, finish};
use control::database::{Database, OwnerRow};
use control::ownership::place_of;

/// Copies like `cp -a`, except sockets and units: only the units of the original are used.
fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).expect("made");
    for part in ["", "keys", "journal"] {
        fs::create_dir_all(to.join(part)).expect("made");
        for entry in fs::read_dir(from.join(part)).expect("there") {
            let entry = entry.expect("read");
            if entry.file_type().expect("known").is_file() {
                let copy = to.join(part).join(entry.file_name());
                match fs::copy(entry.path(), copy) {
                    // SQLite removes its log a moment after it has closed.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    other => drop(other.expect("copied")),
                }
            }
        }
    }
}

fn copied(rig: &Rig) -> (PathBuf, RigSettings) {
    let folder = rig.folder.path().join("d2");
    copy(&rig.path(), &folder);
    let settings = RigSettings {
        folder: folder.clone(),
        ..rig.settings()
    };
    (folder, settings)
}

pub async fn refused(rig: &Rig, settings: RigSettings) -> String {
    match rig.try_start(settings).await {
        Ok(_) => panic!("it started"),
        Err(error) => error,
    }
}

async fn export(control: &Scree) {
    let exported = control.export("disk").await;
    exported.expect("served");
}

/// Regression: both copies used the same units, and each destroyed segments of the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_of_a_served_folder_is_refused() {
    let rig = Rig::new();
    let control = rig.start().await;
    control.create("disk").await;
    let (folder, settings) = copied(&rig);
    let why = refused(&rig, settings).await;
    let original = rig.path().display().to_string();
    for word in ["is a copy", &original, "--restored-database"] {
        assert!(why.contains(word), "{why}");
    }

    // A copy with a folder identity of its own is recognized by the units.
    let database = Database::open(&folder.join("scree.db"))
        .await
        .expect("a copy");
    let other = OwnerRow {
        id: DatabaseId::from_u128(2),
        generation: 1,
        place: place_of(&folder).expect("there"),
    };
    let before = database.cluster().owner().await.expect("read");
    let is_set = database.cluster().set_owner(before.as_ref(), &other).await;
    assert!(is_set.expect("noted"));
    database.close().await;
    let settings = RigSettings {
        folder,
        ..rig.settings()
    };
    let why = refused(&rig, settings).await;
    for word in ["no unit can be used", &original, "--restored-database"] {
        assert!(why.contains(word), "{why}");
    }

    export(&control).await;
    end(control).await;
    end(rig.start().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restored_folder_takes_over_the_units_only_if_the_operator_says_so() {
    let rig = Rig::new();
    let control = rig.start().await;
    control.create("disk").await;
    let away = rig.folder.path().join("away");
    fs::rename(rig.unit(2), &away).expect("renamed");
    let (folder, mut settings) = copied(&rig);
    settings.restored_database = true;
    let second = rig.try_start(settings).await.expect("starts");
    export(&second).await;

    // The first one still runs, despite the operator's declaration.
    finish(control.agent.parts.storage.units.probe(true)).await;
    let shown = &control.agent.parts.storage.units.reports()[0];
    assert_eq!(shown.state, "missing");
    let reason = shown.problem.as_deref().expect("a problem");
    let there = folder.display().to_string();
    assert!(reason.contains(&there), "{reason}");
    let leased = control.export("disk").await;
    leased.expect_err("it owns no unit");
    end(control).await;
    let why = refused(&rig, rig.settings()).await;
    assert!(why.contains(&there), "{why}");

    // A unit that rejoins belongs to the new owner, also after a restart.
    end(second).await;
    let settings = RigSettings {
        folder,
        ..rig.settings()
    };
    let second = rig.try_start(settings).await.expect("starts");
    fs::rename(&away, rig.unit(2)).expect("renamed");
    finish(second.agent.parts.storage.units.probe(true)).await;
    let states: Vec<_> = second
        .agent
        .parts
        .storage
        .units
        .reports()
        .iter()
        .map(|unit| unit.state.clone())
        .collect();
    assert_eq!(states, ["healthy"; 2]);
    end(second).await;
}

/// Regression: a failure to claim the units counted as another owner's claim: the start that the
/// message suggested was refused with the same message.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn read_only_units_do_not_prevent_a_restored_folder_from_starting() {
    let rig = Rig::new();
    let control = rig.start().await;
    control.create("disk").await;
    export(&control).await;
    end(control).await;
    let (_, mut settings) = copied(&rig);
    settings.restored_database = true;
    rig.disk.make_read_only(&rig.path().join("units"));
    let second = rig.try_start(settings).await.expect("starts");
    for unit in second.agent.parts.storage.units.reports() {
        assert_eq!(unit.state, "read-only", "{:?}", unit.problem);
        assert!(unit.bytes.is_some(), "it can be read");
    }
    rig.disk.make_writable();
    finish(second.agent.parts.storage.units.probe(true)).await;
    for unit in second.agent.parts.storage.units.reports() {
        assert_eq!(unit.state, "healthy", "{:?}", unit.problem);
    }
    export(&second).await;
    end(second).await;
}

/// Regression: each start with `--restored-database` counted one more, so an original with two such
/// starts took the units back from a copy of its backup with one later start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_folder_that_took_the_units_over_last_keeps_them() {
    let rig = Rig::new();
    let control = rig.start().await;
    control.create("disk").await;
    end(control).await;
    let (folder, mut restored) = copied(&rig);
    for _ in 0..2 {
        let mut settings = rig.settings();
        settings.restored_database = true;
        end(rig.try_start(settings).await.expect("starts")).await;
    }
    rig.clock.advance(Duration::from_secs(60));
    restored.restored_database = true;
    let second = rig.try_start(restored).await.expect("starts");
    export(&second).await;

    let why = refused(&rig, rig.settings()).await;
    assert!(why.contains(&folder.display().to_string()), "{why}");
    finish(second.agent.parts.storage.units.probe(true)).await;
    for unit in second.agent.parts.storage.units.reports() {
        assert_eq!(unit.state, "healthy", "{:?}", unit.problem);
    }
    end(second).await;
}

/// Regression: a backup from before a start with `--restored-database` reported that the operator
/// should stop the Scree that it was itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_from_before_a_takeover_is_reported_as_older() {
    let rig = Rig::new();
    end(rig.start().await).await;
    let database = rig.path().join("scree.db");
    let kept = rig.folder.path().join("yesterday.db");
    fs::copy(&database, &kept).expect("copied");
    let mut settings = rig.settings();
    settings.restored_database = true;
    end(rig.try_start(settings).await.expect("starts")).await;
    fs::copy(&kept, &database).expect("copied");
    let why = refused(&rig, rig.settings()).await;
    for word in ["this database is older", "--restored-database"] {
        assert!(why.contains(word), "{why}");
    }
}

/// Regression: it was refused as a copy of itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_that_was_replaced_by_its_copy_starts_again() {
    let rig = Rig::new();
    end(rig.start().await).await;
    let (folder, _) = copied(&rig);
    fs::rename(rig.path(), rig.folder.path().join("away")).expect("renamed");
    fs::rename(&folder, rig.path()).expect("renamed");
    let why = refused(&rig, rig.settings()).await;
    for word in ["was created again", "--restored-database"] {
        assert!(why.contains(word), "{why}");
    }
}
