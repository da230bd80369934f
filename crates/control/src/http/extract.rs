//! What handlers extract from a request. Mistakes in it are answered with problem documents.

use axum::body::{Body as RawBody, Bytes};
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::StatusCode;
use axum::http::request::Parts;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::Value;
use serde_json::error::Category;

use super::ApiError;

/// Longer bodies are parsed once only: a tree of values takes far more memory than the text. Only
/// hosts send such bodies.
const TREE_BYTES_MAX: usize = 1 << 20;

/// A body that is one JSON object.
pub struct Body<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let (parts, body) = request.into_parts();
        let bytes = bytes_of(Request::from_parts(parts.clone(), body)).await?;
        let again = Request::from_parts(parts, RawBody::from(bytes.clone()));
        // It says what is wrong with the request's head as well.
        match axum::Json::<IgnoredAny>::from_request(again, state).await {
            Ok(_) => read_json(&bytes, |json| serde_json::from_slice(json)).map(Self),
            Err(error) => Err(ApiError::mistake(error.status(), error.body_text())),
        }
    }
}

/// Reads the body of a request, as far as the limit of its route allows.
pub async fn bytes_of(request: Request) -> Result<Bytes, ApiError> {
    let bytes = Bytes::from_request(request, &())
        .await
        .map_err(|error| ApiError::mistake(error.status(), error.body_text()))?;
    // No stored text contains it, and PostgreSQL accepts none.
    if bytes.windows(6).any(|six| six == b"\\u0000") {
        return Err(ApiError::mistake(
            StatusCode::UNPROCESSABLE_ENTITY,
            "the body contains a NUL character (\\u0000)".to_owned(),
        ));
    }
    Ok(bytes)
}

/// Reads one JSON object. In a short one, whole numbers may be written as `4096.0`.
pub fn read_json<T>(
    bytes: &[u8],
    read: impl Fn(&[u8]) -> serde_json::Result<T>,
) -> Result<T, ApiError> {
    // A struct is read from an array as well, its fields in order.
    let first = bytes.iter().find(|byte| !byte.is_ascii_whitespace());
    let is_array = first == Some(&b'[');
    let error = match read(bytes) {
        Ok(_) if is_array => {
            return Err(ApiError::mistake(
                StatusCode::UNPROCESSABLE_ENTITY,
                "the body is an array; write it as an object, with its fields' names".to_owned(),
            ));
        }
        Ok(read) => return Ok(read),
        Err(error) => error,
    };
    let is_data = error.classify() == Category::Data;
    let may_be_read = is_data && !is_array && bytes.len() <= TREE_BYTES_MAX;
    let again = may_be_read.then(|| with_whole_numbers(bytes)).flatten();
    if let Some(read) = again.and_then(|json| read(&json).ok()) {
        return Ok(read);
    }
    let status = match is_data {
        true => StatusCode::UNPROCESSABLE_ENTITY,
        false => StatusCode::BAD_REQUEST,
    };
    let detail = format!("the body cannot be read: {error}");
    Err(ApiError::mistake(status, detail))
}

/// The text of a body whose whole numbers are written as `4096.0`, with integers in their place:
/// to JSON Schema, and so to our description, that is an integer, and some clients write so.
fn with_whole_numbers(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut value: Value = serde_json::from_slice(bytes).ok()?;
    make_whole(&mut value).then_some(())?;
    serde_json::to_vec(&value).ok()
}

/// Writes numbers without a fraction as integers; whether there was one.
fn make_whole(value: &mut Value) -> bool {
    /// Up to here each integer is a number of its own.
    const EXACT_MAX: f64 = 9_007_199_254_740_992.0;

    match value {
        // All of them, not just the first.
        Value::Object(fields) => fields.values_mut().map(make_whole).filter(|is| *is).count() > 0,
        Value::Array(items) => items.iter_mut().map(make_whole).filter(|is| *is).count() > 0,
        Value::Number(number) if number.is_f64() => {
            let whole = number
                .as_f64()
                .filter(|number| number.fract() == 0.0 && (0.0..=EXACT_MAX).contains(number));
            if let Some(whole) = whole {
                *value = Value::from(whole as u64);
            }
            whole.is_some()
        }
        _ => false,
    }
}

/// The query parameters. One that may be repeated is a list.
pub struct Query<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Query<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        query(parts.uri.query().unwrap_or_default()).map(Self)
    }
}

/// Reads what follows the `?`.
pub fn query<T: DeserializeOwned>(text: &str) -> Result<T, ApiError> {
    serde_html_form::from_str(text).map_err(|error| {
        ApiError::mistake(
            StatusCode::BAD_REQUEST,
            format!("the query cannot be parsed: {error}"),
        )
    })
}

/// The name or id in the path.
pub struct Name(pub String);

impl<S: Send + Sync> FromRequestParts<S> for Name {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        match axum::extract::Path::<String>::from_request_parts(parts, state).await {
            Ok(axum::extract::Path(name)) => Ok(Self(name)),
            Err(error) => Err(ApiError::mistake(error.status(), error.body_text())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The last one was read as another number, which has a fraction.
    #[test]
    fn whole_numbers_may_be_written_with_a_fraction_of_zero() {
        for (text, whole) in [
            ("4096.0", 4096),
            ("1e3", 1000),
            ("2250931621588379.0", 2_250_931_621_588_379_u64),
        ] {
            let read = with_whole_numbers(format!("[{text}]").as_bytes());
            let expected = format!("[{whole}]").into_bytes();
            assert_eq!(read, Some(expected), "{text}");
        }
        assert_eq!(with_whole_numbers(b"[1.5]"), None);
    }
}
