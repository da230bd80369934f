//! Degraded segments, of which a member of their copyset is missing a part, and members that missed
//! a write.

use std::collections::BTreeMap;

use base::{PartyId, SegmentId, UnitId, VolumeId};
use catalog::{DegradedShare, VersionCommit};
use sqlx::{AnyConnection, Row as _};
use world::Millis;

use crate::database::{DatabaseError, Repair, hosts, rows};

/// By how much [`renew_joins`] raises the join numbers: far more than units join copysets between
/// two backups.
const JOINED_AHEAD: i64 = 1 << 32;

/// The degraded segments of one volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DegradedVolume {
    /// The volume, which may have been deleted while snapshots hold its versions.
    pub volume: VolumeId,
    /// The number of degraded segments.
    pub segments: u64,
    /// The number of degraded slots, including those that were freed since.
    pub slots: u64,
}

impl Repair<'_> {
    /// The degraded segments, by volume.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn degraded_volumes(self) -> Result<Vec<DegradedVolume>, DatabaseError> {
        sqlx::query(
            "SELECT volume, COUNT(*) AS segments, CAST(SUM(slots) AS BIGINT) AS slots FROM degraded_segments \
             GROUP BY volume ORDER BY volume",
        )
        .fetch_all(&self.database.reader)
        .await?
        .iter()
        .map(|row| {
            Ok(DegradedVolume {
                volume: rows::spelled(row, "volume")?,
                segments: rows::number(row, "segments")?,
                slots: rows::number(row, "slots")?,
            })
        })
        .collect()
    }

    /// See [`catalog::Catalog::joined`].
    pub(in crate::database) async fn joined(self) -> Result<u64, DatabaseError> {
        newest_of(&mut *self.database.reader.acquire().await?).await
    }
}

/// The newest join number.
pub(in crate::database) async fn newest_of(
    connection: &mut AnyConnection,
) -> Result<u64, DatabaseError> {
    let newest: i64 =
        sqlx::query_scalar("SELECT COALESCE(MAX(join_number), 0) FROM copyset_members")
            .fetch_one(connection)
            .await?;
    Ok(newest.cast_unsigned())
}

impl Repair<'_> {
    /// Records which segments of a version that `host` commits are degraded, and which members
    /// missed the writes. A member that is no longer in sync because of that is repaired by another
    /// host. Call it before the commit releases what was in flight.
    pub(in crate::database) async fn record_missed(
        self,
        change: &mut AnyConnection,
        host: PartyId,
        commit: &VersionCommit,
        at: Millis,
    ) -> Result<(), DatabaseError> {
        let are_all_known = newest_of(&mut *change).await? <= commit.joined;
        if are_all_known && commit.degraded.is_empty() {
            // The common case.
            return Ok(());
        }
        must_be_held(&mut *change, commit).await?;
        let in_flight_set = Some(self.in_flight_set(&mut *change, at).await?);
        let host = host.to_string();
        let mut has_changed = false;
        for share in &commit.degraded {
            note_degraded(&mut *change, commit.version.key.volume, share).await?;
            for unit in &share.lacking {
                let copyset = i64::from(share.segment.copyset().number());
                let which = "copyset = $2 AND unit = $3";
                let missed = Missed {
                    which,
                    at,
                    in_flight_set,
                };
                has_changed |= miss_by(&mut *change, &host, missed, |query| {
                    query.bind(copyset).bind(unit.to_string())
                })
                .await?;
            }
        }
        if are_all_known && !has_changed {
            return Ok(());
        }
        let joined = i64::try_from(commit.joined).unwrap_or(i64::MAX);
        let which = "join_number > $2 AND state <> 'draining'";
        let missed = Missed {
            which,
            at,
            in_flight_set,
        };
        has_changed |= miss_by(&mut *change, &host, missed, |query| query.bind(joined)).await?;
        match has_changed {
            true => hosts::assign_all(change).await,
            false => Ok(()),
        }
    }
}

