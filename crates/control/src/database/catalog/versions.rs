//! Versions: listing, reading and removing them.
//!
//! A version is removed only while no head, no snapshot and no reader names it, and its neighbors
//! are those that the caller saw. [`lineages`](crate::database::keys::lineages) has their keys,
//! [`frees`](crate::database::catalog::frees) the slots of removed versions.

use base::{Lineage, VolumeId};
use catalog::{Neighbors, StoredVersion, VersionKey};
use sqlx::{AnyConnection, Row as _};
use world::Millis;

use crate::database::catalog::deleted_volumes;
use crate::database::catalog::frees::{Parts, note_free};
use crate::database::catalog::version_rows::{not_found, version_of};
use crate::database::keys::lineages::{self, forget_lineages};
use crate::database::{Catalog, DatabaseError, Reach, rows};

/// The number of heads, snapshots and readers that name version ($1, $2).
const NEEDED: &str = "SELECT \
     (SELECT COUNT(*) FROM volumes WHERE head_volume = $1 AND head_number = $2) \
     + (SELECT COUNT(*) FROM snapshots WHERE version_volume = $1 AND version_number = $2) \
     + (SELECT COUNT(*) FROM attachments WHERE version_volume = $1 AND version_number = $2 \
        AND state <> 'detached') \
     + (SELECT COUNT(*) FROM preloads WHERE version_volume = $1 AND version_number = $2 \
        AND ended_ms IS NULL) \
     + (SELECT COUNT(*) FROM volume_audits WHERE version_volume = $1 AND version_number = $2 \
        AND ended_ms IS NULL)";

/// A version in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VersionRow {
    /// The key.
    pub key: VersionKey,
    /// When it was committed.
    pub created: Millis,
    /// Whether it is the head of a volume.
    pub is_head: bool,
    /// Whether a host shows it read-only, preloads it, or audits it.
    pub is_read: bool,
    /// The names of the snapshots that hold it.
    pub snapshots: Vec<String>,
}

pub(in crate::database) async fn insert(
    connection: &mut AnyConnection,
    version: &StoredVersion,
) -> Result<(), DatabaseError> {
    sqlx::query(
        "INSERT INTO versions (volume, number, parent_volume, parent_number, lineage, epoch, \
         journal_next, created_ms, record) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
    )
    .bind(version.key.volume.to_string())
    .bind(version.key.number.cast_signed())
    .bind(version.parent.map(|parent| parent.volume.to_string()))
    .bind(version.parent.map(|parent| parent.number.cast_signed()))
    .bind(version.lineage.to_string())
    .bind(i64::from(version.epoch))
    .bind(version.journal_next.cast_signed())
    .bind(version.created.0)
    .bind(&version.record)
    .execute(connection)
    .await?;
    Ok(())
}

async fn children_of(
    connection: &mut AnyConnection,
    key: VersionKey,
) -> Result<Vec<StoredVersion>, DatabaseError> {
    sqlx::query(
        "SELECT * FROM versions WHERE parent_volume = $1 AND parent_number = $2 \
         ORDER BY volume, number",
    )
    .bind(key.volume.to_string())
    .bind(key.number.cast_signed())
    .fetch_all(connection)
    .await?
    .iter()
    .map(rows::stored_version)
    .collect()
}

async fn neighbors_of(
    connection: &mut AnyConnection,
    key: VersionKey,
) -> Result<Neighbors, DatabaseError> {
    let version = version_of(connection, key).await?;
    let parent = match version.parent {
        Some(parent) => Some(version_of(connection, parent).await?),
        None => None,
    };
    let children = children_of(connection, key).await?;
    let needed: i64 = sqlx::query_scalar(NEEDED)
        .bind(key.volume.to_string())
        .bind(key.number.cast_signed())
        .fetch_one(connection)
        .await?;
    Ok(Neighbors {
        parent,
        children,
        needed: needed > 0,
    })
}

