//! The HTTP edge: REST under `/v1`, on D's socket and over TLS.
//!
//! A handler turns a request into one call of [`Control`] and its answer into
//! JSON; it decides nothing. Failures are problem documents (RFC 9457) with a
//! stable `code`. (What is not HTTP, and a request line of more than 64 KiB,
//! never gets here: hyper answers with a status and no body.)
//!
//! The routes are written beside their handlers, from which `docs/openapi.json`
//! is made (`openapi.rs`). What hosts ask is not in it.
//!
//! `{volume}`, `{snapshot}` and `{key}` are names or ids. What takes long answers at
//! once with a state (`pending`, `deleting`, `retiring`), and `wait` says how long to hold
//! the answer back until that state has ended.

mod asking;
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
mod problem;
mod projects;
mod queries;
mod repair;
mod snapshots;
mod unit;
mod units;
mod volume_audits;
mod volumes;

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::time::Duration;

use auth::Peer;
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

pub use extract::{Body, Name, Query};
pub(crate) use metered::Requests;
pub use problem::ApiError;

/// Nobody is kept waiting for longer.
const WAIT_MAX: Duration = Duration::from_secs(300);

/// How long to wait.
#[derive(Debug, Clone, Copy, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default)]
struct Wait {
    /// How long to hold the answer back while something is on its way, in
    /// seconds.
    #[param(maximum = 300)]
    #[serde(deserialize_with = "wait_seconds")]
    wait: u64,
}

impl Wait {
    fn duration(self) -> Duration {
        Duration::from_secs(self.wait)
    }
}

/// Whoever asks for longer would believe that to be waited.
fn wait_seconds<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    let seconds = u64::deserialize(from)?;
    if seconds > WAIT_MAX.as_secs() {
        let longest = WAIT_MAX.as_secs();
        return Err(D::Error::custom(format!(
            "wait={seconds} is too long; ask for up to {longest} seconds, and again"
        )));
    }
    Ok(seconds)
}

/// Where a request came from.
#[derive(Debug, Clone)]
pub enum Caller {
    /// From D's socket, which only one user of this machine can open.
    Local,
    /// Over TLS.
    Remote {
        /// The address.
        address: SocketAddr,
        /// The certificate's holder, if one was shown.
        peer: Option<Peer>,
    },
}

/// What users ask, and how it is described.
fn users() -> OpenApiRouter<Control> {
    OpenApiRouter::with_openapi(openapi::beginning())
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

/// All routes. Whoever serves them says where each request came from.
pub fn router(control: Control) -> Router {
    let (users, document) = users().split_for_parts();
    let known = queries::Known::of(&openapi::complete(document));
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
        .layer(middleware::from_fn(asking::note_idempotency))
        .layer(middleware::from_fn(problem::refuse_long_urls))
        .layer(middleware::from_fn_with_state(
            control.clone(),
            refuse_unless_open,
        ));
    bounded_and_counted(router, control, bounded::BOUND)
}

/// Every request ends within its bound, and is counted: outside of all, so that
/// what is given up is counted, too.
fn bounded_and_counted(router: Router, control: Control, bound: bounded::Bound) -> Router {
    router
        .layer(middleware::from_fn_with_state(
            bound,
            bounded::answer_in_time,
        ))
        .layer(middleware::from_fn_with_state(control, metered::count))
}

/// As it begins and ends, only hosts and unit daemons are heard.
async fn refuse_unless_open(
    State(control): State<Control>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let path = request.uri().path();
    let is_always = path.starts_with("/v1/host/")
        || path.starts_with("/v1/unit/")
        || health::is_for_watchers(path);
    if !control.is_open() && !is_always {
        let reason = "`scree` is starting or ending; ask again when it is ready".to_owned();
        return Err(ControlError::Unavailable { reason }.into());
    }
    Ok(next.run(request).await)
}

/// Where the API listens. Its name goes with it.
pub struct ApiListener {
    listener: UnixListener,
    _name: Listener,
}

/// Listens at `socket`, for this user only, whoever can enter the folder.
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

/// Serves the API until `stop` resolves and the requests under way are
/// answered.
///
/// # Errors
/// As the operating system says.
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
