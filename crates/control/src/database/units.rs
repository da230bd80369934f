//! The cluster, its units, and its table of copysets.

use base::{ClusterId, CopysetId, UnitId, url};
use catalog::{Copyset, Leaving, WrappedKey};
use sqlx::{AnyConnection, Row as _};
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
}

/// A unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnitRow {
    /// Its id.
    pub id: UnitId,
    /// Where it is.
    pub url: String,
    /// What its daemon is called, if it has one; not kept with it.
    pub daemon: Option<String>,
    /// Whether it is on its way out: no copyset is planned over it. Not kept with a
    /// new one.
    pub is_draining: bool,
    /// Since when every host that says anything says that it is missing. Not kept
    /// with a new one.
    pub missing_since: Option<Millis>,
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
        Ok(Some(ClusterRow {
            id: rows::spelt(&row, "id")?,
            created: Millis(row.try_get("created_ms")?),
            vouch: WrappedKey(row.try_get("vouch")?),
        }))
    }

    /// Founds the cluster, unless somebody else has meanwhile: then this changes
    /// nothing. It has no key yet.
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
            let founded = sqlx::query("SELECT id FROM cluster")
                .fetch_optional(&mut *change)
                .await?;
            if founded.is_some() {
                return Ok(());
            }
            sqlx::query("INSERT INTO cluster (one, id, created_ms, vouch) VALUES (1, $1, $2, $3)")
                .bind(id.to_string())
                .bind(created.0)
                .bind(vouch)
                .execute(change)
                .await?;
            Ok(())
        })
    }

    /// All units, in the order in which they were added.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn units(&self) -> Result<Vec<UnitRow>, DatabaseError> {
        units_of(&mut *self.reader.acquire().await?).await
    }

    /// A unit is elsewhere from now on.
    ///
    /// # Errors
    /// [`DatabaseError::Taken`] if another unit is there.
    pub async fn move_unit(&self, unit: UnitId, url: &str) -> Result<(), DatabaseError> {
        change_and_tell!(self, change, {
            check_free(&mut *change, unit, url).await?;
            sqlx::query("UPDATE units SET url = $1 WHERE id = $2")
                .bind(url)
                .bind(unit.to_string())
                .execute(&mut *change)
                .await?;
            super::hosts::assign_all(&mut *change).await
        })
    }

    /// The table of copysets, by number.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn copysets(&self) -> Result<Vec<Copyset>, DatabaseError> {
        copysets_of(&mut *self.reader.acquire().await?).await
    }

    /// Adds those of `units` that are not there yet, and the copysets that
    /// `plan` wants over all units beside those there are. It sees the units and
    /// copysets of one moment, whoever else plans: so none is planned twice. It
    /// may be asked several times. Returns the units that were new.
    ///
    /// # Errors
    /// [`DatabaseError::Taken`] if another unit has one's URL.
    pub async fn plan_units(
        &self,
        units: &[UnitRow],
        plan: impl Fn(&[UnitRow], &[Copyset]) -> Vec<Copyset> + Send + Sync,
        added: Millis,
    ) -> Result<Vec<UnitRow>, DatabaseError> {
        change_and_tell!(self, change, {
            let mut all = units_of(&mut *change).await?;
            let is_new = |unit: &&UnitRow| all.iter().all(|known| known.id != unit.id);
            let new: Vec<UnitRow> = units.iter().filter(is_new).cloned().collect();
            for unit in &new {
                check_not_removed(&mut *change, unit.id).await?;
            }
            all.extend_from_slice(&new);
            let existing = copysets_of(&mut *change).await?;
            let copysets = plan(&all, &existing);
            if !new.is_empty() || !copysets.is_empty() {
                insert(&mut *change, &new, &copysets, added).await?;
            }
            Ok(new)
        })
    }
}

