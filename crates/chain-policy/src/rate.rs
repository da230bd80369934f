//! `rate`: limits on requests and bytes per second.

use serde::{Deserialize, Serialize};

use crate::kind::FilterConfig;
use crate::out_of_process::Placement;

/// The parameters of a `rate` filter. At least one limit is set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RateConfig {
    /// Requests per second, at least 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iops: Option<u64>,
    /// Bytes read and written per second, at least 1.
    #[serde(
        deserialize_with = "crate::size::optional",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub bytes_per_second: Option<u64>,
}

impl FilterConfig for RateConfig {
    const NAME: &'static str = "rate";
    const PLACEMENT: Placement = Placement::InlineOrProcess;
    const KEEPS_FILES: bool = false;
    const TRANSFORMS: bool = false;

    /// Checks that there is a limit, and that none is zero.
    fn check(&self) -> Result<(), String> {
        match (self.iops, self.bytes_per_second) {
            (None, None) => {
                Err("the filter limits nothing: set iops, bytes_per_second or both".to_owned())
            }
            (Some(0), _) => Err("iops must be at least 1".to_owned()),
            (_, Some(0)) => Err("bytes_per_second must be at least 1".to_owned()),
            _ => Ok(()),
        }
    }
}
