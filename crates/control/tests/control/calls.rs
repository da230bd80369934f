//! Calls of the engine's catalog, as hosts make them.

use api::host::CatalogCall;
pub use api::host::catalog_calls::*;
use catalog::CatalogError;
use control::database::{Database, Reach};
use serde_json::Value;

/// Makes a call, and reads its answer.
pub async fn answer(
    database: &Database,
    reach: &Reach,
    call: impl Into<CatalogCall>,
) -> Result<Value, CatalogError> {
    let answer = database.catalog().answer(reach, call.into()).await;
    serde_json::from_slice(&answer.into_bytes()).expect("JSON")
}
