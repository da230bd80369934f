//! Users, hosts and unit daemons, their public keys, and the tokens with which they join.

use api::words::PartyKind;
use auth::{KeyFingerprint, Kind, Subject, TokenHash};
use base::{PartyId, ProjectId};
use sqlx::AnyConnection;
use world::Millis;

use crate::database::hosts::{self, jobs};
use crate::database::tenancy::party_rows::{PartyRow, not_found, party_of, party_row};
use crate::database::tenancy::projects;
use crate::database::{Database, DatabaseError, ObjectKind, Origin, Principal, rows};

/// The project that a new party becomes a member of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Membership {
    /// No project: the party is not a user.
    None,
    /// A new project of the same name.
    Own(ProjectId),
    /// The project with this name or id.
    Of(String),
}

/// Users, hosts and unit daemons.
#[derive(Clone, Copy, Debug)]
pub struct Parties<'a> {
    pub(in crate::database) database: &'a Database,
}

impl Parties<'_> {
    /// Creates a party. A user becomes a member of `project`, or of a new project of the same name.
    ///
    /// # Errors
    /// [`DatabaseError::Taken`], [`DatabaseError::NotFound`] (the project).
    pub async fn insert(
        self,
        principal: &Principal,
        new: &PartyRow,
        project: &Membership,
    ) -> Result<PartyRow, DatabaseError> {
        self.database
            .transaction_for(principal)
            .run(|mut change| async move {
                if let Some(made) = principal.made_before(&mut change).await? {
                    let row = sqlx::query("SELECT * FROM parties WHERE id = $1")
                        .bind(made)
                        .fetch_one(&mut *change)
                        .await?;
                    return party_row(&row);
                }
                let taken = sqlx::query("SELECT id FROM parties WHERE kind = $1 AND name = $2")
                    .bind(new.subject.kind().as_str())
                    .bind(new.subject.name())
                    .fetch_optional(&mut *change)
                    .await?;
                if taken.is_some() {
                    return Err(name_taken(&new.subject));
                }
                insert(&mut change, new).await?;
                match project {
                    Membership::None => {}
                    Membership::Own(id) => {
                        let name = new.subject.name();
                        projects::insert(&mut change, *id, name, new.created).await?;
                        projects::join(&mut change, *id, new.id).await?;
                    }
                    Membership::Of(name) => {
                        let id = projects::id_of(&mut change, principal, name).await?;
                        projects::join(&mut change, id, new.id).await?;
                    }
                }
                principal.note(&mut change, "add", &new.subject).await?;
                principal.note_made(&mut change, new.id).await?;
                Ok(new.clone())
            })
            .await
    }

    /// The user or host of the controller's own machine, created with `id` if it does not exist.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn local(
        self,
        kind: Kind,
        id: PartyId,
        now: Millis,
    ) -> Result<PartyId, DatabaseError> {
        let subject = crate::parties::local(kind);
        let subject = &subject;
        self.database
            .transaction()
            .run(|mut change| async move {
                let known = sqlx::query("SELECT id FROM parties WHERE kind = $1 AND name = $2")
                    .bind(kind.as_str())
                    .bind(subject.name())
                    .fetch_optional(&mut *change)
                    .await?;
                if let Some(known) = known {
                    return rows::spelled(&known, "id");
                }
                let new = PartyRow {
                    id,
                    subject: subject.clone(),
                    is_administrator: kind == Kind::User,
                    is_disabled: false,
                    created: now,
                };
                insert(&mut change, &new).await?;
                if kind == Kind::User {
                    let project = ProjectId::from_u128(id.as_u128());
                    projects::insert(&mut change, project, subject.name(), now).await?;
                    projects::join(&mut change, project, id).await?;
                }
                Ok(id)
            })
            .await
    }

    /// The user or host of this name.
    ///
    /// # Errors
    /// [`DatabaseError::NotFound`].
    pub async fn get(self, subject: &Subject) -> Result<PartyRow, DatabaseError> {
        party_of(&mut *self.database.reader.acquire().await?, subject).await
    }

    /// The one with this id.
    ///
    /// # Errors
    /// [`DatabaseError::NotFound`].
    pub async fn find(self, id: PartyId) -> Result<PartyRow, DatabaseError> {
        let row = sqlx::query("SELECT * FROM parties WHERE id = $1")
            .bind(id.to_string())
            .fetch_optional(&self.database.reader)
            .await?;
        party_row(&row.ok_or_else(|| DatabaseError::not_found(ObjectKind::Host, id))?)
    }

    /// The party with this key.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn of_key(self, key: KeyFingerprint) -> Result<Option<PartyRow>, DatabaseError> {
        sqlx::query(
            "SELECT p.* FROM parties p JOIN party_keys k ON k.party = p.id \
             WHERE k.fingerprint = $1",
        )
        .bind(key.to_string())
        .fetch_optional(&self.database.reader)
        .await?
        .as_ref()
        .map(party_row)
        .transpose()
    }

    /// The users, or the hosts: after the id `after`, in the order of their
    /// ids, at most `count_max`.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn all(
        self,
        kind: Kind,
        after: &str,
        count_max: u32,
    ) -> Result<Vec<PartyRow>, DatabaseError> {
        sqlx::query("SELECT * FROM parties WHERE kind = $1 AND id > $2 ORDER BY id LIMIT $3")
            .bind(kind.as_str())
            .bind(after)
            .bind(i64::from(count_max))
            .fetch_all(&self.database.reader)
            .await?
            .iter()
            .map(party_row)
            .collect()
    }

    /// Refuses its requests from now on, or no longer.
    ///
    /// # Errors
    /// [`DatabaseError::NotFound`].
    pub async fn set_disabled(
        self,
        principal: &Principal,
        subject: &Subject,
        is_disabled: bool,
    ) -> Result<(), DatabaseError> {
        self.database
            .transaction_for(principal)
            .run(|mut change| async move {
                let changed =
                    sqlx::query("UPDATE parties SET disabled = $1 WHERE kind = $2 AND name = $3")
                        .bind(i64::from(is_disabled))
                        .bind(subject.kind().as_str())
                        .bind(subject.name())
                        .execute(&mut *change)
                        .await?;
                if changed.rows_affected() == 0 {
                    return Err(not_found(subject));
                }
                if subject.kind() == Kind::Unit {
                    // Hosts stop writing to its unit, or start again.
                    hosts::assign_all(&mut change).await?;
                }
                if subject.kind() == Kind::Host && is_disabled {
                    let host = party_of(&mut change, subject).await?.id;
                    let why = jobs::IS_DISABLED;
                    jobs::end_all_of_host(&mut change, host, why, principal.by.at).await?;
                }
                let action = if is_disabled { "disable" } else { "enable" };
                principal.note(&mut change, action, subject).await
            })
            .await
    }

    /// Notes a token with which this party may join, once, until `expires`.
    ///
    /// # Errors
    /// [`DatabaseError::NotFound`].
    pub async fn insert_join_token(
        self,
        principal: &Principal,
        subject: &Subject,
        token: TokenHash,
        expires: Millis,
    ) -> Result<(), DatabaseError> {
        self.database
            .transaction_for(principal)
            .run(|mut change| async move {
                let party = party_of(&mut change, subject).await?;
                sqlx::query(
                    "INSERT INTO join_tokens (hash, party, expires_ms) VALUES ($1, $2, $3)",
                )
                .bind(&token.0[..])
                .bind(party.id.to_string())
                .bind(expires.0)
                .execute(&mut *change)
                .await?;
                principal.note(&mut change, "invite", subject).await
            })
            .await
    }

    /// Consumes a token: `key` becomes a key of its party. Returns the party; `None` if the token
    /// does not exist, has expired or was used, or the party is disabled.
    ///
    /// # Errors
    /// [`DatabaseError::Refused`] if the party is not of this `kind`: the token stays valid.
    /// [`DatabaseError::Taken`] if another party has that key.
    pub async fn join(
        self,
        token: TokenHash,
        key: KeyFingerprint,
        kind: Option<PartyKind>,
        by: &Origin,
    ) -> Result<Option<PartyRow>, DatabaseError> {
        self.database
            .transaction()
            .run(|mut change| async move {
                // Expired tokens are deleted, too.
                sqlx::query("DELETE FROM join_tokens WHERE expires_ms <= $1")
                    .bind(by.at.0)
                    .execute(&mut *change)
                    .await?;
                let row = sqlx::query(
                    "SELECT p.* FROM parties p JOIN join_tokens e ON e.party = p.id \
                 WHERE e.hash = $1 AND p.disabled = 0",
                )
                .bind(&token.0[..])
                .fetch_optional(&mut *change)
                .await?;
                let Some(row) = row else { return Ok(None) };
                let party = party_row(&row)?;
                if let Some(kind) = kind
                    && kind.as_str() != party.subject.kind().as_str()
                {
                    return Err(token_of_other_kind(&party.subject, kind));
                }
                sqlx::query("DELETE FROM join_tokens WHERE hash = $1")
                    .bind(&token.0[..])
                    .execute(&mut *change)
                    .await?;
                add_key(&mut change, party.id, key, by.at).await?;
                by.note(&mut change, "join", &party.subject.to_string())
                    .await?;
                Ok(Some(party))
            })
            .await
    }

    /// Adds a key of `party`.
    ///
    /// # Errors
    /// [`DatabaseError::Taken`] if somebody else has that key.
    pub async fn insert_key(
        self,
        party: &PartyRow,
        key: KeyFingerprint,
        by: &Origin,
    ) -> Result<(), DatabaseError> {
        self.database
            .transaction()
            .run(|mut change| async move {
                add_key(&mut change, party.id, key, by.at).await?;
                by.note(&mut change, "renew", &party.subject.to_string())
                    .await
            })
            .await
    }

    /// Deletes all keys and tokens of a party.
    ///
    /// # Errors
    /// [`DatabaseError::NotFound`].
    pub async fn forget_keys(
        self,
        principal: &Principal,
        subject: &Subject,
    ) -> Result<(), DatabaseError> {
        self.database
            .transaction_for(principal)
            .run(|mut change| async move {
                let party = party_of(&mut change, subject).await?;
                for statement in [
                    "DELETE FROM party_keys WHERE party = $1",
                    "DELETE FROM join_tokens WHERE party = $1",
                ] {
                    sqlx::query(statement)
                        .bind(party.id.to_string())
                        .execute(&mut *change)
                        .await?;
                }
                if subject.kind() == Kind::Host {
                    let why = "the host's keys were forgotten";
                    jobs::end_all_of_host(&mut change, party.id, why, principal.by.at).await?;
                }
                principal.note(&mut change, "forget-keys", subject).await
            })
            .await
    }
}

