//! `external`: a filter that is a program of the host operator's choice and not part of Scree.

use serde::{Deserialize, Serialize};

use crate::kind::FilterConfig;
use crate::out_of_process::Placement;

/// The parameters of an external filter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExternalConfig {
    /// The name under which the host's operator describes the program.
    pub program: String,
}

impl FilterConfig for ExternalConfig {
    const NAME: &'static str = "external";
    const PLACEMENT: Placement = Placement::External;
    const KEEPS_FILES: bool = false;
    const TRANSFORMS: bool = true;

    /// Checks that the name can be the name of a program.
    fn check(&self) -> Result<(), String> {
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        match !self.program.is_empty() && self.program.bytes().all(is_name) {
            true => Ok(()),
            false => Err("program must be a name of a-z, A-Z, 0-9, - and _".to_owned()),
        }
    }

    fn transformed_by(&self) -> Option<&str> {
        Some(&self.program)
    }
}
