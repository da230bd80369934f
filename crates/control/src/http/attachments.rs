//! `/v1/attachments`.

use api::host::{Access, AttachmentState};
use api::types::{Attachment, CreateAttachment};
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};
use base::AttachmentId;
use serde::Deserialize;

use super::{ApiError, Body, Name, Query, Wait};
use crate::attachments::{AttachmentFilter, AttachmentRequest, AttachmentView};
use crate::control::Control;
use crate::error::ControlError;
use crate::volumes::spell_time;

type Answer = Result<(StatusCode, Json<Attachment>), ApiError>;

pub(super) fn router() -> Router<Control> {
    Router::new()
        .route("/v1/attachments", get(list).post(create))
        .route("/v1/attachments/{attachment}", get(show).delete(detach))
}

/// `?volume=&host=&state=`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Filter {
    volume: Option<String>,
    host: Option<String>,
    state: Option<String>,
}

async fn list(
    State(control): State<Control>,
    Query(filter): Query<Filter>,
) -> Result<Json<Vec<Attachment>>, ApiError> {
    let state = filter.state.map(|state| {
        state
            .parse()
            .map_err(|reason: String| ControlError::invalid("state", reason))
    });
    let filter = AttachmentFilter {
        volume: filter.volume,
        host: filter.host,
        state: state.transpose()?,
    };
    let views = control.attachments(&filter).await?;
    Ok(Json(views.into_iter().map(shown).collect()))
}

async fn create(
    State(control): State<Control>,
    Query(wait): Query<Wait>,
    Body(new): Body<CreateAttachment>,
) -> Answer {
    let request = AttachmentRequest {
        volume: new.volume,
        host: new.host,
        vm: new.vm,
        read_only: new.read_only,
    };
    let asked = control
        .to_its_end(|control| async move { control.attach(request).await })
        .await?;
    let view = control.attachment(asked.row.id, wait.duration()).await?;
    Ok(match view.row.state {
        AttachmentState::Attached => (StatusCode::CREATED, Json(shown(view))),
        _ => (StatusCode::ACCEPTED, Json(shown(view))),
    })
}

async fn show(
    State(control): State<Control>,
    Name(id): Name,
    Query(wait): Query<Wait>,
) -> Result<Json<Attachment>, ApiError> {
    let view = control.attachment(parse(&id)?, wait.duration()).await?;
    Ok(Json(shown(view)))
}

/// `?force=true&wait=SECONDS`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Detach {
    force: bool,
    wait: u64,
}

async fn detach(
    State(control): State<Control>,
    Name(id): Name,
    Query(how): Query<Detach>,
) -> Answer {
    let (id, force) = (parse(&id)?, how.force);
    control
        .to_its_end(|control| async move { control.detach(id, force).await })
        .await?;
    let wait = Wait { wait: how.wait }.duration();
    let view = control.attachment(id, wait).await?;
    Ok(match view.row.state {
        AttachmentState::Detached => (StatusCode::OK, Json(shown(view))),
        _ => (StatusCode::ACCEPTED, Json(shown(view))),
    })
}

fn parse(id: &str) -> Result<AttachmentId, ControlError> {
    id.parse().map_err(|_| ControlError::NotFound {
        what: format!("attachment {id:?}"),
        hint: "`scree attachment list` shows those there are".into(),
    })
}

fn shown(view: AttachmentView) -> Attachment {
    let row = view.row;
    Attachment {
        id: row.id.to_string(),
        volume: view.volume.unwrap_or_else(|| row.volume.to_string()),
        volume_id: row.volume.to_string(),
        host: view.host,
        vm: row.vm,
        device: row.device,
        read_only: row.access == Access::ReadOnly,
        state: row.state.to_string(),
        reason: row.reason,
        note: row.note,
        uri: row.uri,
        created: spell_time(row.created),
        ended: row.ended.map(spell_time),
    }
}
