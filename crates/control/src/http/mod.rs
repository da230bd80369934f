//! The HTTP edge: REST under `/v1`, on D's socket and over TLS.
//!
//! A handler turns a request into one call of [`Control`] and its answer into
//! JSON; it decides nothing. Failures are problem documents (RFC 9457) with a
//! stable `code`. (What is not HTTP, and a request line of more than 64 KiB,
//! never gets here: hyper answers with a status and no body.)
//!
//! ```text
//! GET    /v1/status
//! GET    /v1/volumes                      POST   /v1/volumes
//! GET    /v1/volumes/{volume}             DELETE /v1/volumes/{volume}?wait=SECONDS
//! POST   /v1/volumes/{volume}/grow        POST   /v1/volumes/{volume}/restore
//! GET    /v1/volumes/{volume}/versions
//! PUT    /v1/volumes/{volume}/export      DELETE /v1/volumes/{volume}/export
//! GET    /v1/snapshots                    POST   /v1/snapshots?wait=SECONDS
//! GET    /v1/snapshots/{snapshot}?wait=SECONDS
//! DELETE /v1/snapshots/{snapshot}
//! GET    /v1/attachments?volume=&host=&state=
//! POST   /v1/attachments?wait=SECONDS
//! GET    /v1/attachments/{attachment}?wait=SECONDS
//! DELETE /v1/attachments/{attachment}?force=BOOL&wait=SECONDS
//! GET    /v1/units                        POST   /v1/units
//! GET    /v1/keys                         POST   /v1/keys
//! GET    /v1/keys/{key}                   DELETE /v1/keys/{key}
//! POST   /v1/keys/{key}/rotate?wait=SECONDS
//! ```
//!
//! `{volume}`, `{snapshot}` and `{key}` are names or ids. What takes long answers at
//! once with a state (`pending`, `deleting`, `retiring`), and `wait` says how long to hold
//! the answer back until that state has ended.

mod attachments;
mod extract;
mod host;
pub mod https;
mod keys;
pub mod parties;
mod problem;
mod snapshots;
mod units;
mod volumes;

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use axum::routing::{get, post, put};
use axum::{Extension, Router, middleware};
use identity::Peer;
use serde::Deserialize;
use tokio::net::UnixListener;
use world::Endpoint;
use world::real::Listener;

use crate::control::Control;
use crate::error::ControlError;

pub use extract::{Body, Name, Query};
pub use problem::ApiError;

/// Nobody is kept waiting for longer.
const WAIT_MAX: Duration = Duration::from_secs(300);

/// `?wait=SECONDS`.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default)]
struct Wait {
    wait: u64,
}

impl Wait {
    fn duration(self) -> Duration {
        Duration::from_secs(self.wait).min(WAIT_MAX)
    }
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

/// All routes. Whoever serves them says where each request came from.
pub fn router(control: Control) -> Router {
    let owners = Router::new()
        .route("/v1/status", get(units::status))
        .route("/v1/volumes", get(volumes::list).post(volumes::create))
        .route(
            "/v1/volumes/{volume}",
            get(volumes::show).delete(volumes::delete),
        )
        .route("/v1/volumes/{volume}/grow", post(volumes::grow))
        .route("/v1/volumes/{volume}/restore", post(volumes::restore))
        .route("/v1/volumes/{volume}/versions", get(volumes::versions))
        .route(
            "/v1/volumes/{volume}/export",
            put(volumes::export).delete(volumes::unexport),
        )
        .route(
            "/v1/snapshots",
            get(snapshots::list).post(snapshots::create),
        )
        .route(
            "/v1/snapshots/{snapshot}",
            get(snapshots::show).delete(snapshots::delete),
        )
        .route("/v1/units", get(units::list).post(units::add))
        .route("/v1/keys", get(keys::list).post(keys::add))
        .route("/v1/keys/{key}", get(keys::show).delete(keys::delete))
        .route("/v1/keys/{key}/rotate", post(keys::rotate))
        .merge(attachments::router())
        .layer(middleware::from_fn_with_state(
            control.clone(),
            must_administer,
        ));
    Router::new()
        .merge(owners)
        .merge(host::router())
        .with_state(control.clone())
        .merge(parties::routes(control.parties().clone()))
        .fallback(problem::no_such_route)
        .method_not_allowed_fallback(problem::no_such_method)
        .layer(middleware::from_fn(problem::refuse_long_urls))
        .layer(middleware::from_fn_with_state(control, refuse_unless_open))
}

/// Volumes are administrators' affair, until they have owners.
async fn must_administer(
    State(control): State<Control>,
    Extension(caller): Extension<Caller>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let asker = control.parties().asker(&caller).await?;
    asker.must_administer()?;
    Ok(next.run(request).await)
}

/// As it begins and ends, only hosts are heard.
async fn refuse_unless_open(
    State(control): State<Control>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    if !control.is_open() && !request.uri().path().starts_with("/v1/host/") {
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