/// Refuses a version that was written by so old a table of copysets that its segments may be on
/// units that are no longer members. In each copyset, enough members to hold all of the data must
/// remain that were members in both the oldest and the newest table used. A draining member holds
/// what was written before it began to drain, and is removed only when all of that is elsewhere.
async fn must_be_held(
    change: &mut AnyConnection,
    commit: &VersionCommit,
) -> Result<(), DatabaseError> {
    let number = |joined| i64::try_from(joined).unwrap_or(i64::MAX);
    let first = number(commit.joined);
    let put_on = "SELECT c.number, c.data, m.unit FROM copysets c LEFT JOIN copyset_members m \
         ON m.copyset = c.number AND m.join_number <= $1 AND (m.leave_number IS NULL OR m.leave_number > $2) \
         ORDER BY c.number";
    let rows = sqlx::query(put_on)
        .bind(first)
        .bind(number(commit.joined_last).max(first))
        .fetch_all(change)
        .await?;
    let mut held: BTreeMap<u16, (usize, Vec<UnitId>)> = BTreeMap::new();
    for row in &rows {
        let data: u8 = rows::small(row, "data")?;
        let its = held.entry(rows::small(row, "number")?);
        let (_, units) = its.or_insert_with(|| (data.into(), Vec::new()));
        if row.try_get::<Option<String>, _>("unit")?.is_some() {
            units.push(rows::spelled(row, "unit")?);
        }
    }
    let mut all = held.iter().filter(|(_, (data, units))| units.len() < *data);
    let mut lost = all.next().map(|(copyset, _)| *copyset);
    for share in &commit.degraded {
        let copyset = share.segment.copyset().number();
        let has_it = |unit: &&UnitId| !share.lacking.contains(unit);
        let is_held = held
            .get(&copyset)
            .is_some_and(|(data, units)| units.iter().filter(has_it).count() >= *data);
        if !is_held {
            lost = lost.or(Some(copyset));
        }
    }
    match lost {
        None => Ok(()),
        Some(copyset) => Err(DatabaseError::MembersChanged {
            reason: format!(
                "units have left copyset {copyset} since version {} of {} was written, and too few \
                 that may have it are left",
                commit.version.key.number, commit.version.key.volume
            ),
        }),
    }
}

/// Gives all members new join numbers: hosts then repeat what they wrote or freed by an older
/// table, which may be that of a newer copy of this database.
pub(in crate::database) async fn renew_joins(
    change: &mut AnyConnection,
) -> Result<(), DatabaseError> {
    sqlx::query("UPDATE cluster SET joins = joins + $1")
        .bind(JOINED_AHEAD)
        .execute(&mut *change)
        .await?;
    sqlx::query(
        "UPDATE copyset_members SET join_number = (SELECT c.joins FROM cluster c), \
         leave_number = CASE WHEN state = 'draining' THEN (SELECT c.joins FROM cluster c) END",
    )
    .execute(change)
    .await?;
    Ok(())
}

/// Requests a comparison of all members of all copysets. Returns the number of copysets.
pub(in crate::database) async fn compare_all(
    change: &mut AnyConnection,
) -> Result<u64, DatabaseError> {
    let wanted = sqlx::query(
        "UPDATE copysets SET repair_after_ms = 0, \
         scrub_requested = CASE scrub_requested WHEN 0 THEN 2 ELSE scrub_requested END",
    )
    .execute(change)
    .await?;
    Ok(wanted.rows_affected())
}

/// A unit may be incomplete in each of its copysets, although nothing is recorded; where no
/// other member is in sync it still counts as in sync. If its content is older than it was, it does
/// not count in any case, and without an `in_flight_set` any of its slots may be wrong.
pub(in crate::database) async fn suspect_unit(
    change: &mut AnyConnection,
    unit: UnitId,
    in_flight_set: Option<i64>,
    at: Millis,
) -> Result<bool, DatabaseError> {
    // Members that are being rebuilt from it may be incomplete as well. What they have is
    // intact.
    let beside = "state = 'rebuilding' AND unit <> $2 AND EXISTS (SELECT 1 FROM copyset_members o \
         WHERE o.copyset = copyset_members.copyset AND o.unit = $2)";
    note_once_more(&mut *change, beside, at, true, |query| {
        query.bind(unit.to_string())
    })
    .await?;
    let which = match in_flight_set {
        None => {
            "unit = $2 AND (SELECT COUNT(*) FROM copyset_members o \
             WHERE o.copyset = copyset_members.copyset) > 1"
        }
        Some(_) => {
            "unit = $2 AND EXISTS (SELECT 1 FROM copyset_members o \
             WHERE o.copyset = copyset_members.copyset AND o.state = 'in_sync' AND o.unit <> $2)"
        }
    };
    let missed = Missed {
        which,
        at,
        in_flight_set,
    };
    miss(change, missed, |query| query.bind(unit.to_string())).await
}

