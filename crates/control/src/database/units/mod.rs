//! The cluster, its units, and its table of copysets.

pub(in crate::database) mod decide;
pub(in crate::database) mod draining;

use api::host::{HostUnit, LeaseCountKey};
use api::unit::SECOND_PLACE_MS;
use base::{ClusterId, CopysetId, UnitId, url};
use catalog::{Copyset, DrainingMember};
use sqlx::{AnyConnection, Row as _};
use world::Millis;

use crate::database::{Cluster, Database, DatabaseError, Principal, hosts, rows};

/// The properties of the whole cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterRow {
    /// The id.
    pub id: ClusterId,
    /// When it was created.
    pub created: Millis,
    /// The key with which hosts authenticate lease counts on units.
    pub lease_count_key: LeaseCountKey,
}

/// A unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnitRow {
    /// The id.
    pub id: UnitId,
    /// The URL.
    pub url: String,
    /// The name of its daemon, if it has one. Ignored when a unit is inserted.
    pub daemon: Option<String>,
    /// The zone, if one was set.
    pub zone: Option<String>,
    /// Whether its daemon is disabled. Ignored when a unit is inserted.
    pub is_disabled: bool,
    /// The URL of another daemon that has claimed to be the unit, and when it did.
    pub second: Option<(String, Millis)>,
    /// Whether it is draining: no copyset is planned over it. Ignored when a unit is inserted.
    pub is_draining: bool,
    /// Since when every reporting host reports it missing. Ignored when a unit is inserted.
    pub missing_since: Option<Millis>,
}

impl From<UnitRow> for HostUnit {
    fn from(unit: UnitRow) -> Self {
        Self {
            id: unit.id,
            url: unit.url,
            is_disabled: unit.is_disabled,
        }
    }
}

impl UnitRow {
    /// A unit at `url`, with defaults for everything else.
    #[must_use]
    pub fn new(id: UnitId, url: String) -> Self {
        Self {
            id,
            url,
            daemon: None,
            zone: None,
            is_disabled: false,
            second: None,
            is_draining: false,
            missing_since: None,
        }
    }
}

/// The result of recording a daemon's report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Heard {
    /// The unit is not in the table yet.
    Unknown,
    /// The daemon has the same URL as before.
    There,
    /// The daemon has another URL from now on.
    Moved {
        /// The previous URL.
        from: String,
    },
    /// Another daemon reported as the same unit a moment ago. This one was recorded as a duplicate.
    Second {
        /// The URL of the other daemon.
        first: String,
        /// How long ago, in milliseconds.
        ago_ms: i64,
    },
}

/// The location that a daemon reports.
#[derive(Debug, Clone, Copy)]
pub struct Claimed<'a> {
    /// The URL at which hosts reach it.
    pub url: &'a str,
    /// The id of the daemon's folder, if it has one yet.
    pub place: Option<&'a str>,
}

impl Cluster<'_> {
    /// The cluster; `None` in a new database.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn get(self) -> Result<Option<ClusterRow>, DatabaseError> {
        let row = sqlx::query("SELECT * FROM cluster")
            .fetch_optional(&self.database.reader)
            .await?;
        let Some(row) = row else { return Ok(None) };
        Ok(Some(ClusterRow {
            id: rows::spelled(&row, "id")?,
            created: Millis(row.try_get("created_ms")?),
            lease_count_key: lease_count_key(row.try_get("authentication_key")?)?,
        }))
    }

    /// Creates the cluster, unless another controller has done so meanwhile: then nothing changes.
    /// The cluster has no wrapping key yet.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn create(
        self,
        id: ClusterId,
        lease_count_key: &LeaseCountKey,
        created: Millis,
    ) -> Result<(), DatabaseError> {
        self.database.transaction().run(|mut change| async move {
            let founded = sqlx::query("SELECT id FROM cluster")
                .fetch_optional(&mut *change)
                .await?;
            if founded.is_some() {
                return Ok(());
            }
            sqlx::query("INSERT INTO cluster (one, id, created_ms, authentication_key) VALUES (1, $1, $2, $3)")
                .bind(id.to_string())
                .bind(created.0)
                .bind(&lease_count_key.0[..])
                .execute(&mut *change)
                .await?;
            Ok(())
        }).await
    }
}

