//! The copysets that are being repaired or wait for repair, as users see them.

use api::host::RepairProgress;
use base::{CopysetId, UnitId};
use sqlx::Row as _;
use world::Millis;

use crate::database::repair::jobs::copyset_of;
use crate::database::{DatabaseError, Repair, rows};

/// A copyset with members that are not in sync, or that is being scrubbed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepairRow {
    /// The copyset.
    pub copyset: CopysetId,
    /// The units that are not in sync, with their states.
    pub members: Vec<(UnitId, String)>,
    /// The name of the host that repairs it.
    pub repairer: Option<String>,
    /// Its progress.
    pub progress: RepairProgress,
    /// Whether members that are in sync are compared as well.
    pub is_scrub: bool,
    /// The number of slots of which the last scrub found no intact copy.
    pub damaged: u64,
    /// Why the last attempt failed.
    pub problem: Option<String>,
}

impl Repair<'_> {
    /// The number of copysets with a requested scrub or comparison.
    ///
    /// # Errors
    /// [`DatabaseError::Sql`].
    pub async fn comparisons_requested(self) -> Result<u64, DatabaseError> {
        let statement = "SELECT COUNT(*) FROM copysets WHERE scrub_requested > 0";
        let count: i64 = sqlx::query_scalar(statement)
            .fetch_one(&self.database.reader)
            .await?;
        Ok(count.cast_unsigned())
    }

    /// The copysets that are repaired, or wait for it.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn list(self, now: Millis) -> Result<Vec<RepairRow>, DatabaseError> {
        let mut moment = self.database.moment().await?;
        let members = sqlx::query(
            "SELECT copyset, unit, state FROM copyset_members WHERE state <> 'in_sync' \
             ORDER BY copyset, position, join_number",
        )
        .fetch_all(&mut *moment)
        .await?;
        let rows = sqlx::query(
            "SELECT c.*, (SELECT p.name FROM parties p WHERE p.id = c.repairer \
                 AND c.repairer_until_ms > $1) AS repairer_name FROM copysets c \
             WHERE c.scrub_requested > 0 OR c.corrupt_slots > 0 OR (c.repairer IS NOT NULL \
                 AND c.repairer_until_ms > $1) OR EXISTS (SELECT 1 FROM copyset_members m \
                 WHERE m.copyset = c.number AND m.state <> 'in_sync') ORDER BY c.number",
        )
        .bind(now.0)
        .fetch_all(&mut *moment)
        .await?;
        let of_row = |row| {
            let copyset = copyset_of(row, "number")?;
            let mut states = Vec::new();
            for member in &members {
                if copyset_of(member, "copyset")? == copyset {
                    states.push((rows::spelled(member, "unit")?, member.try_get("state")?));
                }
            }
            Ok(RepairRow {
                copyset,
                members: states,
                repairer: row.try_get("repairer_name")?,
                progress: RepairProgress {
                    done: rows::number(row, "repair_done")?,
                    all: rows::number(row, "repair_all")?,
                },
                is_scrub: rows::number(row, "scrub_requested")? > 0,
                damaged: rows::number(row, "corrupt_slots")?,
                problem: row.try_get("repair_problem")?,
            })
        };
        rows.iter().map(of_row).collect()
    }
}
