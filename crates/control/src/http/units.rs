//! `/v1/units`, `/v1/status` and `/v1/load`.

use api::types::{AddUnit, HostLoad, SetZone, Status, Unit, UnitZone};
use axum::Json;
use axum::http::StatusCode;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::principal::Administrator;
use super::{ApiError, Body, Name};
use crate::control::Control;
use crate::units::UnitView;

pub(super) fn router() -> OpenApiRouter<Control> {
    OpenApiRouter::new()
        .routes(routes!(list, add))
        .routes(routes!(show))
        .routes(routes!(set_zone))
        .routes(routes!(status))
        .routes(routes!(load))
}

/// List the units with their states
#[utoipa::path(get, path = "/v1/units", operation_id = "list_units", tag = "units",
    responses((status = 200, body = Vec<Unit>)))]
async fn list(Administrator(authorized): Administrator) -> Result<Json<Vec<Unit>>, ApiError> {
    let mut units = authorized.unit_registry().all().await?;
    units.extend(authorized.unit_registry().expected().await?);
    Ok(Json(units.into_iter().map(shown).collect()))
}

/// Show a unit with the probed properties of its storage
#[utoipa::path(get, path = "/v1/units/{unit}", operation_id = "show_unit", tag = "units",
    params(("unit" = String, Path, description = "Id, or the name of its daemon")),
    responses((status = 200, body = Unit)))]
async fn show(
    Administrator(authorized): Administrator,
    Name(unit): Name,
) -> Result<Json<Unit>, ApiError> {
    Ok(Json(shown(authorized.units().get(&unit).await?)))
}

/// Set the zone of a unit
///
/// Copies of a segment are placed in different zones, if there are enough.
#[utoipa::path(put, path = "/v1/units/{unit}/zone", operation_id = "set_unit_zone", tag = "units",
    params(("unit" = String, Path,
        description = "Id, or the name of its daemon, which may not have started yet")),
    request_body = SetZone, responses((status = 200, body = UnitZone)))]
async fn set_zone(
    Administrator(authorized): Administrator,
    Name(unit): Name,
    Body(new): Body<SetZone>,
) -> Result<Json<UnitZone>, ApiError> {
    let (id, message) = authorized
        .units()
        .set_zone(&unit, new.zone.as_deref())
        .await?;
    Ok(Json(UnitZone {
        unit: id.to_string(),
        zone: new.zone,
        message,
    }))
}

/// Add a unit in an empty folder, bucket or pool
#[utoipa::path(post, path = "/v1/units", operation_id = "add_unit", tag = "units",
    request_body = AddUnit, responses((status = 201, body = Unit)))]
async fn add(
    Administrator(authorized): Administrator,
    Body(new): Body<AddUnit>,
) -> Result<(StatusCode, Json<Unit>), ApiError> {
    let host = authorized.host_or_default(new.host.as_deref()).await?;
    let unit = authorized
        .units()
        .add(host, &new.url, new.zone.as_deref())
        .await?;
    Ok((StatusCode::CREATED, Json(shown(unit))))
}

/// Show the state of the cluster
#[utoipa::path(get, path = "/v1/status", operation_id = "status", tag = "units",
    responses((status = 200, body = Status)))]
async fn status(Administrator(control): Administrator) -> Result<Json<Status>, ApiError> {
    Ok(Json(control.status().await?))
}

/// Show the load of each host and its cache
///
/// Fresh reports are requested; the last report of a host that does not answer at once is used.
#[utoipa::path(get, path = "/v1/load", operation_id = "load", tag = "hosts",
    responses((status = 200, body = Vec<HostLoad>)))]
async fn load(Administrator(control): Administrator) -> Result<Json<Vec<HostLoad>>, ApiError> {
    Ok(Json(control.load().await?))
}

fn shown(unit: UnitView) -> Unit {
    let message = unit.message();
    let state = unit.state().to_string();
    let report = unit.report.as_ref();
    Unit {
        id: unit.row.id.to_string(),
        state,
        segments: report.and_then(|report| report.segments),
        bytes: report.and_then(|report| report.bytes),
        free_bytes: report.and_then(|report| report.free_bytes),
        read_bytes: unit.read_bytes,
        written_bytes: unit.written_bytes,
        facts: report.map_or_else(Vec::new, |report| report.facts.clone()),
        message,
        zone: unit.row.zone,
        url: unit.row.url,
        daemon: unit.row.daemon,
    }
}
