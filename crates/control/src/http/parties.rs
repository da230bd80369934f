//! `/v1/me`, `/v1/users`, `/v1/hosts`, and how to become one of them.
//!
//! ```text
//! GET    /v1/authority                    POST   /v1/enrol
//! GET    /v1/me                           POST   /v1/me/certificate
//! GET    /v1/users                        POST   /v1/users
//! GET    /v1/users/{user}                 POST   /v1/users/{user}/token
//! POST   /v1/users/{user}/disable         POST   /v1/users/{user}/enable
//! DELETE /v1/users/{user}/keys            GET    /v1/audit?before=ID&limit=N
//! ```
//!
//! and the same for `/v1/hosts`. The first two are for anybody; what concerns
//! others is for administrators.

use axum::extract::{FromRequestParts, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::routing::{delete, get, post};
use axum::{Extension, Json, Router};
use identity::{Kind, Subject};
use serde::Deserialize;

use super::{ApiError, Body, Caller, Name, Query};
use crate::database::{AuditRow, PartyRow};
use crate::error::ControlError;
use crate::parties::{Asker, Issued, Parties};
use crate::volumes::spell_time;
use api::types::{AddParty, AuditEntry, AuthorityView, Certificate, Enrol, Party, Renew, Token};

/// A page of the log has at most so many lines, and usually.
const LINES_MAX: u32 = 1000;
const LINES: u32 = 100;

/// Users or hosts: which of them a route is about.
#[derive(Clone, Copy)]
struct Of(Kind);

/// All routes.
pub(super) fn routes(parties: Parties) -> Router {
    let of = |kind| {
        Router::new()
            .route("/", get(list).post(add))
            .route("/{name}", get(show))
            .route("/{name}/token", post(invite))
            .route("/{name}/disable", post(disable))
            .route("/{name}/enable", post(enable))
            .route("/{name}/keys", delete(forget_keys))
            .layer(Extension(Of(kind)))
    };
    Router::new()
        .route("/v1/authority", get(authority))
        .route("/v1/enrol", post(enrol))
        .route("/v1/me", get(me))
        .route("/v1/me/certificate", post(renew))
        .route("/v1/audit", get(audit))
        .nest("/v1/users", of(Kind::User))
        .nest("/v1/hosts", of(Kind::Host))
        .with_state(parties)
}

impl FromRequestParts<Parties> for Asker {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, parties: &Parties) -> Result<Self, ApiError> {
        match parts.extensions.get::<Caller>() {
            Some(caller) => Ok(parties.asker(caller).await?),
            None => Err(nowhere().into()),
        }
    }
}

/// Nobody has said where a request came from.
pub(super) fn nowhere() -> ControlError {
    ControlError::Internal {
        reason: "the request came over no connection".to_owned(),
    }
}

/// An asker who is an administrator.
struct Administrator(Asker);

impl FromRequestParts<Parties> for Administrator {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, parties: &Parties) -> Result<Self, ApiError> {
        let asker = Asker::from_request_parts(parts, parties).await?;
        asker.must_administer()?;
        Ok(Self(asker))
    }
}

async fn authority(State(parties): State<Parties>) -> Json<AuthorityView> {
    Json(AuthorityView {
        certificate: parties.authority_pem().to_owned(),
    })
}

async fn enrol(
    State(parties): State<Parties>,
    Extension(caller): Extension<Caller>,
    Body(enrol): Body<Enrol>,
) -> Result<(StatusCode, Json<Certificate>), ApiError> {
    let issued = parties.enrol(&caller, &enrol.token, &enrol.request).await?;
    Ok((StatusCode::CREATED, Json(certificate(&parties, issued))))
}

async fn me(asker: Asker) -> Json<Party> {
    Json(shown(asker.party))
}

async fn renew(
    State(parties): State<Parties>,
    asker: Asker,
    Body(renew): Body<Renew>,
) -> Result<(StatusCode, Json<Certificate>), ApiError> {
    let issued = parties.renew(&asker, &renew.request).await?;
    Ok((StatusCode::CREATED, Json(certificate(&parties, issued))))
}

