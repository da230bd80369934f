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
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::host;
use crate::control::Control;
use crate::declared_metrics::{HTTP_REQUEST_DURATION, HTTP_REQUESTS};

/// Up to what a request took, in seconds. The last are for those that wait.
const SECONDS: [f64; 9] = [0.005, 0.01, 0.025, 0.1, 0.25, 1.0, 5.0, 30.0, 120.0];

/// The label for unknown routes and methods.
const OTHER: &str = "other";

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Route {
    method: &'static str,
    route: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Ended {
    method: &'static str,
    route: String,
    status: &'static str,
}

/// The counts of API requests.
#[derive(Clone)]
pub(crate) struct Requests {
    ended: Family<Ended, Counter>,
    took: Family<Route, Histogram, fn() -> Histogram>,
}

impl Default for Requests {
    fn default() -> Self {
        Self {
            ended: Family::default(),
            took: Family::new_with_constructor(|| Histogram::new(SECONDS)),
        }
    }
}

impl Requests {
    pub fn register(&self, registry: &mut Registry) {
        HTTP_REQUESTS.register(registry, self.ended.clone());
        HTTP_REQUEST_DURATION.register(registry, self.took.clone());
    }
}

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
    let status = match response.status().as_u16() / 100 {
        1 => "1xx",
        2 => "2xx",
        3 => "3xx",
        4 => "4xx",
        _ => "5xx",
    };
    let requests = &control.inner.health.requests;
    let labels = Route {
        method,
        route: route.clone(),
    };
    requests
        .took
        .get_or_create(&labels)
        .observe(took.as_secs_f64());
    let labels = Ended {
        method,
        route,
        status,
    };
    requests.ended.get_or_create(&labels).inc();
    response
}

/// The route of a request; of the host RPC, with the name of the call.
fn route_of(request: &Request) -> String {
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
fn known(method: &Method) -> &'static str {
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
    async fn what_is_given_up_is_counted_too() {
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
        let ended = Ended {
            method,
            route: route.clone(),
            status: "5xx",
        };
        assert_eq!(requests.ended.get_or_create(&ended).get(), 1);
        let took = requests.took.get(&Route { method, route });
        assert!(took.is_some(), "how long it took is not counted");
    }
}
