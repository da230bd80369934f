//! `/v1/host`: what agents ask, and tell (`api::host`).

use std::time::Duration;

use api::host::{
    Ahead, AskCapabilities, AskCleaning, Assignments, AttachmentReport, AuditReport, Capabilities,
    CatalogAnswer, CatalogCall, Cleaning, Cluster, FoundedKey, MarkedUnits, PreloadReport, Renewal,
    Renewed, Report, TaskAnswer, WrappingKey,
};
use api::types::{Certificate, Renew};
use auth::Kind;
use axum::extract::{DefaultBodyLimit, FromRequest, FromRequestParts, Request, State};
use axum::http::header::CONTENT_LENGTH;
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::{get, post, put};
use axum::{Json, Router};
use base::{AttachmentId, AuditId, PartyId, SnapshotId, VolumeId};
use serde::Deserialize;
use serde_json::Value;

use super::asking::nowhere;
use super::extract::Whole;
use super::{ApiError, Body, Caller, Name, Query, WAIT_MAX};
use crate::control::Control;
use crate::error::ControlError;
use crate::turns::Turn;

type Answer<T> = Result<Json<T>, ApiError>;

/// The longest call of the catalog that a host may make: as much as it takes for an
/// answer. What makes them long is the plan of what a removed version frees, up to
/// a bit for each slot of its segments, and a third more in base64: this is enough
/// for 6 TiB scattered worst, and far more as it mostly lies.
const CALL_BYTES_MAX: usize = 256 << 20;

/// The longest report: of as many open volumes as a host has leases it takes half
/// of this.
const REPORT_BYTES_MAX: usize = 16 << 20;

/// Longer than that are few calls, in bytes.
const LONG_BYTES: u64 = 1 << 20;

/// The host that is asking.
struct Asking(PartyId);

impl FromRequestParts<Control> for Asking {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, control: &Control) -> Result<Self, ApiError> {
        let caller = parts.extensions.get::<Caller>().ok_or_else(nowhere)?;
        if matches!(caller, Caller::Local) {
            return Ok(Self(control.local_host()));
        }
        let party = control.parties().principal(caller).await?.party;
        if party.subject.kind() != Kind::Host {
            let reason = "this is for hosts only".to_owned();
            return Err(ControlError::Forbidden { reason }.into());
        }
        Ok(Self(party.id))
    }
}

/// The host that is asking, when it is its turn.
struct InTurn(PartyId, Turns);

/// Those that a call has, which go on until this is dropped.
#[expect(dead_code, reason = "they are only kept")]
struct Turns {
    call: Turn,
    /// If it is long.
    long: Option<Turn>,
}

impl FromRequestParts<Control> for InTurn {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, control: &Control) -> Result<Self, ApiError> {
        let Asking(host) = Asking::from_request_parts(parts, control).await?;
        let turns = &control.inner.turns;
        // First: those that wait for it must not keep the others waiting.
        let long = match is_long(&parts.headers) {
            true => Some(turns.long(host).await),
            false => None,
        };
        let call = turns.call(host).await;
        Ok(Self(host, Turns { call, long }))
    }
}

/// Whether a body is long, or does not say how long it is.
fn is_long(headers: &HeaderMap) -> bool {
    let length = headers.get(CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()?.parse().ok());
    length.is_none_or(|length: u64| length > LONG_BYTES)
}

pub(super) fn router() -> Router<Control> {
    let [report_max, call_max] = [REPORT_BYTES_MAX, CALL_BYTES_MAX].map(DefaultBodyLimit::max);
    Router::new()
        .route("/v1/host/begin", post(begin))
        .route("/v1/host/assignments", get(assignments))
        .route("/v1/host/report", put(report).layer(report_max))
        .route("/v1/host/leases", post(leases))
        .route("/v1/host/attachments/{attachment}", put(attachment))
        .route("/v1/host/snapshots/{snapshot}/cut", post(cut))
        .route("/v1/host/tasks/{task}", put(task))
        .route("/v1/host/preloads/{volume}", put(preload))
        .route("/v1/host/audits/{audit}", put(audit).layer(report_max))
        .route("/v1/host/keys", post(key))
        .route("/v1/host/units", post(units))
        .route("/v1/host/cleaning", post(cleaning))
        .route("/v1/host/ahead", post(ahead))
        .route("/v1/host/catalog", post(catalog).layer(call_max))
        .route("/v1/host/certificate", post(certificate))
        .route("/v1/host/capabilities", post(capabilities))
}

async fn begin(State(control): State<Control>, InTurn(host, _turn): InTurn) -> Answer<Cluster> {
    Ok(Json(control.begin(host).await?))
}

/// `?after=SERIAL&wait=SECONDS`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct After {
    after: Option<u64>,
    wait: u64,
}

async fn assignments(
    State(control): State<Control>,
    Asking(host): Asking,
    Query(after): Query<After>,
) -> Answer<Assignments> {
    let wait = Duration::from_secs(after.wait).min(WAIT_MAX);
    Ok(Json(control.assignments(host, after.after, wait).await?))
}

async fn report(
    State(control): State<Control>,
    InTurn(host, _turn): InTurn,
    Body(report): Body<Report>,
) -> Answer<()> {
    Ok(Json(control.keep_report(host, &report).await?))
}