/// The neighbors of a version that a host removes. It is refused if it was removed already.
async fn removable(
    connection: &mut AnyConnection,
    reach: &Reach,
    key: VersionKey,
) -> Result<Neighbors, DatabaseError> {
    let gone = || not_found(key);
    let reached = reach.must_clean(&mut *connection, key.volume, gone).await;
    let found = match reached {
        Ok(()) => neighbors_of(connection, key).await,
        Err(error) => Err(error),
    };
    found.map_err(|error| match error {
        DatabaseError::NotFound { thing, name } => DatabaseError::Refused {
            reason: format!("{thing} {name} was removed already"),
        },
        other => other,
    })
}

/// Refuses to remove a version that is needed, or whose neighbors are not those that the host saw.
fn refuse_unless_removable(
    key: VersionKey,
    found: &Neighbors,
    expected: &Neighbors,
) -> Result<(), DatabaseError> {
    let keys = |neighbors: &Neighbors| {
        let mut children: Vec<_> = neighbors.children.iter().map(|child| child.key).collect();
        children.sort_unstable();
        (neighbors.parent.as_ref().map(|parent| parent.key), children)
    };
    let why = if found.needed {
        "a volume or a snapshot needs it"
    } else if keys(found) != keys(expected) {
        "the versions around it have changed"
    } else {
        return Ok(());
    };
    Err(DatabaseError::Refused {
        reason: format!("version {} of {} stays: {why}", key.number, key.volume),
    })
}

/// Deletes the row of a version, and makes `parent` the parent of its children.
async fn delete(
    connection: &mut AnyConnection,
    key: VersionKey,
    parent: Option<VersionKey>,
) -> Result<(), DatabaseError> {
    sqlx::query(
        "UPDATE versions SET parent_volume = $1, parent_number = $2 \
         WHERE parent_volume = $3 AND parent_number = $4",
    )
    .bind(parent.map(|parent| parent.volume.to_string()))
    .bind(parent.map(|parent| parent.number.cast_signed()))
    .bind(key.volume.to_string())
    .bind(key.number.cast_signed())
    .execute(&mut *connection)
    .await?;
    sqlx::query("DELETE FROM versions WHERE volume = $1 AND number = $2")
        .bind(key.volume.to_string())
        .bind(key.number.cast_signed())
        .execute(connection)
        .await?;
    Ok(())
}

/// The versions for which `condition` holds. Its $1 is `volume`.
async fn version_rows(
    connection: &mut AnyConnection,
    condition: &str,
    volume: VolumeId,
) -> Result<Vec<VersionRow>, DatabaseError> {
    let statement = format!(
        "SELECT volume, number, created_ms, \
         (SELECT COUNT(*) FROM volumes h WHERE h.head_volume = versions.volume \
             AND h.head_number = versions.number) AS heads, \
         (SELECT COUNT(*) FROM attachments a WHERE a.version_volume = versions.volume \
             AND a.version_number = versions.number AND a.state <> 'detached') \
         + (SELECT COUNT(*) FROM preloads p WHERE p.version_volume = versions.volume \
             AND p.version_number = versions.number AND p.ended_ms IS NULL) \
         + (SELECT COUNT(*) FROM volume_audits d WHERE d.version_volume = versions.volume \
             AND d.version_number = versions.number AND d.ended_ms IS NULL) AS readers, \
         (SELECT STRING_AGG(s.name, ',') FROM snapshots s WHERE s.version_volume = versions.volume \
             AND s.version_number = versions.number) AS snapshots \
         FROM versions WHERE {condition} ORDER BY number, volume"
    );
    sqlx::query(&statement)
        .bind(volume.to_string())
        .fetch_all(connection)
        .await?
        .iter()
        .map(|row| {
            // Names have no commas.
            let snapshots: Option<&str> = row.try_get("snapshots")?;
            let key = VersionKey {
                volume: rows::spelled(row, "volume")?,
                number: rows::number(row, "number")?,
            };
            Ok(VersionRow {
                key,
                created: Millis(row.try_get("created_ms")?),
                is_head: rows::number(row, "heads")? > 0,
                is_read: rows::number(row, "readers")? > 0,
                snapshots: snapshots
                    .map(|names| names.split(',').map(str::to_owned).collect())
                    .unwrap_or_default(),
            })
        })
        .collect()
}

