//! `/v1/volumes/{volume}/audits`.

use api::types::Message;
use api::types::{Audit, AuditVolume};
use api::words::MessageCode;
use axum::Json;
use axum::extract::{FromRequestParts, Path};
use axum::http::StatusCode;
use axum::http::request::Parts;
use base::AuditId;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{ApiError, Body, Name, Query, Wait};
use crate::authorized_request::AuthorizedRequest;
use crate::control::Control;
use crate::error::ControlError;
use crate::timestamp::rfc3339;
use crate::volume_audits::AuditView;

pub(super) fn router() -> OpenApiRouter<Control> {
    OpenApiRouter::new()
        .routes(routes!(begin, list))
        .routes(routes!(show, delete))
}

/// Audit a volume: what some units alone hold of it
///
/// A host reads the whole newest version of the volume, or a snapshot, and what is on these units.
/// The audit shows the result for a day. For an encrypted volume it contains counts; the details
/// are sealed for those who have the volume's wrapping key.
#[utoipa::path(post, path = "/v1/volumes/{volume}/audits", operation_id = "audit_volume",
    tag = "audits", params(("volume" = String, Path, description = "Name or id")),
    request_body = AuditVolume, responses((status = 202, body = Audit)))]
async fn begin(
    authorized: AuthorizedRequest,
    Name(volume): Name,
    Body(what): Body<AuditVolume>,
) -> Result<(StatusCode, Json<Audit>), ApiError> {
    let snapshot = what.snapshot.as_deref();
    let begun = authorized
        .audits()
        .begin(&volume, &what.units, snapshot, what.files);
    Ok((StatusCode::ACCEPTED, Json(shown(begun.await?))))
}

/// List the audits of a volume
///
/// Running audits, and those that ended within a day, newest first. Their results are shown with
/// each audit alone.
#[utoipa::path(get, path = "/v1/volumes/{volume}/audits", operation_id = "list_audits",
    tag = "audits", params(("volume" = String, Path, description = "Name or id")),
    responses((status = 200, body = Vec<Audit>)))]
async fn list(
    authorized: AuthorizedRequest,
    Name(volume): Name,
) -> Result<Json<Vec<Audit>>, ApiError> {
    let found = authorized.audits().list(&volume).await?;
    Ok(Json(found.into_iter().map(shown).collect()))
}

/// A volume and an audit of it.
struct AuditPath {
    volume: String,
    audit: String,
}

impl AuditPath {
    fn id(&self) -> Result<AuditId, ControlError> {
        self.audit.parse().map_err(|_| ControlError::NotFound {
            what: format!("audit {:?}", self.audit),
            hint: "`scree privacy audits VOLUME` lists the audits".into(),
        })
    }
}

impl<S: Send + Sync> FromRequestParts<S> for AuditPath {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        match Path::<(String, String)>::from_request_parts(parts, state).await {
            Ok(Path((volume, audit))) => Ok(Self { volume, audit }),
            Err(error) => Err(ApiError::mistake(error.status(), error.body_text())),
        }
    }
}

/// Show an audit of a volume
///
/// With `wait`, the answer is held back until it has ended.
#[utoipa::path(get, path = "/v1/volumes/{volume}/audits/{audit}", operation_id = "show_audit",
    tag = "audits", params(("volume" = String, Path, description = "Name or id"),
        ("audit" = String, Path, description = "Its id"), Wait),
    responses((status = 200, body = Audit)))]
async fn show(
    authorized: AuthorizedRequest,
    path: AuditPath,
    Query(wait): Query<Wait>,
) -> Result<Json<Audit>, ApiError> {
    let found = authorized
        .audits()
        .get(&path.volume, path.id()?, wait.duration());
    Ok(Json(shown(found.await?)))
}

/// Cancel an audit of a volume, or delete its result
///
/// For the user who requested it and those who administer the volume. It is shown as it was; the
/// result only to those who may read the volume.
#[utoipa::path(delete, path = "/v1/volumes/{volume}/audits/{audit}",
    operation_id = "delete_audit", tag = "audits",
    params(("volume" = String, Path, description = "Name or id"),
        ("audit" = String, Path, description = "Its id")),
    responses((status = 200, body = Audit)))]
async fn delete(authorized: AuthorizedRequest, path: AuditPath) -> Result<Json<Audit>, ApiError> {
    let deleted = authorized.audits().delete(&path.volume, path.id()?);
    Ok(Json(shown(deleted.await?)))
}

fn shown(view: AuditView) -> Audit {
    let row = view.row;
    Audit {
        id: row.id.to_string(),
        volume: row.volume.to_string(),
        snapshot: row.snapshot.map(|snapshot| snapshot.to_string()),
        version: row.version.number,
        journal_bytes: view.journal_bytes,
        units: row.units.iter().map(ToString::to_string).collect(),
        placement: view.placement,
        principal: row.principal_name,
        host: row.host_name,
        state: row.state.as_str().to_owned(),
        done_bytes: row.done_bytes,
        total_bytes: row.size_bytes,
        message: row
            .message
            .map(|why| Message::new(MessageCode::AuditFailed, why)),
        created: rfc3339(row.created),
        ended: row.ended.map(rfc3339),
        result: row.result,
        key: view.key,
    }
}
