//! Sizes in a policy: a number of bytes, or text such as `"100M"`.

use base::size;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

/// Deserializes a size that may be missing.
pub(crate) fn optional<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written {
        Number(u64),
        Text(String),
    }
    match Written::deserialize(from)? {
        Written::Number(count) => Ok(Some(count)),
        Written::Text(text) => size::parse(&text).map(Some).map_err(D::Error::custom),
    }
}

/// Deserializes a size for a field that has a default where it is missing.
pub(crate) fn required<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    optional(from)?.ok_or_else(|| D::Error::custom("a size is missing"))
}
