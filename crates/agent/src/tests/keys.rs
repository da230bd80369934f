//! Several wrapping keys: one that is rotated, and one that is missing.

use std::fs;
use std::path::Path;

use api::host::{KeyState, ListedKey};
use base::{BlockDevice as _, Durability, Request};
use control::ControlError;
use control::database::{Filter, Page};
use sqlx::Row as _;

use super::rig::{Rig, Scree};
use super::{altered, end, reads};

/// Token of the only request at a time.
const TOKEN: u64 = 1;

async fn make(scree: &Scree, name: &str, byte: u8) {
    scree.create(name).await;
    let id = scree.export(name).await.expect("served").volume;
    let open_volume = scree.open(id).expect("attached");
    let started = open_volume.on_volume(move |volume| {
        volume.start(Request::write(
            TOKEN,
            4096,
            &[byte; 4096],
            Durability::Volatile,
        ))
    });
    started.await.expect("answers");
    scree
        .control
        .volumes()
        .unexport(name)
        .await
        .expect("closed");
}

/// The wrapped data keys in the database.
async fn wrapped(database: &Path) -> Vec<Vec<u8>> {
    let pool = altered::open(database).await;
    let rows = sqlx::query("SELECT wrapped FROM lineages ORDER BY lineage")
        .fetch_all(&pool)
        .await
        .expect("read");
    pool.close().await;
    rows.iter().map(|row| row.get("wrapped")).collect()
}

/// Whether `bytes` are in one of the database's files.
fn is_in_files(database: &Path, bytes: &[u8]) -> bool {
    ["", "-wal", "-shm", "-journal"].iter().any(|end| {
        let mut path = database.as_os_str().to_owned();
        path.push(end);
        let content = fs::read(path).unwrap_or_default();
        content.windows(bytes.len()).any(|window| window == bytes)
    })
}

