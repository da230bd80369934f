//! From rows to types, once.

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

/// Volumes as they are read, with what follows `FROM`: their owners' and
/// projects' names are part of them.
macro_rules! volumes {
    ($($rest:tt)*) => {
        concat!(
            "SELECT v.*, o.name AS owner_name, j.name AS project_name FROM volumes v \
             LEFT JOIN parties o ON o.id = v.owner LEFT JOIN projects j ON j.id = v.project ",
            $($rest)*
        )
    };
}

/// As [`volumes!`], snapshots.
macro_rules! snapshots {
    ($($rest:tt)*) => {
        concat!(
            "SELECT s.*, o.name AS owner_name FROM snapshots s \
             LEFT JOIN parties o ON o.id = s.owner ",
            $($rest)*
        )
    };
}

/// How far a snapshot has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SnapshotState {
    /// Its cut is in the journal, not yet in a version.
    Pending,
    /// It holds a version (`None`: the empty disk).
    Completed(Option<VersionKey>),
    /// It will never complete.
    Error {
        /// Why.
        reason: String,
    },
}

/// A volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeRow {
    /// Its id.
    pub id: VolumeId,
    /// Its name.
    pub name: String,
    /// Whose it is.
    pub owner: Option<PartyId>,
    /// What they are called.
    pub owner_name: Option<String>,
    /// On whose account it is.
    pub project: Option<ProjectId>,
    /// What that is called.
    pub project_name: Option<String>,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Block size.
    pub block_size: BlockSize,
    /// How it is sealed.
    pub encryption: Encryption,
    /// Copies of each segment.
    pub replicas: u8,
    /// What is in their place.
    pub erasure: Option<Erasure>,
    /// Under which lineage it writes.
    pub lineage: Lineage,
    /// The last lease's epoch.
    pub epoch: u32,
    /// Its state when detached.
    pub head: Option<VersionKey>,
    /// The host that had a lease on it last.
    pub last_host: Option<PartyId>,
    /// The snapshot it was cloned from, which may be gone.
    pub origin: Option<SnapshotId>,
    /// Its settings.
    pub settings: VolumeSettings,
    /// How it is a base image, if it is one.
    pub image: Option<ImageMark>,
    /// On its way out.
    pub deleting: bool,
    /// When it was made.
    pub created: Millis,
}

impl VolumeRow {
    /// What `party` has to call it where it is to be changed: `owner/name`, if it
    /// is another's.
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
    /// Its id.
    pub id: SnapshotId,
    /// Its name.
    pub name: String,
    /// Whose it is: its volume's owner.
    pub owner: Option<PartyId>,
    /// What they are called.
    pub owner_name: Option<String>,
    /// Its volume, which may be gone.
    pub volume: VolumeId,
    /// The name that volume had.
    pub volume_name: String,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Block size.
    pub block_size: BlockSize,
    /// How its volume is sealed.
    pub encryption: Encryption,
    /// How far it has come, and what it holds.
    pub state: SnapshotState,
    /// While it is pending: its moment was taken, and waits for a version.
    pub is_cut: bool,
    /// When it was taken.
    pub created: Millis,
}

/// Reads one column.
pub(super) fn number(row: &AnyRow, column: &str) -> Result<u64, DatabaseError> {
    Ok(row.try_get::<i64, _>(column)?.cast_unsigned())
}

/// Reads a number that is smaller than 64 bits.
pub(super) fn small<T: TryFrom<i64>>(row: &AnyRow, column: &str) -> Result<T, DatabaseError> {
    let value: i64 = row.try_get(column)?;
    T::try_from(value).map_err(|_| DatabaseError::Damaged {
        what: format!("{column} is {value}"),
    })
}

/// Reads a number that says yes or no.
pub(super) fn flag(row: &AnyRow, column: &str) -> Result<bool, DatabaseError> {
    Ok(small::<u8>(row, column)? != 0)
}

/// Reads a column that is spelt.
pub(super) fn spelt<T: FromStr<Err: fmt::Display>>(
    row: &AnyRow,
    column: &str,
) -> Result<T, DatabaseError> {
    parse(row.try_get(column)?)
}

/// As [`spelt`], where there may be nothing.
pub(super) fn spelt_if_any<T: FromStr<Err: fmt::Display>>(
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

/// Reads whose something is; empty is nobody's.
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

/// Reads the size of a volume of such blocks: what is computed with it later
/// counts on what is checked when one is made.
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

/// Reads what a volume has in the place of copies.
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
    let Some(volume) = spelt_if_any(row, volume)? else {
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
            volume: spelt(row, "volume")?,
            number: number(row, "number")?,
        },
        parent: version_key(row, "parent_volume", "parent_number")?,
        lineage: spelt(row, "lineage")?,
        epoch: small(row, "epoch")?,
        journal_next: number(row, "journal_next")?,
        created: Millis(row.try_get("created_ms")?),
        record: row.try_get("record")?,
    })
}

pub(super) fn volume_row(row: &AnyRow) -> Result<VolumeRow, DatabaseError> {
    let block_size = block_size(row)?;
    Ok(VolumeRow {
        id: spelt(row, "id")?,
        name: row.try_get("name")?,
        owner: owned(row, "owner")?,
        owner_name: row.try_get("owner_name")?,
        project: owned(row, "project")?,
        project_name: row.try_get("project_name")?,
        size_bytes: size_bytes(row, block_size)?,
        block_size,
        encryption: spelt(row, "encryption")?,
        replicas: replicas(row)?,
        erasure: erasure(row)?,
        lineage: spelt(row, "lineage")?,
        epoch: small(row, "epoch")?,
        head: version_key(row, "head_volume", "head_number")?,
        last_host: spelt_if_any(row, "last_host")?,
        origin: spelt_if_any(row, "origin")?,
        settings: VolumeSettings::of(row)?,
        image: spelt_if_any(row, "image")?,
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
                .try_get::<Option<String>, _>("reason")?
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
        id: spelt(row, "id")?,
        name: row.try_get("name")?,
        owner: owned(row, "owner")?,
        owner_name: row.try_get("owner_name")?,
        volume: spelt(row, "volume")?,
        volume_name: row.try_get("volume_name")?,
        size_bytes: size_bytes(row, block_size)?,
        block_size,
        encryption: spelt(row, "encryption")?,
        state,
        is_cut: flag(row, "is_cut")?,
        created: Millis(row.try_get("created_ms")?),
    })
}
