//! `/v1/images`, and the image mark of a volume.

use api::types::Message;
use api::types::{Image, MarkImage, Page, Preload, PreloadImage};
use api::words::MessageCode;
use api::words::PreloadState;
use axum::Json;
use axum::http::StatusCode;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::principal::Paging;
use super::{ApiError, Body, Name, Query};
use crate::authorized_request::AuthorizedRequest;
use crate::control::Control;
use crate::database::PreloadRow;
use crate::images::ImageView;
use crate::timestamp::rfc3339;

type Answer<T> = Result<Json<T>, ApiError>;

pub(super) fn router() -> OpenApiRouter<Control> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(show, mark, unmark))
        .routes(routes!(preload, end))
}

/// List the base images that the caller may see
#[utoipa::path(get, path = "/v1/images", operation_id = "list_images", tag = "images",
    params(Paging), responses((status = 200, body = Page<Image>)))]
async fn list(authorized: AuthorizedRequest, Query(paging): Query<Paging>) -> Answer<Page<Image>> {
    let (views, next) = authorized.images().list(&paging.page()?).await?;
    let items = views.into_iter().map(shown).collect();
    Ok(Json(Page { items, next }))
}

/// Show a base image
#[utoipa::path(get, path = "/v1/volumes/{volume}/image", operation_id = "show_image",
    tag = "images", params(("volume" = String, Path, description = "Name or id")),
    responses((status = 200, body = Image)))]
async fn show(authorized: AuthorizedRequest, Name(volume): Name) -> Answer<Image> {
    Ok(Json(shown(authorized.images().get(&volume).await?)))
}

/// Mark a volume as a base image, or pin or unpin one
#[utoipa::path(put, path = "/v1/volumes/{volume}/image", operation_id = "mark_image",
    tag = "images", params(("volume" = String, Path, description = "Name or id")),
    request_body = MarkImage, responses((status = 200, body = Image)))]
async fn mark(
    authorized: AuthorizedRequest,
    Name(volume): Name,
    Body(how): Body<MarkImage>,
) -> Answer<Image> {
    Ok(Json(shown(
        authorized.images().mark(&volume, how.pinned).await?,
    )))
}

/// Unmark a base image
#[utoipa::path(delete, path = "/v1/volumes/{volume}/image", operation_id = "unmark_image",
    tag = "images", params(("volume" = String, Path, description = "Name or id")),
    responses((status = 200, body = Image)))]
async fn unmark(authorized: AuthorizedRequest, Name(volume): Name) -> Answer<Image> {
    Ok(Json(shown(authorized.images().unmark(&volume).await?)))
}

/// Read a base image into the caches of hosts
///
/// The image shows their progress.
#[utoipa::path(post, path = "/v1/volumes/{volume}/image/preloads", operation_id = "preload_image",
    tag = "images", params(("volume" = String, Path, description = "Name or id")),
    request_body = PreloadImage, responses((status = 202, body = Image)))]
async fn preload(
    authorized: AuthorizedRequest,
    Name(volume): Name,
    Body(how): Body<PreloadImage>,
) -> Result<(StatusCode, Json<Image>), ApiError> {
    let view = authorized.images().preload(&volume, &how.hosts).await?;
    Ok((StatusCode::ACCEPTED, Json(shown(view))))
}

/// Cancel the preloads of a base image; what was read stays in the caches
#[utoipa::path(delete, path = "/v1/volumes/{volume}/image/preloads",
    operation_id = "end_preloads", tag = "images",
    params(("volume" = String, Path, description = "Name or id")),
    responses((status = 200, body = Image)))]
async fn end(authorized: AuthorizedRequest, Name(volume): Name) -> Answer<Image> {
    Ok(Json(shown(
        authorized.images().end_preloads(&volume).await?,
    )))
}

fn shown(view: ImageView) -> Image {
    let pinned = view.is_pinned();
    let row = view.row;
    Image {
        id: row.id.to_string(),
        name: row.name,
        owner: row.owner_name,
        size: row.size_bytes,
        pinned,
        clones: view.clones,
        preloads: view.preloads.into_iter().map(shown_preload).collect(),
    }
}

fn shown_preload(row: PreloadRow) -> Preload {
    Preload {
        host: row.host_name,
        state: row.state.as_str().to_owned(),
        done_bytes: row.done_bytes,
        total_bytes: row.total_bytes,
        message: row.message.map(|why| {
            let code = match row.state {
                PreloadState::Skipped => MessageCode::CacheFileMissing,
                _ => MessageCode::PreloadFailed,
            };
            Message::new(code, why)
        }),
        created: rfc3339(row.created),
        ended: row.ended.map(rfc3339),
    }
}
