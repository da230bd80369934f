//! The id of a request: with it, a person who got a failure finds the controller's line about it.
//!
//! ```text
//!  1. draw      64 random bits for each request; an id that the client sends is ignored
//!  2. answer    in the header X-Request-Id, and in `request_id` of a problem
//!  3. log       the failures of the controller itself (5xx), with the id, the route and the caller
//! ```
//!
//! The id belongs to one HTTP request. A repetition under the same idempotency key has another.

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, header};
use axum::middleware::Next;
use axum::response::Response;

use api::types::Problem;
use world::Random;

use super::{Caller, metered};
use crate::control::Control;

/// The header's name.
pub(super) const REQUEST_ID: &str = "x-request-id";

/// Gives a request an id, and its answer the same.
pub(super) async fn identify(
    State(control): State<Control>,
    request: Request,
    next: Next,
) -> Response {
    let id = draw(&*control.inner.world.random);
    let method = metered::known(request.method());
    let route = metered::route_of(&request);
    let caller = request.extensions().get::<Caller>().cloned();
    let mut response = next.run(request).await;
    if let Some(mut problem) = response.extensions_mut().remove::<Problem>() {
        if response.status().is_server_error() {
            tracing::warn!(
                request_id = id,
                method,
                route,
                caller = caller.as_ref().and_then(name_of),
                code = problem.code,
                detail = problem.detail,
                "controller failed to answer request"
            );
        }
        problem.request_id = Some(id.clone());
        if let Ok(body) = serde_json::to_vec(&problem) {
            response.headers_mut().remove(header::CONTENT_LENGTH);
            *response.body_mut() = Body::from(body);
        }
    }
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    response
}

fn draw(random: &dyn Random) -> String {
    let mut bytes = [0; 8];
    random.fill(&mut bytes);
    format!("{:016x}", u64::from_be_bytes(bytes))
}

/// The caller's name by its certificate, or its address if it presented none.
fn name_of(caller: &Caller) -> Option<String> {
    match caller {
        Caller::Local => None,
        Caller::Remote { address, peer } => {
            let subject = peer.as_ref().and_then(|peer| peer.subject().ok());
            let name = subject.map(|subject| subject.to_string());
            Some(name.unwrap_or_else(|| address.to_string()))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::sync::Arc;

    use axum::body::to_bytes;
    use axum::routing::get;
    use axum::{Router, middleware};
    use parking_lot::Mutex;
    use serde_json::Value;
    use tower_service::Service as _;

    use super::super::ApiError;
    use super::*;
    use crate::control::started_in;
    use crate::error::ControlError;

    /// The lines that are logged.
    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    async fn fail() -> Result<(), ApiError> {
        let reason = "the database is on fire".to_owned();
        Err(ControlError::Internal { reason }.into())
    }

    async fn refuse() -> Result<(), ApiError> {
        let reason = "the volume is attached".to_owned();
        Err(ControlError::Conflict { reason }.into())
    }

    /// The answer's id by its header and by its problem, and what was logged meanwhile.
    async fn answer(control: &Control, path: &str) -> (String, Value, String) {
        let mut router = Router::new()
            .route("/v1/volumes/{volume}", get(fail))
            .route("/v1/snapshots/{snapshot}", get(refuse))
            .layer(middleware::from_fn_with_state(control.clone(), identify));
        let log = Log::default();
        let lines = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(move || lines.clone())
            .finish();
        let _guard = tracing::subscriber::set_default(subscriber);
        let mut request = Request::new(Body::empty());
        *request.uri_mut() = path.parse().expect("a URI");
        let sent = HeaderValue::from_static("chosen-by-the-client");
        request.headers_mut().insert(REQUEST_ID, sent);
        let response = router.call(request).await.expect("answered");
        let id = response.headers()[REQUEST_ID].to_str().expect("text");
        let id = id.to_owned();
        let body = to_bytes(response.into_body(), 1 << 20).await.expect("read");
        let problem = serde_json::from_slice(&body).expect("JSON");
        let logged = String::from_utf8(log.0.lock().clone()).expect("text");
        (id, problem, logged)
    }

    #[tokio::test]
    async fn a_failure_has_the_same_id_in_the_answer_and_in_the_log() {
        let folder = tempfile::tempdir().expect("a folder");
        let control = started_in(folder.path()).await;
        let (id, problem, logged) = answer(&control, "/v1/volumes/disk").await;
        assert_eq!(id.len(), 16);
        assert!(id.bytes().all(|byte| byte.is_ascii_hexdigit()), "{id}");
        assert_eq!(problem["request_id"], id);
        assert_eq!(problem["status"], 500);
        for part in [
            &format!("request_id=\"{id}\""),
            "method=\"GET\"",
            "route=\"/v1/volumes/{volume}\"",
            "the database is on fire",
        ] {
            assert!(logged.contains(part), "{part} in {logged}");
        }
        let (other, ..) = answer(&control, "/v1/volumes/disk").await;
        assert_ne!(other, id);
    }

    #[tokio::test]
    async fn a_refused_request_has_an_id_and_is_not_logged() {
        let folder = tempfile::tempdir().expect("a folder");
        let control = started_in(folder.path()).await;
        let (id, problem, logged) = answer(&control, "/v1/snapshots/noon").await;
        assert_eq!(problem["request_id"], id);
        assert_eq!(problem["code"], "conflict");
        assert!(!logged.contains(&id), "{logged}");
    }
}
