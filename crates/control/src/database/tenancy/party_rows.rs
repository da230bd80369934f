//! The rows of parties: users, hosts and unit daemons.

use auth::{Kind, Subject};
use base::PartyId;
use sqlx::any::AnyRow;
use sqlx::{AnyConnection, Row as _};
use world::Millis;

use crate::database::{DatabaseError, ObjectKind, rows};

/// A user, a host or a unit daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartyRow {
    /// The id.
    pub id: PartyId,
    /// Its kind and name.
    pub subject: Subject,
    /// Whether it may do everything except read volumes.
    pub is_administrator: bool,
    /// Whether its requests are refused.
    pub is_disabled: bool,
    /// When it was created.
    pub created: Millis,
}

/// Reads a party from a row of `parties`.
pub(in crate::database) fn party_row(row: &AnyRow) -> Result<PartyRow, DatabaseError> {
    let kind = match row.try_get("kind")? {
        "user" => Kind::User,
        "host" => Kind::Host,
        "unit" => Kind::Unit,
        other => {
            return Err(DatabaseError::Damaged {
                what: format!("a party of kind {other:?}"),
            });
        }
    };
    let subject = Subject::new(kind, row.try_get("name")?);
    Ok(PartyRow {
        id: rows::spelled(row, "id")?,
        subject: subject.map_err(|error| DatabaseError::Damaged {
            what: error.to_string(),
        })?,
        is_administrator: rows::flag(row, "administrator")?,
        is_disabled: rows::flag(row, "disabled")?,
        created: Millis(row.try_get("created_ms")?),
    })
}

/// The error if there is no party with this kind and name.
pub(in crate::database) fn not_found(subject: &Subject) -> DatabaseError {
    let thing = match subject.kind() {
        Kind::User => ObjectKind::User,
        Kind::Host => ObjectKind::Host,
        Kind::Controller => ObjectKind::Controller,
        Kind::Unit => ObjectKind::Unit,
    };
    DatabaseError::not_found(thing, format_args!("{:?}", subject.name()))
}

/// The party with this kind and name.
///
/// # Errors
/// [`DatabaseError::NotFound`].
pub(in crate::database) async fn party_of(
    connection: &mut AnyConnection,
    subject: &Subject,
) -> Result<PartyRow, DatabaseError> {
    let row = sqlx::query("SELECT * FROM parties WHERE kind = $1 AND name = $2")
        .bind(subject.kind().as_str())
        .bind(subject.name())
        .fetch_optional(connection)
        .await?;
    party_row(&row.ok_or_else(|| not_found(subject))?)
}
