//! Wrapping keys in the database.

use api::host::{KeyState, WrappedRow};
use auth::Kind;
use base::{KeyId, Lineage, PartyId};
use catalog::{CatalogError, WrappedKey};
use control::database::{Database, DatabaseError, Reach};
use serde_json::json;
use sqlx::{AnyPool, any::install_default_drivers};
use world::Millis;

use crate::calls;
use crate::postgres::Postgres;
use crate::principals::local;

const LINEAGE: Lineage = Lineage::from_u128(7);

/// Adds a key `main`, and two lineages: one whose data key `main` wraps, and one without a data key.
async fn add_main(database: &Database, url: &str) {
    let main = KeyId::from_u128(1);
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

/// Rewraps as an agent does.
async fn rotates(database: &Database) {
    let principal = local(database).await;
    let host = database
        .parties()
        .local(Kind::Host, PartyId::from_u128(1), Millis(5));
    let host = host.await.expect("there");
    let main = database.keys().get("main").await.expect("there").key.id;
    let new = KeyId::from_u128(2);
    let (parameters, others) = (json!({}), json!({"a": 1}));
    let added = |parameters| database.keys().insert(new, "new", parameters, Millis(6));
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
            database.keys().rotate(&principal, old, by).await.is_err(),
            "{refused:?}"
        );
    }
    for _ in 0..2 {
        let begun = database
            .keys()
            .rotate(&principal, "main", "new")
            .await
            .expect("begun");
        assert_eq!((begun.key.state, begun.lineages), (KeyState::Retiring, 1));
    }
    let back = database.keys().rotate(&principal, "new", "main").await;
    assert!(matches!(back, Err(DatabaseError::Refused { .. })));
    for name in ["main", "new"] {
        let kept = database.keys().delete(&principal, name).await;
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
    let made = database
        .keys()
        .insert(third, "third", &parameters, Millis(7));
    made.await.expect("kept");
    let passed_on = database
        .keys()
        .rotate(&principal, "new", "third")
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
    let main = database.keys().get("main").await.expect("there");
    assert_eq!((main.key.state, main.lineages), (KeyState::Retired, 0));
    for name in ["main", "new"] {
        database
            .keys()
            .delete(&principal, name)
            .await
            .expect("retired");
    }
    assert_eq!(database.keys().all().await.expect("read").len(), 1);
}
