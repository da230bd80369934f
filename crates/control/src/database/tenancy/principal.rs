//! The principal: the authenticated party of one request.

use auth::SignedBy;
use sqlx::AnyConnection;

use crate::error::ControlError;

use crate::database::{DatabaseError, Origin, Parties, PartyRow};

/// An authenticated party, for one request.
#[derive(Debug, Clone)]
pub struct Principal {
    /// The party.
    pub party: PartyRow,
    /// What the audit log says of the request.
    pub by: Origin,
    /// The authority that signed the presented certificate.
    pub signed_by: Option<SignedBy>,
    /// Whether it is a dry run: everything is checked, and nothing is changed.
    pub is_dry_run: bool,
    /// The idempotency key of the request, if it has one.
    pub idempotency: Option<Idempotency>,
}

/// Makes the creation of an object repeatable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Idempotency {
    /// The key, chosen by the caller.
    pub key: String,
    /// A digest of method, path and body.
    pub request: String,
}

/// How long a key is remembered, in milliseconds: one day.
const REMEMBERED_MS: i64 = 24 * 60 * 60 * 1000;

impl Principal {
    /// Refuses a party that is not an administrator.
    ///
    /// # Errors
    /// [`ControlError::Forbidden`].
    pub fn must_administer(&self) -> Result<(), ControlError> {
        if self.party.is_administrator {
            return Ok(());
        }
        Err(ControlError::Forbidden {
            reason: format!(
                "{} is not an administrator; ask one to do this",
                self.party.subject.name()
            ),
        })
    }

    /// The object that was created under the same idempotency key.
    ///
    /// # Errors
    /// [`DatabaseError::OtherRequest`] if that was another request.
    pub(in crate::database) async fn made_before(
        &self,
        change: &mut AnyConnection,
    ) -> Result<Option<String>, DatabaseError> {
        let Some(idempotency) = &self.idempotency else {
            return Ok(None);
        };
        let made: Option<(String, String)> = sqlx::query_as(
            "SELECT request, object FROM idempotency WHERE party = $1 AND key = $2 \
             AND created_ms > $3",
        )
        .bind(self.party.id.to_string())
        .bind(&idempotency.key)
        .bind(self.by.at.0.saturating_sub(REMEMBERED_MS))
        .fetch_optional(change)
        .await?;
        match made {
            None => Ok(None),
            Some((request, object)) if request == idempotency.request => Ok(Some(object)),
            Some(_) => Err(DatabaseError::OtherRequest {
                key: idempotency.key.clone(),
            }),
        }
    }

    /// Records the object that was created under the idempotency key, if there is one.
    pub(in crate::database) async fn note_made(
        &self,
        change: &mut AnyConnection,
        object: impl std::fmt::Display,
    ) -> Result<(), DatabaseError> {
        let Some(idempotency) = &self.idempotency else {
            return Ok(());
        };
        sqlx::query("DELETE FROM idempotency WHERE created_ms <= $1")
            .bind(self.by.at.0.saturating_sub(REMEMBERED_MS))
            .execute(&mut *change)
            .await?;
        sqlx::query(
            "INSERT INTO idempotency (party, key, request, object, created_ms) \
             VALUES ($1, $2, $3, $4, $5)",
        )
        .bind(self.party.id.to_string())
        .bind(&idempotency.key)
        .bind(&idempotency.request)
        .bind(object.to_string())
        .bind(self.by.at.0)
        .execute(change)
        .await?;
        Ok(())
    }

    /// Adds an entry to the audit log.
    pub(in crate::database) async fn note(
        &self,
        change: &mut AnyConnection,
        action: &str,
        target: impl std::fmt::Display,
    ) -> Result<(), DatabaseError> {
        self.by.note(change, action, &target.to_string()).await
    }
}

impl Parties<'_> {
    /// The object that was created under the principal's idempotency key, if there is one.
    ///
    /// # Errors
    /// [`DatabaseError::OtherRequest`] if that was another request.
    pub async fn made_under_key(
        self,
        principal: &Principal,
    ) -> Result<Option<String>, DatabaseError> {
        match principal.idempotency {
            None => Ok(None),
            Some(_) => {
                principal
                    .made_before(&mut *self.database.reader.acquire().await?)
                    .await
            }
        }
    }
}

/// The error for a repeated request whose object was deleted since.
pub(in crate::database) fn gone_since(error: DatabaseError) -> DatabaseError {
    match error {
        DatabaseError::NotFound { thing, name } => DatabaseError::Refused {
            reason: why_gone(&format!("{thing} {name}")),
        },
        other => other,
    }
}

/// Why a repeated request is refused if its object was deleted.
pub(crate) fn why_gone(what: &str) -> String {
    format!("{what} was created with this idempotency key, and deleted since; use another key")
}

/// Begins a principal's part of a transaction.
pub(in crate::database) async fn begin(
    change: &mut AnyConnection,
    principal: &Principal,
) -> Result<(), DatabaseError> {
    if principal.is_dry_run {
        sqlx::query("SAVEPOINT dry_run").execute(change).await?;
    }
    Ok(())
}

/// Ends it: a dry run is rolled back.
pub(in crate::database) async fn end(
    change: &mut AnyConnection,
    principal: &Principal,
) -> Result<(), DatabaseError> {
    if principal.is_dry_run {
        sqlx::query("ROLLBACK TO SAVEPOINT dry_run")
            .execute(change)
            .await?;
    }
    Ok(())
}
