//! Failures, as RFC 9457 writes them.

use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::error::ControlError;
use api::types::Problem;
use api::words::ProblemCode;

/// Names have 63 letters, and moments some 30.
const URL_BYTES_MAX: usize = 8192;

/// A failure as a problem document.
#[derive(Debug)]
pub struct ApiError {
    status: StatusCode,
    code: ProblemCode,
    detail: String,
    field: Option<&'static str>,
}

impl From<ControlError> for ApiError {
    fn from(error: ControlError) -> Self {
        let status = match &error {
            ControlError::Invalid { .. } => StatusCode::BAD_REQUEST,
            ControlError::NotFound { .. } => StatusCode::NOT_FOUND,
            ControlError::Exists { .. }
            | ControlError::Conflict { .. }
            | ControlError::IdempotencyConflict { .. } => StatusCode::CONFLICT,
            ControlError::Unauthenticated { .. } => StatusCode::UNAUTHORIZED,
            ControlError::Forbidden { .. } | ControlError::QuotaExceeded { .. } => {
                StatusCode::FORBIDDEN
            }
            ControlError::NoCapacity { .. } => StatusCode::INSUFFICIENT_STORAGE,
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
        let code = self.code.as_str();
        let problem = Problem {
            kind: format!("urn:scree:problem:{code}"),
            title: code.replace('_', " "),
            status: self.status.as_u16(),
            detail: self.detail,
            code: code.to_owned(),
            field: self.field.map(str::to_owned),
            request_id: None,
        };
        let mut response = (self.status, axum::Json(&problem)).into_response();
        // `request_id::identify` adds the id of the request, and logs the failure.
        response.extensions_mut().insert(problem);
        response.headers_mut().insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        );
        if self.status == StatusCode::UNAUTHORIZED {
            // A client with a newer certificate presents it on a new connection.
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(header::CONNECTION, close);
        }
        response
    }
}

impl ApiError {
    /// A malformed request.
    pub(super) fn mistake(status: StatusCode, detail: String) -> Self {
        Self {
            status,
            code: ProblemCode::InvalidArgument,
            detail,
            field: None,
        }
    }
}

/// Refuses a URL that is too long before it is parsed.
pub(super) async fn refuse_long_urls(request: Request, next: Next) -> Result<Response, ApiError> {
    let uri = request.uri();
    let bytes = uri.path_and_query().map_or(0, |text| text.as_str().len());
    if bytes > URL_BYTES_MAX {
        let detail = format!("the URL has {bytes} bytes; the maximum is {URL_BYTES_MAX}");
        return Err(ApiError::mistake(StatusCode::URI_TOO_LONG, detail));
    }
    // No name contains it, and PostgreSQL accepts none.
    if uri
        .path_and_query()
        .is_some_and(|text| text.as_str().contains("%00"))
    {
        let detail = "the URL contains a NUL character (%00)".to_owned();
        return Err(ApiError::mistake(StatusCode::BAD_REQUEST, detail));
    }
    Ok(next.run(request).await)
}

pub(super) async fn no_such_route() -> ApiError {
    ApiError {
        status: StatusCode::NOT_FOUND,
        code: ProblemCode::NotFound,
        detail: "there is no such path under /v1".to_owned(),
        field: None,
    }
}

pub(super) async fn no_such_method() -> ApiError {
    ApiError {
        status: StatusCode::METHOD_NOT_ALLOWED,
        code: ProblemCode::InvalidArgument,
        detail: "the path does not support the method".to_owned(),
        field: None,
    }
}
