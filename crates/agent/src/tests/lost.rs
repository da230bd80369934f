//! A database that is lost, in a folder that was served before.

use std::fs;

use super::rig::Rig;
use super::{copies::refused, end};
use control::database::Database;

/// Regression: it counted as a new folder: a new database with a new key check replaced the lost
/// one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_without_its_database_is_not_a_new_one() {
    let rig = Rig::new();
    let control = rig.start().await;
    control.create("disk").await;
    let exported = control.export("disk").await;
    exported.expect("served");
    let path = control.control.folder().database();
    end(control).await;
    let kept = rig.folder.path().join("kept.db");
    fs::rename(&path, &kept).expect("renamed");

    let key = rig.path().join("keys/master.key");
    let away = rig.folder.path().join("away.key");
    for has_key in [true, false] {
        if !has_key {
            fs::rename(&key, &away).expect("renamed");
        }
        for is_there in [false, true] {
            if is_there {
                fs::File::create(&path).expect("empty");
            }
            let why = refused(&rig, rig.settings()).await;
            for word in ["has no database", "backup"] {
                assert!(why.contains(word), "{why}");
            }
            assert_eq!(path.exists(), is_there, "nothing is created");
            assert_eq!(fs::metadata(&path).map_or(0, |file| file.len()), 0);
        }
        fs::remove_file(&path).expect("removed");
    }
    // A database that is empty.
    let empty = Database::open(&path).await.expect("made");
    empty.close().await;
    let why = refused(&rig, rig.settings()).await;
    assert!(why.contains("has no database") && !key.exists(), "{why}");

    fs::rename(&away, &key).expect("renamed");
    fs::rename(&kept, &path).expect("renamed");
    let control = rig.start().await;
    assert!(control.control.volumes().get("disk").await.is_ok());
    end(control).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupted_first_start_continues() {
    let rig = Rig::new();
    for part in ["keys", "units", "journal"] {
        fs::create_dir_all(rig.path().join(part)).expect("made");
    }
    fs::create_dir(rig.unit(1)).expect("not yet a unit");
    let path = rig.path().join("scree.db");
    fs::File::create(&path).expect("empty");
    end(rig.start().await).await;

    // The key exists, and the database has no cluster yet.
    let other = Rig::new();
    fs::create_dir_all(other.path().join("keys")).expect("made");
    let empty = Database::open(&other.path().join("scree.db")).await;
    empty.expect("made").close().await;
    let key = "keys/master.key";
    fs::copy(rig.path().join(key), other.path().join(key)).expect("copied");
    end(other.start().await).await;
}

/// Regression: it counted as a trace of a lost database.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_from_before_the_first_start_is_used() {
    let other = Rig::new();
    end(other.start().await).await;
    let key = "keys/master.key";
    let rig = Rig::new();
    fs::create_dir_all(rig.path().join("keys")).expect("made");
    fs::copy(other.path().join(key), rig.path().join(key)).expect("copied");
    for trace in ["journal/vol-1", "units/u1"] {
        let trace = rig.path().join(trace);
        fs::create_dir_all(&trace).expect("made");
        let why = refused(&rig, rig.settings()).await;
        assert!(why.contains("has no database"), "{why}");
        fs::remove_dir(&trace).expect("removed");
    }
    let control = rig.start().await;
    let read = |rig: &Rig| fs::read(rig.path().join(key)).expect("there");
    assert_eq!(read(&rig), read(&other));
    end(control).await;
    end(rig.start().await).await;
}