fn lease_count_key(bytes: Vec<u8>) -> Result<LeaseCountKey, DatabaseError> {
    let bytes = bytes.try_into().map_err(|_| DatabaseError::Damaged {
        what: "the key that authenticates lease counts is not 32 bytes long".to_owned(),
    })?;
    Ok(LeaseCountKey(bytes))
}

/// Storage units and copysets.
#[derive(Clone, Copy, Debug)]
pub struct Units<'a> {
    pub(in crate::database) database: &'a Database,
}

impl Units<'_> {
    /// All units, in the order in which they were added.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn all(self) -> Result<Vec<UnitRow>, DatabaseError> {
        units_of(&mut *self.database.reader.acquire().await?).await
    }

    /// Daemons that were created and enabled, and have never started: units without a URL.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn expected(self) -> Result<Vec<UnitRow>, DatabaseError> {
        let statement = "SELECT p.id, p.name FROM parties p WHERE p.kind = 'unit' \
             AND p.disabled = 0 AND NOT EXISTS \
             (SELECT 1 FROM units u WHERE u.id = 'unit-' || substr(p.id, 7)) AND NOT EXISTS \
             (SELECT 1 FROM removed_units r WHERE r.id = 'unit-' || substr(p.id, 7)) \
             ORDER BY p.name";
        let rows = sqlx::query(statement)
            .fetch_all(&self.database.reader)
            .await?;
        let unit = |row| {
            let party: base::PartyId = rows::spelled(row, "id")?;
            Ok(UnitRow {
                daemon: Some(row.try_get("name")?),
                ..UnitRow::new(UnitId::from_u128(party.as_u128()), String::new())
            })
        };
        rows.iter().map(unit).collect()
    }

    /// Records that the daemon of `unit` is running. Its previous location is compared in the same
    /// transaction, so that two daemons with one identity do not take the unit from each other.
    ///
    /// # Errors
    /// [`DatabaseError::Taken`] if another unit has the URL.
    pub async fn record_daemon(
        self,
        unit: UnitId,
        claimed: Claimed<'_>,
        now: Millis,
    ) -> Result<Heard, DatabaseError> {
        self.database
            .transaction()
            .run(|mut change| async move {
                let row = sqlx::query("SELECT * FROM units WHERE id = $1")
                    .bind(unit.to_string())
                    .fetch_optional(&mut *change)
                    .await?;
                let Some(row) = row else {
                    return Ok(Heard::Unknown);
                };
                let first: String = row.try_get("url")?;
                let place: Option<String> = row.try_get("daemon_location")?;
                let heard: Option<i64> = row.try_get("heard_ms")?;
                let is_other = place.as_deref() != claimed.place;
                let ago_ms = heard.map(|heard| now.0.saturating_sub(heard));
                let ago_ms = ago_ms.filter(|ago| *ago < SECOND_PLACE_MS);
                if let Some(ago_ms) = ago_ms.filter(|_| is_other && first != claimed.url) {
                    let note =
                        "UPDATE units SET duplicate_url = $1, duplicate_ms = $2 WHERE id = $3";
                    sqlx::query(note)
                        .bind(claimed.url)
                        .bind(now.0)
                        .bind(unit.to_string())
                        .execute(&mut *change)
                        .await?;
                    return Ok(Heard::Second { first, ago_ms });
                }
                check_free(&mut change, unit, claimed.url).await?;
                sqlx::query(
                    "UPDATE units SET url = $1, daemon_location = $2, heard_ms = $3 WHERE id = $4",
                )
                .bind(claimed.url)
                .bind(claimed.place)
                .bind(now.0)
                .bind(unit.to_string())
                .execute(&mut *change)
                .await?;
                if first == claimed.url {
                    return Ok(Heard::There);
                }
                hosts::assign_all(&mut change).await?;
                Ok(Heard::Moved { from: first })
            })
            .await
    }

    /// The table of copysets, by number.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn copysets(self) -> Result<Vec<Copyset>, DatabaseError> {
        copysets_of(&mut *self.database.reader.acquire().await?).await
    }

    /// Inserts those of `units` that do not exist yet, and the copysets that `plan` adds for all
    /// units. `plan` sees the units and copysets of the same transaction, so no copyset is planned
    /// twice; it may be called several times. Returns the units that are new.
    ///
    /// # Errors
    /// [`DatabaseError::Taken`] if another unit has one's URL.
    pub async fn plan(
        self,
        units: &[UnitRow],
        plan: impl Fn(&[UnitRow], &[Copyset]) -> Vec<Copyset> + Send + Sync,
        added: Millis,
    ) -> Result<Vec<UnitRow>, DatabaseError> {
        let plan = &plan;
        self.database
            .transaction()
            .notify()
            .run(|mut change| async move {
                let mut all = units_of(&mut change).await?;
                let is_new = |unit: &&UnitRow| all.iter().all(|known| known.id != unit.id);
                let mut new: Vec<UnitRow> = units.iter().filter(is_new).cloned().collect();
                for unit in &mut new {
                    check_not_removed(&mut change, unit.id).await?;
                    match &unit.zone {
                        Some(zone) => put_zone(&mut change, unit.id, Some(zone)).await?,
                        None => unit.zone = zone_of(&mut change, unit.id).await?,
                    }
                }
                all.extend_from_slice(&new);
                let existing = copysets_of(&mut change).await?;
                let copysets = plan(&all, &existing);
                if !new.is_empty() || !copysets.is_empty() {
                    insert(&mut change, &new, &copysets, added).await?;
                }
                Ok(new)
            })
            .await
    }
}

