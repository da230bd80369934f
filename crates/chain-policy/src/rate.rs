//! `rate`: limits.

use serde::{Deserialize, Serialize};

/// The limits; none where nothing is said.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RateConfig {
    /// Requests a second, at least 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iops: Option<u64>,
    /// Bytes that are read and written a second, at least 1.
    #[serde(
        deserialize_with = "crate::size::optional",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub bytes_per_second: Option<u64>,
}

impl RateConfig {
    /// Whether it limits anything, and lets something through.
    pub(crate) fn check(&self) -> Result<(), String> {
        match (self.iops, self.bytes_per_second) {
            (None, None) => Err("it limits nothing: say iops, bytes_per_second or both".to_owned()),
            (Some(0), _) => Err("iops is at least 1".to_owned()),
            (_, Some(0)) => Err("bytes_per_second is at least 1".to_owned()),
            _ => Ok(()),
        }
    }
}
