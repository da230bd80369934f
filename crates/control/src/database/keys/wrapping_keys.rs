//! Wrapping keys as the database knows them: names, the agents' parameters, and which key wraps
//! which data key.
//!
//! ```text
//!   active ── rotate ──► retiring ── the last row that named it ──► retired ── delete
//! ```
//!
//! Invariants:
//! * a new data key is wrapped by an active key;
//! * the number of data keys that a retiring key wraps only shrinks, and its replacement is not
//!   retired before it;
//! * no row names a retired key.

use api::host::catalog_calls::{Rewrap, WrappedBy};
use api::host::{KeyState, ListedKey, ROWS_MAX, WrappedRow};
use base::KeyId;
use catalog::WrappedKey;
use serde::Serialize;
use serde_json::Value;
use sqlx::any::AnyRow;
use sqlx::{AnyConnection, Row as _};
use world::Millis;

use crate::database::{Database, DatabaseError, ObjectKind, Principal, Reach, hosts, rows};

/// A wrapping key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRow {
    /// The key as hosts see it.
    pub key: ListedKey,
    /// When it was created.
    pub created: Millis,
    /// The number of lineages whose data keys it wraps.
    pub lineages: u64,
}

const ROWS: &str = "SELECT k.*, \
     (SELECT COUNT(*) FROM lineages l WHERE l.wrapping_key = k.id) AS lineages \
     FROM wrapping_keys k";

fn key_row(row: &AnyRow) -> Result<KeyRow, DatabaseError> {
    let name: String = row.try_get("name")?;
    let parameters: &str = row.try_get("parameters")?;
    Ok(KeyRow {
        key: ListedKey {
            id: rows::spelled(row, "id")?,
            parameters: serde_json::from_str(parameters).map_err(|error| {
                DatabaseError::Damaged {
                    what: format!("the parameters of the wrapping key {name:?}: {error}"),
                }
            })?,
            name,
            state: rows::spelled(row, "state")?,
            replaced_by: rows::spelled_if_any(row, "replaced_by")?,
        },
        created: Millis(row.try_get("created_ms")?),
        lineages: rows::number(row, "lineages")?,
    })
}

async fn find(connection: &mut AnyConnection, name: &str) -> Result<KeyRow, DatabaseError> {
    let row = sqlx::query(&format!("{ROWS} WHERE k.id = $1 OR k.name = $1"))
        .bind(name)
        .fetch_optional(connection)
        .await?
        .ok_or_else(|| {
            DatabaseError::not_found(ObjectKind::WrappingKey, format_args!("{name:?}"))
        })?;
    key_row(&row)
}

fn refused<T>(reason: String) -> Result<T, DatabaseError> {
    Err(DatabaseError::Refused { reason })
}

/// Retires the retiring keys that wrap nothing any more; `true` if there were any.
pub(in crate::database) async fn retire(change: &mut AnyConnection) -> Result<bool, DatabaseError> {
    let retired = sqlx::query(
        "UPDATE wrapping_keys SET state = 'retired' WHERE state = 'retiring' \
         AND NOT EXISTS (SELECT 1 FROM lineages l WHERE l.wrapping_key = wrapping_keys.id)",
    )
    .execute(&mut *change)
    .await?;
    match retired.rows_affected() {
        0 => Ok(false),
        _ => hosts::assign_all(change).await.map(|()| true),
    }
}

fn spell(parameters: &impl Serialize) -> Result<String, DatabaseError> {
    serde_json::to_string(parameters).map_err(|error| DatabaseError::Refused {
        reason: format!("the parameters cannot be stored: {error}"),
    })
}

/// Wrapping keys, and the data keys of lineages.
#[derive(Clone, Copy, Debug)]
pub struct Keys<'a> {
    pub(in crate::database) database: &'a Database,
}

