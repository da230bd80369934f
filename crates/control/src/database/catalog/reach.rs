//! The objects that a host may read and change (docs/internals/desired-state.md).
//!
//! * One host cleans a volume: the one that has it attached for writing, else the one that had it
//!   last, else (or if that one has been unresponsive for an hour) any host. [`cleans!`] is the one
//!   definition of this.
//! * Opening a version needs the key of its lineage and of all lineages above it, so a key is
//!   reachable from any lineage below it. The search goes down from the requested lineage, and
//!   mostly ends where it begins.
//! * Objects out of reach do not exist for the host. Reach is checked in the transaction that uses
//!   it.

use base::{Lineage, PartyId, VolumeId};
use catalog::VersionKey;
use sqlx::AnyConnection;
use world::Millis;

use crate::database::DatabaseError;

/// When the host that had a volume last has not reported for this time, other hosts clean the
/// volume, in milliseconds: one hour.
pub const UNRESPONSIVE_FOR_MS: i64 = 60 * 60 * 1000;

/// Whether host $1 cleans the volume that the expression names, as an SQL condition. Hosts that
/// reported after time $2 are responsive.
macro_rules! cleans {
    ($volume:literal) => {
        concat!(
            "(EXISTS (SELECT 1 FROM attachments w WHERE w.volume = ",
            $volume,
            " AND w.access = 'read-write' AND w.state <> 'detached' AND w.host = $1) OR (\
             NOT EXISTS (SELECT 1 FROM attachments w WHERE w.volume = ",
            $volume,
            " AND w.access = 'read-write' AND w.state <> 'detached') \
             AND NOT EXISTS (SELECT 1 FROM volumes l JOIN host_reports r ON r.party = l.last_host \
                 WHERE l.id = ",
            $volume,
            " AND l.last_host <> $1 AND r.heard_ms > $2) \
             AND NOT EXISTS (SELECT 1 FROM deleted_volumes l JOIN host_reports r ON r.party = l.last_host \
                 WHERE l.volume = ",
            $volume,
            " AND l.last_host <> $1 AND r.heard_ms > $2)))"
        )
    };
}

/// Whether host $1 cleans a volume with this lineage, or what a deleted one left.
macro_rules! owns {
    ($lineage:literal) => {
        concat!(
            "(EXISTS (SELECT 1 FROM volumes v WHERE v.lineage = ",
            $lineage,
            " AND ",
            cleans!("v.id"),
            ") OR EXISTS (SELECT 1 FROM (SELECT DISTINCT volume FROM versions WHERE lineage = ",
            $lineage,
            ") s WHERE ",
            cleans!("s.volume"),
            "))"
        )
    };
}

/// Whether host $1 may change a lineage's row: it cleans a volume of the lineage; or only lineages
/// below are left, and it cleans a volume of one of those; or nothing is left.
macro_rules! rewraps {
    ($lineage:literal) => {
        concat!(
            "(",
            owns!($lineage),
            " OR (NOT EXISTS (SELECT 1 FROM volumes n WHERE n.lineage = ",
            $lineage,
            ") AND NOT EXISTS (SELECT 1 FROM versions n WHERE n.lineage = ",
            $lineage,
            ") AND (NOT EXISTS (SELECT 1 FROM lineages n WHERE n.parent = ",
            $lineage,
            ") OR EXISTS (WITH RECURSIVE below (lineage) AS (\
             SELECT c.lineage FROM lineages c WHERE c.parent = ",
            $lineage,
            " UNION ALL SELECT c.lineage FROM lineages c JOIN below b ON c.parent = b.lineage) \
             SELECT 1 FROM below b WHERE ",
            owns!("b.lineage"),
            "))))"
        )
    };
}

/// The lineages below $3, including it.
macro_rules! below {
    ($select:expr) => {
        concat!(
            "WITH RECURSIVE below (lineage) AS (SELECT lineage FROM lineages WHERE lineage = $3 \
             UNION ALL SELECT l.lineage FROM lineages l JOIN below b ON l.parent = b.lineage) \
             SELECT 1 FROM below b WHERE ",
            $select,
            " LIMIT 1"
        )
    };
}

/// A host at one moment: what it may reach depends on which other hosts are unresponsive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reach {
    /// The calling host.
    pub host: PartyId,
    /// Hosts that have not reported since are unresponsive.
    heard_after: Millis,
    now: Millis,
}

impl Reach {
    /// The reach of `host` at the time `now`, by the clock that leases are measured with.
    #[must_use]
    pub fn new(host: PartyId, now: Millis) -> Self {
        Self {
            host,
            heard_after: Millis(now.0.saturating_sub(UNRESPONSIVE_FOR_MS)),
            now,
        }
    }

