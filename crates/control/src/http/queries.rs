//! The query parameters of each operation: only those in its description are accepted. Otherwise a
//! misspelled `dry_run` would carry out the change.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{MatchedPath, Request, State};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::Response;
use utoipa::openapi::path::{Parameter, ParameterIn};
use utoipa::openapi::schema::{Schema, SchemaType, Type};
use utoipa::openapi::{OpenApi, RefOr};

use super::{ApiError, openapi};
use crate::error::ControlError;

/// The query parameters of each operation, by path and method, and whether each may be empty.
#[derive(Clone)]
pub(super) struct KnownParameters(Arc<BTreeMap<(String, String), BTreeMap<String, bool>>>);

impl KnownParameters {
    /// The parameters that the description lists.
    pub(super) fn of(document: &OpenApi) -> Self {
        let mut known = BTreeMap::new();
        for (path, item) in &document.paths.paths {
            for (method, operation) in openapi::operations(item) {
                let parameters = operation.parameters.iter().flatten();
                let names: BTreeMap<String, bool> = parameters
                    .filter(|parameter| parameter.parameter_in == ParameterIn::Query)
                    .map(|parameter| (parameter.name.clone(), may_be_empty(parameter)))
                    .collect();
                known.insert((path.clone(), method.to_string()), names);
            }
        }
        Self(Arc::new(known))
    }
}

/// Whether the value of a parameter may be empty: a text may, a number or an enum value may not.
fn may_be_empty(parameter: &Parameter) -> bool {
    match &parameter.schema {
        Some(RefOr::T(Schema::Object(object))) => match &object.schema_type {
            SchemaType::Type(kind) => *kind == Type::String,
            SchemaType::Array(kinds) => kinds.contains(&Type::String),
            SchemaType::AnyValue => true,
        },
        _ => false,
    }
}

/// Refuses unknown query parameters.
pub(super) async fn refuse_unknown(
    State(KnownParameters(known)): State<KnownParameters>,
    path: MatchedPath,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let text = request.uri().query().unwrap_or_default();
    let method = match request.method() {
        &Method::HEAD => "GET",
        method => method.as_str(),
    };
    // An unknown method is refused by the router.
    if let Some(names) = known.get(&(path.as_str().to_owned(), method.to_owned())) {
        let parameters: Vec<(String, String)> = super::extract::query(text)?;
        for (name, value) in parameters {
            match names.get(&name) {
                Some(false) if value.is_empty() => {
                    let reason = format!("{name:?} is empty; give it a value or leave it out");
                    return Err(ControlError::invalid("query", reason).into());
                }
                Some(_) => continue,
                None => {}
            }
            if name == "dry_run" {
                let reason = "this request does not support `dry_run`; leave it out";
                return Err(ControlError::invalid("dry_run", reason).into());
            }
            let list: Vec<&str> = names.keys().map(String::as_str).collect();
            let list = match list.is_empty() {
                true => "has no parameters".to_owned(),
                false => format!("has the parameters {}", list.join(", ")),
            };
            let reason = format!(
                "{name:?} is not a parameter of {method} {}, which {list}",
                path.as_str()
            );
            return Err(ControlError::invalid("query", reason).into());
        }
    }
    Ok(next.run(request).await)
}
