//! Failures, as RFC 9457 writes them.

use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::de::DeserializeOwned;

use super::types::Problem;
use crate::error::ControlError;

/// A failure on its way out.
#[derive(Debug)]
pub struct ApiError {
    status: StatusCode,
    code: &'static str,
    detail: String,
    field: Option<&'static str>,
}

impl From<ControlError> for ApiError {
    fn from(error: ControlError) -> Self {
        let status = match &error {
            ControlError::Invalid { .. } => StatusCode::BAD_REQUEST,
            ControlError::NotFound { .. } => StatusCode::NOT_FOUND,
            ControlError::Exists { .. } | ControlError::Conflict { .. } => StatusCode::CONFLICT,
            ControlError::Unavailable { .. } => StatusCode::SERVICE_UNAVAILABLE,
            ControlError::Internal { .. } => StatusCode::INTERNAL_SERVER_ERROR,
        };
        let field = match &error {
            ControlError::Invalid { field, .. } => Some(*field),
            _ => None,
        };
        Self {
            status,
            code: error.code(),
            detail: error.to_string(),
            field,
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        if self.status.is_server_error() {
            tracing::warn!(code = self.code, detail = self.detail, "a request failed");
        }
        let problem = Problem {
            kind: format!("urn:scree:problem:{}", self.code),
            title: self.code.replace('-', " "),
            status: self.status.as_u16(),
            detail: self.detail,
            code: self.code.to_owned(),
            field: self.field.map(str::to_owned),
        };
        let mut response = (self.status, axum::Json(problem)).into_response();
        response.headers_mut().insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        );
        response
    }
}

/// A JSON body whose mistakes come back as problems too.
pub struct Body<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        match axum::Json::<T>::from_request(request, state).await {
            Ok(axum::Json(body)) => Ok(Self(body)),
            Err(rejection) => Err(ApiError {
                status: rejection.status(),
                code: "invalid-argument",
                detail: rejection.body_text(),
                field: None,
            }),
        }
    }
}

/// What follows the `?`; its mistakes come back as problems too.
pub struct Query<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Query<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        match axum::extract::Query::<T>::from_request_parts(parts, state).await {
            Ok(axum::extract::Query(query)) => Ok(Self(query)),
            Err(rejection) => Err(ApiError {
                status: rejection.status(),
                code: "invalid-argument",
                detail: rejection.body_text(),
                field: None,
            }),
        }
    }
}

pub(super) async fn no_such_route() -> ApiError {
    ApiError {
        status: StatusCode::NOT_FOUND,
        code: "not-found",
        detail: "there is no such path under /v1".to_owned(),
        field: None,
    }
}

pub(super) async fn no_such_method() -> ApiError {
    ApiError {
        status: StatusCode::METHOD_NOT_ALLOWED,
        code: "invalid-argument",
        detail: "this path does not have that method".to_owned(),
        field: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Wait;

    #[tokio::test]
    async fn a_mistake_after_the_question_mark_is_a_problem_document() {
        let request = axum::http::Request::builder().uri("/v1/snapshots?wait=abc");
        let (mut parts, ()) = request.body(()).expect("a request").into_parts();
        let mistake = match Query::<Wait>::from_request_parts(&mut parts, &()).await {
            Ok(_) => panic!("abc is no number"),
            Err(mistake) => mistake.into_response(),
        };
        assert_eq!(mistake.status(), StatusCode::BAD_REQUEST);
        let kind = &mistake.headers()[header::CONTENT_TYPE];
        assert_eq!(kind, "application/problem+json");
    }
}
