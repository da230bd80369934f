//! `/v1/attachments`.

use api::host::{Access, AttachmentState};
use api::types::Message;
use api::types::{Attachment, CreateAttachment, MoveAttachment, Page, Successor};
use axum::Json;
use axum::http::StatusCode;
use base::AttachmentId;
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::principal::Paging;
use super::{ApiError, Body, Name, Query, Wait};
use crate::attachments::{AttachmentFilter, AttachmentRequest, AttachmentView, MoveRequest};
use crate::authorized_request::AuthorizedRequest;
use crate::control::Control;
use crate::database::VolumeName;
use crate::error::ControlError;
use crate::parse;
use crate::timestamp::rfc3339;

type Answer = Result<(StatusCode, Json<Attachment>), ApiError>;

pub(super) fn router() -> OpenApiRouter<Control> {
    OpenApiRouter::new()
        .routes(routes!(list, create))
        .routes(routes!(show, detach))
        .routes(routes!(move_on, cancel))
}

/// A filter for attachments. All conditions must hold.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default)]
struct AttachmentFilterQuery {
    /// Of this volume (name or id).
    volume: Option<String>,
    /// On this host (name or id).
    host: Option<String>,
    /// In this state; by default, all that are not detached.
    #[param(value_type = Option<AttachmentState>)]
    state: Option<String>,
}

/// List attachments: the caller's own, and those of volumes they administer
#[utoipa::path(get, path = "/v1/attachments", operation_id = "list_attachments",
    tag = "attachments", params(AttachmentFilterQuery, Paging),
    responses((status = 200, body = Page<Attachment>)))]
async fn list(
    authorized: AuthorizedRequest,
    Query(filter): Query<AttachmentFilterQuery>,
    Query(paging): Query<Paging>,
) -> Result<Json<Page<Attachment>>, ApiError> {
    let state = filter.state.map(|state| parse::word("state", &state));
    let filter = AttachmentFilter {
        volume: filter.volume,
        host: filter.host,
        state: state.transpose()?,
    };
    let (views, next) = authorized
        .attachments()
        .list(&filter, &paging.page()?)
        .await?;
    let items = views.into_iter().map(shown).collect();
    Ok(Json(Page { items, next }))
}

/// Attach a volume on a host, or to a VM there
#[utoipa::path(post, path = "/v1/attachments", operation_id = "create_attachment",
    tag = "attachments", params(Wait), request_body = CreateAttachment,
    responses((status = 201, description = "It is attached", body = Attachment),
        (status = 202, description = "It is under way, or not possible now", body = Attachment)))]
async fn create(
    authorized: AuthorizedRequest,
    Query(wait): Query<Wait>,
    Body(new): Body<CreateAttachment>,
) -> Answer {
    let request = AttachmentRequest {
        volume: new.volume,
        host: new.host,
        vm: new.vm,
        read_only: new.read_only,
    };
    let asked = authorized
        .to_completion(|authorized| async move { authorized.attachments().attach(request).await })
        .await?;
    if authorized.is_dry_run() {
        return Ok((StatusCode::ACCEPTED, Json(shown(asked))));
    }
    let view = authorized
        .attachments()
        .get(asked.row.id, wait.duration())
        .await?;
    Ok(match view.row.observed.state {
        AttachmentState::Attached => (StatusCode::CREATED, Json(shown(view))),
        _ => (StatusCode::ACCEPTED, Json(shown(view))),
    })
}

/// Show an attachment
#[utoipa::path(get, path = "/v1/attachments/{attachment}", operation_id = "show_attachment",
    tag = "attachments", params(("attachment" = String, Path, description = "Its id"), Wait),
    responses((status = 200, body = Attachment)))]
async fn show(
    authorized: AuthorizedRequest,
    Name(id): Name,
    Query(wait): Query<Wait>,
) -> Result<Json<Attachment>, ApiError> {
    let view = authorized
        .attachments()
        .get(parse(&id)?, wait.duration())
        .await?;
    Ok(Json(shown(view)))
}

/// How to detach.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default)]
struct Detach {
    /// Detach even if the guest does not release the disk, and without the host if that is
    /// unresponsive.
    force: bool,
}

/// Detach
#[utoipa::path(delete, path = "/v1/attachments/{attachment}", operation_id = "delete_attachment",
    tag = "attachments",
    params(("attachment" = String, Path, description = "Its id"), Detach, Wait),
    responses((status = 200, description = "It is detached", body = Attachment),
        (status = 202, description = "It is under way, or not possible now", body = Attachment)))]