impl Catalog<'_> {
    /// See [`catalog::Catalog::version`].
    pub(in crate::database) async fn version(
        self,
        reach: &Reach,
        key: VersionKey,
    ) -> Result<StoredVersion, DatabaseError> {
        let mut moment = self.database.moment().await?;
        match reach.reads_version(&mut moment, key).await? {
            true => version_of(&mut moment, key).await,
            false => Err(not_found(key)),
        }
    }

    /// See [`catalog::Catalog::neighbors`].
    pub(in crate::database) async fn neighbors(
        self,
        reach: &Reach,
        key: VersionKey,
    ) -> Result<Neighbors, DatabaseError> {
        let mut moment = self.database.moment().await?;
        let gone = || not_found(key);
        reach.must_clean(&mut moment, key.volume, gone).await?;
        neighbors_of(&mut moment, key).await
    }

    /// See [`catalog::Catalog::remove_version`].
    pub(in crate::database) async fn remove_version(
        self,
        reach: &Reach,
        key: VersionKey,
        expected: &Neighbors,
        not_before: Millis,
        plan: Vec<u8>,
    ) -> Result<(), DatabaseError> {
        let parts = Parts::of(plan).await?;
        let parts = &parts;
        let is_forgotten = self
            .database
            .transaction()
            .run(|mut change| async move {
                let found = removable(&mut change, reach, key).await?;
                refuse_unless_removable(key, &found, expected)?;
                // Before they may go with it.
                let lineage = version_of(&mut change, key).await?.lineage;
                let keys = lineages::keys_of(&mut change, lineage).await?;
                let lineages: Vec<Lineage> = keys.into_iter().map(|key| key.lineage).collect();
                let parent = found.parent.map(|parent| parent.key);
                delete(&mut change, key, parent).await?;
                let of = Some((key.volume, &lineages[..]));
                note_free(&mut change, of, not_before, parts).await?;
                deleted_volumes::forget_clean(&mut change).await?;
                forget_lineages(&mut change).await
            })
            .await?;
        if is_forgotten {
            self.database.erase().await;
        }
        Ok(())
    }

    /// The kept versions that a volume committed, oldest first.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn versions_of(self, volume: VolumeId) -> Result<Vec<VersionRow>, DatabaseError> {
        let mut moment = self.database.moment().await?;
        version_rows(&mut moment, "volume = $1", volume).await
    }

    /// The kept versions that were ever a volume's state, oldest first: those
    /// it committed, the one it was cloned as, and its head. Their numbers
    /// differ.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn line_of(self, volume: VolumeId) -> Result<Vec<VersionRow>, DatabaseError> {
        let mut moment = self.database.moment().await?;
        let line = "(volume, number) IN (\
             SELECT volume, number FROM versions WHERE volume = $1 \
             UNION SELECT head_volume, head_number FROM volumes WHERE id = $1 \
             UNION SELECT origin_volume, origin_number FROM volumes WHERE id = $1)";
        version_rows(&mut moment, line, volume).await
    }

    /// The volumes that a host cleans and whose versions have to be examined one by one, since some
    /// may be removed: those with more than `count_max`; those with a version older than `before`
    /// that is not a head; those that are deleted or being deleted. Most volumes are none of these.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn version_owners(
        self,
        reach: &Reach,
        count_max: usize,
        before: Millis,
    ) -> Result<Vec<VolumeId>, DatabaseError> {
        let statement = concat!(
            "SELECT o.volume FROM (\
             SELECT volume FROM versions GROUP BY volume HAVING COUNT(*) > $3 \
             UNION SELECT s.volume FROM versions s WHERE s.created_ms < $4 AND NOT EXISTS \
             (SELECT 1 FROM volumes v WHERE v.head_volume = s.volume \
             AND v.head_number = s.number) \
             UNION SELECT s.volume FROM versions s WHERE NOT EXISTS \
             (SELECT 1 FROM volumes v WHERE v.id = s.volume AND v.deleting = 0)) o WHERE ",
            cleans!("o.volume"),
            " ORDER BY o.volume"
        );
        reach
            .query(statement)
            .bind(i64::try_from(count_max).unwrap_or(i64::MAX))
            .bind(before.0)
            .fetch_all(&self.database.reader)
            .await?
            .iter()
            .map(|row| rows::spelled(row, "volume"))
            .collect()
    }
}
