//! What may follow the `?` of each call: what its description names, and nothing
//! else. Whoever misspells `dry_run` would have it done.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use axum::extract::{MatchedPath, Request, State};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::Response;
use utoipa::openapi::OpenApi;
use utoipa::openapi::path::ParameterIn;

use super::{ApiError, openapi};
use crate::error::ControlError;

/// The parameters of each call, by path and method.
#[derive(Clone)]
pub(super) struct Known(Arc<BTreeMap<(String, String), BTreeSet<String>>>);

impl Known {
    /// Those that are described.
    pub(super) fn of(document: &OpenApi) -> Self {
        let mut known = BTreeMap::new();
        for (path, item) in &document.paths.paths {
            for (method, operation) in openapi::operations(item) {
                let parameters = operation.parameters.iter().flatten();
                let names: BTreeSet<String> = parameters
                    .filter(|one| one.parameter_in == ParameterIn::Query)
                    .map(|one| one.name.clone())
                    .collect();
                known.insert((path.clone(), method.to_string()), names);
            }
        }
        Self(Arc::new(known))
    }
}

/// Refuses what follows the `?` and means nothing there.
pub(super) async fn refuse_unknown(
    State(Known(known)): State<Known>,
    path: MatchedPath,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let text = request.uri().query().unwrap_or_default();
    let method = match request.method() {
        &Method::HEAD => "GET",
        method => method.as_str(),
    };
    // A method that there is not is refused as such.
    if let Some(names) = known.get(&(path.as_str().to_owned(), method.to_owned())) {
        let given: Vec<(String, String)> = serde_html_form::from_str(text).unwrap_or_default();
        for (name, _) in given {
            if names.contains(&name) {
                continue;
            }
            if name == "dry_run" {
                let reason = "this cannot be tried; ask without `dry_run`";
                return Err(ControlError::invalid("dry_run", reason).into());
            }
            let list: Vec<&str> = names.iter().map(String::as_str).collect();
            let list = match list.is_empty() {
                true => "takes none".to_owned(),
                false => format!("takes {}", list.join(", ")),
            };
            let reason = format!(
                "{name:?} is no parameter of {method} {}, which {list}",
                path.as_str()
            );
            return Err(ControlError::invalid("query", reason).into());
        }
    }
    Ok(next.run(request).await)
}
