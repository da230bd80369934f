//! The host RPC (`api::host`): `POST /v1/host/rpc/NAME`, in the name of the host that asks.
//!
//! ```text
//!  1. who     the certificate, or D's socket, says which host asks
//!  2. turn    one host's calls wait for each other ([`crate::turns`]), and only then is
//!  3. body    read, as long as the call of this name may be
//!  4. answer  carried out to its end, whether or not the host still waits for it
//! ```
//!
//! Must not know: what a call does to the database.

use std::time::Duration;

use api::host::calls::{FollowAssignments, RenewLeases};
use api::host::{Call, ControllerCall, FOLLOW_SECONDS_MAX, HostCall};
use auth::Kind;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, FromRequestParts, Request, State};
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use base::PartyId;

use super::asking::nowhere;
use super::extract::{bytes_of, read_json};
use super::{ApiError, Caller, Name};
use crate::control::Control;
use crate::database::Answer;
use crate::error::ControlError;
use crate::turns::Turn;

/// The path of the RPC, as routes are written.
pub(super) const ROUTE: &str = "/v1/host/rpc/{call}";

/// A longer body, in bytes, makes a call a long one: those are few.
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

/// The turns of a call; they end when this is dropped.
#[expect(dead_code, reason = "they are only kept")]
struct Turns {
    call: Turn,
    /// The turn of a long call.
    long: Option<Turn>,
}

impl Turns {
    /// Waits for the turns of a call. Leases and assignments have turns of their own, which other
    /// calls do not hold up.
    async fn of(control: &Control, host: PartyId, name: &str, headers: &HeaderMap) -> Option<Self> {
        if matches!(name, FollowAssignments::NAME | RenewLeases::NAME) {
            return None;
        }
        let turns = &control.inner.turns;
        // First: those that wait for it must not keep the others waiting.
        let long = match is_long(headers) {
            true => Some(turns.long(host).await),
            false => None,
        };
        let call = turns.call(host).await;
        Some(Self { call, long })
    }
}

/// Whether a body is long, or does not say how long it is.
fn is_long(headers: &HeaderMap) -> bool {
    let length = headers.get(CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()?.parse().ok());
    length.is_none_or(|length: u64| length > LONG_BYTES)
}

pub(super) fn router() -> Router<Control> {
    Router::new().route(ROUTE, post(answer))
}

async fn answer(
    State(control): State<Control>,
    Asking(host): Asking,
    Name(name): Name,
    mut request: Request,
) -> Result<Response, ApiError> {
    let bytes_max = HostCall::body_bytes_max(&name).ok_or_else(|| no_such_call(&name))?;
    let turns = Turns::of(&control, host, &name, request.headers()).await;
    DefaultBodyLimit::max(bytes_max).apply(&mut request);
    let call = read(&name, &bytes_of(request).await?)?;
    let answer = match call {
        // A host that hangs up waits for nothing.
        HostCall::Controller(call @ ControllerCall::FollowAssignments(_)) => {
            answer_host(&control, host, call).await
        }
        call => {
            let answer = control.to_its_end(|control| async move {
                let _turns = turns;
                Ok(match call {
                    HostCall::Controller(call) => answer_host(&control, host, call).await,
                    HostCall::Catalog(call) => Ok(control.answer(host, call).await),
                })
            });
            answer.await?
        }
    }?;
    let json = [(CONTENT_TYPE, "application/json")];
    Ok((json, answer.into_bytes()).into_response())
}

fn no_such_call(name: &str) -> ApiError {
    // A name may be of any length.
    let name: String = name.chars().take(32).collect();
    let detail = format!("no call of hosts is named {name:?}; the agent may be newer than this");
    ApiError::mistake(StatusCode::NOT_FOUND, detail)
}

/// Reads the call `name` from its body.
fn read(name: &str, body: &Bytes) -> Result<HostCall, ApiError> {
    let read = read_json(body, |json| match HostCall::read(name, json) {
        Some(read) => read.map(Some),
        None => Ok(None),
    });
    read?.ok_or_else(|| no_such_call(name))
}

/// The answer to a call, as JSON. That it is the one of this call is what `C` is for.
fn json<C: Call>(_: &C, answer: Result<C::Answer, ControlError>) -> Result<Answer, ApiError> {
    Ok(Answer::new::<C>(&answer?))
}

/// Answers a call of `host` that the controller itself carries out.
async fn answer_host(
    control: &Control,
    host: PartyId,
    call: ControllerCall,
) -> Result<Answer, ApiError> {
    match call {
        ControllerCall::Begin(call) => json(&call, control.begin(host).await),
        ControllerCall::FollowAssignments(call) => {
            let wait = Duration::from_secs(call.wait_seconds.min(FOLLOW_SECONDS_MAX));
            json(&call, control.assignments(host, call.after, wait).await)
        }
        ControllerCall::ReportHost(call) => {
            json(&call, control.keep_report(host, &call.report).await)
        }
        ControllerCall::RenewLeases(call) => {
            let _turn = control.inner.turns.renewal(host).await;
            json(&call, control.renew(host, &call.renewal).await)
        }
        ControllerCall::ReportAttachment(call) => {
            let (id, report) = (call.attachment, &call.report);
            json(&call, control.attachment_reported(host, id, report).await)
        }
        ControllerCall::ReportSnapshot(call) => {
            json(&call, control.cut_taken(host, call.snapshot).await)
        }
        ControllerCall::ReportJob(call) => json(
            &call,
            control.task_done(host, call.task, &call.answer).await,
        ),
        ControllerCall::ReportPreload(call) => {
            let (volume, report) = (call.volume, &call.report);
            json(&call, control.preload_reported(host, volume, report).await)
        }
        ControllerCall::ReportAudit(call) => {
            let (id, report) = (call.audit, &call.report);
            json(&call, control.audit_reported(host, id, report).await)
        }
        ControllerCall::RegisterKey(call) => json(&call, control.key_created(&call).await),
        ControllerCall::RegisterUnits(call) => {
            json(&call, control.register_units(&call.units).await)
        }
        ControllerCall::PlanCleaning(call) => json(&call, control.cleaning(host, &call.busy).await),
        ControllerCall::MoveAhead(call) => json(&call, control.move_ahead(host, call.leases).await),
        ControllerCall::SignCertificate(call) => {
            let parties = control.parties();
            let issued = parties.sign_for_daemons(host, &call.request_pem).await;
            let issued = issued.map(|issued| super::parties::certificate(parties, issued));
            json(&call, issued)
        }
        ControllerCall::SignCapabilities(call) => {
            json(&call, control.capabilities(host, &call).await)
        }
    }
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
