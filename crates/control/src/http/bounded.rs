//! Every request is answered in bounded time, whatever the database and its network do: at last
//! with `unavailable`. What it had begun may still be carried out.
//!
//! A dead connection to PostgreSQL (its machine lost power, the network is cut) blocks what waits
//! for it until the operating system gives it up, which takes a quarter of an hour.

use std::time::Duration;

use api::host::calls::FollowAssignments;
use api::host::{Call as _, FOLLOW_SECONDS_MAX, RPC_PATH};
use axum::extract::{Request, State};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::Response;
use world::host;

use super::{ApiError, WAIT_MAX};
use crate::error::ControlError;

/// The limit for requests that involve no host, and for those of hosts, which wait longer than
/// that.
const BRIEF: Duration = Duration::from_secs(25);

/// What waits for a host's part may take as long as that may, and some.
const WITH_HOST: Duration = Duration::from_secs(130);

/// How long a request may take.
fn bound_of(method: &Method, path: &str, query: &str) -> Duration {
    let waits = query
        .split('&')
        .find_map(|one| one.strip_prefix("wait=")?.parse().ok());
    let waits = match path.strip_prefix(RPC_PATH) {
        Some(FollowAssignments::NAME) => Duration::from_secs(FOLLOW_SECONDS_MAX),
        _ => Duration::from_secs(waits.unwrap_or(0)).min(WAIT_MAX),
    };
    let is_machines = path.starts_with("/v1/host/") || path.starts_with("/v1/unit/");
    let is_brief = method == Method::GET || is_machines;
    waits + if is_brief { BRIEF } else { WITH_HOST }
}

/// Computes the limit of a request.
pub(super) type Bound = fn(&Method, &str, &str) -> Duration;

/// The bounds of the API.
pub(super) const BOUND: Bound = bound_of;

/// Gives up a request that exceeds its limit.
pub(super) async fn answer_in_time(
    State(bound): State<Bound>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let uri = request.uri();
    let bound = bound(
        request.method(),
        uri.path(),
        uri.query().unwrap_or_default(),
    );
    let seconds = bound.as_secs();
    host::timeout(bound, next.run(request))
        .await
        .ok_or_else(|| {
            let reason = format!(
                "no answer from the database in {seconds} s; what was asked for may still be done: \
             look before asking again"
            );
            ControlError::Unavailable { reason }.into()
        })
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::routing::get;
    use axum::{Router, middleware};
    use tower_service::Service as _;

    use super::*;

    #[test]
    fn a_request_may_take_what_it_waits_for_and_no_more_than_its_principal_waits() {
        let bound = |method, path, query| bound_of(&method, path, query).as_secs();
        assert_eq!(bound(Method::GET, "/v1/volumes", ""), 25);
        assert_eq!(bound(Method::PUT, "/v1/volumes/a/export", ""), 130);
        assert_eq!(bound(Method::POST, "/v1/host/rpc/renew-leases", ""), 25);
        let follow = "/v1/host/rpc/follow-assignments";
        assert_eq!(bound(Method::POST, follow, ""), 55);
        assert_eq!(bound(Method::GET, "/v1/volumes/a", "wait=900"), 325);
        assert_eq!(bound(Method::GET, "/v1/volumes/a", "wait=x"), 25);
    }

    #[tokio::test]
    async fn what_never_answers_is_given_up() {
        let forever = get(|| async { std::future::pending::<()>().await });
        let bound: Bound = |_, _, _| Duration::from_millis(20);
        let mut router = Router::new()
            .route("/", forever)
            .layer(middleware::from_fn_with_state(bound, answer_in_time));
        let request = Request::new(Body::empty());
        let response = router.call(request).await.expect("answered");
        assert_eq!(response.status().as_u16(), 503);
    }
}