async fn detach(
    authorized: AuthorizedRequest,
    Name(id): Name,
    Query(how): Query<Detach>,
    Query(wait): Query<Wait>,
) -> Answer {
    let (id, force) = (parse(&id)?, how.force);
    let asked = authorized
        .to_completion(|authorized| async move { authorized.attachments().detach(id, force).await })
        .await?;
    if authorized.is_dry_run() {
        return Ok((StatusCode::ACCEPTED, Json(shown(asked))));
    }
    let view = authorized.attachments().get(id, wait.duration()).await?;
    Ok(match view.row.observed.state {
        AttachmentState::Detached => (StatusCode::OK, Json(shown(view))),
        _ => (StatusCode::ACCEPTED, Json(shown(view))),
    })
}

/// Move an attachment to another host, or to another VM
///
/// The current host destages and detaches; the transaction that records that creates the successor,
/// so no other host can attach in between. The answer is the successor if it exists in time, else
/// the current attachment.
#[utoipa::path(post, path = "/v1/attachments/{attachment}/move",
    operation_id = "move_attachment", tag = "attachments",
    params(("attachment" = String, Path, description = "Its id"), Wait),
    request_body = MoveAttachment,
    responses((status = 200, description = "It is attached there", body = Attachment),
        (status = 202, description = "It is under way, or not possible now", body = Attachment)))]
async fn move_on(
    authorized: AuthorizedRequest,
    Name(id): Name,
    Query(wait): Query<Wait>,
    Body(to): Body<MoveAttachment>,
) -> Answer {
    let id = parse(&id)?;
    let request = MoveRequest {
        host: to.host,
        vm: to.vm,
    };
    let asked = authorized
        .to_completion(
            |authorized| async move { authorized.attachments().move_to(id, request).await },
        )
        .await?;
    if authorized.is_dry_run() {
        return Ok((StatusCode::ACCEPTED, Json(shown(asked))));
    }
    Ok(attached(
        authorized
            .attachments()
            .wait_moved(id, wait.duration())
            .await?,
    ))
}

/// Cancel a move, as long as the current host has not detached
#[utoipa::path(delete, path = "/v1/attachments/{attachment}/move",
    operation_id = "cancel_move", tag = "attachments",
    params(("attachment" = String, Path, description = "Its id"), Wait),
    responses((status = 200, description = "It is attached where it was", body = Attachment),
        (status = 202, description = "It is under way, or not possible now", body = Attachment)))]
async fn cancel(authorized: AuthorizedRequest, Name(id): Name, Query(wait): Query<Wait>) -> Answer {
    let id = parse(&id)?;
    let asked = authorized
        .to_completion(|authorized| async move { authorized.attachments().cancel_move(id).await })
        .await?;
    if authorized.is_dry_run() {
        return Ok((StatusCode::ACCEPTED, Json(shown(asked))));
    }
    Ok(attached(
        authorized.attachments().get(id, wait.duration()).await?,
    ))
}

fn attached(view: AttachmentView) -> (StatusCode, Json<Attachment>) {
    match view.row.observed.state {
        AttachmentState::Attached => (StatusCode::OK, Json(shown(view))),
        _ => (StatusCode::ACCEPTED, Json(shown(view))),
    }
}

pub(super) fn parse(id: &str) -> Result<AttachmentId, ControlError> {
    id.parse().map_err(|_| ControlError::NotFound {
        what: format!("attachment {id:?}"),
        hint: "`scree attachment list` lists the attachments".into(),
    })
}

fn shown(view: AttachmentView) -> Attachment {
    let row = view.row;
    let next = row.desired.successor.zip(view.next_host);
    let (volume, owner) = match view.volume {
        Some(VolumeName { name, owner }) => (name, owner),
        None => (row.volume.to_string(), None),
    };
    Attachment {
        id: row.id.to_string(),
        volume,
        owner,
        volume_id: row.volume.to_string(),
        host: view.host,
        vm: row.vm,
        device: row.observed.device,
        read_only: row.access == Access::ReadOnly,
        state: row.observed.state.to_string(),
        message: Message::joined(row.observed.problem.into_iter().chain(row.observed.notice)),
        uri: row.observed.uri,
        chain: row.observed.chain.map(|chain| chain.id.to_string()),
        chain_revision: row.observed.chain.map(|chain| chain.revision),
        chain_problem: row.observed.chain_problem,
        requested_by: row.requested_by.map(|user| user.to_string()),
        created: rfc3339(row.created),
        ended: row.ended.map(rfc3339),
        successor: next.map(|(next, host)| Successor {
            id: next.id.to_string(),
            host,
            vm: next.vm,
        }),
    }
}