async fn leases(
    State(control): State<Control>,
    Asking(host): Asking,
    Body(renewal): Body<Renewal>,
) -> Answer<Renewed> {
    let _turn = control.inner.turns.renewal(host).await;
    Ok(Json(control.renew(host, &renewal).await?))
}

async fn attachment(
    State(control): State<Control>,
    InTurn(host, _turn): InTurn,
    Name(id): Name,
    Body(report): Body<AttachmentReport>,
) -> Answer<bool> {
    let id: AttachmentId = parse("attachment", &id)?;
    Ok(Json(control.attachment_reported(host, id, &report).await?))
}

async fn cut(
    State(control): State<Control>,
    InTurn(host, _turn): InTurn,
    Name(id): Name,
) -> Answer<()> {
    let id: SnapshotId = parse("snapshot", &id)?;
    Ok(Json(control.cut_taken(host, id).await?))
}

async fn task(
    State(control): State<Control>,
    InTurn(host, _turn): InTurn,
    Name(id): Name,
    Body(answer): Body<TaskAnswer>,
) -> Answer<()> {
    let id = parse("task", &id)?;
    Ok(Json(control.task_done(host, id, &answer).await?))
}

async fn preload(
    State(control): State<Control>,
    InTurn(host, _turn): InTurn,
    Name(volume): Name,
    Body(report): Body<PreloadReport>,
) -> Answer<bool> {
    let volume: VolumeId = parse("volume", &volume)?;
    Ok(Json(control.preload_reported(host, volume, &report).await?))
}

async fn audit(
    State(control): State<Control>,
    InTurn(host, _turn): InTurn,
    Name(id): Name,
    Body(report): Body<AuditReport>,
) -> Answer<bool> {
    let id: AuditId = parse("audit", &id)?;
    Ok(Json(control.audit_reported(host, id, &report).await?))
}

async fn key(
    State(control): State<Control>,
    _: InTurn,
    Body(key): Body<FoundedKey>,
) -> Answer<WrappingKey> {
    Ok(Json(control.key_founded(&key).await?))
}

async fn units(
    State(control): State<Control>,
    _: InTurn,
    Body(marked): Body<MarkedUnits>,
) -> Answer<()> {
    Ok(Json(control.register_units(&marked.units).await?))
}

async fn cleaning(
    State(control): State<Control>,
    InTurn(host, _turn): InTurn,
    Body(ask): Body<AskCleaning>,
) -> Answer<Cleaning> {
    Ok(Json(control.cleaning(host, &ask.busy).await?))
}

async fn ahead(
    State(control): State<Control>,
    InTurn(host, _turn): InTurn,
    Body(ahead): Body<Ahead>,
) -> Answer<bool> {
    Ok(Json(control.move_ahead(host, ahead.leases).await?))
}

/// Which call of the catalog it is.
#[derive(Debug, Deserialize)]
struct Word {
    call: String,
}

/// A call of the catalog. Nothing of it is kept but what the call has.
struct Call(CatalogCall);

impl FromRequest<Control> for Call {
    type Rejection = ApiError;

    async fn from_request(request: Request, control: &Control) -> Result<Self, ApiError> {
        let Whole { read, bytes } = Whole::<Word>::from_request(request, control).await?;
        let call = CatalogCall::read(&read.call, &bytes);
        call.map(Self)
            .map_err(|error| ApiError::mistake(StatusCode::UNPROCESSABLE_ENTITY, error.to_string()))
    }
}

async fn catalog(
    State(control): State<Control>,
    InTurn(host, turn): InTurn,
    Call(call): Call,
) -> Json<CatalogAnswer<Value>> {
    let answer = control
        .to_its_end(|control| async move {
            let _turn = turn;
            control.answer(host, call).await
        })
        .await;
    Json(answer.unwrap_or_else(|error| {
        Err(catalog::CatalogError::Unavailable {
            reason: error.to_string(),
        })
    }))
}

async fn certificate(
    State(control): State<Control>,
    InTurn(host, _turn): InTurn,
    Body(renew): Body<Renew>,
) -> Answer<Certificate> {
    let parties = control.parties();
    let issued = parties.sign_for_daemons(host, &renew.request).await?;
    Ok(Json(super::parties::certificate(parties, issued)))
}

async fn capabilities(
    State(control): State<Control>,
    InTurn(host, _turn): InTurn,
    Body(ask): Body<AskCapabilities>,
) -> Answer<Capabilities> {
    Ok(Json(control.capabilities(host, &ask).await?))
}

fn parse<T: std::str::FromStr<Err: std::fmt::Display>>(
    field: &'static str,
    text: &str,
) -> Result<T, ControlError> {
    text.parse()
        .map_err(|error: T::Err| ControlError::invalid(field, error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One that said too little, or nothing, would have been read beside another.
    #[test]
    fn a_call_is_long_unless_it_says_that_it_is_not() {
        let long = |length: Option<&str>| {
            let length = length.map(|length| (CONTENT_LENGTH, length.parse().expect("a value")));
            is_long(&HeaderMap::from_iter(length))
        };
        for short in ["0", "17", "1048576"] {
            assert!(!long(Some(short)), "{short}");
        }
        for other in ["1048577", "99999999999999999999", "-1", "", "short"] {
            assert!(long(Some(other)), "{other}");
        }
        assert!(long(None));
    }
}