impl Keys<'_> {
    /// All wrapping keys, oldest first.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn all(self) -> Result<Vec<KeyRow>, DatabaseError> {
        sqlx::query(&format!("{ROWS} ORDER BY k.created_ms, k.id"))
            .fetch_all(&self.database.reader)
            .await?
            .iter()
            .map(key_row)
            .collect()
    }

    /// The wrapping key with this name or id.
    ///
    /// # Errors
    /// [`DatabaseError::NotFound`].
    pub async fn get(self, name: &str) -> Result<KeyRow, DatabaseError> {
        find(&mut *self.database.reader.acquire().await?, name).await
    }

    /// Inserts a wrapping key that a host has created. If it exists with the same parameters,
    /// nothing changes.
    ///
    /// # Errors
    /// [`DatabaseError::Taken`] if another one has the name.
    pub async fn insert(
        self,
        id: KeyId,
        name: &str,
        parameters: &Value,
        now: Millis,
    ) -> Result<ListedKey, DatabaseError> {
        let text = spell(parameters)?;
        let text = &text;
        self.database
            .transaction()
            .notify()
            .run(|mut change| async move {
                match find(&mut change, name).await {
                    Ok(row) if row.key.parameters == *parameters => return Ok(row.key),
                    Ok(_) => {
                        return Err(DatabaseError::Taken {
                            what: format!("wrapping key {name:?}"),
                            remedy: "choose another name",
                        });
                    }
                    Err(DatabaseError::NotFound { .. }) => {}
                    Err(error) => return Err(error),
                }
                // The key that is created last is the newest, whatever the clock says.
                let last: Option<i64> =
                    sqlx::query_scalar("SELECT MAX(created_ms) FROM wrapping_keys")
                        .fetch_one(&mut *change)
                        .await?;
                let created = last.map_or(now.0, |last| now.0.max(last.saturating_add(1)));
                sqlx::query(
                    "INSERT INTO wrapping_keys (id, name, parameters, created_ms) \
                 VALUES ($1, $2, $3, $4)",
                )
                .bind(id.to_string())
                .bind(name)
                .bind(text)
                .bind(created)
                .execute(&mut *change)
                .await?;
                hosts::assign_all(&mut change).await?;
                Ok(find(&mut change, name).await?.key)
            })
            .await
    }

    /// Retires the key `old`: it wraps nothing new, and hosts that have both keys rewrap its data
    /// keys with `new`. Repeating the request changes nothing.
    ///
    /// # Errors
    /// [`DatabaseError::Refused`] if `old` is retired or `new` is not active.
    pub async fn rotate(
        self,
        principal: &Principal,
        old: &str,
        new: &str,
    ) -> Result<KeyRow, DatabaseError> {
        self.database
            .transaction_for(principal)
            .run(|mut change| async move {
                let (from, to) = (find(&mut change, old).await?, find(&mut change, new).await?);
                let (from, to) = (from.key, to.key);
                if from.id == to.id {
                    return refused(format!("{old:?} cannot replace itself"));
                }
                if from.replaced_by == Some(to.id) {
                    return find(&mut change, old).await;
                }
                if to.state != KeyState::Active {
                    return refused(format!(
                        "the wrapping key {:?} is {}; name one that is active",
                        to.name, to.state
                    ));
                }
                if from.state == KeyState::Retired {
                    return refused(format!(
                        "the wrapping key {:?} is retired: it wraps no data keys any more",
                        from.name
                    ));
                }
                // Keys that were being replaced by the old one are replaced by the new one.
                sqlx::query(
                    "UPDATE wrapping_keys SET state = 'retiring', replaced_by = $1 \
                 WHERE id = $2 OR replaced_by = $2 AND state = 'retiring'",
                )
                .bind(to.id.to_string())
                .bind(from.id.to_string())
                .execute(&mut *change)
                .await?;
                retire(&mut change).await?;
                hosts::assign_all(&mut change).await?;
                let target = format!("{} {} to {}", from.id, from.name, to.name);
                principal.note(&mut change, "rotate-key", target).await?;
                find(&mut change, old).await
            })
            .await
    }

    /// Deletes a retired key.
    ///
    /// # Errors
    /// [`DatabaseError::Refused`] if it is not retired.
    pub async fn delete(self, principal: &Principal, name: &str) -> Result<KeyRow, DatabaseError> {
        self.database
            .transaction_for(principal)
            .run(|mut change| async move {
                let row = find(&mut change, name).await?;
                if row.key.state != KeyState::Retired {
                    return refused(format!(
                        "the wrapping key {:?} is {}, and wraps the keys of {} volumes; replace it \
                         by another one first: `scree key rotate {} OTHER`",
                        row.key.name, row.key.state, row.lineages, row.key.name
                    ));
                }
                sqlx::query("DELETE FROM wrapping_keys WHERE id = $1")
                    .bind(row.key.id.to_string())
                    .execute(&mut *change)
                    .await?;
                hosts::assign_all(&mut change).await?;
                let target = format!("{} {}", row.key.id, row.key.name);
                principal.note(&mut change, "delete-key", target).await?;
                Ok(row)
            })
            .await
    }

    /// The data keys that a key wraps and that a host should rewrap, in the order of their
    /// lineages; none unless it is retiring.
    pub(in crate::database) async fn wrapped_by(
        self,
        reach: &Reach,
        call: &WrappedBy,
    ) -> Result<Vec<WrappedRow>, DatabaseError> {
        let after = call.after;
        let statement = concat!(
            "SELECT l.lineage, l.wrapped FROM lineages l WHERE l.wrapping_key = $3 \
             AND l.lineage > $4 AND EXISTS (SELECT 1 FROM wrapping_keys k WHERE k.id = $3 \
                 AND k.state = 'retiring') AND ",
            rewraps!("l.lineage"),
            " ORDER BY l.lineage LIMIT $5"
        );
        let rows = reach.query(statement);
        rows.bind(call.key.to_string())
            .bind(after.map_or_else(String::new, |after| after.to_string()))
            .bind(i64::from(call.count_max.min(ROWS_MAX)))
            .fetch_all(&self.database.reader)
            .await?
            .iter()
            .map(|row| {
                Ok(WrappedRow {
                    lineage: rows::spelled(row, "lineage")?,
                    wrapped: WrappedKey(row.try_get("wrapped")?),
                })
            })
            .collect()
    }

    /// Replaces the wrapped key `before` by `after`, which `to` wraps, if the row still holds
    /// `before`, the host may change it, and `to` replaces `from`.
    pub(in crate::database) async fn rewrap(
        self,
        reach: &Reach,
        call: &Rewrap,
    ) -> Result<bool, DatabaseError> {
        let (is_set, is_retired) = self
            .database
            .transaction()
            .notify()
            .run(|mut change| async move {
                let statement = concat!(
                    "UPDATE lineages SET wrapped = $3, wrapping_key = $4 \
                 WHERE lineage = $5 AND wrapping_key = $6 AND wrapped = $7 \
                 AND EXISTS (SELECT 1 FROM wrapping_keys k WHERE k.id = $6 \
                     AND k.state = 'retiring' AND k.replaced_by = $4) AND ",
                    rewraps!("lineages.lineage")
                );
                let set = reach
                    .query(statement)
                    .bind(call.after.0.clone())
                    .bind(call.to.to_string())
                    .bind(call.lineage.to_string())
                    .bind(call.from.to_string())
                    .bind(call.before.0.clone())
                    .execute(&mut *change)
                    .await?;
                Ok((set.rows_affected() == 1, retire(&mut change).await?))
            })
            .await?;
        if is_retired {
            // No row has bytes that the old key wrapped any more.
            self.database.erase().await;
        }
        Ok(is_set)
    }
}