/// The state of a key, and the number of keys that it wraps.
async fn shown(scree: &Scree, key: &str) -> (String, u64) {
    let row = scree.control.key(key).await.expect("there");
    (row.key.state.to_string(), row.lineages)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_key_rotation_continues_until_the_old_key_wraps_nothing() {
    let rig = Rig::new();
    let scree = rig.start().await;
    let database = scree.control.folder().database();
    let names = ["a", "b", "c", "d"];
    for (name, byte) in names.iter().zip(1..) {
        make(&scree, name, byte).await;
    }
    let before = wrapped(&database).await;
    assert_eq!(shown(&scree, "main").await, ("active".to_owned(), 4));

    let host = scree.control.local_host();
    let unnamed = scree.control.keys().add(host, "new").await;
    let unnamed = unnamed.expect_err("not named yet");
    assert!(unnamed.to_string().contains("[keys.new]"), "{unnamed}");
    let keys = rig.path().join("keys");
    let text = "[keys.new]\nkind = \"file\"\npath = \"new.key\"\n";
    fs::write(keys.join("keys.toml"), text).expect("written");
    scree
        .control
        .keys()
        .add(host, "new")
        .await
        .expect("founded");
    assert!(keys.join("new.key").exists());
    let again = scree.control.keys().add(host, "new").await;
    assert!(matches!(again, Err(ControlError::Exists { .. })));
    let early = scree.control.keys().delete("new").await;
    assert!(matches!(early, Err(ControlError::Conflict { .. })));

    let begun = scree
        .control
        .keys()
        .rotate("main", "new", std::time::Duration::ZERO);
    begun.await.expect("begun");
    let is_retiring = |key: &ListedKey| key.state == KeyState::Retiring;
    let keys_here = &scree.agent.parts.foundation.keys;
    keys_here
        .until_listed(|listed| listed.iter().any(is_retiring))
        .await;
    make(&scree, "e", 5).await;
    assert_eq!(shown(&scree, "new").await.1, 1, "new volumes use it");
    assert_eq!(
        scree
            .agent
            .parts
            .maintenance
            .rewrapping
            .rewrap_some(2)
            .await
            .expect("done"),
        2
    );
    assert_eq!(shown(&scree, "main").await, ("retiring".to_owned(), 2));
    scree.kill().await;

    let scree = rig.start().await;
    assert_eq!(shown(&scree, "main").await, ("retiring".to_owned(), 2));
    for (name, byte) in names.iter().zip(1..) {
        reads(&scree, name, 1, byte).await;
    }
    assert_eq!(
        scree
            .agent
            .parts
            .maintenance
            .rewrapping
            .rewrap_some(usize::MAX)
            .await
            .expect("done"),
        2
    );
    assert_eq!(shown(&scree, "main").await, ("retired".to_owned(), 0));
    assert_eq!(shown(&scree, "new").await, ("active".to_owned(), 5));
    let after = wrapped(&database).await;
    assert!(before.iter().all(|bytes| !after.contains(bytes)));
    end(scree).await;
    assert!(before.iter().all(|bytes| !is_in_files(&database, bytes)));
    assert!(after.iter().all(|bytes| is_in_files(&database, bytes)));

    fs::remove_file(keys.join("master.key")).expect("removed");
    let scree = rig.start().await;
    for (name, byte) in names.iter().zip(1..) {
        reads(&scree, name, 1, byte).await;
    }
    reads(&scree, "e", 1, 5).await;
    scree.control.keys().delete("main").await.expect("retired");
    let keys = scree.control.all_keys().await.expect("listed");
    assert_eq!(keys.len(), 1);
    end(scree).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_without_a_volumes_key_names_the_key_and_opens_other_volumes() {
    let rig = Rig::new();
    let scree = rig.start().await;
    make(&scree, "a", 1).await;
    let keys = rig.path().join("keys");
    let text = "[keys.new]\nkind = \"file\"\npath = \"new.key\"\n";
    fs::write(keys.join("keys.toml"), text).expect("written");
    let host = scree.control.local_host();
    scree
        .control
        .keys()
        .add(host, "new")
        .await
        .expect("founded");
    make(&scree, "b", 2).await;
    end(scree).await;

    // It is not named, and not at the default path.
    fs::rename(keys.join("master.key"), keys.join("away.key")).expect("renamed");
    let scree = rig.start().await;
    reads(&scree, "b", 1, 2).await;
    let refused = scree.export("a").await.expect_err("no key").to_string();
    for word in [
        "does not have the wrapping key \"main\"",
        "master.key",
        "keys.toml",
    ] {
        assert!(refused.contains(word), "{refused}");
    }
    scree
        .control
        .volumes()
        .unexport("a")
        .await
        .expect("detached by force");
    scree.control.volumes().delete("b").await.expect("deleted");
    let _ = scree
        .agent
        .parts
        .maintenance
        .cleaning
        .remove_unneeded()
        .await;
    let left = scree
        .control
        .volumes()
        .list(&Filter::default(), &Page::default())
        .await
        .expect("listed")
        .volumes;
    assert_eq!(left.len(), 1, "b is deleted");

    // Naming it needs no restart.
    let text = format!("{text}\n[keys.main]\nkind = \"file\"\npath = \"away.key\"\n");
    fs::write(keys.join("keys.toml"), text).expect("written");
    reads(&scree, "a", 1, 1).await;
    end(scree).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_key_of_a_deleted_volume_is_in_no_file_of_the_database() {
    let rig = Rig::new();
    let scree = rig.start().await;
    let database = scree.control.folder().database();
    make(&scree, "kept", 1).await;
    make(&scree, "disk", 2).await;
    let before = wrapped(&database).await;
    assert!(before.iter().all(|bytes| is_in_files(&database, bytes)));
    scree
        .control
        .volumes()
        .delete("disk")
        .await
        .expect("deleted");
    let removed = scree
        .agent
        .parts
        .maintenance
        .cleaning
        .remove_unneeded()
        .await;
    removed.expect("removed");
    let after = wrapped(&database).await;
    assert_eq!(after.len(), 1);
    for bytes in &before {
        let is_kept = after.contains(bytes);
        assert_eq!(is_in_files(&database, bytes), is_kept, "while it is served");
    }
    end(scree).await;
    for bytes in &before {
        assert_eq!(is_in_files(&database, bytes), after.contains(bytes));
    }
}
