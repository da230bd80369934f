//! `/healthz`, `/readyz` and `/metrics` of the API itself, on the local socket and over TLS. The
//! first two are public, for a load balancer's probe; metrics are for administrators.

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use axum::{Extension, Router};
use metrics::{CONTENT_TYPE, healthz, readyz};

use super::{ApiError, Caller};
use crate::control::Control;

pub(super) fn router() -> Router<Control> {
    Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
}

/// Whether a path is served even while requests of users are refused.
pub(super) fn is_monitoring(path: &str) -> bool {
    matches!(path, "/healthz" | "/readyz" | "/metrics")
}

async fn ready(State(control): State<Control>) -> Response {
    readyz(&control.unready_for().await)
}

async fn metrics(
    State(control): State<Control>,
    Extension(caller): Extension<Caller>,
) -> Result<Response, ApiError> {
    let principal = control.parties().principal(&caller).await?;
    principal.must_administer()?;
    let kind = [(header::CONTENT_TYPE, CONTENT_TYPE)];
    Ok((kind, control.measures().await.whole()).into_response())
}
