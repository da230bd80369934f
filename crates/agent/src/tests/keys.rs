//! Several wrapping keys, one in the place of another, and none.

use std::borrow::Cow;
use std::fs;
use std::path::Path;

use api::host::{KeyState, WrappingKey};
use argon2::{Algorithm, Argon2, Params, Version};
use base::{BlockDevice as _, ClusterId, Durability, Lineage, Request};
use control::ControlError;
use control::database::{Database, Filter, Page};
use sqlx::Row as _;
use sqlx::migrate::Migrator;
use volume::seal::{DataKey, KeyEncryptionKey};
use world::real::RealRandom;

use super::rig::{Rig, Scree, small};
use super::{altered, end, reads};
use crate::keys::{HostKeys, KeyEntry, KeyLocations, Passphrase};

/// The steps of the schema. Those up to 10 are an earlier Scree's.
static STEPS: Migrator = sqlx::migrate!("../control/migrations/sqlite");

/// Of the one request at a time.
const TOKEN: u64 = 1;

async fn make(scree: &Scree, name: &str, byte: u8) {
    scree
        .control
        .volumes()
        .create(small(name))
        .await
        .expect("made");
    let id = scree.export(name).await.expect("served").volume;
    let attached = scree.open(id).expect("attached");
    let started = attached.on_volume(move |volume| {
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

/// State, and how many keys it wraps.
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
    let is_retiring = |key: &WrappingKey| key.state == KeyState::Retiring;
    let keys_here = &scree.agent.parts.keys;
    keys_here
        .until_listed(|listed| listed.iter().any(is_retiring))
        .await;
    make(&scree, "e", 5).await;
    assert_eq!(shown(&scree, "new").await.1, 1, "new volumes use it");
    assert_eq!(
        scree
            .agent
            .parts
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
async fn a_host_without_a_volumes_key_names_it_and_opens_the_others() {
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

    // Not named, and not where it would be.
    fs::rename(keys.join("master.key"), keys.join("away.key")).expect("renamed");
    let scree = rig.start().await;
    reads(&scree, "b", 1, 2).await;
    let refused = scree.export("a").await.expect_err("no key").to_string();
    for word in ["has not the wrapping key \"main\"", "keys.toml"] {
        assert!(refused.contains(word), "{refused}");
    }
    scree
        .control
        .volumes()
        .unexport("a")
        .await
        .expect("given up");
    scree.control.volumes().delete("b").await.expect("deleted");
    let _ = scree.agent.parts.cleaning.remove_unneeded().await;
    let left = scree
        .control
        .volumes()
        .list(&Filter::default(), &Page::default())
        .await
        .expect("listed")
        .volumes;
    assert_eq!(left.len(), 1, "b is gone");

    // To name it needs no restart.
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
    let removed = scree.agent.parts.cleaning.remove_unneeded().await;
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

/// As an earlier Scree derived it.
fn derive(
    passphrase: &str,
    salt: &[u8],
    (memory_kib, passes, lanes): (u32, u32, u32),
) -> KeyEncryptionKey {
    let params = Params::new(memory_kib, passes, lanes, Some(32)).expect("good ones");
    let mut bytes = [0; 32];
    Argon2::new(Algorithm::Argon2id, Version::V0x13, params)
        .hash_password_into(passphrase.as_bytes(), salt, &mut bytes)
        .expect("derived");
    KeyEncryptionKey::from_bytes(&bytes)
}

/// A database with the key columns of an earlier Scree, and one wrapped key.
async fn earlier(path: &Path, key: &KeyEncryptionKey, columns: &str, lineage: Lineage) {
    let wrap = |lineage| {
        let wrapped = key.wrap(lineage, &DataKey::from_bytes([9; 32]), &RealRandom);
        wrapped
            .0
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>()
    };
    let verifier = wrap(Lineage::from_u128(0));
    let wrapped = wrap(lineage);
    let steps = STEPS.iter().filter(|step| step.version <= 10).cloned();
    let earlier = Migrator {
        migrations: Cow::Owned(steps.collect()),
        ..Migrator::DEFAULT
    };
    fs::File::create(path).expect("made");
    let pool = altered::open(path).await;
    earlier.run(&pool).await.expect("made");
    let cluster = ClusterId::from_u128(1);
    for statement in [
        format!(
            "INSERT INTO cluster (one, id, created_ms, vouch, key_source, key_salt, \
             key_memory_kib, key_passes, key_lanes, key_verifier) \
             VALUES (1, '{cluster}', 5, x'00', {columns}, x'{verifier}')"
        ),
        format!("INSERT INTO lineages VALUES ('{lineage}', NULL, 1, x'{wrapped}')"),
        format!(
            "INSERT INTO lineages VALUES ('{}', NULL, 1, NULL)",
            Lineage::from_u128(8)
        ),
    ] {
        sqlx::query(&statement)
            .execute(&pool)
            .await
            .expect("written");
    }
    pool.close().await;
}

/// The wrapping key could not be told from a new cluster's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_earlier_scree_wrapped_opens_with_the_key_main() {
    let rig = Rig::new();
    let folder = rig.folder.path();
    let lineage = Lineage::from_u128(7);
    let key_file = folder.join("master.key");
    let made = crate::keys::WrappingKeys::new(rig.world());
    let entry = KeyEntry::File {
        path: key_file.clone(),
    };
    made.create(&entry).expect("made");
    let digits = fs::read_to_string(&key_file).expect("read");
    let mut bytes = [0; 32];
    for (byte, pair) in bytes
        .iter_mut()
        .zip(digits.trim().as_bytes().chunks_exact(2))
    {
        let pair = std::str::from_utf8(pair).expect("ASCII");
        *byte = u8::from_str_radix(pair, 16).expect("hex");
    }
    let salt: [u8; 16] = *b"salt of old days";
    let hex: String = salt.iter().map(|byte| format!("{byte:02x}")).collect();
    let cases = [
        (
            entry,
            KeyEncryptionKey::from_bytes(&bytes),
            "'file', NULL, NULL, NULL, NULL".to_owned(),
        ),
        (
            KeyEntry::Given(Passphrase::new("correct horse".to_owned())),
            derive("correct horse", &salt, (9000, 2, 3)),
            format!("'passphrase', x'{hex}', 9000, 2, 3"),
        ),
    ];
    for (number, (entry, key, columns)) in cases.into_iter().enumerate() {
        let path = folder.join(format!("{number}.db"));
        earlier(&path, &key, &columns, lineage).await;
        for _ in 0..2 {
            let database = Database::open(&path).await.expect("an earlier Scree's");
            let rows = database.keys().all().await.expect("read");
            let [row] = &rows[..] else { panic!("{rows:?}") };
            assert_eq!((row.key.name.as_str(), row.lineages), ("main", 1));
            let keys = HostKeys::new(
                &rig.world(),
                KeyLocations {
                    first: Some(entry.clone()),
                    keys_file: None,
                    default_keys_file: folder.join("keys.toml"),
                    default_key_file: key_file.clone(),
                },
            );
            keys.list(vec![row.key.clone()]);
            keys.start().expect("the same key");
            let pool = altered::open(&path).await;
            let named =
                sqlx::query("SELECT wrapping_key, wrapped FROM lineages WHERE lineage = $1")
                    .bind(lineage.to_string())
                    .fetch_one(&pool)
                    .await
                    .expect("there");
            pool.close().await;
            let by: String = named.get("wrapping_key");
            assert_eq!(by, row.key.id.to_string());
            let wrapped = catalog::WrappedKey(named.get("wrapped"));
            let opened = volume::seal::UnwrapKeys::unwrap_key(
                &*keys.opened(row.key.id).expect("open"),
                lineage,
                &wrapped,
            );
            assert!(matches!(
                opened.expect("opens"),
                volume::seal::Unwrapped::Key(key) if *key.bytes() == [9; 32]
            ));
            database.close().await;
        }
    }
}
