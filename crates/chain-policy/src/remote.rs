//! `remote`: a filter that runs on a machine of the tenant's, in `scree filter-server`.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::kind::FilterConfig;
use crate::out_of_process::Placement;

/// The parameters of a remote filter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoteConfig {
    /// The address at which the filter server listens.
    pub address: SocketAddr,
    /// The fingerprint of the filter server's key, as `scree filter-server` prints it. A server
    /// with another key is refused.
    pub key: String,
}

/// The prefix of a key fingerprint.
const KEY_PREFIX: &str = "sha256:";
/// The number of hexadecimal digits after [`KEY_PREFIX`].
const KEY_DIGITS: usize = 64;

impl FilterConfig for RemoteConfig {
    const NAME: &'static str = "remote";
    const PLACEMENT: Placement = Placement::Remote;
    const KEEPS_FILES: bool = false;
    const TRANSFORMS: bool = true;

    /// Checks the form of the key fingerprint.
    fn check(&self) -> Result<(), String> {
        let digits = self.key.strip_prefix(KEY_PREFIX).unwrap_or_default();
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        match digits.len() == KEY_DIGITS && digits.bytes().all(is_digit) {
            true => Ok(()),
            false => Err(format!(
                "key must be {KEY_PREFIX} and {KEY_DIGITS} hex digits, as `scree filter-server` \
                 prints it"
            )),
        }
    }

    fn transformed_by(&self) -> Option<&str> {
        Some(&self.key)
    }
}