async fn insert(change: &mut AnyConnection, new: &PartyRow) -> Result<(), DatabaseError> {
    sqlx::query(
        "INSERT INTO parties (id, kind, name, administrator, disabled, created_ms) \
         VALUES ($1, $2, $3, $4, $5, $6)",
    )
    .bind(new.id.to_string())
    .bind(new.subject.kind().as_str())
    .bind(new.subject.name())
    .bind(i64::from(new.is_administrator))
    .bind(i64::from(new.is_disabled))
    .bind(new.created.0)
    .execute(&mut *change)
    .await?;
    if new.subject.kind() == Kind::Host {
        sqlx::query("INSERT INTO hosts (party) VALUES ($1)")
            .bind(new.id.to_string())
            .execute(&mut *change)
            .await?;
    }
    Ok(())
}

/// The error of a new party whose name another one has.
fn name_taken(subject: &Subject) -> DatabaseError {
    let kind = subject.kind();
    DatabaseError::Taken {
        what: format!("a {kind} named {:?}", subject.name()),
        remedy: match kind {
            Kind::User => {
                "users are disabled, not deleted: choose another name, or let this user log in \
                 again (`scree user enable`, `scree user token`)"
            }
            Kind::Host => {
                "hosts are disabled, not deleted: choose another name, or let this host join again \
                 (`scree host enable`, `scree host token`)"
            }
            Kind::Unit => {
                "choose another name (that of a removed unit stays taken), or let this daemon join \
                 again if its unit was not removed (`scree unit token`)"
            }
            Kind::Controller => "choose another name",
        },
    }
}