    /// The time.
    pub(in crate::database) fn now(&self) -> Millis {
        self.now
    }

    /// A query with the parameters of [`cleans!`] bound.
    pub(in crate::database) fn query<'q>(
        &self,
        statement: &'q str,
    ) -> sqlx::query::Query<'q, sqlx::Any, sqlx::any::AnyArguments<'q>> {
        sqlx::query(statement)
            .bind(self.host.to_string())
            .bind(self.heard_after.0)
    }

    async fn holds(
        &self,
        connection: &mut AnyConnection,
        statement: &str,
        of: String,
    ) -> Result<bool, DatabaseError> {
        let found = self.query(statement).bind(of).fetch_optional(connection);
        Ok(found.await?.is_some())
    }

    /// Whether this host cleans a volume, which may have been deleted.
    pub(in crate::database) async fn cleans(
        &self,
        connection: &mut AnyConnection,
        volume: VolumeId,
    ) -> Result<bool, DatabaseError> {
        let statement = concat!("SELECT 1 WHERE ", cleans!("$3"));
        self.holds(connection, statement, volume.to_string()).await
    }

    /// Refuses an object of a volume that this host does not clean; `what` is the error.
    pub(in crate::database) async fn must_clean(
        &self,
        connection: &mut AnyConnection,
        volume: VolumeId,
        what: impl FnOnce() -> DatabaseError,
    ) -> Result<(), DatabaseError> {
        match self.cleans(connection, volume).await? {
            true => Ok(()),
            false => Err(what()),
        }
    }

    /// Whether it may read a version: of a volume that it cleans, or one that it shows, preloads or
    /// audits.
    pub(in crate::database) async fn reads_version(
        &self,
        connection: &mut AnyConnection,
        key: VersionKey,
    ) -> Result<bool, DatabaseError> {
        if self.cleans(&mut *connection, key.volume).await? {
            return Ok(true);
        }
        let shown = sqlx::query(
            "SELECT 1 FROM attachments WHERE host = $1 AND version_volume = $2 \
             AND version_number = $3 AND state <> 'detached' \
             UNION ALL SELECT 1 FROM preloads WHERE host = $1 AND version_volume = $2 \
             AND version_number = $3 AND ended_ms IS NULL \
             UNION ALL SELECT 1 FROM volume_audits WHERE host = $1 AND version_volume = $2 \
             AND version_number = $3 AND ended_ms IS NULL",
        )
        .bind(self.host.to_string())
        .bind(key.volume.to_string())
        .bind(key.number.cast_signed())
        .fetch_optional(connection)
        .await?;
        Ok(shown.is_some())
    }

    /// Whether it may have the keys of a lineage: with them, or with one below them, it opens a
    /// volume that it cleans, a version that it shows, preloads or audits, or the parent of a
    /// version that it cleans. A volume that no host ever had is cleaned by any host but opens
    /// nothing: it holds nothing except its parents' data.
    pub(in crate::database) async fn reads_keys(
        &self,
        connection: &mut AnyConnection,
        lineage: Lineage,
    ) -> Result<bool, DatabaseError> {
        // The first statement is cheap and mostly finds it.
        let volumes = below!(concat!(
            "EXISTS (SELECT 1 FROM volumes v WHERE v.lineage = b.lineage \
             AND (v.last_host IS NOT NULL OR EXISTS (SELECT 1 FROM attachments a \
                 WHERE a.volume = v.id AND a.host = $1 AND a.state <> 'detached')) AND ",
            cleans!("v.id"),
            ")"
        ));
        let versions = below!(concat!(
            "EXISTS (SELECT 1 FROM attachments a JOIN versions s ON s.volume = a.version_volume \
                 AND s.number = a.version_number WHERE a.host = $1 AND a.state <> 'detached' \
                 AND s.lineage = b.lineage) \
             OR EXISTS (SELECT 1 FROM preloads p JOIN versions s ON s.volume = p.version_volume \
                 AND s.number = p.version_number WHERE p.host = $1 AND p.ended_ms IS NULL \
                 AND s.lineage = b.lineage) \
             OR EXISTS (SELECT 1 FROM volume_audits p JOIN versions s \
                 ON s.volume = p.version_volume AND s.number = p.version_number \
                 WHERE p.host = $1 AND p.ended_ms IS NULL AND s.lineage = b.lineage) \
             OR EXISTS (SELECT 1 FROM (SELECT DISTINCT volume, parent_volume FROM versions \
                 WHERE lineage = b.lineage) s WHERE ",
            cleans!("s.volume"),
            " OR (s.parent_volume IS NOT NULL AND ",
            cleans!("s.parent_volume"),
            "))"
        ));
        for statement in [volumes, versions] {
            let lineage = lineage.to_string();
            if self.holds(&mut *connection, statement, lineage).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
