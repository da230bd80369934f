//! Who asks, and how: what every change on somebody's behalf is made with.

use auth::SignedBy;
use sqlx::AnyConnection;

use crate::error::ControlError;

use crate::database::{By, DatabaseError, Parties, PartyRow};

/// Somebody who was recognised, for one request.
#[derive(Debug, Clone)]
pub struct Principal {
    /// Who.
    pub party: PartyRow,
    /// How, for the log.
    pub by: By,
    /// Who has signed the certificate that was shown.
    pub signed_by: Option<SignedBy>,
    /// Everything is checked, and nothing is changed.
    pub is_dry_run: bool,
    /// Under which key something is made.
    pub idempotency: Option<Idempotency>,
}

/// Makes a creation one that can be repeated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Idempotency {
    /// The caller's own word for it.
    pub key: String,
    /// What stands for method, path and body.
    pub request: String,
}

/// So long a key is remembered, in milliseconds: a day.
const REMEMBERED_MS: i64 = 24 * 60 * 60 * 1000;

impl Principal {
    /// Refuses whoever is no administrator.
    ///
    /// # Errors
    /// [`ControlError::Forbidden`].
    pub fn must_administer(&self) -> Result<(), ControlError> {
        if self.party.is_administrator {
            return Ok(());
        }
        Err(ControlError::Forbidden {
            reason: format!(
                "{} is no administrator; ask one to do this",
                self.party.subject.name()
            ),
        })
    }

    /// What was made under the same key before.
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

    /// Notes what was made under the key, if there is one.
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

    /// Notes in the log that this was done.
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
    /// What was made under the principal's key before, if there is one.
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

/// The same request, whose result has gone since.
pub(in crate::database) fn gone_since(error: DatabaseError) -> DatabaseError {
    match error {
        DatabaseError::NotFound { thing, name } => DatabaseError::Refused {
            reason: why_gone(&format!("{thing} {name}")),
        },
        other => other,
    }
}

/// Why a creation is not answered with what it made before.
pub(crate) fn why_gone(what: &str) -> String {
    format!("{what} was made with this idempotency key, and is gone since; take another key")
}

/// What a change on somebody's behalf begins with.
pub(in crate::database) async fn begin(
    change: &mut AnyConnection,
    principal: &Principal,
) -> Result<(), DatabaseError> {
    if principal.is_dry_run {
        sqlx::query("SAVEPOINT dry_run").execute(change).await?;
    }
    Ok(())
}

/// What it ends with: one that was only tried is taken back.
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
