//! The principal of a request, and the parameters that all changes have: what handlers extract
//! first.
//!
//! `Idempotency-Key: KEY` makes a creation repeatable: the key stands for the method, the path and
//! the body, whose JSON is compared by value. `?dry_run=true` checks everything and changes
//! nothing.

use aws_lc_rs::digest;
use axum::body::{Body as RawBody, to_bytes};
use axum::extract::{FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use serde::Deserialize;
use utoipa::IntoParams;

use super::{ApiError, Caller, Query};
use crate::authorized_request::AuthorizedRequest;
use crate::control::Control;
use crate::database::{Idempotency, Page, Principal};
use crate::error::ControlError;

/// The header's name.
pub(super) const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// The longest idempotency key, in bytes.
pub(super) const IDEMPOTENCY_KEY_BYTES_MAX: usize = 255;

/// The longest body that is read, in bytes: axum's limit.
const BODY_BYTES_MAX: usize = 2 << 20;

/// The largest and the default number of items on a page.
const LIMIT_MAX: u32 = 1000;
const LIMIT: u32 = 100;

/// A request of an administrator.
pub(super) struct Administrator(pub AuthorizedRequest);

/// The parameters of every change. [`queries`](super::queries) has already refused them for
/// operations whose description does not list them.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ChangeParameters {
    dry_run: bool,
}

impl FromRequestParts<Control> for Principal {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, control: &Control) -> Result<Self, ApiError> {
        let caller = caller_of(parts)?;
        let mut principal = control.parties().principal(caller).await?;
        principal.idempotency = parts.extensions.get::<Idempotency>().cloned();
        let Query(how) = Query::<ChangeParameters>::from_request_parts(parts, control).await?;
        principal.is_dry_run = how.dry_run;
        Ok(principal)
    }
}

impl FromRequestParts<Control> for AuthorizedRequest {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, control: &Control) -> Result<Self, ApiError> {
        let authorized = control.authorized(Principal::from_request_parts(parts, control).await?);
        authorized.must_be_user()?;
        Ok(authorized)
    }
}

impl FromRequestParts<Control> for Administrator {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, control: &Control) -> Result<Self, ApiError> {
        let authorized = AuthorizedRequest::from_request_parts(parts, control).await?;
        authorized.must_administer()?;
        Ok(Self(authorized))
    }
}

/// The [`Caller`] that the server added to a request.
///
/// # Errors
/// [`ControlError::Internal`] if the server added none.
pub(super) fn caller_of(parts: &Parts) -> Result<&Caller, ControlError> {
    let caller = parts.extensions.get::<Caller>();
    caller.ok_or_else(|| ControlError::Internal {
        reason: "the request has no caller".to_owned(),
    })
}

/// The page of a list to return.
#[derive(Debug, Clone, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default)]
pub(super) struct Paging {
    /// The `next` of the previous page.
    after: Option<String>,
    /// The largest number of items; 100 by default.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
}

impl Paging {
    /// # Errors
    /// [`ControlError::Invalid`].
    pub(super) fn page(self) -> Result<Page, ControlError> {
        let count_max = self.limit.unwrap_or(LIMIT);
        if !(1..=LIMIT_MAX).contains(&count_max) {
            let reason = format!("a page has 1 to {LIMIT_MAX} items, not {count_max}");
            return Err(ControlError::invalid("limit", reason));
        }
        Ok(Page {
            after: self.after.unwrap_or_default(),
            count_max,
        })
    }
}

/// The page of `rows`, of which one more was read than fits on a page.
pub(super) fn page_of<R, T>(
    mut rows: Vec<R>,
    page: &Page,
    id: impl Fn(&R) -> String,
    shown: impl Fn(R) -> T,
) -> api::types::Page<T> {
    let has_more = rows.len() > page.count_max as usize;
    rows.truncate(page.count_max as usize);
    api::types::Page {
        next: rows.last().filter(|_| has_more).map(id),
        items: rows.into_iter().map(shown).collect(),
    }
}

/// Adds the idempotency key of a request, and a hash of the request, to its extensions.
pub(super) async fn note_idempotency(request: Request, next: Next) -> Result<Response, ApiError> {
    let Some(key) = request.headers().get(IDEMPOTENCY_KEY) else {
        return Ok(next.run(request).await);
    };
    if request.method() != Method::POST {
        return Ok(next.run(request).await);
    }
    let is_plain = |key: &&str| {
        let length = 1..=IDEMPOTENCY_KEY_BYTES_MAX;
        length.contains(&key.len()) && key.bytes().all(|byte| byte.is_ascii_graphic())
    };
    let key = key.to_str().ok().filter(is_plain).map(str::to_owned);
    let key = key.ok_or_else(|| {
        ControlError::invalid(
            "Idempotency-Key",
            format!("use 1 to {IDEMPOTENCY_KEY_BYTES_MAX} printable ASCII characters, no spaces"),
        )
    })?;
    let (mut parts, body) = request.into_parts();
    let body = to_bytes(body, BODY_BYTES_MAX)
        .await
        .map_err(|error| ApiError::mistake(StatusCode::PAYLOAD_TOO_LARGE, error.to_string()))?;
    let meaning = match serde_json::from_slice::<serde_json::Value>(&body) {
        Ok(value) => value.to_string().into_bytes(),
        Err(_) => body.to_vec(),
    };
    let mut hash = digest::Context::new(&digest::SHA256);
    for part in [
        parts.method.as_str().as_bytes(),
        parts.uri.path().as_bytes(),
        &meaning,
    ] {
        hash.update(&(part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    let hash = hash.finish();
    let hex = hash.as_ref().iter().map(|byte| format!("{byte:02x}"));
    let request = hex.collect();
    parts.extensions.insert(Idempotency { key, request });
    Ok(next
        .run(Request::from_parts(parts, RawBody::from(body)))
        .await)
}
