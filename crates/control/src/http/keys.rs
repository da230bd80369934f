//! `/v1/keys`.

use api::types::{AddKey, Key, RotateKey};
use api::words::KeyKind;
use axum::Json;
use axum::http::StatusCode;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::principal::Administrator;
use super::{ApiError, Body, Name, Query, Wait};
use crate::control::Control;
use crate::database::KeyRow;
use crate::timestamp::rfc3339;

pub(super) fn router() -> OpenApiRouter<Control> {
    OpenApiRouter::new()
        .routes(routes!(list, add))
        .routes(routes!(show, delete))
        .routes(routes!(rotate))
}

/// List the wrapping keys
#[utoipa::path(get, path = "/v1/keys", operation_id = "list_keys", tag = "keys",
    responses((status = 200, body = Vec<Key>)))]
async fn list(Administrator(authorized): Administrator) -> Result<Json<Vec<Key>>, ApiError> {
    let keys = authorized.all_keys().await?;
    Ok(Json(keys.into_iter().map(shown).collect()))
}

/// Show a wrapping key
#[utoipa::path(get, path = "/v1/keys/{key}", operation_id = "show_key", tag = "keys",
    params(("key" = String, Path, description = "Name or id")),
    responses((status = 200, body = Key)))]
async fn show(
    Administrator(authorized): Administrator,
    Name(key): Name,
) -> Result<Json<Key>, ApiError> {
    Ok(Json(shown(authorized.key(&key).await?)))
}

/// Create a wrapping key on a host
#[utoipa::path(post, path = "/v1/keys", operation_id = "add_key", tag = "keys",
    request_body = AddKey, responses((status = 201, body = Key)))]
async fn add(
    Administrator(authorized): Administrator,
    Body(new): Body<AddKey>,
) -> Result<(StatusCode, Json<Key>), ApiError> {
    let host = authorized.host_or_default(new.host.as_deref()).await?;
    let key = authorized.keys().add(host, &new.name).await?;
    Ok((StatusCode::CREATED, Json(shown(key))))
}

/// Replace a wrapping key by another
#[utoipa::path(post, path = "/v1/keys/{key}/rotate", operation_id = "rotate_key", tag = "keys",
    params(("key" = String, Path, description = "Name or id"), Wait), request_body = RotateKey,
    responses((status = 202, body = Key)))]
async fn rotate(
    Administrator(authorized): Administrator,
    Name(old): Name,
    Query(wait): Query<Wait>,
    Body(rotate): Body<RotateKey>,
) -> Result<(StatusCode, Json<Key>), ApiError> {
    let key = authorized
        .keys()
        .rotate(&old, &rotate.to, wait.duration())
        .await?;
    Ok((StatusCode::ACCEPTED, Json(shown(key))))
}

/// Delete a retired wrapping key
#[utoipa::path(delete, path = "/v1/keys/{key}", operation_id = "delete_key", tag = "keys",
    params(("key" = String, Path, description = "Name or id")),
    responses((status = 200, body = Key)))]
async fn delete(
    Administrator(authorized): Administrator,
    Name(key): Name,
) -> Result<Json<Key>, ApiError> {
    Ok(Json(shown(authorized.keys().delete(&key).await?)))
}

fn shown(row: KeyRow) -> Key {
    let kind = row.key.parameters["source"]["kind"].as_str();
    let kind = kind.and_then(|kind| kind.parse().ok());
    Key {
        id: row.key.id.to_string(),
        kind: kind.unwrap_or(KeyKind::Unknown).as_str().to_owned(),
        state: row.key.state.to_string(),
        lineages: row.lineages,
        replaced_by: row.key.replaced_by.map(|id| id.to_string()),
        created: rfc3339(row.created),
        name: row.key.name,
    }
}
