//! Slots of removed versions that wait to be freed on the units.

use std::collections::BTreeSet;

use api::host::FREES_MAX;
use api::host::catalog_calls::DueFrees;
use base::{Lineage, SegmentId, VolumeId};
use catalog::{FreePlan, PLAN_BYTES_MAX, PendingFree};
use sqlx::any::AnyRow;
use sqlx::{AnyConnection, Row as _};
use world::Millis;

use crate::database::catalog::deleted_volumes;
use crate::database::repair::degraded;
use crate::database::{Catalog, DatabaseError, ObjectKind, Reach};

impl Catalog<'_> {
    /// See [`catalog::Catalog::due_frees`].
    pub(in crate::database) async fn due_frees(
        self,
        reach: &Reach,
        call: &DueFrees,
    ) -> Result<Vec<PendingFree>, DatabaseError> {
        let statement = concat!(
            "SELECT f.* FROM pending_frees f WHERE f.not_before_ms <= $3 AND f.id > $4 AND ",
            cleans!("f.volume"),
            " ORDER BY f.id LIMIT $5"
        );
        reach
            .query(statement)
            .bind(call.now.0)
            .bind(call.after)
            .bind(i64::from(call.count_max.min(FREES_MAX)))
            .fetch_all(&self.database.reader)
            .await?
            .iter()
            .map(|row| {
                Ok(PendingFree {
                    id: row.try_get("id")?,
                    not_before: Millis(row.try_get("not_before_ms")?),
                    plan: row.try_get("plan")?,
                })
            })
            .collect()
    }

    /// A plan that is due, and the lineages under which its slots were written.
    pub(in crate::database) async fn due_free(
        self,
        reach: &Reach,
        now: Millis,
        id: i64,
    ) -> Result<Option<(Vec<u8>, Vec<Lineage>)>, DatabaseError> {
        let statement = concat!(
            "SELECT f.plan, f.lineages FROM pending_frees f WHERE f.not_before_ms <= $3 AND f.id = $4 AND ",
            cleans!("f.volume")
        );
        let found = reach.query(statement).bind(now.0).bind(id);
        let found = found.fetch_optional(&self.database.reader).await?;
        let Some(row) = found else { return Ok(None) };
        Ok(Some((row.try_get("plan")?, lineages_of(&row)?)))
    }

    /// Records a free that is due at once, for tests.
    ///
    /// # Errors
    /// [`DatabaseError`].
    #[doc(hidden)]
    pub async fn record_free_now(self, plan: &[u8]) -> Result<(), DatabaseError> {
        let parts = Parts::of(plan.to_vec()).await?;
        let parts = &parts;
        self.database
            .transaction()
            .run(|mut change| async move { note_free(&mut change, None, Millis(0), parts).await })
            .await
    }

    /// See [`catalog::Catalog::finish_free`].
    pub(in crate::database) async fn finish_free(
        self,
        reach: &Reach,
        id: i64,
        joined: u64,
    ) -> Result<(), DatabaseError> {
        let statement = concat!(
            "DELETE FROM pending_frees WHERE id = $3 AND ",
            cleans!("pending_frees.volume")
        );
        self.database
            .transaction()
            .run(|mut change| async move {
                if degraded::newest_of(&mut change).await? > joined {
                    let reason =
                        format!("units have become members since free {id} was carried out");
                    return Err(DatabaseError::MembersChanged { reason });
                }
                reach
                    .query(statement)
                    .bind(id)
                    .execute(&mut *change)
                    .await?;
                deleted_volumes::forget_clean(&mut change).await
            })
            .await
    }

    /// See [`catalog::Catalog::gather_dead_slots`].
    pub(in crate::database) async fn gather_dead_slots(
        self,
        reach: &Reach,
        id: i64,
        segments: &[SegmentId],
    ) -> Result<Vec<u8>, DatabaseError> {
        self.database
            .transaction()
            .run(|mut change| async move {
                let (plan, lineages) = named(&mut change, reach, id, segments).await?;
                let mut gathered = FreePlan::default();
                for (segment, _) in plan.segments() {
                    let bits = segment.bits().cast_signed();
                    let mut dead = plan.only(&[segment]);
                    let mut written_as: BTreeSet<Lineage> = lineages.iter().copied().collect();
                    let found = sqlx::query("SELECT * FROM dead_slots WHERE segment = $1")
                        .bind(bits)
                        .fetch_optional(&mut *change)
                        .await?;
                    if let Some(row) = found {
                        let bytes: Vec<u8> = row.try_get("plan")?;
                        dead.extend(&decoded(&bytes)?.only(&[segment]));
                        written_as.extend(lineages_of(&row)?);
                    }
                    let open: Option<String> =
                        sqlx::query_scalar("SELECT volume FROM open_segments WHERE segment = $1")
                            .bind(bits)
                            .fetch_optional(&mut *change)
                            .await?;
                    sqlx::query(
                        "INSERT INTO dead_slots (segment, plan, lineages, waits_for) \
                     VALUES ($1, $2, $3, $4) ON CONFLICT (segment) DO UPDATE SET \
                     plan = excluded.plan, lineages = excluded.lineages, \
                     waits_for = excluded.waits_for",
                    )
                    .bind(bits)
                    .bind(dead.encode())
                    .bind(spelled(&written_as))
                    .bind(open.as_deref())
                    .execute(&mut *change)
                    .await?;
                    if open.is_none() {
                        gathered.extend(&dead);
                    }
                }
                Ok(gathered.encode())
            })
            .await
    }

    /// See [`catalog::Catalog::forget_dead`].
    pub(in crate::database) async fn forget_dead(
        self,
        reach: &Reach,
        id: i64,
        segments: &[SegmentId],
    ) -> Result<(), DatabaseError> {
        self.database
            .transaction()
            .run(|mut change| async move {
                let (plan, _) = named(&mut change, reach, id, segments).await?;
                for (segment, _) in plan.segments() {
                    sqlx::query("DELETE FROM dead_slots WHERE segment = $1")
                        .bind(segment.bits().cast_signed())
                        .execute(&mut *change)
                        .await?;
                }
                Ok(())
            })
            .await
    }

    /// The number of pending frees.
    ///
    /// # Errors
    /// [`DatabaseError::Sql`].
    pub async fn pending_free_count(self) -> Result<u64, DatabaseError> {
        let count: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM pending_frees")
            .fetch_one(&self.database.reader)
            .await?;
        Ok(count.cast_unsigned())
    }
}

