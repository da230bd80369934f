//! `/v1/me`, `/v1/users`, `/v1/hosts`, `/v1/daemons`, and joining.
//!
//! ```text
//! GET    /v1/authority                    POST   /v1/join
//! GET    /v1/me                           POST   /v1/me/certificate
//! GET    /v1/users                        POST   /v1/users
//! GET    /v1/users/{user}                 POST   /v1/users/{user}/token
//! POST   /v1/users/{user}/disable         POST   /v1/users/{user}/enable
//! DELETE /v1/users/{user}/keys            GET    /v1/audit?before=ID&limit=N
//! ```
//!
//! and the same for `/v1/hosts` and `/v1/daemons`. The first two need no certificate; requests on
//! other parties are for administrators.

use api::types::{
    AddParty, AuditEntry, AuthorityView, Certificate, Join, Page, Party, Renew, Token,
};
use auth::{Kind, Subject};
use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::principal::{Administrator, Paging, page_of};
use super::{ApiError, Body, Caller, Name, Query};
use crate::control::Control;
use crate::database::{AuditRow, PartyRow, Principal};
use crate::error::ControlError;
use crate::parse;
use crate::parties::{Issued, Parties, local};
use crate::timestamp::rfc3339;

/// The largest and the default number of entries on a page of the audit log.
const ENTRIES_MAX: u32 = 1000;
const ENTRIES: u32 = 100;

/// All routes.
pub(super) fn router() -> OpenApiRouter<Control> {
    OpenApiRouter::new()
        .routes(routes!(authority))
        .routes(routes!(join))
        .routes(routes!(me))
        .routes(routes!(renew))
        .routes(routes!(audit))
        .merge(users::router())
        .merge(hosts::router())
        .merge(daemons::router())
}

/// Show the certificate of the authority
#[utoipa::path(get, path = "/v1/authority", operation_id = "authority", tag = "identity",
    responses((status = 200, body = AuthorityView)))]
async fn authority(State(control): State<Control>) -> Json<AuthorityView> {
    Json(AuthorityView {
        certificate: control.parties().authority_pem().to_owned(),
    })
}

/// Join with a token
#[utoipa::path(post, path = "/v1/join", operation_id = "join", tag = "identity",
    request_body = Join, responses((status = 201, body = Certificate)))]
async fn join(
    State(control): State<Control>,
    Extension(caller): Extension<Caller>,
    Body(join): Body<Join>,
) -> Result<(StatusCode, Json<Certificate>), ApiError> {
    let parties = control.parties();
    let kind = join.kind.as_deref();
    let kind = kind.map(|kind| parse::word("kind", kind)).transpose()?;
    let issued = parties
        .join(&caller, &join.token, &join.signing_request, kind)
        .await?;
    Ok((StatusCode::CREATED, Json(certificate(parties, issued))))
}

/// Show the caller
#[utoipa::path(get, path = "/v1/me", operation_id = "me", tag = "identity",
    responses((status = 200, body = Party)))]
async fn me(principal: Principal) -> Json<Party> {
    Json(shown(principal.party))
}

/// Renew the caller's certificate
#[utoipa::path(post, path = "/v1/me/certificate", operation_id = "renew_certificate",
    tag = "identity", request_body = Renew, responses((status = 201, body = Certificate)))]
async fn renew(
    State(control): State<Control>,
    principal: Principal,
    Body(renew): Body<Renew>,
) -> Result<(StatusCode, Json<Certificate>), ApiError> {
    let parties = control.parties();
    let issued = parties.renew(&principal, &renew.signing_request).await?;
    Ok((StatusCode::CREATED, Json(certificate(parties, issued))))
}

