//! Every request is answered in bounded time, whatever the database and its network do: with
//! `unavailable` when the time is over. The request may still be carried out.
//!
//! A dead connection to PostgreSQL (its machine lost power, the network is cut) blocks its
//! users until the operating system closes it, which takes a quarter of an hour.

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
const TIME_MAX: Duration = Duration::from_secs(25);

/// The limit for requests that wait for a host.
const TIME_WITH_HOST_MAX: Duration = Duration::from_secs(130);

/// How long a request may take.
fn bound_of(method: &Method, path: &str, query: &str) -> Duration {
    let waits = query
        .split('&')
        .find_map(|one| one.strip_prefix("wait=")?.parse().ok());
    let waits = match path.strip_prefix(RPC_PATH) {
        Some(FollowAssignments::NAME) => Duration::from_secs(FOLLOW_SECONDS_MAX),
        _ => Duration::from_secs(waits.unwrap_or(0)).min(WAIT_MAX),
    };
    let is_of_machine = path.starts_with("/v1/host/") || path.starts_with("/v1/unit/");
    let is_without_host = method == Method::GET || is_of_machine;
    waits
        + if is_without_host {
            TIME_MAX
        } else {
            TIME_WITH_HOST_MAX
        }
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
                "no answer from the database in {seconds} s; the request may still be carried out: \
                 check before repeating it"
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
    fn the_time_limit_includes_the_wait_of_the_request() {
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
    async fn a_request_without_an_answer_is_unavailable_after_its_time_limit() {
        let forever = get(|| async { std::future::pending::<()>().await });
        let bound: Bound = |_, _, _| Duration::from_millis(20);
        let mut router = Router::new()
            .route("/", forever)
            .layer(middleware::from_fn_with_state(bound, answer_in_time));
        let request = Request::new(Body::empty());
        let response = router.call(request).await.expect("a response");
        assert_eq!(response.status().as_u16(), 503);
    }
}
