//! Tags of volumes and snapshots.

use std::collections::BTreeMap;

use sqlx::{AnyConnection, Row as _};

use crate::database::tenancy::rights;
use crate::database::{Database, DatabaseError, Need, Principal, Right, Snapshots, Volumes};

/// The tags of one object.
pub type Tags = BTreeMap<String, String>;

/// Replaces the tags of an object.
pub(in crate::database) async fn set(
    change: &mut AnyConnection,
    object: &str,
    tags: &Tags,
) -> Result<(), DatabaseError> {
    forget(&mut *change, object).await?;
    for (key, value) in tags {
        sqlx::query("INSERT INTO tags (object, key, value) VALUES ($1, $2, $3)")
            .bind(object)
            .bind(key)
            .bind(value)
            .execute(&mut *change)
            .await?;
    }
    Ok(())
}

/// Deletes the tags of an object that was deleted.
pub(in crate::database) async fn forget(
    change: &mut AnyConnection,
    object: &str,
) -> Result<(), DatabaseError> {
    sqlx::query("DELETE FROM tags WHERE object = $1")
        .bind(object)
        .execute(change)
        .await?;
    Ok(())
}

/// The tags of the objects with ids from `first` to `last`.
pub(in crate::database) async fn between(
    connection: &mut AnyConnection,
    first: &str,
    last: &str,
) -> Result<BTreeMap<String, Tags>, DatabaseError> {
    let mut all = BTreeMap::<String, Tags>::new();
    for row in sqlx::query("SELECT * FROM tags WHERE object >= $1 AND object <= $2")
        .bind(first)
        .bind(last)
        .fetch_all(connection)
        .await?
    {
        let of = all.entry(row.try_get("object")?).or_default();
        of.insert(row.try_get("key")?, row.try_get("value")?);
    }
    Ok(all)
}

impl Database {
    /// The tags of one object.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn tags_of(&self, object: &str) -> Result<Tags, DatabaseError> {
        let mut all = between(&mut *self.reader.acquire().await?, object, object).await?;
        Ok(all.remove(object).unwrap_or_default())
    }
}

impl Volumes<'_> {
    /// Replaces the tags of a volume.
    ///
    /// # Errors
    /// [`DatabaseError::NotFound`], [`DatabaseError::Forbidden`];
    /// [`DatabaseError::Refused`] if it is being deleted, or the name is ambiguous.
    pub async fn set_tags(
        self,
        principal: &Principal,
        volume: &str,
        tags: &Tags,
    ) -> Result<crate::database::VolumeRow, DatabaseError> {
        self.database
            .transaction_for(principal)
            .run(|mut change| async move {
                let need = Need::Have(Right::Administer);
                let volume = rights::volume_for(&mut change, principal, volume, need).await?;
                rights::refuse_if_deleting(&volume)?;
                set(&mut change, &volume.id.to_string(), tags).await?;
                let target = format!("{} {}", volume.id, volume.name);
                principal.note(&mut change, "tag", target).await?;
                Ok(volume)
            })
            .await
    }
}

impl Snapshots<'_> {
    /// Replaces the tags of a snapshot.
    ///
    /// # Errors
    /// [`DatabaseError::NotFound`], [`DatabaseError::Forbidden`];
    /// [`DatabaseError::Refused`] if the name is ambiguous.
    pub async fn set_tags(
        self,
        principal: &Principal,
        snapshot: &str,
        tags: &Tags,
    ) -> Result<crate::database::SnapshotRow, DatabaseError> {
        self.database
            .transaction_for(principal)
            .run(|mut change| async move {
                let need = Need::Have(Right::Administer);
                let snapshot = rights::snapshot_for(&mut change, principal, snapshot, need).await?;
                set(&mut change, &snapshot.id.to_string(), tags).await?;
                let target = format!("{} {}", snapshot.id, snapshot.name);
                principal.note(&mut change, "tag", target).await?;
                Ok(snapshot)
            })
            .await
    }
}