/// The same routes for users, for hosts and for unit daemons.
macro_rules! party_routes {
    ($module:ident, $kind:expr, $path:literal, $tag:literal, $one:literal, $list:literal,
        $show:literal, $create:literal, $token:literal, $disable:literal, $enable:literal,
        $forget:literal) => {
        mod $module {
            use super::*;

            pub(super) fn router() -> OpenApiRouter<Control> {
                OpenApiRouter::new()
                    .routes(routes!(list, create))
                    .routes(routes!(show))
                    .routes(routes!(token))
                    .routes(routes!(disable))
                    .routes(routes!(enable))
                    .routes(routes!(forget))
            }

            #[doc = concat!("List the ", $tag)]
            #[utoipa::path(get, path = $path, operation_id = $list, tag = $tag, params(Paging),
                                responses((status = 200, body = Page<Party>)))]
            async fn list(
                administrator: Administrator,
                Query(paging): Query<Paging>,
            ) -> Result<Json<Page<Party>>, ApiError> {
                super::list(administrator, $kind, paging).await
            }

            #[doc = concat!("Show a ", $one)]
            #[utoipa::path(get, path = concat!($path, "/{name}"), operation_id = $show, tag = $tag,
                                params(("name" = String, Path, description = "Its name",
                                    pattern = "^[a-z0-9][a-z0-9._-]{0,62}$")),
                                responses((status = 200, body = Party)))]
            async fn show(
                Administrator(authorized): Administrator,
                Name(name): Name,
            ) -> Result<Json<Party>, ApiError> {
                let subject = subject($kind, &name)?;
                Ok(Json(shown(authorized.parties().one(&subject).await?)))
            }

            #[doc = concat!("Create a ", $one)]
            #[utoipa::path(post, path = $path, operation_id = $create, tag = $tag,
                                request_body = AddParty, responses((status = 201, body = Party)))]
            async fn create(
                administrator: Administrator,
                Body(new): Body<AddParty>,
            ) -> Result<(StatusCode, Json<Party>), ApiError> {
                super::create(administrator, $kind, new).await
            }

            #[doc = concat!("Create a token with which a ", $one, " joins once")]
            #[utoipa::path(post, path = concat!($path, "/{name}/token"), operation_id = $token,
                                tag = $tag, params(("name" = String, Path, description = "Its name",
                                    pattern = "^[a-z0-9][a-z0-9._-]{0,62}$")),
                                responses((status = 201, body = Token)))]
            async fn token(
                administrator: Administrator,
                Name(name): Name,
            ) -> Result<(StatusCode, Json<Token>), ApiError> {
                super::invite(administrator, &subject($kind, &name)?).await
            }

            #[doc = concat!("Disable a ", $one, ": further requests are refused")]
            #[utoipa::path(post, path = concat!($path, "/{name}/disable"), operation_id = $disable,
                                tag = $tag, params(("name" = String, Path, description = "Its name",
                                    pattern = "^[a-z0-9][a-z0-9._-]{0,62}$")),
                                responses((status = 200, body = Party)))]
            async fn disable(
                administrator: Administrator,
                Name(name): Name,
            ) -> Result<Json<Party>, ApiError> {
                super::set_disabled(administrator, &subject($kind, &name)?, true).await
            }

            #[doc = concat!("Enable a disabled ", $one)]
            #[utoipa::path(post, path = concat!($path, "/{name}/enable"), operation_id = $enable,
                                tag = $tag, params(("name" = String, Path, description = "Its name",
                                    pattern = "^[a-z0-9][a-z0-9._-]{0,62}$")),
                                responses((status = 200, body = Party)))]
            async fn enable(
                administrator: Administrator,
                Name(name): Name,
            ) -> Result<Json<Party>, ApiError> {
                super::set_disabled(administrator, &subject($kind, &name)?, false).await
            }

            #[doc = concat!("Delete the keys of a ", $one)]
            #[utoipa::path(delete, path = concat!($path, "/{name}/keys"), operation_id = $forget,
                                tag = $tag, params(("name" = String, Path, description = "Its name",
                                    pattern = "^[a-z0-9][a-z0-9._-]{0,62}$")),
                                responses((status = 200, body = Party)))]
            async fn forget(
                Administrator(authorized): Administrator,
                Name(name): Name,
            ) -> Result<Json<Party>, ApiError> {
                let subject = subject($kind, &name)?;
                let parties = authorized.parties();
                Ok(Json(shown(
                    parties.forget_keys(authorized.principal(), &subject).await?,
                )))
            }
        }
    };
}

party_routes!(
    users,
    Kind::User,
    "/v1/users",
    "users",
    "user",
    "list_users",
    "show_user",
    "create_user",
    "invite_user",
    "disable_user",
    "enable_user",
    "forget_user_keys"
);
party_routes!(
    hosts,
    Kind::Host,
    "/v1/hosts",
    "hosts",
    "host",
    "list_hosts",
    "show_host",
    "create_host",
    "invite_host",
    "disable_host",
    "enable_host",
    "forget_host_keys"
);

