//! `/v1/snapshots`.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;

use super::{ApiError, Body, Name, Query, Wait};
use crate::control::Control;
use crate::database::{SnapshotRow, SnapshotState};
use crate::volumes::spell_time;
use api::types::{CreateSnapshot, Snapshot};

pub(super) async fn list(State(control): State<Control>) -> Result<Json<Vec<Snapshot>>, ApiError> {
    let snapshots = control.snapshots().await?;
    Ok(Json(snapshots.into_iter().map(shown).collect()))
}

pub(super) async fn show(
    State(control): State<Control>,
    Name(snapshot): Name,
    Query(wait): Query<Wait>,
) -> Result<Json<Snapshot>, ApiError> {
    Ok(Json(shown(
        control.snapshot_settled(&snapshot, wait.duration()).await?,
    )))
}

pub(super) async fn create(
    State(control): State<Control>,
    Query(wait): Query<Wait>,
    Body(new): Body<CreateSnapshot>,
) -> Result<(StatusCode, Json<Snapshot>), ApiError> {
    let mut snapshot = control
        .create_snapshot(&new.volume, new.name.as_deref())
        .await?;
    if !wait.duration().is_zero() {
        snapshot = control
            .snapshot_settled(&snapshot.id.to_string(), wait.duration())
            .await?;
    }
    Ok((StatusCode::CREATED, Json(shown(snapshot))))
}

pub(super) async fn delete(
    State(control): State<Control>,
    Name(snapshot): Name,
) -> Result<Json<Snapshot>, ApiError> {
    Ok(Json(shown(control.delete_snapshot(&snapshot).await?)))
}

fn shown(row: SnapshotRow) -> Snapshot {
    let (state, reason) = match row.state {
        SnapshotState::Pending => ("pending", None),
        SnapshotState::Completed(_) => ("completed", None),
        SnapshotState::Error { reason } => ("error", Some(reason)),
    };
    Snapshot {
        id: row.id.to_string(),
        name: row.name,
        volume: row.volume_name,
        volume_id: row.volume.to_string(),
        size: row.size_bytes,
        state: state.to_owned(),
        reason,
        created: spell_time(row.created),
    }
}
