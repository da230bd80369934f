//! What is mended and what waits for it, for those who watch it.

use api::host::MendProgress;
use base::{CopysetId, UnitId};
use sqlx::Row as _;
use world::Millis;

use super::mending::copyset_of;
use super::{Database, DatabaseError, rows};

/// A copyset of which not all members are whole, or that is being read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MendingRow {
    /// Its number.
    pub copyset: CopysetId,
    /// What is wanted of each unit that is not whole: it is filled, or it leaves.
    pub members: Vec<(UnitId, String)>,
    /// The host that has it, by name.
    pub mender: Option<String>,
    /// How far that is.
    pub progress: MendProgress,
    /// Whether also members that are whole are compared.
    pub is_scrub: bool,
    /// Slots of which no copy is as it was put, when they were read last.
    pub rotten: u64,
    /// What was in the way the last time.
    pub problem: Option<String>,
}

impl Database {
    /// How many copysets somebody wants compared.
    ///
    /// # Errors
    /// [`DatabaseError::Sql`].
    pub async fn compare_count(&self) -> Result<u64, DatabaseError> {
        let statement = "SELECT COUNT(*) FROM copysets WHERE scrub_wanted > 0";
        let count: i64 = sqlx::query_scalar(statement)
            .fetch_one(&self.reader)
            .await?;
        Ok(count.cast_unsigned())
    }

    /// The copysets that are mended, or wait for it.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn mending(&self, now: Millis) -> Result<Vec<MendingRow>, DatabaseError> {
        let mut moment = self.moment().await?;
        let members = sqlx::query(
            "SELECT copyset, unit, state FROM copyset_members WHERE state <> 'whole' \
             ORDER BY copyset, place, joined",
        )
        .fetch_all(&mut *moment)
        .await?;
        let rows = sqlx::query(
            "SELECT c.*, (SELECT p.name FROM parties p WHERE p.id = c.mender \
                 AND c.mender_until_ms > $1) AS mender_name FROM copysets c \
             WHERE c.scrub_wanted > 0 OR c.rotten > 0 OR (c.mender IS NOT NULL \
                 AND c.mender_until_ms > $1) OR EXISTS (SELECT 1 FROM copyset_members m \
                 WHERE m.copyset = c.number AND m.state <> 'whole') ORDER BY c.number",
        )
        .bind(now.0)
        .fetch_all(&mut *moment)
        .await?;
        let of_row = |row| {
            let copyset = copyset_of(row, "number")?;
            let mut states = Vec::new();
            for member in &members {
                if copyset_of(member, "copyset")? == copyset {
                    states.push((rows::spelt(member, "unit")?, member.try_get("state")?));
                }
            }
            Ok(MendingRow {
                copyset,
                members: states,
                mender: row.try_get("mender_name")?,
                progress: MendProgress {
                    done: rows::number(row, "mend_done")?,
                    all: rows::number(row, "mend_all")?,
                },
                is_scrub: rows::number(row, "scrub_wanted")? > 0,
                rotten: rows::number(row, "rotten")?,
                problem: row.try_get("mend_problem")?,
            })
        };
        rows.iter().map(of_row).collect()
    }
}
