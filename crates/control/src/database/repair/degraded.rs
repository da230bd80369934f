//! Segments of which some member of their copyset lacks a part, and members that
//! have missed something.

use std::collections::BTreeMap;

use base::{PartyId, SegmentId, UnitId, VolumeId};
use catalog::{DegradedShare, VersionCommit};
use sqlx::{AnyConnection, Row as _};
use world::Millis;

use crate::database::{DatabaseError, Repair, hosts, rows};

/// By how much [`join_anew`] moves the number of members ahead: far more than become
/// ones between two backups.
const JOINED_AHEAD: i64 = 1 << 32;

/// What of one volume has too few copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DegradedVolume {
    /// Who wrote it; it may be gone, and its versions held by snapshots.
    pub volume: VolumeId,
    /// In how many segments.
    pub segments: u64,
    /// How many slots, those among them that were freed since.
    pub slots: u64,
}

impl Repair<'_> {
    /// What has too few copies, by volume.
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
                volume: rows::spelt(row, "volume")?,
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

/// Up to which number units have become members.
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
    /// Notes what a version that `host` commits was put on too few members of, and which
    /// members have missed it. Where one does not count any more for that, another host
    /// repairs. To be called before it is noted what is on its way no more.
    pub(in crate::database) async fn record_missed(
        self,
        change: &mut AnyConnection,
        host: PartyId,
        commit: &VersionCommit,
        at: Millis,
    ) -> Result<(), DatabaseError> {
        let are_all_known = newest_of(&mut *change).await? <= commit.joined;
        if are_all_known && commit.degraded.is_empty() {
            // As nearly always.
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

/// Refuses a version that was put by so old a table that what it names may be on units
/// which are members no more. Of each copyset as many members have to be left as have
/// all of the data, that were put on by the oldest and the newest table it was put by.
/// Whoever leaves a place has what was put before, and is dropped when all is elsewhere.
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
            units.push(rows::spelt(row, "unit")?);
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
                "units have left copyset {copyset} since version {} of {} was put, and too few \
                 that may have it are left",
                commit.version.key.number, commit.version.key.volume
            ),
        }),
    }
}

/// All members have become ones just now: what was put or freed by an older table, which
/// may be that of a younger copy of this database, is done anew by theirs.
pub(in crate::database) async fn join_anew(
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

/// All members of all copysets are to be compared. Returns how many copysets that are.
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

/// A unit may lack something in each of its copysets, though nothing is known of; where
/// nobody else is whole it goes on to count. Or it is older than it was: then it does not,
/// and without an `in_flight_set` anything that it has may be otherwise than it was put.
pub(in crate::database) async fn suspect_unit(
    change: &mut AnyConnection,
    unit: UnitId,
    in_flight_set: Option<i64>,
    at: Millis,
) -> Result<bool, DatabaseError> {
    // What those got from it that are being filled there may be too little, too. What they
    // have is theirs.
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

/// Members that lack something.
#[derive(Clone, Copy)]
struct Missed<'a> {
    /// Which, in SQL, with parameters from the second on.
    which: &'a str,
    at: Millis,
    /// Outside of this what they have is as it was put, if they were whole until now.
    /// Without one nothing is known of it, nor of those that were not.
    in_flight_set: Option<i64>,
}

/// As [`miss`], because of what `host` says: it does not repair what they are members of,
/// if they counted until now.
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

/// Those members have missed something: they are filling, unless they leave. Returns
/// whether any was not.
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
        // A number of this database's own.
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

/// Those members have missed something once more. Unless `is_known`, nothing is known any
/// more of what they have.
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

/// The number of a segment in a row.
pub(in crate::database) fn segment_of(row: &sqlx::any::AnyRow) -> Result<SegmentId, DatabaseError> {
    let bits = rows::number(row, "segment")?;
    SegmentId::from_bits(bits).ok_or_else(|| DatabaseError::Damaged {
        what: format!("segment number {bits}"),
    })
}
