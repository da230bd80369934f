//! `/v1/keys`.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;

use super::{ApiError, Body, Name, Query, Wait};
use crate::control::Control;
use crate::database::KeyRow;
use crate::volumes::spell_time;
use api::types::{AddKey, Key, RotateKey};

pub(super) async fn list(State(control): State<Control>) -> Result<Json<Vec<Key>>, ApiError> {
    let keys = control.keys().await?;
    Ok(Json(keys.into_iter().map(shown).collect()))
}

pub(super) async fn show(
    State(control): State<Control>,
    Name(key): Name,
) -> Result<Json<Key>, ApiError> {
    Ok(Json(shown(control.key(&key).await?)))
}

pub(super) async fn add(
    State(control): State<Control>,
    Body(new): Body<AddKey>,
) -> Result<(StatusCode, Json<Key>), ApiError> {
    let key = control.add_key(control.local_host(), &new.name).await?;
    Ok((StatusCode::CREATED, Json(shown(key))))
}

pub(super) async fn rotate(
    State(control): State<Control>,
    Name(old): Name,
    Query(wait): Query<Wait>,
    Body(rotate): Body<RotateKey>,
) -> Result<(StatusCode, Json<Key>), ApiError> {
    let key = control
        .rotate_key(&old, &rotate.to, wait.duration())
        .await?;
    Ok((StatusCode::ACCEPTED, Json(shown(key))))
}

pub(super) async fn delete(
    State(control): State<Control>,
    Name(key): Name,
) -> Result<Json<Key>, ApiError> {
    Ok(Json(shown(control.delete_key(&key).await?)))
}

fn shown(row: KeyRow) -> Key {
    let kind = row.key.parameters["source"]["kind"].as_str();
    Key {
        id: row.key.id.to_string(),
        kind: kind.unwrap_or("unknown").to_owned(),
        state: row.key.state.to_string(),
        lineages: row.lineages,
        replaced_by: row.key.replaced_by.map(|id| id.to_string()),
        created: spell_time(row.created),
        name: row.key.name,
    }
}
