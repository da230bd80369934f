//! `/v1/snapshots`.

use api::types::Message;
use api::types::{CreateSnapshot, Page, SetTags, Snapshot};
use api::words::MessageCode;
use api::words::SnapshotState as Stage;
use axum::Json;
use axum::http::StatusCode;
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::principal::Paging;
use super::volumes::{TagFilter, parse_tags, refuse_unknown_state};
use super::{ApiError, Body, Name, Query, Wait};
use crate::authorized_request::AuthorizedRequest;
use crate::control::Control;
use crate::database::{Filter, SnapshotRow, SnapshotState, Tags};
use crate::timestamp::rfc3339;

pub(super) fn router() -> OpenApiRouter<Control> {
    OpenApiRouter::new()
        .routes(routes!(list, create))
        .routes(routes!(show, delete))
        .routes(routes!(tag))
}

/// A filter for snapshots. All conditions must hold.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default)]
struct SnapshotFilter {
    /// The name.
    name: Option<String>,
    /// Of this user (name).
    owner: Option<String>,
    /// Of this volume (name or id).
    volume: Option<String>,
    /// In this state.
    #[param(value_type = Option<Stage>)]
    state: Option<String>,
    /// A tag, as `KEY=VALUE`. May be repeated.
    #[param(value_type = Vec<TagFilter>, max_items = 50)]
    tag: Vec<String>,
}

/// List the snapshots that the caller may see
#[utoipa::path(get, path = "/v1/snapshots", operation_id = "list_snapshots", tag = "snapshots",
    params(SnapshotFilter, Paging), responses((status = 200, body = Page<Snapshot>)))]
async fn list(
    authorized: AuthorizedRequest,
    Query(filter): Query<SnapshotFilter>,
    Query(paging): Query<Paging>,
) -> Result<Json<Page<Snapshot>>, ApiError> {
    let volume = match &filter.volume {
        Some(volume) => Some(authorized.volume_id(volume).await?),
        None => None,
    };
    refuse_unknown_state::<Stage>(filter.state.as_deref())?;
    let filter = Filter {
        name: filter.name,
        owner: filter.owner,
        project: None,
        state: filter.state,
        volume,
        tags: parse_tags(&filter.tag)?,
        is_image: false,
    };
    let mut page = authorized
        .snapshots()
        .list(&filter, &paging.page()?)
        .await?;
    let items = page.snapshots.into_iter().map(|row| {
        let tags = page.tags.remove(&row.id.to_string());
        shown(row, tags.unwrap_or_default())
    });
    Ok(Json(Page {
        items: items.collect(),
        next: page.next,
    }))
}

/// Show a snapshot
#[utoipa::path(get, path = "/v1/snapshots/{snapshot}", operation_id = "show_snapshot",
    tag = "snapshots", params(("snapshot" = String, Path, description = "Name or id"), Wait),
    responses((status = 200, body = Snapshot)))]
async fn show(
    authorized: AuthorizedRequest,
    Name(snapshot): Name,
    Query(wait): Query<Wait>,
) -> Result<Json<Snapshot>, ApiError> {
    let row = authorized
        .snapshots()
        .wait_settled(&snapshot, wait.duration())
        .await?;
    let tags = authorized.snapshots().tags_of(row.id).await?;
    Ok(Json(shown(row, tags)))
}

/// Take a snapshot
#[utoipa::path(post, path = "/v1/snapshots", operation_id = "create_snapshot", tag = "snapshots",
    params(Wait), request_body = CreateSnapshot, responses((status = 201, body = Snapshot)))]
async fn create(
    authorized: AuthorizedRequest,
    Query(wait): Query<Wait>,
    Body(new): Body<CreateSnapshot>,
) -> Result<(StatusCode, Json<Snapshot>), ApiError> {
    let name = new.name.as_deref();
    let mut snapshot = authorized
        .snapshots()
        .create(&new.volume, name, new.tags.clone())
        .await?;
    if authorized.is_dry_run() {
        return Ok((StatusCode::CREATED, Json(shown(snapshot, new.tags))));
    }
    if !wait.duration().is_zero() {
        let id = snapshot.id.to_string();
        snapshot = authorized
            .snapshots()
            .wait_settled(&id, wait.duration())
            .await?;
    }
    let tags = authorized.snapshots().tags_of(snapshot.id).await?;
    Ok((StatusCode::CREATED, Json(shown(snapshot, tags))))
}

/// Set a snapshot's tags
#[utoipa::path(put, path = "/v1/snapshots/{snapshot}/tags", operation_id = "tag_snapshot",
    tag = "snapshots", params(("snapshot" = String, Path, description = "Name or id")),
    request_body = SetTags, responses((status = 200, body = Snapshot)))]
async fn tag(
    authorized: AuthorizedRequest,
    Name(snapshot): Name,
    Body(set): Body<SetTags>,
) -> Result<Json<Snapshot>, ApiError> {
    let row = authorized
        .snapshots()
        .set_tags(&snapshot, &set.tags)
        .await?;
    Ok(Json(shown(row, set.tags)))
}

/// Delete a snapshot; its clones stay
#[utoipa::path(delete, path = "/v1/snapshots/{snapshot}", operation_id = "delete_snapshot",
    tag = "snapshots", params(("snapshot" = String, Path, description = "Name or id")),
    responses((status = 200, body = Snapshot)))]
async fn delete(
    authorized: AuthorizedRequest,
    Name(snapshot): Name,
) -> Result<Json<Snapshot>, ApiError> {
    let row = authorized.snapshots().delete(&snapshot).await?;
    Ok(Json(shown(row, Tags::new())))
}

fn shown(row: SnapshotRow, tags: Tags) -> Snapshot {
    let taken = row.has_consistency_point || row.state != SnapshotState::Pending;
    let (state, message) = match row.state {
        SnapshotState::Pending => (Stage::Pending, None),
        SnapshotState::Completed(_) => (Stage::Completed, None),
        SnapshotState::Error { reason } => {
            let message = Message::new(MessageCode::ConsistencyPointLost, reason);
            (Stage::Error, Some(message))
        }
    };
    Snapshot {
        id: row.id.to_string(),
        name: row.name,
        owner: row.owner_name,
        tags,
        volume: row.volume_name,
        volume_id: row.volume.to_string(),
        size: row.size_bytes,
        state: state.as_str().to_owned(),
        taken,
        message,
        created: rfc3339(row.created),
    }
}