async fn list(
    State(parties): State<Parties>,
    Extension(Of(kind)): Extension<Of>,
    Administrator(_): Administrator,
) -> Result<Json<Vec<Party>>, ApiError> {
    let all = parties.all(kind).await?;
    Ok(Json(all.into_iter().map(shown).collect()))
}

async fn show(
    State(parties): State<Parties>,
    Extension(of): Extension<Of>,
    Administrator(_): Administrator,
    Name(name): Name,
) -> Result<Json<Party>, ApiError> {
    Ok(Json(shown(parties.one(&of.subject(&name)?).await?)))
}

async fn add(
    State(parties): State<Parties>,
    Extension(of): Extension<Of>,
    Administrator(asker): Administrator,
    Body(new): Body<AddParty>,
) -> Result<(StatusCode, Json<Party>), ApiError> {
    let subject = of.subject(&new.name)?;
    let added = parties.add(subject, new.administrator, &asker.by).await?;
    Ok((StatusCode::CREATED, Json(shown(added))))
}

async fn invite(
    State(parties): State<Parties>,
    Extension(of): Extension<Of>,
    Administrator(asker): Administrator,
    Name(name): Name,
) -> Result<(StatusCode, Json<Token>), ApiError> {
    let (token, expires) = parties.invite(&of.subject(&name)?, &asker.by).await?;
    let token = Token {
        token: token.reveal().to_string(),
        expires: spell_time(expires),
        authority: parties.authority_fingerprint()?,
    };
    Ok((StatusCode::CREATED, Json(token)))
}

async fn disable(
    State(parties): State<Parties>,
    Extension(of): Extension<Of>,
    Administrator(asker): Administrator,
    Name(name): Name,
) -> Result<Json<Party>, ApiError> {
    let subject = of.subject(&name)?;
    if subject == asker.party.subject {
        let reason = "you cannot disable yourself; another administrator can";
        return Err(ControlError::conflict(reason).into());
    }
    Ok(Json(shown(
        parties.set_disabled(&subject, true, &asker.by).await?,
    )))
}

async fn enable(
    State(parties): State<Parties>,
    Extension(of): Extension<Of>,
    Administrator(asker): Administrator,
    Name(name): Name,
) -> Result<Json<Party>, ApiError> {
    let subject = of.subject(&name)?;
    Ok(Json(shown(
        parties.set_disabled(&subject, false, &asker.by).await?,
    )))
}

async fn forget_keys(
    State(parties): State<Parties>,
    Extension(of): Extension<Of>,
    Administrator(asker): Administrator,
    Name(name): Name,
) -> Result<Json<Party>, ApiError> {
    let subject = of.subject(&name)?;
    Ok(Json(shown(parties.forget_keys(&subject, &asker.by).await?)))
}

/// Which page of the log.
#[derive(Debug, Deserialize)]
#[serde(default)]
struct Page {
    before: i64,
    limit: u32,
}

impl Default for Page {
    fn default() -> Self {
        Self {
            before: i64::MAX,
            limit: LINES,
        }
    }
}

async fn audit(
    State(parties): State<Parties>,
    Administrator(_): Administrator,
    Query(page): Query<Page>,
) -> Result<Json<Vec<AuditEntry>>, ApiError> {
    let lines = parties
        .audit(page.before, page.limit.clamp(1, LINES_MAX))
        .await?;
    Ok(Json(lines.into_iter().map(line).collect()))
}

impl Of {
    fn subject(self, name: &str) -> Result<Subject, ControlError> {
        Ok(Subject::new(self.0, name)?)
    }
}

fn certificate(parties: &Parties, issued: Issued) -> Certificate {
    Certificate {
        subject: issued.subject.to_string(),
        certificate: issued.certificate_pem,
        authority: parties.authority_pem().to_owned(),
        expires: spell_time(issued.ends),
    }
}

fn shown(row: PartyRow) -> Party {
    Party {
        id: row.id.to_string(),
        kind: row.subject.kind().to_string(),
        name: row.subject.name().to_owned(),
        administrator: row.is_administrator,
        disabled: row.is_disabled,
        created: spell_time(row.created),
    }
}

fn line(row: AuditRow) -> AuditEntry {
    AuditEntry {
        id: row.id,
        time: spell_time(row.at),
        who: row.who,
        key: row.key,
        address: row.address,
        action: row.action,
        target: row.target,
    }
}