/// Makes the gathered frees of segments due that this volume had open and has closed. Call it in
/// every transaction that closes segments.
pub(in crate::database) async fn free_closed(
    change: &mut AnyConnection,
    volume: VolumeId,
) -> Result<(), DatabaseError> {
    let closed = sqlx::query(
        "SELECT * FROM dead_slots d WHERE d.waits_for = $1 AND NOT EXISTS \
         (SELECT 1 FROM open_segments o WHERE o.segment = d.segment)",
    )
    .bind(volume.to_string())
    .fetch_all(&mut *change)
    .await?;
    for row in closed {
        let plan = Parts(vec![row.try_get("plan")?]);
        let lineages = lineages_of(&row)?;
        note_free(&mut *change, Some((volume, &lineages)), Millis(0), &plan).await?;
        let segment: i64 = row.try_get("segment")?;
        sqlx::query("UPDATE dead_slots SET waits_for = NULL WHERE segment = $1")
            .bind(segment)
            .execute(&mut *change)
            .await?;
    }
    Ok(())
}

/// The part of a pending free on these segments, and the lineages under which they were written.
async fn named(
    change: &mut AnyConnection,
    reach: &Reach,
    id: i64,
    segments: &[SegmentId],
) -> Result<(FreePlan, Vec<Lineage>), DatabaseError> {
    let statement = concat!(
        "SELECT f.plan, f.lineages FROM pending_frees f WHERE f.id = $3 AND ",
        cleans!("f.volume")
    );
    let found = reach
        .query(statement)
        .bind(id)
        .fetch_optional(change)
        .await?;
    let row = found.ok_or_else(|| DatabaseError::not_found(ObjectKind::Plan, id))?;
    let plan: Vec<u8> = row.try_get("plan")?;
    Ok((decoded(&plan)?.only(segments), lineages_of(&row)?))
}

fn lineages_of(row: &AnyRow) -> Result<Vec<Lineage>, DatabaseError> {
    let lineages: String = row.try_get("lineages")?;
    let lineages = lineages.split_whitespace().map(|one| {
        let damaged = |_| DatabaseError::Damaged {
            what: format!("lineage {one:?} of a free plan"),
        };
        one.parse().map_err(damaged)
    });
    lineages.collect()
}

fn spelled<'a>(lineages: impl IntoIterator<Item = &'a Lineage>) -> String {
    let lineages: Vec<String> = lineages.into_iter().map(Lineage::to_string).collect();
    lineages.join(" ")
}

fn decoded(plan: &[u8]) -> Result<FreePlan, DatabaseError> {
    FreePlan::decode(plan).map_err(|error| DatabaseError::Damaged {
        what: format!("a free plan: {error}"),
    })
}

/// A checked plan, split into parts that are stored one by one; no part if it is empty.
pub(in crate::database) struct Parts(Vec<Vec<u8>>);

impl Parts {
    /// Parses a plan that a host has sent. A malformed plan is refused here, since it would block
    /// all others when it is due.
    ///
    /// Call it before the transaction that stores the parts, on the blocking pool: a long plan
    /// takes a while, and other transactions would wait.
    pub(in crate::database) async fn of(plan: Vec<u8>) -> Result<Self, DatabaseError> {
        if plan.is_empty() {
            return Ok(Self(Vec::new()));
        }
        let split = move || FreePlan::split(&plan, PLAN_BYTES_MAX);
        let parts = crate::database::joined(tokio::task::spawn_blocking(split).await)?;
        parts.map(Self).map_err(|error| DatabaseError::Refused {
            reason: error.to_string(),
        })
    }
}

/// Records slots of a removed version that are freed after `not_before`, and the lineages under
/// which they were written.
pub(in crate::database) async fn note_free(
    connection: &mut AnyConnection,
    of: Option<(VolumeId, &[Lineage])>,
    not_before: Millis,
    Parts(parts): &Parts,
) -> Result<(), DatabaseError> {
    let volume = of.map(|(volume, _)| volume.to_string());
    let volume = volume.unwrap_or_default();
    let lineages = spelled(of.into_iter().flat_map(|(_, lineages)| lineages));
    for part in parts {
        sqlx::query(
            "INSERT INTO pending_frees (not_before_ms, plan, volume, lineages) \
             VALUES ($1, $2, $3, $4)",
        )
        .bind(not_before.0)
        .bind(part.as_slice())
        .bind(volume.as_str())
        .bind(lineages.as_str())
        .execute(&mut *connection)
        .await?;
    }
    Ok(())
}