type Query<'q> = sqlx::query::Query<'q, sqlx::Any, sqlx::any::AnyArguments<'q>>;

/// Members that missed something.
#[derive(Clone, Copy)]
struct Missed<'a> {
    /// An SQL condition that selects them, with parameters from $2 on.
    which: &'a str,
    at: Millis,
    /// Slots outside of this set are intact on members that were in sync until now. `None`: nothing
    /// is known of any member.
    in_flight_set: Option<i64>,
}

/// As [`miss`], because of a report of `host`, which then does not repair the copysets of members
/// that were in sync until now.
async fn miss_by(
    change: &mut AnyConnection,
    host: &str,
    missed: Missed<'_>,
    bind: impl for<'q> Fn(Query<'q>) -> Query<'q>,
) -> Result<bool, DatabaseError> {
    let noted = format!(
        "UPDATE copysets SET suspected_by = $1 WHERE number IN (SELECT copyset \
         FROM copyset_members WHERE state = 'in_sync' AND {})",
        missed.which
    );
    bind(sqlx::query(&noted).bind(host.to_owned()))
        .execute(&mut *change)
        .await?;
    miss(change, missed, bind).await
}

/// Marks members as having missed something: they are rebuilding, unless they are draining. Returns
/// whether any was in sync.
async fn miss(
    change: &mut AnyConnection,
    missed: Missed<'_>,
    bind: impl for<'q> Fn(Query<'q>) -> Query<'q>,
) -> Result<bool, DatabaseError> {
    let Missed {
        which,
        at,
        in_flight_set,
    } = missed;
    let turned = format!(
        "UPDATE copyset_members SET state = 'rebuilding', since_ms = $1, \
         in_flight_set = CASE WHEN is_unknown = 1 THEN NULL ELSE {} END \
         WHERE state = 'in_sync' AND {which}",
        // A number from this database.
        in_flight_set.map_or_else(
            || "CAST(NULL AS BIGINT)".to_owned(),
            |in_flight_set| in_flight_set.to_string()
        ),
    );
    let turned = bind(sqlx::query(&turned).bind(at.0))
        .execute(&mut *change)
        .await?;
    let is_known = in_flight_set.is_some();
    note_once_more(&mut *change, which, at, is_known, bind).await?;
    Ok(turned.rows_affected() > 0)
}

/// Counts one more miss of members. Unless `is_known`, nothing is known any more of their content.
async fn note_once_more(
    change: &mut AnyConnection,
    which: &str,
    at: Millis,
    is_known: bool,
    bind: impl for<'q> Fn(Query<'q>) -> Query<'q>,
) -> Result<(), DatabaseError> {
    let in_flight_set = if is_known { "in_flight_set" } else { "NULL" };
    let noted = format!(
        "UPDATE copyset_members SET misses = misses + 1, missed_ms = $1, \
         in_flight_set = {in_flight_set} WHERE {which}"
    );
    bind(sqlx::query(&noted).bind(at.0)).execute(change).await?;
    Ok(())
}

async fn note_degraded(
    change: &mut AnyConnection,
    volume: VolumeId,
    share: &DegradedShare,
) -> Result<(), DatabaseError> {
    sqlx::query(
        "INSERT INTO degraded_segments (segment, volume, slots) VALUES ($1, $2, $3) \
         ON CONFLICT (segment) \
         DO UPDATE SET slots = degraded_segments.slots + excluded.slots \
         WHERE degraded_segments.volume = excluded.volume",
    )
    .bind(share.segment.bits().cast_signed())
    .bind(volume.to_string())
    .bind(i64::from(share.slots))
    .execute(change)
    .await?;
    Ok(())
}

/// Reads the segment of a row.
pub(in crate::database) fn segment_of(row: &sqlx::any::AnyRow) -> Result<SegmentId, DatabaseError> {
    let bits = rows::number(row, "segment")?;
    SegmentId::from_bits(bits).ok_or_else(|| DatabaseError::Damaged {
        what: format!("segment number {bits}"),
    })
}
