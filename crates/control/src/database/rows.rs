//! Conversion of rows to types.

use std::fmt;
use std::str::FromStr;

use api::host::Encryption;
use api::words::ImageMark;
use base::{BlockSize, Lineage, PartyId, ProjectId, SnapshotId, VolumeId};
use catalog::{Erasure, StoredVersion, VersionKey};
use sqlx::Row;
use sqlx::any::AnyRow;
use world::Millis;

use super::{DatabaseError, VolumeSettings};
use api::types::REPLICAS_MAX;

/// The query for volumes with the names of their owners and projects, followed by conditions.
macro_rules! volumes {
    ($($rest:tt)*) => {
        concat!(
            "SELECT v.*, o.name AS owner_name, j.name AS project_name FROM volumes v \
             LEFT JOIN parties o ON o.id = v.owner LEFT JOIN projects j ON j.id = v.project ",
            $($rest)*
        )
    };
}

/// The query for snapshots with the names of their owners, followed by conditions.
macro_rules! snapshots {
    ($($rest:tt)*) => {
        concat!(
            "SELECT s.*, o.name AS owner_name FROM snapshots s \
             LEFT JOIN parties o ON o.id = s.owner ",
            $($rest)*
        )
    };
}

/// The state of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SnapshotState {
    /// Its consistency point is not in a version yet.
    Pending,
    /// It holds a version (`None`: the empty disk).
    Completed(Option<VersionKey>),
    /// Its consistency point is lost.
    Error {
        /// What went wrong.
        reason: String,
    },
}

/// A volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeRow {
    /// The id.
    pub id: VolumeId,
    /// The name.
    pub name: String,
    /// The owner.
    pub owner: Option<PartyId>,
    /// The owner's name.
    pub owner_name: Option<String>,
    /// The project that it is charged to.
    pub project: Option<ProjectId>,
    /// The project's name.
    pub project_name: Option<String>,
    /// Size in bytes.
    pub size_bytes: u64,
    /// The block size.
    pub block_size: BlockSize,
    /// How it is encrypted.
    pub encryption: Encryption,
    /// The number of copies of each segment.
    pub replicas: u8,
    /// Erasure coding in place of copies.
    pub erasure: Option<Erasure>,
    /// The lineage under which it writes.
    pub lineage: Lineage,
    /// The last lease's epoch.
    pub epoch: u32,
    /// The version that is its state when it is detached.
    pub head: Option<VersionKey>,
    /// The last host that had a lease on it.
    pub last_host: Option<PartyId>,
    /// The snapshot that it was cloned from, which may have been deleted.
    pub origin: Option<SnapshotId>,
    /// The settings.
    pub settings: VolumeSettings,
    /// How it is used as a base image, if it is one.
    pub image: Option<ImageMark>,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// When it was created.
    pub created: Millis,
}

impl VolumeRow {
    /// The name by which `party` has to refer to it in a request that changes it: `owner/name` if
    /// another user owns it.
    #[must_use]
    pub fn name_for(&self, party: PartyId) -> String {
        match &self.owner_name {
            Some(owner) if self.owner != Some(party) => format!("{owner}/{}", self.name),
            _ => self.name.clone(),
        }
    }
}

/// A snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotRow {
    /// The id.
    pub id: SnapshotId,
    /// The name.
    pub name: String,
    /// The owner, who is the owner of its volume.
    pub owner: Option<PartyId>,
    /// The owner's name.
    pub owner_name: Option<String>,
    /// The volume, which may have been deleted.
    pub volume: VolumeId,
    /// The volume's name when it was taken.
    pub volume_name: String,
    /// Size in bytes.
    pub size_bytes: u64,
    /// The block size.
    pub block_size: BlockSize,
    /// How its volume is encrypted.
    pub encryption: Encryption,
    /// Its state, and the version it holds.
    pub state: SnapshotState,
    /// While pending: whether its consistency point was taken and waits for a version.
    pub has_consistency_point: bool,
    /// When it was requested.
    pub created: Millis,
}

/// Reads an unsigned 64-bit number.
pub(super) fn number(row: &AnyRow, column: &str) -> Result<u64, DatabaseError> {
    Ok(row.try_get::<i64, _>(column)?.cast_unsigned())
}

/// Reads a number of a smaller type.
pub(super) fn small<T: TryFrom<i64>>(row: &AnyRow, column: &str) -> Result<T, DatabaseError> {
    let value: i64 = row.try_get(column)?;
    T::try_from(value).map_err(|_| DatabaseError::Damaged {
        what: format!("{column} is {value}"),
    })
}

/// Reads a flag.
pub(super) fn flag(row: &AnyRow, column: &str) -> Result<bool, DatabaseError> {
    Ok(small::<u8>(row, column)? != 0)
}

/// Reads a column that is text and parses it.
pub(super) fn spelled<T: FromStr<Err: fmt::Display>>(
    row: &AnyRow,
    column: &str,
) -> Result<T, DatabaseError> {
    parse(row.try_get(column)?)
}

/// Reads and parses a column that may be null.
pub(super) fn spelled_if_any<T: FromStr<Err: fmt::Display>>(
    row: &AnyRow,
    column: &str,
) -> Result<Option<T>, DatabaseError> {
    row.try_get::<Option<String>, _>(column)?
        .as_deref()
        .map(parse)
        .transpose()
}