party_routes!(
    daemons,
    Kind::Unit,
    "/v1/daemons",
    "daemons",
    "unit daemon",
    "list_daemons",
    "show_daemon",
    "create_daemon",
    "invite_daemon",
    "disable_daemon",
    "enable_daemon",
    "forget_daemon_keys"
);

async fn list(
    Administrator(authorized): Administrator,
    kind: Kind,
    paging: Paging,
) -> Result<Json<Page<Party>>, ApiError> {
    let page = paging.page()?;
    let parties = authorized.parties();
    let rows = parties.all(kind, &page.after, page.count_max + 1).await?;
    Ok(Json(page_of(rows, &page, |row| row.id.to_string(), shown)))
}

async fn create(
    Administrator(authorized): Administrator,
    kind: Kind,
    new: AddParty,
) -> Result<(StatusCode, Json<Party>), ApiError> {
    let subject = subject(kind, &new.name)?;
    let parties = authorized.parties();
    let added = parties
        .add(
            authorized.principal(),
            subject,
            new.administrator,
            new.project,
        )
        .await?;
    Ok((StatusCode::CREATED, Json(shown(added))))
}

async fn invite(
    Administrator(authorized): Administrator,
    subject: &Subject,
) -> Result<(StatusCode, Json<Token>), ApiError> {
    if *subject == local(subject.kind()) {
        let reason = "`local` is the controller's own machine and needs no token; add a user or host \
                      with another name";
        return Err(ControlError::conflict(reason).into());
    }
    let parties = authorized.parties();
    let (token, expires) = parties.invite(authorized.principal(), subject).await?;
    let token = Token {
        token: token.reveal().to_string(),
        expires: rfc3339(expires),
        authority: parties.authority_fingerprint()?,
    };
    Ok((StatusCode::CREATED, Json(token)))
}

async fn set_disabled(
    Administrator(authorized): Administrator,
    subject: &Subject,
    is_disabled: bool,
) -> Result<Json<Party>, ApiError> {
    if is_disabled && *subject == authorized.principal().party.subject {
        let reason = "you cannot disable yourself; another administrator can";
        return Err(ControlError::conflict(reason).into());
    }
    let parties = authorized.parties();
    let row = parties
        .set_disabled(authorized.principal(), subject, is_disabled)
        .await?;
    Ok(Json(shown(row)))
}

/// The entries of the audit log to return.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default)]
struct AuditLogQuery {
    /// Only entries with smaller numbers.
    before: i64,
    /// The largest number of entries.
    #[param(minimum = 1, maximum = 1000)]
    limit: u32,
}

impl Default for AuditLogQuery {
    fn default() -> Self {
        Self {
            before: i64::MAX,
            limit: ENTRIES,
        }
    }
}

/// List the audit log, newest entry first
#[utoipa::path(get, path = "/v1/audit", operation_id = "audit", tag = "identity", params(AuditLogQuery),
    responses((status = 200, body = Vec<AuditEntry>)))]
async fn audit(
    Administrator(authorized): Administrator,
    Query(lines): Query<AuditLogQuery>,
) -> Result<Json<Vec<AuditEntry>>, ApiError> {
    if !(1..=ENTRIES_MAX).contains(&lines.limit) {
        let reason = format!("a page has 1 to {ENTRIES_MAX} entries, not {}", lines.limit);
        return Err(ControlError::invalid("limit", reason).into());
    }
    let lines = authorized
        .parties()
        .audit(lines.before, lines.limit)
        .await?;
    Ok(Json(lines.into_iter().map(line).collect()))
}

fn subject(kind: Kind, name: &str) -> Result<Subject, ControlError> {
    Ok(Subject::new(kind, name)?)
}

pub(super) fn certificate(parties: &Parties, issued: Issued) -> Certificate {
    Certificate {
        subject: issued.subject.to_string(),
        certificate: issued.certificate_pem,
        authority: parties.authority_pem().to_owned(),
        expires: rfc3339(issued.ends),
    }
}

fn shown(row: PartyRow) -> Party {
    Party {
        id: row.id.to_string(),
        kind: row.subject.kind().to_string(),
        name: row.subject.name().to_owned(),
        administrator: row.is_administrator,
        disabled: row.is_disabled,
        created: rfc3339(row.created),
    }
}

fn line(row: AuditRow) -> AuditEntry {
    AuditEntry {
        id: row.id,
        time: rfc3339(row.at),
        principal: row.who,
        key: row.key,
        address: row.address,
        action: row.action,
        target: row.target,
    }
}
