//! `program` and `machine`: filters that are not Scree's, or not here.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

/// A program that the host's operator has for filters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProgramConfig {
    /// Its name there.
    pub program: String,
}

/// A filter on a machine of the tenant's, served there by `scree filter-server`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MachineConfig {
    /// Where it listens.
    pub at: SocketAddr,
    /// The machine's key, as `scree filter-server` prints it: nobody else is trusted.
    pub key: String,
}

/// The beginning of a machine's key, and how many hexadecimal digits follow.
const KEY_PREFIX: &str = "sha256:";
const KEY_DIGITS: usize = 64;

impl ProgramConfig {
    /// Whether it has a name that a program may have.
    pub(crate) fn check(&self) -> Result<(), String> {
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        match !self.program.is_empty() && self.program.bytes().all(is_name) {
            true => Ok(()),
            false => Err("program is a name of a-z, 0-9, - and _".to_owned()),
        }
    }
}

impl MachineConfig {
    /// Whether its key is one.
    pub(crate) fn check(&self) -> Result<(), String> {
        let digits = self.key.strip_prefix(KEY_PREFIX).unwrap_or_default();
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        match digits.len() == KEY_DIGITS && digits.bytes().all(is_digit) {
            true => Ok(()),
            false => {
                Err("key is as `scree filter-server` prints it: sha256: and 64 digits".to_owned())
            }
        }
    }
}
