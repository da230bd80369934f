//! Which copy of the database this is, and where it was last served.

use base::DatabaseId;
use sqlx::Row as _;

use super::{Database, DatabaseError, rows};

/// Who a database is, as long as it is served where it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnerRow {
    /// Which copy.
    pub id: DatabaseId,
    /// How often the operator has said that the other copies are gone.
    pub generation: u32,
    /// Where it is served.
    pub place: PlaceRow,
}

/// What no copy of a folder has in common with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlaceRow {
    /// Its path, absolute and without links, as a URI spells it.
    pub folder: String,
    /// Its inode; unknown if it was noted by a program that did not ask.
    pub inode: Option<i64>,
    /// When it was made, in nanoseconds since 1970, where that is known.
    pub born_ns: Option<i64>,
}

impl Database {
    /// Who it is; `None` if it was never served by a program that asked.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn owner(&self) -> Result<Option<OwnerRow>, DatabaseError> {
        let row = sqlx::query(
            "SELECT owner, owner_generation, owner_folder, owner_inode, owner_born_ns FROM cluster",
        )
        .fetch_one(&self.reader)
        .await?;
        let id = rows::spelt_if_any(&row, "owner")?;
        let folder: Option<String> = row.try_get("owner_folder")?;
        let (Some(id), Some(folder)) = (id, folder) else {
            return Ok(None);
        };
        Ok(Some(OwnerRow {
            id,
            generation: rows::small(&row, "owner_generation")?,
            place: PlaceRow {
                folder,
                inode: row.try_get("owner_inode")?,
                born_ns: row.try_get("owner_born_ns")?,
            },
        }))
    }

    /// Notes who it is from now on.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn set_owner(&self, owner: &OwnerRow) -> Result<(), DatabaseError> {
        change!(self, change, {
            sqlx::query(
                "UPDATE cluster SET owner = $1, owner_generation = $2, owner_folder = $3, \
                 owner_inode = $4, owner_born_ns = $5",
            )
            .bind(owner.id.to_string())
            .bind(i64::from(owner.generation))
            .bind(&owner.place.folder)
            .bind(owner.place.inode)
            .bind(owner.place.born_ns)
            .execute(change)
            .await?;
            Ok(())
        })
    }
}