fn parse<T: FromStr<Err: fmt::Display>>(text: &str) -> Result<T, DatabaseError> {
    text.parse()
        .map_err(|error: T::Err| DatabaseError::Damaged {
            what: error.to_string(),
        })
}

/// Reads an id; empty means none.
fn owned<T: FromStr<Err: fmt::Display>>(
    row: &AnyRow,
    column: &str,
) -> Result<Option<T>, DatabaseError> {
    let text: &str = row.try_get(column)?;
    Some(text)
        .filter(|text| !text.is_empty())
        .map(parse)
        .transpose()
}

pub(super) fn block_size(row: &AnyRow) -> Result<BlockSize, DatabaseError> {
    let bytes = number(row, "block_bytes")?;
    BlockSize::new(bytes).ok_or_else(|| DatabaseError::Damaged {
        what: format!("a block size of {bytes}"),
    })
}

/// Reads and checks the size of a volume, since later computations rely on it.
fn size_bytes(row: &AnyRow, block_size: BlockSize) -> Result<u64, DatabaseError> {
    let bytes = number(row, "size_bytes")?;
    crate::parse::volume_size(bytes, block_size).map_err(|error| DatabaseError::Damaged {
        what: format!("a size that no volume has: {error}"),
    })
}

/// Reads the number of copies.
fn replicas(row: &AnyRow) -> Result<u8, DatabaseError> {
    let replicas = small(row, "replicas")?;
    if (1..=REPLICAS_MAX).contains(&replicas) {
        return Ok(replicas);
    }
    Err(DatabaseError::Damaged {
        what: format!("{replicas} replicas"),
    })
}

/// Reads the erasure coding of a volume.
fn erasure(row: &AnyRow) -> Result<Option<Erasure>, DatabaseError> {
    match (small(row, "data")?, small(row, "parity")?) {
        (1, 0) => Ok(None),
        (data, parity) => match Erasure::new(data, parity) {
            Some(erasure) => Ok(Some(erasure)),
            None => Err(DatabaseError::Damaged {
                what: format!("erasure {data}+{parity}"),
            }),
        },
    }
}

/// Reads `{prefix}_volume` and `{prefix}_number`.
pub(super) fn version_key(
    row: &AnyRow,
    volume: &str,
    number: &str,
) -> Result<Option<VersionKey>, DatabaseError> {
    let Some(volume) = spelled_if_any(row, volume)? else {
        return Ok(None);
    };
    Ok(Some(VersionKey {
        volume,
        number: self::number(row, number)?,
    }))
}

/// The columns of a version.
pub(super) fn stored_version(row: &AnyRow) -> Result<StoredVersion, DatabaseError> {
    Ok(StoredVersion {
        key: VersionKey {
            volume: spelled(row, "volume")?,
            number: number(row, "number")?,
        },
        parent: version_key(row, "parent_volume", "parent_number")?,
        lineage: spelled(row, "lineage")?,
        epoch: small(row, "epoch")?,
        journal_next: number(row, "journal_next")?,
        created: Millis(row.try_get("created_ms")?),
        record: row.try_get("record")?,
    })
}

pub(super) fn volume_row(row: &AnyRow) -> Result<VolumeRow, DatabaseError> {
    let block_size = block_size(row)?;
    Ok(VolumeRow {
        id: spelled(row, "id")?,
        name: row.try_get("name")?,
        owner: owned(row, "owner")?,
        owner_name: row.try_get("owner_name")?,
        project: owned(row, "project")?,
        project_name: row.try_get("project_name")?,
        size_bytes: size_bytes(row, block_size)?,
        block_size,
        encryption: spelled(row, "encryption")?,
        replicas: replicas(row)?,
        erasure: erasure(row)?,
        lineage: spelled(row, "lineage")?,
        epoch: small(row, "epoch")?,
        head: version_key(row, "head_volume", "head_number")?,
        last_host: spelled_if_any(row, "last_host")?,
        origin: spelled_if_any(row, "origin")?,
        settings: VolumeSettings::of(row)?,
        image: spelled_if_any(row, "image")?,
        deleting: flag(row, "deleting")?,
        created: Millis(row.try_get("created_ms")?),
    })
}

pub(super) fn snapshot_row(row: &AnyRow) -> Result<SnapshotRow, DatabaseError> {
    let state: &str = row.try_get("state")?;
    let state = match state {
        "pending" => SnapshotState::Pending,
        "completed" => {
            SnapshotState::Completed(version_key(row, "version_volume", "version_number")?)
        }
        "error" => SnapshotState::Error {
            reason: row
                .try_get::<Option<String>, _>("message")?
                .unwrap_or_default(),
        },
        other => {
            return Err(DatabaseError::Damaged {
                what: format!("a snapshot state {other:?}"),
            });
        }
    };
    let block_size = block_size(row)?;
    Ok(SnapshotRow {
        id: spelled(row, "id")?,
        name: row.try_get("name")?,
        owner: owned(row, "owner")?,
        owner_name: row.try_get("owner_name")?,
        volume: spelled(row, "volume")?,
        volume_name: row.try_get("volume_name")?,
        size_bytes: size_bytes(row, block_size)?,
        block_size,
        encryption: spelled(row, "encryption")?,
        state,
        has_consistency_point: flag(row, "has_consistency_point")?,
        created: Millis(row.try_get("created_ms")?),
    })
}