impl Units<'_> {
    /// Sets the zone of a unit, or removes it; also for a unit whose daemon has never started.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn set_zone(
        self,
        principal: &Principal,
        unit: UnitId,
        zone: Option<&str>,
    ) -> Result<(), DatabaseError> {
        self.database
            .transaction_for(principal)
            .run(|mut change| async move {
                put_zone(&mut change, unit, zone).await?;
                let target = format!("{unit}: {}", zone.unwrap_or("none"));
                principal.note(&mut change, "set-zone", target).await
            })
            .await
    }
}

async fn zone_of(
    change: &mut AnyConnection,
    unit: UnitId,
) -> Result<Option<String>, DatabaseError> {
    let zone = sqlx::query_scalar("SELECT zone FROM unit_zones WHERE unit = $1")
        .bind(unit.to_string())
        .fetch_optional(change)
        .await?;
    Ok(zone)
}

async fn put_zone(
    change: &mut AnyConnection,
    unit: UnitId,
    zone: Option<&str>,
) -> Result<(), DatabaseError> {
    sqlx::query("DELETE FROM unit_zones WHERE unit = $1")
        .bind(unit.to_string())
        .execute(&mut *change)
        .await?;
    if let Some(zone) = zone {
        sqlx::query("INSERT INTO unit_zones (unit, zone) VALUES ($1, $2)")
            .bind(unit.to_string())
            .bind(zone)
            .execute(change)
            .await?;
    }
    Ok(())
}

pub(in crate::database) async fn units_of(
    connection: &mut AnyConnection,
) -> Result<Vec<UnitRow>, DatabaseError> {
    // A daemon's party has its unit's number.
    let statement = "SELECT u.*, p.name AS daemon, COALESCE(p.disabled, 0) AS disabled, z.zone \
         FROM units u LEFT JOIN parties p \
         ON p.kind = 'unit' AND p.id = 'party-' || substr(u.id, 6) \
         LEFT JOIN unit_zones z ON z.unit = u.id ORDER BY u.added_ms, u.url";
    sqlx::query(statement)
        .fetch_all(connection)
        .await?
        .iter()
        .map(|row| {
            let url: String = row.try_get("url")?;
            let second: Option<String> = row.try_get("duplicate_url")?;
            let second_ms: Option<i64> = row.try_get("duplicate_ms")?;
            Ok(UnitRow {
                id: rows::spelled(row, "id")?,
                // A URL that is not percent-encoded is compared as it is stored.
                url: url::path_of(&url).map_or(url, |folder| url::url_of(&folder)),
                daemon: row.try_get("daemon")?,
                zone: row.try_get("zone")?,
                is_disabled: rows::flag(row, "disabled")?,
                second: second.zip(second_ms.map(Millis)),
                is_draining: rows::flag(row, "draining")?,
                missing_since: row.try_get::<Option<i64>, _>("missing_ms")?.map(Millis),
            })
        })
        .collect()
}

