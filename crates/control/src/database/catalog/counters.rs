//! The cluster's counters: how many leases were granted, and the next segment serial. They only
//! grow, and may skip numbers.
//!
//! Every lease of every volume changes them. On SQLite, which has one writer anyway, they are
//! columns of `cluster`. On PostgreSQL they are sequences: no transaction waits for them, and a
//! number is not reused when a transaction is rolled back.

use std::ops::Range;

use base::SegmentId;
use sqlx::{AnyConnection, Row as _};

use crate::database::{Backend, Catalog, DatabaseError, rows};

/// The increment of the sequence of serials: the number that a lease reserves at once. The
/// PostgreSQL schema has the same number.
const SERIALS_AT_ONCE: u32 = 64;

impl Catalog<'_> {
    /// The number of leases that were ever granted.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn lease_count(self) -> Result<u64, DatabaseError> {
        let statement = match self.database.backend {
            Backend::Sqlite => "SELECT leases FROM cluster",
            Backend::Postgres => {
                "SELECT CASE WHEN is_called THEN last_value ELSE 0 END AS leases FROM leases"
            }
        };
        let row = sqlx::query(statement)
            .fetch_one(&self.database.reader)
            .await?;
        rows::number(&row, "leases")
    }

    /// Counts one more lease.
    pub(in crate::database) async fn count_lease(
        self,
        change: &mut AnyConnection,
    ) -> Result<(), DatabaseError> {
        let statement = match self.database.backend {
            Backend::Sqlite => "UPDATE cluster SET leases = leases + 1",
            Backend::Postgres => "SELECT nextval('leases')",
        };
        sqlx::query(statement).execute(change).await?;
        Ok(())
    }

    /// Takes `count` serials that were never handed out.
    pub(in crate::database) async fn take_serials(
        self,
        change: &mut AnyConnection,
        count: u32,
    ) -> Result<Range<u64>, DatabaseError> {
        if count > SERIALS_AT_ONCE {
            let reason = format!("{count} segment serials are more than one call may reserve");
            return Err(DatabaseError::Refused { reason });
        }
        let first = match self.database.backend {
            Backend::Sqlite => {
                let row = sqlx::query(
                    "UPDATE cluster SET serial_next = serial_next + $1 RETURNING serial_next",
                )
                .bind(i64::from(count))
                .fetch_one(change)
                .await?;
                rows::number(&row, "serial_next")?.saturating_sub(count.into())
            }
            Backend::Postgres => {
                let row = sqlx::query("SELECT nextval('serials') AS first")
                    .fetch_one(change)
                    .await?;
                row.try_get::<i64, _>("first")?.cast_unsigned()
            }
        };
        let range = first..first.saturating_add(count.into());
        if range.end > SegmentId::SERIAL_END {
            let reason = "the cluster has used up its segment serials".to_owned();
            return Err(DatabaseError::Refused { reason });
        }
        Ok(range)
    }

    /// The first serial that was not handed out yet. Call it in a transaction that runs alone.
    pub(in crate::database) async fn serial_next(
        self,
        change: &mut AnyConnection,
    ) -> Result<u64, DatabaseError> {
        let row = match self.database.backend {
            Backend::Sqlite => {
                let statement = "SELECT serial_next FROM cluster";
                sqlx::query(statement).fetch_one(change).await?
            }
            Backend::Postgres => {
                let statement = "SELECT CASE WHEN is_called THEN last_value + $1 \
                     ELSE last_value END AS serial_next FROM serials";
                let query = sqlx::query(statement).bind(i64::from(SERIALS_AT_ONCE));
                query.fetch_one(change).await?
            }
        };
        rows::number(&row, "serial_next")
    }

    /// Moves the next serial up by `serials`, and the count of leases to
    /// `leases_more` above whichever is larger, itself or `leases`.
    pub(in crate::database) async fn skip(
        self,
        change: &mut AnyConnection,
        serials: u32,
        leases: u64,
        leases_more: u32,
    ) -> Result<(), DatabaseError> {
        let statement = match self.database.backend {
            Backend::Sqlite => {
                "UPDATE cluster SET serial_next = serial_next + $1, \
                 leases = CASE WHEN leases < $2 THEN $2 ELSE leases END + $3"
            }
            Backend::Postgres => {
                "SELECT setval('serials', nextval('serials') + $1), \
                 setval('leases', GREATEST(nextval('leases'), $2) + $3)"
            }
        };
        sqlx::query(statement)
            .bind(i64::from(serials))
            .bind(leases.cast_signed())
            .bind(i64::from(leases_more))
            .execute(change)
            .await?;
        Ok(())
    }
}
