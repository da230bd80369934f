//! Wrapping keys in the database.

use std::borrow::Cow;
use std::path::Path;

use api::host::{KeyState, WrappedRow};
use auth::Kind;
use base::{KeyId, Lineage, PartyId};
use catalog::{CatalogError, WrappedKey};
use control::database::{Database, DatabaseError, Reach};
use serde_json::json;
use sqlx::migrate::Migrator;
use sqlx::{AnyPool, any::install_default_drivers};
use world::Millis;

use crate::calls;
use crate::postgres::Postgres;
use crate::principals::local;

static SQLITE: Migrator = sqlx::migrate!("migrations/sqlite");
pub static POSTGRES: Migrator = sqlx::migrate!("migrations/postgres");

const LINEAGE: Lineage = Lineage::from_u128(7);

/// A database as an earlier Scree left it, with a passphrase and one wrapped
/// key.
pub async fn earlier(url: &str, steps: &Migrator, last: i64) {
    install_default_drivers();
    let pool = AnyPool::connect(url).await.expect("connects");
    let steps = steps.iter().filter(|step| step.version <= last).cloned();
    let earlier = Migrator {
        migrations: Cow::Owned(steps.collect()),
        ..Migrator::DEFAULT
    };
    earlier.run(&pool).await.expect("made");
    sqlx::query(
        "INSERT INTO cluster (one, id, created_ms, vouch, key_source, key_salt, key_memory_kib, \
         key_passes, key_lanes, key_verifier) VALUES (1, $1, 5, $2, 'passphrase', $3, 9000, 2, 3, $4)",
    )
    .bind("cluster-0123456789abcdef0123456789abcdef".to_owned())
    .bind(vec![0_u8; 32])
    .bind(b"sixteen bytes ok".to_vec())
    .bind(vec![1_u8, 2, 3])
    .execute(&pool)
    .await
    .expect("written");
    for (lineage, wrapped) in [(LINEAGE, Some(vec![4_u8])), (Lineage::from_u128(8), None)] {
        sqlx::query("INSERT INTO lineages (lineage, epoch_first, wrapped) VALUES ($1, 1, $2)")
            .bind(lineage.to_string())
            .bind(wrapped)
            .execute(&pool)
            .await
            .expect("written");
    }
    pool.close().await;
}

async fn is_converted(database: &Database) {
    let rows = database.wrapping_keys().await.expect("read");
    let [row] = &rows[..] else {
        panic!("{rows:?}");
    };
    assert_eq!((row.key.name.as_str(), row.lineages), ("main", 1));
    assert_eq!((row.key.state, row.created), (KeyState::Active, Millis(5)));
    let passphrase = json!({
        "kind": "passphrase",
        "salt": "c2l4dGVlbiBieXRlcyBvaw==",
        "memory_kib": 9000,
        "passes": 2,
        "lanes": 3,
    });
    let parameters = json!({"source": passphrase, "verifier": "AQID"});
    assert_eq!(row.key.parameters, parameters);
}

fn url_of(path: &Path) -> String {
    format!("sqlite://{}?mode=rwc", path.display())
}

#[test]
fn the_key_of_an_earlier_scree_is_the_key_main() {
    let server = Postgres::start();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let url = server.database(&runtime);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("scree.db");
    runtime.block_on(async {
        earlier(&url_of(&path), &SQLITE, 10).await;
        earlier(&url, &POSTGRES, 3).await;
        for turn in 0..2 {
            for database in [
                Database::open(&path).await,
                Database::connect(&url.parse().expect("a URL")).await,
            ] {
                let database = database.expect("an earlier Scree's");
                is_converted(&database).await;
                if turn == 1 {
                    rotates(&database).await;
                }
                database.close().await;
            }
        }
    });
}