pub(in crate::database) async fn copysets_of(
    connection: &mut AnyConnection,
) -> Result<Vec<Copyset>, DatabaseError> {
    let members = sqlx::query(
        "SELECT m.*, c.data FROM copyset_members m JOIN copysets c ON c.number = m.copyset \
         ORDER BY m.copyset, m.position, m.join_number",
    )
    .fetch_all(connection)
    .await?;
    let mut copysets: Vec<Copyset> = Vec::new();
    for row in &members {
        let number: u16 = rows::small(row, "copyset")?;
        let id = CopysetId::new(number).ok_or_else(|| DatabaseError::Damaged {
            what: format!("copyset {number}"),
        })?;
        if copysets.last().is_none_or(|last| last.id != id) {
            copysets.push(Copyset {
                data: rows::small(row, "data")?,
                ..Copyset::of_copies(id, Vec::new())
            });
        }
        let Some(copyset) = copysets.last_mut() else {
            continue;
        };
        let unit = rows::spelled(row, "unit")?;
        let state: String = row.try_get("state")?;
        copyset.joined = copyset.joined.max(rows::number(row, "join_number")?);
        match state.as_str() {
            "draining" => copyset.draining.push(DrainingMember {
                place: rows::small(row, "position")?,
                unit,
            }),
            "rebuilding" => {
                copyset.rebuilding.push(unit);
                copyset.members.push(unit);
            }
            _ => copyset.members.push(unit),
        }
    }
    Ok(copysets)
}

/// Refuses a unit that was removed: its content is outdated.
async fn check_not_removed(change: &mut AnyConnection, unit: UnitId) -> Result<(), DatabaseError> {
    let removed = sqlx::query("SELECT id FROM removed_units WHERE id = $1")
        .bind(unit.to_string())
        .fetch_optional(change)
        .await?;
    match removed {
        None => Ok(()),
        Some(_) => Err(DatabaseError::Refused {
            reason: format!(
                "{unit} was removed; empty its folder and add that as a new unit (a daemon: under \
                 another name, with `scree unit create`)"
            ),
        }),
    }
}

/// Refuses the URL of another unit. A unit whose daemon is disabled does not count: its
/// replacement may have the same address.
async fn check_free(
    change: &mut AnyConnection,
    unit: UnitId,
    url: &str,
) -> Result<(), DatabaseError> {
    let taken = sqlx::query(
        "SELECT id FROM units WHERE url = $1 AND id <> $2 \
         AND NOT EXISTS (SELECT 1 FROM parties p WHERE p.kind = 'unit' AND p.disabled = 1 \
             AND p.id = 'party-' || substr(units.id, 6))",
    )
    .bind(url)
    .bind(unit.to_string())
    .fetch_optional(change)
    .await?;
    match taken {
        None => Ok(()),
        Some(_) => Err(DatabaseError::Taken {
            what: format!("a unit at {url}"),
            remedy: "`scree unit list` shows it; choose another location, or drain that unit first \
                     (`scree unit drain`)",
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
        sqlx::query("INSERT INTO copysets (number, data) VALUES ($1, $2)")
            .bind(i64::from(copyset.id.number()))
            .bind(i64::from(copyset.data))
            .execute(&mut *change)
            .await?;
        for (place, member) in copyset.members.iter().enumerate() {
            sqlx::query(
                "INSERT INTO copyset_members (copyset, position, unit) VALUES ($1, $2, $3)",
            )
            .bind(i64::from(copyset.id.number()))
            .bind(place as i64)
            .bind(member.to_string())
            .execute(&mut *change)
            .await?;
        }
    }
    hosts::assign_all(&mut *change).await
}