/// The error of a token that is presented by another kind of party than it was made for.
fn token_of_other_kind(subject: &Subject, kind: PartyKind) -> DatabaseError {
    let command = match subject.kind() {
        Kind::Host => "scree host join",
        Kind::Unit => "scree unit join",
        Kind::User | Kind::Controller => "scree login",
    };
    DatabaseError::Refused {
        reason: format!(
            "the token is for {subject}, which is not a {kind}, and is still valid: use it with \
             `{command}`, or ask an administrator for the token of a {kind} (`scree {kind} token \
             NAME`)"
        ),
    }
}

async fn add_key(
    change: &mut AnyConnection,
    party: PartyId,
    key: KeyFingerprint,
    now: Millis,
) -> Result<(), DatabaseError> {
    let holder: Option<String> =
        sqlx::query_scalar("SELECT party FROM party_keys WHERE fingerprint = $1")
            .bind(key.to_string())
            .fetch_optional(&mut *change)
            .await?;
    match holder {
        Some(holder) if holder == party.to_string() => Ok(()),
        // The error does not say whose key it is.
        Some(_) => Err(DatabaseError::Taken {
            what: format!("a party with the key {key}"),
            remedy: "join with a new key",
        }),
        None => {
            sqlx::query(
                "INSERT INTO party_keys (fingerprint, party, added_ms) VALUES ($1, $2, $3)",
            )
            .bind(key.to_string())
            .bind(party.to_string())
            .bind(now.0)
            .execute(change)
            .await?;
            Ok(())
        }
    }
}
