//! How many requests there are, how they end, and how long they take.
//!
//! A request is counted by its *route*, `/v1/volumes/{volume}`, never by its path, so the number of
//! time series is that of routes and methods. Requests that wait by design (`?wait=`, a host's
//! assignments) count with the time they wait.

use api::host::{HostCall, RPC_PATH};
use axum::extract::{MatchedPath, Request, State};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::Response;

use super::host;
use crate::control::Control;

/// The label for unknown routes and methods.
const OTHER: &str = "other";

/// Counts every request that is answered.
pub(super) async fn count(
    State(control): State<Control>,
    request: Request,
    next: Next,
) -> Response {
    let method = known(request.method());
    let route = route_of(&request);
    let clock = &control.inner.world.clock;
    let begun = clock.monotonic();
    let response = next.run(request).await;
    let took = clock.monotonic().saturating_sub(begun);
    let requests = &control.inner.health.requests;
    requests.record(method, route, response.status(), took);
    response
}

/// The route of a request; of the host RPC, with the name of the call.
pub(super) fn route_of(request: &Request) -> String {
    let Some(path) = request.extensions().get::<MatchedPath>() else {
        return OTHER.to_owned();
    };
    if path.as_str() != host::ROUTE {
        return path.as_str().to_owned();
    }
    let name = request.uri().path().strip_prefix(RPC_PATH);
    let name = name.and_then(HostCall::known_name).unwrap_or(OTHER);
    format!("{RPC_PATH}{name}")
}

/// Clients can invent methods.
pub(super) fn known(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::PUT => "PUT",
        Method::POST => "POST",
        Method::DELETE => "DELETE",
        Method::HEAD => "HEAD",
        _ => OTHER,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum::Router;
    use axum::body::Body;
    use axum::routing::get;
    use tower_service::Service as _;

    use super::*;
    use crate::control::started_in;

    /// It was counted within the bound once, and what took longest was in no number.
    #[tokio::test]
    async fn requests_that_time_out_are_counted() {
        let folder = tempfile::tempdir().expect("a folder");
        let control = started_in(folder.path()).await;
        let forever = get(|| async { std::future::pending::<()>().await });
        let mut router = super::super::bounded_and_counted(
            Router::new().route("/v1/volumes/{volume}", forever),
            control.clone(),
            |_, _, _| Duration::from_millis(20),
        );
        let mut request = Request::new(Body::empty());
        *request.uri_mut() = "/v1/volumes/disk".parse().expect("a URI");
        let response = router.call(request).await.expect("answered");
        assert_eq!(response.status().as_u16(), 503);
        let (method, route) = ("GET", "/v1/volumes/{volume}".to_owned());
        let requests = &control.inner.health.requests;
        assert_eq!(requests.answered(method, &route, "5xx"), 1);
        assert!(
            requests.is_timed(method, &route),
            "how long it took is not counted"
        );
    }
}
