//! `/v1/units/…`: units that go, and what is repaired.

use api::types::{DrainUnits, RemoveUnit, RepairJob, Scrub, UnitMoved, UnitsWanted};
use axum::Json;
use axum::extract::Path;
use axum::http::StatusCode;
use base::UnitId;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::asking::Administrator;
use super::{ApiError, Body};
use crate::control::Control;
use crate::database::{Moved, Removal, RepairRow};
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
        .routes(routes!(tasks))
}

/// Have other units take over what some hold, and remove these then; or end that
#[utoipa::path(post, path = "/v1/units/drain", operation_id = "drain_units", tag = "units",
    request_body = DrainUnits, responses((status = 202, body = Vec<UnitMoved>)))]
async fn drain(
    Administrator(authorized): Administrator,
    Body(which): Body<DrainUnits>,
) -> Result<(StatusCode, Json<Vec<UnitMoved>>), ApiError> {
    if !(1..=DRAINED_MAX).contains(&which.units.len()) {
        let reason = format!("from 1 to {DRAINED_MAX} units are drained at a time");
        return Err(ControlError::invalid("units", reason).into());
    }
    let moved = match which.cancel {
        false => authorized.units().drain(&which.units).await?,
        true => authorized.units().cancel_drain(&which.units).await?,
    };
    let moved = moved.into_iter().map(shown).collect();
    Ok((StatusCode::ACCEPTED, Json(moved)))
}

/// Remove a unit that is drained, or one that is lost for good
#[utoipa::path(post, path = "/v1/units/{unit}/remove", operation_id = "remove_unit",
    tag = "units", request_body = RemoveUnit,
    params(("unit" = String, Path, description = "Its id, its URL, or its daemon's name.")),
    responses((status = 200, body = UnitMoved)))]
async fn remove(
    Administrator(authorized): Administrator,
    Path(unit): Path<String>,
    Body(how): Body<RemoveUnit>,
) -> Result<Json<UnitMoved>, ApiError> {
    let how = match (how.lost, how.accept_data_loss) {
        (false, false) => Removal::Empty,
        (true, false) => Removal::Lost,
        (true, true) => Removal::GivenUp,
        (false, true) => {
            let reason = "`accept_data_loss` is for lost units; set `lost` as well";
            return Err(ControlError::invalid("accept_data_loss", reason).into());
        }
    };
    Ok(Json(shown(authorized.units().remove(&unit, how).await?)))
}

/// Let units take over from those that have more
#[utoipa::path(post, path = "/v1/units/rebalance", operation_id = "rebalance_units",
    tag = "units", responses((status = 202, body = UnitsWanted)))]
async fn rebalance(
    Administrator(authorized): Administrator,
) -> Result<(StatusCode, Json<UnitsWanted>), ApiError> {
    let copysets = authorized.units().rebalance().await?;
    Ok((StatusCode::ACCEPTED, Json(UnitsWanted { copysets })))
}

/// Have every slot read and compared
#[utoipa::path(post, path = "/v1/units/scrub", operation_id = "scrub_units", tag = "units",
    request_body = Scrub, responses((status = 202, body = UnitsWanted)))]
async fn scrub(
    Administrator(authorized): Administrator,
    Body(what): Body<Scrub>,
) -> Result<(StatusCode, Json<UnitsWanted>), ApiError> {
    let copysets = authorized.units().scrub(what.unit.as_deref()).await?;
    Ok((StatusCode::ACCEPTED, Json(UnitsWanted { copysets })))
}

/// Compare all units now, and copy what is missing
#[utoipa::path(post, path = "/v1/units/repair", operation_id = "repair_units", tag = "units",
    responses((status = 202, body = UnitsWanted)))]
async fn repair(
    Administrator(authorized): Administrator,
) -> Result<(StatusCode, Json<UnitsWanted>), ApiError> {
    let copysets = authorized.units().repair().await?;
    Ok((StatusCode::ACCEPTED, Json(UnitsWanted { copysets })))
}

/// List what is repaired, or waits for it
#[utoipa::path(get, path = "/v1/units/tasks", operation_id = "list_unit_tasks", tag = "units",
    responses((status = 200, body = Vec<RepairJob>)))]
async fn tasks(Administrator(authorized): Administrator) -> Result<Json<Vec<RepairJob>>, ApiError> {
    let tasks = authorized.units().repairs().await?;
    Ok(Json(tasks.into_iter().map(task).collect()))
}

fn shown((unit, moved): (UnitId, Moved)) -> UnitMoved {
    UnitMoved {
        unit: unit.to_string(),
        copysets: moved.copysets,
        removed: moved.is_removed,
        given_up: moved.given_up,
    }
}

fn task(row: RepairRow) -> RepairJob {
    let members = |state: &str| {
        let its = row.members.iter().filter(|(_, is)| is == state);
        its.map(|(unit, _)| unit.to_string()).collect()
    };
    RepairJob {
        copyset: row.copyset.number(),
        filling: members("rebuilding"),
        leaving: members("draining"),
        host: row.repairer,
        segments_done: row.progress.done,
        segments: row.progress.all,
        compares: row.is_scrub,
        rotten: row.rotten,
        problem: row.problem,
    }
}
