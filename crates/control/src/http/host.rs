//! The host RPC (`api::host`): `POST /v1/host/rpc/NAME`, in the name of the calling host.
//!
//! ```text
//!  1. authenticate  by the certificate, or by the socket in the data directory
//!  2. wait          for this host's other calls ([`crate::turns`])
//!  3. read          the body, up to the limit of the call of this name
//!  4. answer        the call runs to completion even if the host disconnects
//! ```
//!
//! It must not know what a call does to the database.

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

use super::extract::{bytes_of, read_json};
use super::principal::caller_of;
use super::{ApiError, Caller, Name};
use crate::control::Control;
use crate::database::Answer;
use crate::error::ControlError;
use crate::turns::Turn;

/// The route of the RPC.
pub(super) const ROUTE: &str = "/v1/host/rpc/{call}";

/// A call with a longer body, in bytes, is a long call, of which few run at a time.
const LONG_BYTES: u64 = 1 << 20;

/// The calling host.
struct CallingHost(PartyId);

impl FromRequestParts<Control> for CallingHost {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, control: &Control) -> Result<Self, ApiError> {
        let caller = caller_of(parts)?;
        if matches!(caller, Caller::Local) {
            return Ok(Self(control.local_host()));
        }
        let party = control.parties().principal(caller).await?.party;
        if party.subject.kind() != Kind::Host {
            let reason = "only hosts may send this request".to_owned();
            return Err(ControlError::Forbidden { reason }.into());
        }
        Ok(Self(party.id))
    }
}

/// The turns of a call. They end when this is dropped.
#[expect(dead_code, reason = "dropping them ends the turns")]
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
        // First, so that a long call that waits does not hold up short ones.
        let long = match is_long(headers) {
            true => Some(turns.long(host).await),
            false => None,
        };
        let call = turns.call(host).await;
        Some(Self { call, long })
    }
}

/// Whether a body is long, or of unknown length.
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
    CallingHost(host): CallingHost,
    Name(name): Name,
    mut request: Request,
) -> Result<Response, ApiError> {
    let bytes_max = HostCall::body_bytes_max(&name).ok_or_else(|| no_such_call(&name))?;
    let turns = Turns::of(&control, host, &name, request.headers()).await;
    DefaultBodyLimit::max(bytes_max).apply(&mut request);
    let call = read(&name, &bytes_of(request).await?)?;
    let answer = match call {
        // A host that disconnects needs no answer.
        HostCall::Controller(call @ ControllerCall::FollowAssignments(_)) => {
            answer_host(&control, host, call).await
        }
        call => {
            let answer = control.to_completion(|control| async move {
                let _turns = turns;
                Ok(match call {
                    HostCall::Controller(call) => answer_host(&control, host, call).await,
                    HostCall::Catalog(call) => Ok(control.host(host).answer(call).await),
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
    let detail =
        format!("no host call is named {name:?}; the agent may be newer than this controller");
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

/// The answer to a call of type `C`, as JSON.
fn json<C: Call>(_: &C, answer: Result<C::Answer, ControlError>) -> Result<Answer, ApiError> {
    Ok(Answer::new::<C>(&answer?))
}

/// Answers a call of `host` that the controller itself carries out.
async fn answer_host(
    control: &Control,
    host: PartyId,
    call: ControllerCall,
) -> Result<Answer, ApiError> {
    let request = control.host(host);
    match call {
        ControllerCall::Begin(call) => json(&call, request.begin().await),
        ControllerCall::FollowAssignments(call) => {
            let wait = Duration::from_secs(call.wait_seconds.min(FOLLOW_SECONDS_MAX));
            json(&call, request.assignments(call.after, wait).await)
        }
        ControllerCall::ReportHost(call) => json(&call, request.keep_report(&call.report).await),
        ControllerCall::RenewLeases(call) => {
            let _turn = control.inner.turns.renewal(host).await;
            json(&call, request.renew(&call.renewal).await)
        }
        ControllerCall::ReportAttachment(call) => {
            let (id, report) = (call.attachment, &call.report);
            json(&call, request.attachment_reported(id, report).await)
        }
        ControllerCall::ReportSnapshot(call) => {
            json(&call, request.consistency_point_taken(call.snapshot).await)
        }
        ControllerCall::ReportJob(call) => {
            json(&call, request.job_done(call.job, &call.answer).await)
        }
        ControllerCall::ReportPreload(call) => {
            let (volume, report) = (call.volume, &call.report);
            json(&call, request.preload_reported(volume, report).await)
        }
        ControllerCall::ReportAudit(call) => {
            let (id, report) = (call.audit, &call.report);
            json(&call, request.audit_reported(id, report).await)
        }
        ControllerCall::RegisterKey(call) => json(&call, control.key_created(&call).await),
        ControllerCall::RegisterUnits(call) => json(
            &call,
            control.unit_registry().register_all(&call.units).await,
        ),
        ControllerCall::PlanCleaning(call) => json(&call, request.cleaning(&call.busy).await),
        ControllerCall::MoveAhead(call) => json(&call, request.move_ahead(call.leases).await),
        ControllerCall::SignCertificate(call) => {
            let parties = control.parties();
            let issued = parties.sign_for_daemons(host, &call.request_pem).await;
            let issued = issued.map(|issued| super::parties::certificate(parties, issued));
            json(&call, issued)
        }
        ControllerCall::SignCapabilities(call) => json(&call, request.capabilities(&call).await),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A call of unknown length was once read beside another long one.
    #[test]
    fn a_call_without_a_short_content_length_is_long() {
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