/// What an agent asks while it rewraps.
async fn rotates(database: &Database) {
    let principal = local(database).await;
    let host = database.local_party(Kind::Host, PartyId::from_u128(1), Millis(5));
    let host = host.await.expect("there");
    let main = database.wrapping_key("main").await.expect("there").key.id;
    let new = KeyId::from_u128(2);
    let (parameters, others) = (json!({}), json!({"a": 1}));
    let added = |parameters| database.insert_wrapping_key(new, "new", parameters, Millis(6));
    for _ in 0..2 {
        assert_eq!(added(&parameters).await.expect("kept").id, new);
    }
    let other = added(&others).await;
    assert!(matches!(other, Err(DatabaseError::Taken { .. })));

    let rewrap = |before: u8, after: u8| calls::Rewrap {
        lineage: LINEAGE,
        from: main,
        to: new,
        before: WrappedKey(vec![before]),
        after: WrappedKey(vec![after]),
    };
    let reach = Reach::new(host, Millis(0));
    let call = |call: api::host::CatalogCall| calls::answer(database, &reach, call);
    let early = call(rewrap(4, 5).into()).await.expect("answers");
    assert_eq!(early, json!(false), "nobody asked for it");
    for refused in [("new", "new"), ("main", "none"), ("none", "new")] {
        let (old, by) = refused;
        assert!(
            database.rotate_key(&principal, old, by).await.is_err(),
            "{refused:?}"
        );
    }
    for _ in 0..2 {
        let begun = database
            .rotate_key(&principal, "main", "new")
            .await
            .expect("begun");
        assert_eq!((begun.key.state, begun.lineages), (KeyState::Retiring, 1));
    }
    let back = database.rotate_key(&principal, "new", "main").await;
    assert!(matches!(back, Err(DatabaseError::Refused { .. })));
    for name in ["main", "new"] {
        let kept = database.delete_wrapping_key(&principal, name).await;
        assert!(matches!(kept, Err(DatabaseError::Refused { .. })), "{name}");
    }
    let fresh = calls::SetKey {
        volume: base::VolumeId::from_u128(8),
        lineage: Lineage::from_u128(8),
        key: main,
        wrapped: WrappedKey(vec![9]),
    };
    let refused = call(fresh.into()).await.expect_err("it wraps nothing new");
    assert!(matches!(refused, CatalogError::Refused { .. }));
    let left = |after| calls::WrappedBy {
        key: main,
        after,
        count_max: 9,
    };
    let rows = call(left(None).into()).await.expect("answers");
    let rows: Vec<WrappedRow> = serde_json::from_value(rows).expect("rows");
    assert_eq!((rows.len(), rows[0].lineage), (1, LINEAGE));
    let rows = call(left(Some(LINEAGE)).into()).await.expect("answers");
    assert_eq!(rows, json!([]));

    // A third key takes over what was on its way to the second one.
    let third = KeyId::from_u128(3);
    let made = database.insert_wrapping_key(third, "third", &parameters, Millis(7));
    made.await.expect("kept");
    let passed_on = database
        .rotate_key(&principal, "new", "third")
        .await
        .expect("begun");
    assert_eq!(passed_on.key.state, KeyState::Retired, "it wraps nothing");
    assert_eq!(
        call(rewrap(4, 5).into()).await.expect("answers"),
        json!(false)
    );
    let to_third = |before: u8| calls::Rewrap {
        lineage: LINEAGE,
        from: main,
        to: third,
        before: WrappedKey(vec![before]),
        after: WrappedKey(vec![5]),
    };
    assert_eq!(
        call(to_third(6).into()).await.expect("answers"),
        json!(false)
    );
    assert_eq!(
        call(to_third(4).into()).await.expect("answers"),
        json!(true)
    );
    assert_eq!(
        call(to_third(4).into()).await.expect("answers"),
        json!(false)
    );
    let main = database.wrapping_key("main").await.expect("there");
    assert_eq!((main.key.state, main.lineages), (KeyState::Retired, 0));
    for name in ["main", "new"] {
        database
            .delete_wrapping_key(&principal, name)
            .await
            .expect("retired");
    }
    assert_eq!(database.wrapping_keys().await.expect("read").len(), 1);
}
