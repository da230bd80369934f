//! The HTTP edge: REST under `/v1`, on the local socket and over TLS.
//!
//! A handler turns a request into one call of [`Control`] or
//! [`AuthorizedRequest`](crate::AuthorizedRequest) and the result into JSON; it decides nothing.
//! Failures are problem documents (RFC 9457) with a stable `code`. (Data that is not HTTP, and
//! request lines longer than 64 KiB, never get here: hyper answers with a status and no body.)
//!
//! The routes are declared beside their handlers, from which `docs/openapi.json` is generated
//! (`openapi.rs`). The requests of hosts are not in it.
//!
//! `{volume}`, `{snapshot}` and `{key}` are names or ids. A long operation is answered at once with
//! a state (`pending`, `deleting`, `retiring`); `wait` says how long to hold back the answer until
//! that state has ended.

mod attachments;
mod bounded;
mod chains;
mod extract;
mod health;
mod host;
pub mod https;
mod images;
mod keys;
mod metered;
mod openapi;
mod parties;
mod principal;
mod problem;
mod projects;
mod queries;
mod repair;
mod request_id;
mod snapshots;
mod unit;
mod units;
mod volume_audits;
mod volumes;

use std::io;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use axum::routing::get;
use axum::{Extension, Json, Router, middleware};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use tokio::net::UnixListener;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use world::Endpoint;
use world::real::Listener;

use crate::control::Control;
use crate::error::ControlError;

pub use crate::parties::Caller;
pub use extract::{Body, Name, Query};
pub use problem::ApiError;

/// The longest `wait`.
const WAIT_MAX: Duration = Duration::from_secs(300);

/// How long to wait.
#[derive(Debug, Clone, Copy, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default)]
struct Wait {
    /// How long to hold back the answer while the operation runs, in seconds.
    #[param(maximum = 300)]
    #[serde(deserialize_with = "wait_seconds")]
    wait: u64,
}

impl Wait {
    fn duration(self) -> Duration {
        Duration::from_secs(self.wait)
    }
}

/// A longer wait is refused, since it would not be honored.
fn wait_seconds<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    let seconds = u64::deserialize(from)?;
    if seconds > WAIT_MAX.as_secs() {
        let longest = WAIT_MAX.as_secs();
        return Err(D::Error::custom(format!(
            "wait={seconds} is too long; wait for up to {longest} seconds, and repeat the request"
        )));
    }
    Ok(seconds)
}

/// The routes of users, with their description.
fn users() -> OpenApiRouter<Control> {
    OpenApiRouter::with_openapi(openapi::base_document())
        .merge(volumes::router())
        .merge(snapshots::router())
        .merge(attachments::router())
        .merge(chains::router())
        .merge(images::router())
        .merge(volume_audits::router())
        .merge(projects::router())
        .merge(units::router())
        .merge(repair::router())
        .merge(keys::router())
        .merge(parties::router())
}

/// The API's description, as OpenAPI 3.1 in JSON.
#[must_use]
pub fn description() -> utoipa::openapi::OpenApi {
    let (_, document) = users().split_for_parts();
    openapi::complete(document)
}

async fn describe() -> Json<utoipa::openapi::OpenApi> {
    Json(description())
}

/// All routes. The server adds the [`Caller`] of each request.
pub fn router(control: Control) -> Router {
    let (users, document) = users().split_for_parts();
    let known = queries::KnownParameters::of(&openapi::complete(document));
    let users = users.route_layer(middleware::from_fn_with_state(
        known,
        queries::refuse_unknown,
    ));
    let router = Router::new()
        .merge(users)
        .merge(host::router())
        .merge(unit::router())
        .merge(health::router())
        .route("/v1/openapi.json", get(describe))
        .with_state(control.clone())
        .fallback(problem::no_such_route)
        .method_not_allowed_fallback(problem::no_such_method)
        .layer(middleware::from_fn(principal::note_idempotency))
        .layer(middleware::from_fn(problem::refuse_long_urls))
        .layer(middleware::from_fn_with_state(
            control.clone(),
            refuse_unless_open,
        ));
    bounded_and_counted(router, control, bounded::BOUND)
}

/// Limits the time of every request, counts it, and gives it an id. Requests that exceed their
/// limit count and have an id, too.
fn bounded_and_counted(router: Router, control: Control, bound: bounded::Bound) -> Router {
    router
        .layer(middleware::from_fn_with_state(
            bound,
            bounded::answer_in_time,
        ))
        .layer(middleware::from_fn_with_state(
            control.clone(),
            metered::count,
        ))
        .layer(middleware::from_fn_with_state(
            control,
            request_id::identify,
        ))
}

/// While the controller starts and stops, only requests of hosts and unit daemons are served.
async fn refuse_unless_open(
    State(control): State<Control>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let path = request.uri().path();
    let is_always = path.starts_with("/v1/host/")
        || path.starts_with("/v1/unit/")
        || health::is_monitoring(path);
    if !control.is_open() && !is_always {
        let reason = "`scree` is starting or stopping; try again when it is ready".to_owned();
        return Err(ControlError::Unavailable { reason }.into());
    }
    Ok(next.run(request).await)
}

/// A listening Unix socket. Its file is removed when it is dropped.
pub struct ApiListener {
    listener: UnixListener,
    _name: Listener,
}

/// Listens at `socket`, for this user only.
///
/// # Errors
/// As [`Listener::bind`].
pub fn listen(socket: &Path) -> io::Result<ApiListener> {
    let name = Listener::bind(&Endpoint::Unix(socket.to_owned()), 0o600)?;
    let listener = std::os::unix::net::UnixListener::from(name.as_fd().try_clone_to_owned()?);
    listener.set_nonblocking(true)?;
    Ok(ApiListener {
        listener: UnixListener::from_std(listener)?,
        _name: name,
    })
}

/// Serves the API until `stop` resolves and running requests are answered.
///
/// # Errors
/// The operating system's error.
pub async fn serve(
    control: Control,
    listener: ApiListener,
    stop: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let router = router(control).layer(Extension(Caller::Local));
    axum::serve(listener.listener, router)
        .with_graceful_shutdown(stop)
        .await
}
