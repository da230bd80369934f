//! The audit log: the changes and their authors. An entry is written in the transaction that it
//! describes, so there is no change without an entry, and no entry without a change.

use std::net::SocketAddr;

use auth::KeyFingerprint;
use base::{PartyId, VolumeId};
use sqlx::any::AnyRow;
use sqlx::{AnyConnection, Row as _};
use world::Millis;

use crate::database::{DatabaseError, Parties, rows};

/// The author and the time of a change.
#[derive(Debug, Clone)]
pub struct Origin {
    /// The time of the change.
    pub at: Millis,
    /// The party's URI, or the origin of an unauthenticated request.
    pub who: String,
    /// The key of the certificate that was presented.
    pub key: Option<KeyFingerprint>,
    /// The address that the request came from, if it came over a network.
    pub address: Option<SocketAddr>,
}

/// An entry of the audit log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditRow {
    /// The number. Numbers grow and may have gaps.
    pub id: i64,
    /// The time of the change.
    pub at: Millis,
    /// The party, as in [`Origin::who`].
    pub who: String,
    /// The fingerprint of the key of the certificate that was presented.
    pub key: Option<String>,
    /// The address that the request came from.
    pub address: Option<String>,
    /// The action: a verb.
    pub action: String,
    /// The object of the action.
    pub target: String,
}

/// The text of a volume in the log: its id, and its name if it still exists.
pub(in crate::database) async fn volume(
    connection: &mut AnyConnection,
    id: VolumeId,
) -> Result<String, DatabaseError> {
    let name = "SELECT name FROM volumes WHERE id = $1";
    named(connection, name, &id.to_string()).await
}

/// The text of a host and a VM in the log, as [`volume`].
pub(in crate::database) async fn place(
    connection: &mut AnyConnection,
    host: PartyId,
    vm: Option<&str>,
) -> Result<String, DatabaseError> {
    let name = "SELECT name FROM parties WHERE id = $1";
    let host = named(connection, name, &host.to_string()).await?;
    Ok(match vm {
        Some(vm) => format!("{host} {vm}"),
        None => host,
    })
}

async fn named(
    connection: &mut AnyConnection,
    name: &str,
    id: &str,
) -> Result<String, DatabaseError> {
    let name: Option<String> = sqlx::query_scalar(name)
        .bind(id)
        .fetch_optional(connection)
        .await?;
    Ok(match name {
        Some(name) => format!("{id} {name}"),
        None => id.to_owned(),
    })
}

impl Origin {
    /// Writes an entry.
    pub(in crate::database) async fn note(
        &self,
        change: &mut AnyConnection,
        action: &str,
        target: &str,
    ) -> Result<(), DatabaseError> {
        sqlx::query(
            "INSERT INTO audit (at_ms, who, key, address, action, target) \
             VALUES ($1, $2, $3, $4, $5, $6)",
        )
        .bind(self.at.0)
        .bind(&self.who)
        .bind(self.key.map(|key| key.to_string()))
        .bind(self.address.map(|address| address.to_string()))
        .bind(action)
        .bind(target)
        .execute(change)
        .await?;
        Ok(())
    }
}

impl Parties<'_> {
    /// The log, newest first: at most `count_max` entries with numbers below `before`.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn audit_log(
        self,
        before: i64,
        count_max: u32,
    ) -> Result<Vec<AuditRow>, DatabaseError> {
        sqlx::query("SELECT * FROM audit WHERE id < $1 ORDER BY id DESC LIMIT $2")
            .bind(before)
            .bind(i64::from(count_max))
            .fetch_all(&self.database.reader)
            .await?
            .iter()
            .map(audit_row)
            .collect()
    }
}

fn audit_row(row: &AnyRow) -> Result<AuditRow, DatabaseError> {
    Ok(AuditRow {
        id: rows::number(row, "id")?.cast_signed(),
        at: Millis(row.try_get("at_ms")?),
        who: row.try_get("who")?,
        key: row.try_get("key")?,
        address: row.try_get("address")?,
        action: row.try_get("action")?,
        target: row.try_get("target")?,
    })
}