pub(super) async fn units_of(
    connection: &mut AnyConnection,
) -> Result<Vec<UnitRow>, DatabaseError> {
    // A daemon's party has its unit's number.
    let statement = "SELECT u.*, p.name AS daemon FROM units u LEFT JOIN parties p \
         ON p.kind = 'unit' AND p.id = 'party-' || substr(u.id, 6) ORDER BY u.added_ms, u.url";
    sqlx::query(statement)
        .fetch_all(connection)
        .await?
        .iter()
        .map(|row| {
            let url: String = row.try_get("url")?;
            Ok(UnitRow {
                id: rows::spelt(row, "id")?,
                // One from before they were percent-encoded has spaces and the
                // like as they are.
                url: url::path_of(&url).map_or(url, |folder| url::url_of(&folder)),
                daemon: row.try_get("daemon")?,
                is_draining: rows::flag(row, "draining")?,
                missing_since: row.try_get::<Option<i64>, _>("missing_ms")?.map(Millis),
            })
        })
        .collect()
}

pub(super) async fn copysets_of(
    connection: &mut AnyConnection,
) -> Result<Vec<Copyset>, DatabaseError> {
    let members = sqlx::query("SELECT * FROM copyset_members ORDER BY copyset, place, joined")
        .fetch_all(connection)
        .await?;
    let mut copysets: Vec<Copyset> = Vec::new();
    for row in &members {
        let number: u16 = rows::small(row, "copyset")?;
        let id = CopysetId::new(number).ok_or_else(|| DatabaseError::Damaged {
            what: format!("copyset {number}"),
        })?;
        if copysets.last().is_none_or(|last| last.id != id) {
            copysets.push(Copyset::new(id, Vec::new()));
        }
        let Some(copyset) = copysets.last_mut() else {
            continue;
        };
        let unit = rows::spelt(row, "unit")?;
        let state: String = row.try_get("state")?;
        copyset.joined = copyset.joined.max(rows::number(row, "joined")?);
        match state.as_str() {
            "leaving" => copyset.leaving.push(Leaving {
                place: rows::small(row, "place")?,
                unit,
            }),
            "filling" => {
                copyset.filling.push(unit);
                copyset.members.push(unit);
            }
            _ => copyset.members.push(unit),
        }
    }
    Ok(copysets)
}

/// Refuses a unit that was removed: what it held then nobody has looked after since.
async fn check_not_removed(change: &mut AnyConnection, unit: UnitId) -> Result<(), DatabaseError> {
    let removed = sqlx::query("SELECT id FROM removed_units WHERE id = $1")
        .bind(unit.to_string())
        .fetch_optional(change)
        .await?;
    match removed {
        None => Ok(()),
        Some(_) => Err(DatabaseError::Refused {
            reason: format!(
                "{unit} was removed; empty its folder and add that as a new unit (a daemon: as \
                 another party)"
            ),
        }),
    }
}

/// Refuses a URL at which another unit is. One whose daemon is disabled is nowhere:
/// what takes its place may have its address.
async fn check_free(
    change: &mut AnyConnection,
    unit: UnitId,
    url: &str,
) -> Result<(), DatabaseError> {
    sqlx::query(
        "UPDATE units SET url = 'gone:' || id WHERE url = $1 AND id <> $2 \
         AND EXISTS (SELECT 1 FROM parties p WHERE p.kind = 'unit' AND p.disabled = 1 \
             AND p.id = 'party-' || substr(units.id, 6))",
    )
    .bind(url)
    .bind(unit.to_string())
    .execute(&mut *change)
    .await?;
    let taken = sqlx::query("SELECT id FROM units WHERE url = $1 AND id <> $2")
        .bind(url)
        .bind(unit.to_string())
        .fetch_optional(change)
        .await?;
    match taken {
        None => Ok(()),
        Some(_) => Err(DatabaseError::Taken {
            what: format!("a unit at {url}"),
        }),
    }
}

async fn insert(
    change: &mut AnyConnection,
    units: &[UnitRow],
    copysets: &[Copyset],
    added: Millis,
) -> Result<(), DatabaseError> {
    for unit in units {
        check_free(&mut *change, unit.id, &unit.url).await?;
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
            sqlx::query("INSERT INTO copyset_members (copyset, place, unit) VALUES ($1, $2, $3)")
                .bind(i64::from(copyset.id.number()))
                .bind(place as i64)
                .bind(member.to_string())
                .execute(&mut *change)
                .await?;
        }
    }
    super::hosts::assign_all(&mut *change).await
}
