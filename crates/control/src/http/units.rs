//! `/v1/units` and `/v1/status`.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;

use super::{ApiError, Body};
use crate::control::Control;
use crate::units::UnitView;
use api::types::{AddUnit, Status, Unit};

pub(super) async fn list(State(control): State<Control>) -> Result<Json<Vec<Unit>>, ApiError> {
    let units = control.units().await?;
    Ok(Json(units.into_iter().map(shown).collect()))
}

pub(super) async fn add(
    State(control): State<Control>,
    Body(new): Body<AddUnit>,
) -> Result<(StatusCode, Json<Unit>), ApiError> {
    let unit = control
        .add_unit(control.default_host().await?, &new.url)
        .await?;
    Ok((StatusCode::CREATED, Json(shown(unit))))
}

pub(super) async fn status(State(control): State<Control>) -> Result<Json<Status>, ApiError> {
    let report = control.report().await?;
    let healthy = report.problems.is_empty();
    Ok(Json(Status {
        state: if healthy { "ok" } else { "degraded" }.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        cluster: report.cluster.to_string(),
        folder: control.folder().path().display().to_string(),
        pid: std::process::id(),
        volumes: report.volumes,
        exported: report.exported,
        snapshots: report.snapshots,
        units: report.units,
        units_healthy: report.units_healthy,
        bytes: report.bytes,
        journal_used_bytes: report.journal_used_bytes,
        pending_frees: report.pending_frees,
        thin_segments: report.thin_segments,
        thin_blocks: report.thin_blocks,
        problems: report.problems,
    }))
}

fn shown(unit: UnitView) -> Unit {
    let state = unit.state().to_owned();
    let report = unit.report.as_ref();
    Unit {
        id: unit.row.id.to_string(),
        state,
        segments: report.and_then(|report| report.segments),
        bytes: report.and_then(|report| report.bytes),
        free_bytes: report.and_then(|report| report.free_bytes),
        read_bytes: unit.read_bytes,
        written_bytes: unit.written_bytes,
        reason: unit.report.and_then(|report| report.reason),
        url: unit.row.url,
    }
}
