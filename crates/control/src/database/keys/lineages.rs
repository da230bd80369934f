//! Lineages: the wrapped data keys that seal versions, and the salts of leases.
//!
//! A lineage's row outlives everything that was sealed under it.

use api::host::catalog_calls::SetKey;
use base::{Lineage, PartyId};
use catalog::{LeaseSalt, LineageKey, VersionKey, WrappedKey};
use sqlx::{AnyConnection, Row as _};

use crate::database::catalog::version_rows::version_of;
use crate::database::keys::wrapping_keys;
use crate::database::{DatabaseError, Keys, ObjectKind, Reach, rows};

impl Keys<'_> {
    /// See [`catalog::Catalog::keys`].
    pub(in crate::database) async fn of_lineage(
        self,
        reach: &Reach,
        lineage: Lineage,
    ) -> Result<Vec<LineageKey>, DatabaseError> {
        let mut moment = self.database.moment().await?;
        match reach.reads_keys(&mut moment, lineage).await? {
            true => keys_of(&mut moment, lineage).await,
            false => Err(no_key(lineage)),
        }
    }

    /// Stores the first key of a lineage, which the first host that opens its volume created, with
    /// its wrapping key.
    ///
    /// # Errors
    /// [`DatabaseError::Refused`] if the lineage has another key, the host may not open the volume,
    /// or the wrapping key is not active.
    pub(in crate::database) async fn set_lineage_key(
        self,
        host: PartyId,
        call: &SetKey,
    ) -> Result<(), DatabaseError> {
        self.database
            .transaction()
            .run(|mut change| async move {
                let set = sqlx::query(
                    "UPDATE lineages SET wrapped = $1, wrapping_key = $5 WHERE lineage = $2 \
                 AND (wrapped = $1 AND wrapping_key = $5 OR wrapped IS NULL \
                     AND EXISTS (SELECT 1 FROM wrapping_keys k WHERE k.id = $5 \
                         AND k.state = 'active')) \
                 AND EXISTS (SELECT 1 FROM volumes v JOIN attachments a ON a.volume = v.id \
                     WHERE v.id = $3 AND v.lineage = $2 AND a.host = $4 \
                     AND a.access = 'read-write' AND a.state <> 'detached')",
                )
                .bind(call.wrapped.0.clone())
                .bind(call.lineage.to_string())
                .bind(call.volume.to_string())
                .bind(host.to_string())
                .bind(call.key.to_string())
                .execute(&mut *change)
                .await?;
                match set.rows_affected() {
                    1 => Ok(()),
                    _ => Err(DatabaseError::Refused {
                        reason: format!(
                            "{} already has a key, or is not attached to this host for writing, \
                             or the wrapping key {} is not active",
                            call.lineage, call.key
                        ),
                    }),
                }
            })
            .await
    }

    /// The wrapped keys of a lineage and of its ancestors. They are useless without the wrapping
    /// key.
    ///
    /// # Errors
    /// [`DatabaseError::NotFound`].
    pub async fn wrapped_keys_of(self, lineage: Lineage) -> Result<Vec<LineageKey>, DatabaseError> {
        keys_of(&mut *self.database.moment().await?, lineage).await
    }

    /// The lineage under which version `key` was sealed.
    ///
    /// # Errors
    /// [`DatabaseError::NotFound`].
    pub async fn lineage_of(self, key: VersionKey) -> Result<Lineage, DatabaseError> {
        Ok(version_of(&mut *self.database.reader.acquire().await?, key)
            .await?
            .lineage)
    }
}

/// Records the salt of a new lease.
pub(in crate::database) async fn note_salt(
    connection: &mut AnyConnection,
    lineage: Lineage,
    epoch: u32,
    salt: LeaseSalt,
) -> Result<(), DatabaseError> {
    sqlx::query("INSERT INTO lease_salts (lineage, epoch, salt) VALUES ($1, $2, $3)")
        .bind(lineage.to_string())
        .bind(i64::from(epoch))
        .bind(&salt.0[..])
        .execute(connection)
        .await?;
    Ok(())
}

async fn salts_of(
    connection: &mut AnyConnection,
    lineage: Lineage,
) -> Result<Vec<(u32, LeaseSalt)>, DatabaseError> {
    let rows = sqlx::query("SELECT epoch, salt FROM lease_salts WHERE lineage = $1 ORDER BY epoch")
        .bind(lineage.to_string())
        .fetch_all(connection)
        .await?;
    let salt = |row: &sqlx::any::AnyRow| {
        let bytes: Vec<u8> = row.try_get("salt")?;
        let salt = bytes.try_into().map_err(|_| DatabaseError::Damaged {
            what: format!("a salt of {lineage} is not 16 bytes long"),
        })?;
        Ok((rows::small(row, "epoch")?, LeaseSalt(salt)))
    };
    rows.iter().map(salt).collect()
}

fn no_key(lineage: Lineage) -> DatabaseError {
    DatabaseError::not_found(ObjectKind::LineageKey, lineage)
}

/// The keys of `lineage` and of those it descends from, its own first.
pub(in crate::database) async fn keys_of(
    connection: &mut AnyConnection,
    lineage: Lineage,
) -> Result<Vec<LineageKey>, DatabaseError> {
    let mut keys = Vec::new();
    let mut next = Some(lineage);
    while let Some(lineage) = next {
        let row = sqlx::query("SELECT * FROM lineages WHERE lineage = $1")
            .bind(lineage.to_string())
            .fetch_optional(&mut *connection)
            .await?
            .ok_or_else(|| no_key(lineage))?;
        keys.push(LineageKey {
            lineage,
            epoch_first: rows::small(&row, "epoch_first")?,
            wrapped: row
                .try_get::<Option<Vec<u8>>, _>("wrapped")?
                .map(WrappedKey),
            wrapped_by: rows::spelled_if_any(&row, "wrapping_key")?,
            salts: salts_of(&mut *connection, lineage).await?,
        });
        next = rows::spelled_if_any(&row, "parent")?;
    }
    Ok(keys)
}

/// Deletes the keys that nothing needs any more; `true` if there were any. The caller then calls
/// `Database::erase`.
pub(in crate::database) async fn forget_lineages(
    connection: &mut AnyConnection,
) -> Result<bool, DatabaseError> {
    let mut is_any = false;
    // Each round makes the parents of the deleted rows unneeded.
    loop {
        let gone = sqlx::query(
            "DELETE FROM lineages WHERE \
             NOT EXISTS (SELECT 1 FROM volumes v WHERE v.lineage = lineages.lineage) \
             AND NOT EXISTS (SELECT 1 FROM versions v WHERE v.lineage = lineages.lineage) \
             AND NOT EXISTS (SELECT 1 FROM lineages c WHERE c.parent = lineages.lineage)",
        )
        .execute(&mut *connection)
        .await?
        .rows_affected();
        if gone == 0 {
            wrapping_keys::retire(connection).await?;
            return Ok(is_any);
        }
        is_any = true;
    }
}
