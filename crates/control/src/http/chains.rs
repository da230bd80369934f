//! `/v1/chains`.

use api::types::{ApplyChain, Chain, ChainBox, ChainUse, Page};
use axum::Json;
use axum::http::StatusCode;
use base::ChainId;
use chain::Policy;
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::asking::Paging;
use super::{ApiError, Body, Name, Query, Wait};
use crate::acting::Acting;
use crate::chains::ChainView;
use crate::control::Control;
use crate::database::VolumeName;
use crate::error::ControlError;
use crate::volumes::spell_time;

pub(super) fn router() -> OpenApiRouter<Control> {
    OpenApiRouter::new()
        .routes(routes!(list, apply))
        .routes(routes!(show, delete))
}

/// Which chains.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default)]
struct Which {
    /// Of this volume (name or id).
    volume: Option<String>,
}

/// List the chains of the volumes that the caller administers
#[utoipa::path(get, path = "/v1/chains", operation_id = "list_chains", tag = "chains",
    params(Which, Paging), responses((status = 200, body = Page<Chain>)))]
async fn list(
    acting: Acting,
    Query(which): Query<Which>,
    Query(paging): Query<Paging>,
) -> Result<Json<Page<Chain>>, ApiError> {
    let volume = which.volume.as_deref();
    let (views, next) = acting.chains(volume, &paging.page()?).await?;
    let items = views.into_iter().map(shown).collect();
    Ok(Json(Page { items, next }))
}

/// Put a chain in the place of the one that a volume has
///
/// Hosts that have the volume attached exchange the boxes while it is used.
#[utoipa::path(post, path = "/v1/chains", operation_id = "apply_chain", tag = "chains",
    params(Wait), request_body = ApplyChain, responses((status = 200, body = Chain)))]
async fn apply(
    acting: Acting,
    Query(wait): Query<Wait>,
    Body(new): Body<ApplyChain>,
) -> Result<Json<Chain>, ApiError> {
    let view = acting.apply_chain(&new.policy).await?;
    if wait.duration().is_zero() || acting.is_dry_run() {
        return Ok(Json(shown(view)));
    }
    Ok(Json(shown(
        acting.chain(view.row.id, wait.duration()).await?,
    )))
}

/// Show a chain
#[utoipa::path(get, path = "/v1/chains/{chain}", operation_id = "show_chain", tag = "chains",
    params(("chain" = String, Path, description = "Its id"), Wait),
    responses((status = 200, body = Chain)))]
async fn show(
    acting: Acting,
    Name(id): Name,
    Query(wait): Query<Wait>,
) -> Result<Json<Chain>, ApiError> {
    Ok(Json(shown(
        acting.chain(parse(&id)?, wait.duration()).await?,
    )))
}

/// Delete a chain; its volume is served without boxes then
#[utoipa::path(delete, path = "/v1/chains/{chain}", operation_id = "delete_chain",
    tag = "chains", params(("chain" = String, Path, description = "Its id")),
    responses((status = 200, body = Chain)))]
async fn delete(acting: Acting, Name(id): Name) -> Result<(StatusCode, Json<Chain>), ApiError> {
    let view = acting.delete_chain(parse(&id)?).await?;
    Ok((StatusCode::OK, Json(shown(view))))
}

fn parse(id: &str) -> Result<ChainId, ControlError> {
    id.parse().map_err(|_| ControlError::NotFound {
        what: format!("chain {id:?}"),
        hint: "`scree chain list` shows those there are".into(),
    })
}

fn shown(view: ChainView) -> Chain {
    let row = view.row;
    let (volume, owner) = match view.volume {
        Some(VolumeName { name, owner }) => (name, owner),
        None => (row.volume.to_string(), None),
    };
    // One that a later controller has taken may have what this one does not know.
    let boxes = Policy::parse(&row.policy).map_or_else(|_| Vec::new(), |policy| policy.boxes);
    let uses = view.attachments.into_iter().map(|one| ChainUse {
        attachment: one.id.to_string(),
        vm: one.vm,
        revision: one
            .chain
            .filter(|chain| chain.id == row.id)
            .map(|chain| chain.revision),
        problem: one.chain_problem,
    });
    Chain {
        id: row.id.to_string(),
        volume,
        owner,
        volume_id: row.volume.to_string(),
        vm: row.vm,
        revision: row.revision,
        boxes: boxes
            .into_iter()
            .map(|one| ChainBox {
                kind: one.kind.as_str().to_owned(),
                name: one.name,
            })
            .collect(),
        policy: row.policy,
        changed: spell_time(row.changed),
        attachments: uses.collect(),
    }
}
