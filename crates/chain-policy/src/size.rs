//! Sizes as people write them.

use base::size;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

/// A number, or as people write it: `"100M"`.
pub(crate) fn optional<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written {
        Number(u64),
        Words(String),
    }
    match Written::deserialize(from)? {
        Written::Number(count) => Ok(Some(count)),
        Written::Words(words) => size::parse(&words).map(Some).map_err(D::Error::custom),
    }
}

/// The same, of what has a usual value.
pub(crate) fn required<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    optional(from)?.ok_or_else(|| D::Error::custom("a size is missing"))
}
