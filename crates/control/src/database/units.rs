//! The cluster, its units, and its table of copysets.

use api::host::{KeySource, WrappingKey};
use base::{ClusterId, CopysetId, UnitId, url};
use catalog::Copyset;
use catalog::WrappedKey;
use sqlx::Row;
use world::Millis;

use super::rows;
use super::{Database, DatabaseError};

/// What is true of the whole cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterRow {
    /// Its id.
    pub id: ClusterId,
    /// When it was made.
    pub created: Millis,
    /// With this, hosts vouch for what they leave on units.
    pub vouch: WrappedKey,
    /// The key that wraps all others, once a host has brought one.
    pub key: Option<WrappingKey>,
}

/// A unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnitRow {
    /// Its id.
    pub id: UnitId,
    /// Where it is.
    pub url: String,
}

impl Database {
    /// The cluster; `None` in a new database.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn cluster(&self) -> Result<Option<ClusterRow>, DatabaseError> {
        let row = sqlx::query("SELECT * FROM cluster")
            .fetch_optional(&self.reader)
            .await?;
        let Some(row) = row else { return Ok(None) };
        let source = match row.try_get::<Option<&str>, _>("key_source")? {
            None => None,
            Some("file") => Some(KeySource::File),
            Some(_) => Some(KeySource::Passphrase {
                salt: row.try_get("key_salt")?,
                memory_kib: rows::small(&row, "key_memory_kib")?,
                passes: rows::small(&row, "key_passes")?,
                lanes: rows::small(&row, "key_lanes")?,
            }),
        };
        let key = match source {
            None => None,
            Some(source) => Some(WrappingKey {
                source,
                verifier: WrappedKey(row.try_get("key_verifier")?),
            }),
        };
        Ok(Some(ClusterRow {
            id: rows::spelt(&row, "id")?,
            created: Millis(row.try_get("created_ms")?),
            vouch: WrappedKey(row.try_get("vouch")?),
            key,
        }))
    }

    /// Founds the cluster, once. It has no key yet.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn found(
        &self,
        id: ClusterId,
        vouch: &[u8],
        created: Millis,
    ) -> Result<(), DatabaseError> {
        change!(self, change, {
            sqlx::query("INSERT INTO cluster (one, id, created_ms, vouch) VALUES (1, $1, $2, $3)")
                .bind(id.to_string())
                .bind(created.0)
                .bind(vouch)
                .execute(change)
                .await?;
            Ok(())
        })
    }

    /// Keeps how the cluster's first wrapping key is had.
    ///
    /// # Errors
    /// [`DatabaseError::Refused`] if there is another one already.
    pub async fn set_key(&self, key: &WrappingKey) -> Result<(), DatabaseError> {
        let (source, salt, memory_kib, passes, lanes) = match &key.source {
            KeySource::File => ("file", None, None, None, None),
            KeySource::Passphrase {
                salt,
                memory_kib,
                passes,
                lanes,
            } => (
                "passphrase",
                Some(salt.clone()),
                Some(i64::from(*memory_kib)),
                Some(i64::from(*passes)),
                Some(i64::from(*lanes)),
            ),
        };
        change!(self, change, {
            let set = sqlx::query(
                "UPDATE cluster SET key_source = $1, key_salt = $2, key_memory_kib = $3, \
                 key_passes = $4, key_lanes = $5, key_verifier = $6 \
                 WHERE key_source IS NULL OR key_verifier = $6",
            )
            .bind(source)
            .bind(salt.clone())
            .bind(memory_kib)
            .bind(passes)
            .bind(lanes)
            .bind(key.verifier.0.clone())
            .execute(change)
            .await?;
            match set.rows_affected() {
                1 => Ok(()),
                _ => Err(DatabaseError::Refused {
                    reason: "the cluster has a wrapping key already".to_owned(),
                }),
            }
        })
    }

    /// All units, in the order in which they were added.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn units(&self) -> Result<Vec<UnitRow>, DatabaseError> {
        sqlx::query("SELECT * FROM units ORDER BY added_ms, url")
            .fetch_all(&self.reader)
            .await?
            .iter()
            .map(|row| {
                let url: String = row.try_get("url")?;
                Ok(UnitRow {
                    id: rows::spelt(row, "id")?,
                    // One from before they were percent-encoded has spaces
                    // and the like as they are.
                    url: url::path_of(&url).map_or(url, |folder| url::url_of(&folder)),
                })
            })
            .collect()
    }

    /// The table of copysets, by number.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn copysets(&self) -> Result<Vec<Copyset>, DatabaseError> {
        let members = sqlx::query("SELECT * FROM copyset_members ORDER BY copyset, place")
            .fetch_all(&self.reader)
            .await?;
        let mut copysets: Vec<Copyset> = Vec::new();
        for row in &members {
            let number: u16 = rows::small(row, "copyset")?;
            let id = CopysetId::new(number).ok_or_else(|| DatabaseError::Damaged {
                what: format!("copyset {number}"),
            })?;
            let unit = rows::spelt(row, "unit")?;
            match copysets.last_mut() {
                Some(last) if last.id == id => last.members.push(unit),
                _ => copysets.push(Copyset {
                    id,
                    members: vec![unit],
                }),
            }
        }
        Ok(copysets)
    }

    /// Adds units, and copysets over them and those there were, together.
    ///
    /// # Errors
    /// [`DatabaseError::Taken`] if one is there already.
    pub async fn insert_units(
        &self,
        units: &[UnitRow],
        copysets: &[Copyset],
        added: Millis,
    ) -> Result<(), DatabaseError> {
        change_and_tell!(self, change, {
            for unit in units {
                let taken: Option<String> =
                    sqlx::query_scalar("SELECT url FROM units WHERE id = $1 OR url = $2")
                        .bind(unit.id.to_string())
                        .bind(&unit.url)
                        .fetch_optional(&mut *change)
                        .await?;
                if let Some(url) = taken {
                    return Err(DatabaseError::Taken {
                        what: format!("unit {} ({url})", unit.id),
                    });
                }
                sqlx::query("INSERT INTO units (id, url, added_ms) VALUES ($1, $2, $3)")
                    .bind(unit.id.to_string())
                    .bind(&unit.url)
                    .bind(added.0)
                    .execute(&mut *change)
                    .await?;
            }
            for copyset in copysets {
                sqlx::query("INSERT INTO copysets (number) VALUES ($1)")
                    .bind(i64::from(copyset.id.number()))
                    .execute(&mut *change)
                    .await?;
                for (place, member) in copyset.members.iter().enumerate() {
                    sqlx::query(
                        "INSERT INTO copyset_members (copyset, place, unit) VALUES ($1, $2, $3)",
                    )
                    .bind(i64::from(copyset.id.number()))
                    .bind(place as i64)
                    .bind(member.to_string())
                    .execute(&mut *change)
                    .await?;
                }
            }
            super::hosts::assign_all(&mut *change).await
        })
    }
}
