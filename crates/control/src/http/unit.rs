//! The requests of unit daemons: `/v1/unit`.

use api::unit::{BeginUnit, UnitCluster};
use auth::Kind;
use axum::extract::{FromRequestParts, State};
use axum::http::request::Parts;
use axum::routing::post;
use axum::{Json, Router};
use base::PartyId;

use super::principal::caller_of;
use super::{ApiError, Body};
use crate::control::Control;
use crate::error::ControlError;

/// The calling unit daemon.
struct CallingDaemon(PartyId);

impl FromRequestParts<Control> for CallingDaemon {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, control: &Control) -> Result<Self, ApiError> {
        let caller = caller_of(parts)?;
        let party = control.parties().principal(caller).await?.party;
        if party.subject.kind() != Kind::Unit {
            let reason = "only unit daemons may send this request".to_owned();
            return Err(ControlError::Forbidden { reason }.into());
        }
        Ok(Self(party.id))
    }
}

pub(super) fn router() -> Router<Control> {
    Router::new().route("/v1/unit/begin", post(begin))
}

async fn begin(
    State(control): State<Control>,
    CallingDaemon(party): CallingDaemon,
    Body(asked): Body<BeginUnit>,
) -> Result<Json<UnitCluster>, ApiError> {
    // It reads the units and may write, so it is limited like a host's calls.
    let _turn = control.inner.turns.call(party).await;
    Ok(Json(control.begin_unit(party, &asked).await?))
}
