//! `/v1/units/…`: draining, removal, scrubs and repair of units.

use api::types::{DrainUnits, QueuedCopysets, RemoveUnit, RepairJob, Scrub, UnitChange};
use axum::Json;
use axum::extract::Path;
use axum::http::StatusCode;
use base::UnitId;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::principal::Administrator;
use super::{ApiError, Body};
use crate::control::Control;
use crate::database::{DrainResult, Removal, RepairRow};
use crate::error::ControlError;

/// The largest number of units in one request to drain.
const DRAINED_MAX: usize = 256;

pub(super) fn router() -> OpenApiRouter<Control> {
    OpenApiRouter::new()
        .routes(routes!(drain))
        .routes(routes!(remove))
        .routes(routes!(rebalance))
        .routes(routes!(scrub))
        .routes(routes!(repair))
        .routes(routes!(jobs))
}

/// Drain units, so that they are removed once others hold their data; or cancel draining
#[utoipa::path(post, path = "/v1/units/drain", operation_id = "drain_units", tag = "units",
    request_body = DrainUnits, responses((status = 202, body = Vec<UnitChange>)))]
async fn drain(
    Administrator(authorized): Administrator,
    Body(request): Body<DrainUnits>,
) -> Result<(StatusCode, Json<Vec<UnitChange>>), ApiError> {
    if !(1..=DRAINED_MAX).contains(&request.units.len()) {
        let reason = format!("drain 1 to {DRAINED_MAX} units at a time");
        return Err(ControlError::invalid("units", reason).into());
    }
    let moved = match request.cancel {
        false => authorized.units().drain(&request.units).await?,
        true => authorized.units().cancel_drain(&request.units).await?,
    };
    let moved = moved.into_iter().map(shown).collect();
    Ok((StatusCode::ACCEPTED, Json(moved)))
}

/// Remove a unit that is drained, or one that is lost for good
#[utoipa::path(post, path = "/v1/units/{unit}/remove", operation_id = "remove_unit",
    tag = "units", request_body = RemoveUnit,
    params(("unit" = String, Path, description = "Its id, its URL, or its daemon's name.")),
    responses((status = 200, body = UnitChange)))]
async fn remove(
    Administrator(authorized): Administrator,
    Path(unit): Path<String>,
    Body(request): Body<RemoveUnit>,
) -> Result<Json<UnitChange>, ApiError> {
    let removal = match (request.lost, request.accept_data_loss) {
        (false, false) => Removal::Empty,
        (true, false) => Removal::Lost,
        (true, true) => Removal::DataLossAccepted,
        (false, true) => {
            let reason = "`accept_data_loss` is for lost units; set `lost` as well";
            return Err(ControlError::invalid("accept_data_loss", reason).into());
        }
    };
    Ok(Json(shown(
        authorized.units().remove(&unit, removal).await?,
    )))
}

/// Rebalance: move copysets from units that have more to units that have fewer
#[utoipa::path(post, path = "/v1/units/rebalance", operation_id = "rebalance_units",
    tag = "units", responses((status = 202, body = QueuedCopysets)))]
async fn rebalance(
    Administrator(authorized): Administrator,
) -> Result<(StatusCode, Json<QueuedCopysets>), ApiError> {
    let copysets = authorized.units().rebalance().await?;
    Ok((StatusCode::ACCEPTED, Json(QueuedCopysets { copysets })))
}

/// Scrub: read and compare every slot
#[utoipa::path(post, path = "/v1/units/scrub", operation_id = "scrub_units", tag = "units",
    request_body = Scrub, responses((status = 202, body = QueuedCopysets)))]
async fn scrub(
    Administrator(authorized): Administrator,
    Body(request): Body<Scrub>,
) -> Result<(StatusCode, Json<QueuedCopysets>), ApiError> {
    let copysets = authorized.units().scrub(request.unit.as_deref()).await?;
    Ok((StatusCode::ACCEPTED, Json(QueuedCopysets { copysets })))
}

/// Repair: compare all units now, and copy what is missing
#[utoipa::path(post, path = "/v1/units/repair", operation_id = "repair_units", tag = "units",
    responses((status = 202, body = QueuedCopysets)))]
async fn repair(
    Administrator(authorized): Administrator,
) -> Result<(StatusCode, Json<QueuedCopysets>), ApiError> {
    let copysets = authorized.units().repair().await?;
    Ok((StatusCode::ACCEPTED, Json(QueuedCopysets { copysets })))
}

/// List the copysets that are being repaired or wait for repair
#[utoipa::path(get, path = "/v1/units/jobs", operation_id = "list_unit_jobs", tag = "units",
    responses((status = 200, body = Vec<RepairJob>)))]
async fn jobs(Administrator(authorized): Administrator) -> Result<Json<Vec<RepairJob>>, ApiError> {
    let jobs = authorized.units().repairs().await?;
    Ok(Json(jobs.into_iter().map(job_shown).collect()))
}

fn shown((unit, moved): (UnitId, DrainResult)) -> UnitChange {
    UnitChange {
        unit: unit.to_string(),
        copysets: moved.copysets,
        removed: moved.is_removed,
        copysets_lost: moved.copysets_lost,
    }
}

fn job_shown(row: RepairRow) -> RepairJob {
    let members = |state: &str| {
        let its = row.members.iter().filter(|(_, is)| is == state);
        its.map(|(unit, _)| unit.to_string()).collect()
    };
    RepairJob {
        copyset: row.copyset.number(),
        rebuilding: members("rebuilding"),
        draining: members("draining"),
        host: row.repairer,
        segments_done: row.progress.done,
        segments: row.progress.all,
        compares: row.is_scrub,
        damaged: row.damaged,
        problem: row.problem,
    }
}
