//! `/v1/chains`, and the events of filters.

use std::time::Duration;

use api::types::{ApplyChain, Chain, ChainFilter, ChainUse, Events, Page};
use axum::Json;
use base::ChainId;
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::principal::Paging;
use super::{ApiError, Body, Name, Query, Wait, attachments};
use crate::authorized_request::AuthorizedRequest;
use crate::chains::ChainView;
use crate::control::Control;
use crate::database::VolumeName;
use crate::error::ControlError;
use crate::timestamp::rfc3339;

pub(super) fn router() -> OpenApiRouter<Control> {
    OpenApiRouter::new()
        .routes(routes!(list, apply))
        .routes(routes!(show, delete))
        .routes(routes!(events))
}

/// A filter for chains.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default)]
struct ListChainsQuery {
    /// Of this volume (name or id).
    volume: Option<String>,
}

/// List the chains of the volumes that the caller administers
#[utoipa::path(get, path = "/v1/chains", operation_id = "list_chains", tag = "chains",
    params(ListChainsQuery, Paging), responses((status = 200, body = Page<Chain>)))]
async fn list(
    authorized: AuthorizedRequest,
    Query(query): Query<ListChainsQuery>,
    Query(paging): Query<Paging>,
) -> Result<Json<Page<Chain>>, ApiError> {
    let volume = query.volume.as_deref();
    let (views, next) = authorized.chains().list(volume, &paging.page()?).await?;
    let items = views.into_iter().map(shown).collect();
    Ok(Json(Page { items, next }))
}

/// Set the chain of a volume
///
/// Hosts that have the volume attached exchange the filters while it is in use.
#[utoipa::path(post, path = "/v1/chains", operation_id = "apply_chain", tag = "chains",
    params(Wait), request_body = ApplyChain, responses((status = 200, body = Chain)))]
async fn apply(
    authorized: AuthorizedRequest,
    Query(wait): Query<Wait>,
    Body(new): Body<ApplyChain>,
) -> Result<Json<Chain>, ApiError> {
    let view = authorized.chains().apply(&new.policy).await?;
    if wait.duration().is_zero() || authorized.is_dry_run() {
        return Ok(Json(shown(view)));
    }
    Ok(Json(shown(
        authorized
            .chains()
            .get(view.row.id, wait.duration())
            .await?,
    )))
}

/// Show a chain
#[utoipa::path(get, path = "/v1/chains/{chain}", operation_id = "show_chain", tag = "chains",
    params(("chain" = String, Path, description = "Its id"), Wait),
    responses((status = 200, body = Chain)))]
async fn show(
    authorized: AuthorizedRequest,
    Name(id): Name,
    Query(wait): Query<Wait>,
) -> Result<Json<Chain>, ApiError> {
    Ok(Json(shown(
        authorized
            .chains()
            .get(parse(&id)?, wait.duration())
            .await?,
    )))
}

/// Delete a chain; its volume is then served without filters
///
/// The answer lists the attachments where the chain is still active.
#[utoipa::path(delete, path = "/v1/chains/{chain}", operation_id = "delete_chain",
    tag = "chains", params(("chain" = String, Path, description = "Its id"), Wait),
    responses((status = 200, body = Chain)))]
async fn delete(
    authorized: AuthorizedRequest,
    Name(id): Name,
    Query(wait): Query<Wait>,
) -> Result<Json<Chain>, ApiError> {
    let view = authorized.chains().delete(parse(&id)?).await?;
    if wait.duration().is_zero() || authorized.is_dry_run() {
        return Ok(Json(shown(view)));
    }
    let view = authorized
        .chains()
        .wait_until_removed(view.row, wait.duration())
        .await?;
    Ok(Json(shown(view)))
}

/// The events to read.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default)]
struct EventsQuery {
    /// Events after this one; by default, events from now on.
    after: Option<u64>,
    /// The largest number of events.
    #[param(minimum = 1, maximum = 1000, default = 500)]
    limit: Option<u32>,
}

/// How long a host is asked to wait for events. A short wait soon detects a client that has
/// disconnected.
const EVENTS_WAIT_MAX: Duration = Duration::from_secs(10);
const EVENTS_MAX: u32 = 1000;
const EVENTS_DEFAULT: u32 = 500;

/// Read the events of an attachment's filters
///
/// With `wait`, the answer is held back until there are events, for 10 seconds at most.
#[utoipa::path(get, path = "/v1/attachments/{attachment}/events",
    operation_id = "read_events", tag = "chains",
    params(("attachment" = String, Path, description = "Its id"), EventsQuery, Wait),
    responses((status = 200, body = Events)))]
async fn events(
    authorized: AuthorizedRequest,
    Name(id): Name,
    Query(query): Query<EventsQuery>,
    Query(wait): Query<Wait>,
) -> Result<Json<Events>, ApiError> {
    let count_max = query.limit.unwrap_or(EVENTS_DEFAULT);
    if !(1..=EVENTS_MAX).contains(&count_max) {
        let reason = format!("limit is 1 to {EVENTS_MAX}");
        return Err(ControlError::invalid("limit", reason).into());
    }
    let wait = wait.duration().min(EVENTS_WAIT_MAX);
    let read = authorized
        .chains()
        .events(attachments::parse(&id)?, query.after, count_max, wait)
        .await?;
    let items = read.lines.iter().map(|line| serde_json::from_str(line));
    let items = items.collect::<Result<_, _>>();
    let items = items.map_err(|error| ControlError::Internal {
        reason: format!("the host sent an event that is not JSON: {error}"),
    })?;
    Ok(Json(Events {
        items,
        next: read.next,
        missed: read.missed,
    }))
}

fn parse(id: &str) -> Result<ChainId, ControlError> {
    id.parse().map_err(|_| ControlError::NotFound {
        what: format!("chain {id:?}"),
        hint: "`scree chain list` lists the chains".into(),
    })
}

fn shown(view: ChainView) -> Chain {
    let row = view.row;
    let (volume, owner) = match view.volume {
        Some(VolumeName { name, owner }) => (name, owner),
        None => (row.volume.to_string(), None),
    };
    let uses = view.attachments.into_iter().map(|one| {
        let served = one.observed.chain.filter(|chain| chain.id == row.id);
        ChainUse {
            attachment: one.id.to_string(),
            vm: one.vm,
            revision: served.map(|chain| chain.revision),
            // A volume that is not served is not served through the chain.
            problem: one.observed.chain_problem.or_else(|| {
                let problem = one.observed.problem.filter(|_| served.is_none());
                problem.map(|problem| problem.text)
            }),
        }
    });
    Chain {
        id: row.id.to_string(),
        volume,
        owner,
        volume_id: row.volume.to_string(),
        vm: row.vm,
        revision: row.revision,
        // A policy that a newer controller accepted may have filters that this one does not know.
        filters: chain_policy::outline(&row.policy)
            .into_iter()
            .map(|one| ChainFilter {
                name: one.name,
                kind: one.kind,
                placement: one.runs,
                target: one.at,
                on_failure: one.on_failure.map(|does| does.as_str().to_owned()),
            })
            .collect(),
        policy: row.policy,
        changed: rfc3339(row.changed),
        attachments: uses.collect(),
    }
}
