//! Wrapping keys in the database.

use api::host::{KeyState, WrappedRow};
use auth::Kind;
use base::{KeyId, Lineage, PartyId};
use catalog::{CatalogError, WrappedKey};
use control::database::{Database, DatabaseError, Principal, Reach};
use serde_json::json;
use sqlx::{AnyPool, any::install_default_drivers};
use world::Millis;

use crate::calls;
use crate::postgres::Postgres;
use crate::principals::local;

const LINEAGE: Lineage = Lineage::from_u128(7);

/// Adds a key `main`, and two lineages: one whose data key `main` wraps, and one without a data
/// key.
async fn add_main(database: &Database, url: &str) {
    let main = MAIN;
    let parameters = json!({});
    let added = database.keys().insert(main, "main", &parameters, Millis(5));
    added.await.expect("added");
    install_default_drivers();
    let pool = AnyPool::connect(url).await.expect("connects");
    for (lineage, wrapped) in [(LINEAGE, Some(vec![4_u8])), (Lineage::from_u128(8), None)] {
        sqlx::query(
            "INSERT INTO lineages (lineage, epoch_first, wrapped, wrapping_key) \
             VALUES ($1, 1, $2, $3)",
        )
        .bind(lineage.to_string())
        .bind(wrapped.clone())
        .bind(wrapped.map(|_| main.to_string()))
        .execute(&pool)
        .await
        .expect("inserted");
    }
    pool.close().await;
}

#[test]
fn a_key_is_deleted_only_after_another_one_has_taken_over_what_it_wraps() {
    let server = Postgres::start();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let url = server.database(&runtime);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("scree.db");
    runtime.block_on(async {
        let sqlite = Database::open(&path).await.expect("created");
        add_main(&sqlite, &format!("sqlite://{}", path.display())).await;
        rotates(&sqlite).await;
        sqlite.close().await;
        let postgres = Database::connect(&url.parse().expect("a URL")).await;
        let postgres = postgres.expect("created");
        add_main(&postgres, &url).await;
        rotates(&postgres).await;
        postgres.close().await;
    });
}

const MAIN: KeyId = KeyId::from_u128(1);
const NEW: KeyId = KeyId::from_u128(2);
const THIRD: KeyId = KeyId::from_u128(3);

/// Rewraps the data key of [`LINEAGE`] as an agent does.
fn rewrap(to: KeyId, before: u8) -> calls::Rewrap {
    calls::Rewrap {
        lineage: LINEAGE,
        from: MAIN,
        to,
        before: WrappedKey(vec![before]),
        after: WrappedKey(vec![5]),
    }
}

/// A key is rotated to a second one, and that to a third one before the data keys are rewrapped.
async fn rotates(database: &Database) {
    let principal = local(database).await;
    let host = database
        .parties()
        .local(Kind::Host, PartyId::from_u128(1), Millis(5));
    let reach = Reach::new(host.await.expect("it exists"), Millis(0));
    adding_a_key_is_repeatable(database).await;
    let early = calls::answer(database, &reach, rewrap(NEW, 4)).await;
    assert_eq!(
        early.expect("answers"),
        json!(false),
        "it was not requested"
    );
    starts_retiring(database, &principal).await;
    a_retiring_key_wraps_nothing_new(database, &reach).await;
    is_replaced_by_the_third_key(database, &principal, &reach).await;
    let main = database.keys().get("main").await.expect("it exists");
    assert_eq!((main.key.state, main.lineages), (KeyState::Retired, 0));
    for name in ["main", "new"] {
        let deleted = database.keys().delete(&principal, name).await;
        deleted.expect("retired");
    }
    assert_eq!(database.keys().all().await.expect("read").len(), 1);
}

async fn adding_a_key_is_repeatable(database: &Database) {
    let (parameters, others) = (json!({}), json!({"a": 1}));
    let added = |parameters| database.keys().insert(NEW, "new", parameters, Millis(6));
    for _ in 0..2 {
        assert_eq!(added(&parameters).await.expect("kept").id, NEW);
    }
    let other = added(&others).await;
    assert!(matches!(other, Err(DatabaseError::Taken { .. })));
}

async fn starts_retiring(database: &Database, principal: &Principal) {
    let keys = database.keys();
    for (old, new) in [("new", "new"), ("main", "none"), ("none", "new")] {
        let refused = keys.rotate(principal, old, new).await;
        assert!(refused.is_err(), "{old} to {new}");
    }
    for _ in 0..2 {
        let begun = keys.rotate(principal, "main", "new").await.expect("begun");
        assert_eq!((begun.key.state, begun.lineages), (KeyState::Retiring, 1));
    }
    let back = keys.rotate(principal, "new", "main").await;
    assert!(matches!(back, Err(DatabaseError::Refused { .. })));
    for name in ["main", "new"] {
        let kept = keys.delete(principal, name).await;
        assert!(matches!(kept, Err(DatabaseError::Refused { .. })), "{name}");
    }
}

async fn a_retiring_key_wraps_nothing_new(database: &Database, reach: &Reach) {
    let fresh = calls::SetKey {
        volume: base::VolumeId::from_u128(8),
        lineage: Lineage::from_u128(8),
        key: MAIN,
        wrapped: WrappedKey(vec![9]),
    };
    let refused = calls::answer(database, reach, fresh).await;
    let refused = refused.expect_err("it is retiring");
    assert!(matches!(refused, CatalogError::Refused { .. }));
    let left = async |after| {
        let left = calls::WrappedBy {
            key: MAIN,
            after,
            count_max: 9,
        };
        calls::answer(database, reach, left).await.expect("answers")
    };
    let rows: Vec<WrappedRow> = serde_json::from_value(left(None).await).expect("rows");
    assert_eq!((rows.len(), rows[0].lineage), (1, LINEAGE));
    assert_eq!(left(Some(LINEAGE)).await, json!([]));
}

async fn is_replaced_by_the_third_key(database: &Database, principal: &Principal, reach: &Reach) {
    let keys = database.keys();
    let made = keys.insert(THIRD, "third", &json!({}), Millis(7)).await;
    made.expect("kept");
    let second = keys.rotate(principal, "new", "third").await;
    let second = second.expect("begun");
    assert_eq!(second.key.state, KeyState::Retired, "it wraps nothing");
    for (to, before, is_rewrapped) in [
        (NEW, 4, false),
        (THIRD, 6, false),
        (THIRD, 4, true),
        (THIRD, 4, false),
    ] {
        let answer = calls::answer(database, reach, rewrap(to, before)).await;
        assert_eq!(answer.expect("answers"), json!(is_rewrapped), "{before}");
    }
}
