//! `encrypt`: which key, and what is done to a disk.

use serde::{Deserialize, Serialize};

/// A key's name is as long at most, in bytes.
const KEY_NAME_BYTES_MAX: usize = 64;

/// Whether a disk without a header gets one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// It is refused.
    #[default]
    Never,
    /// If it reads as zeroes where the header goes.
    IfEmpty,
}

/// The parameters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EncryptConfig {
    /// The name of the passphrase, which lies where the filter runs: never itself.
    pub key: String,
    /// Of a disk that has no header.
    #[serde(default)]
    pub format: Format,
    /// What the guest trims is trimmed below: who sees the volume then sees what is in use.
    #[serde(default)]
    pub allow_discard: bool,
    /// The data gets another key if it was re-encrypted less often than this.
    #[serde(default)]
    pub reencrypt: u64,
}

impl EncryptConfig {
    /// With this key, and nothing that need not be.
    #[must_use]
    pub fn new(key: impl Into<String>) -> Self {
        Self {
            key: key.into(),
            format: Format::default(),
            allow_discard: false,
            reencrypt: 0,
        }
    }

    /// Whether the name is one: it may become that of a file.
    pub(crate) fn check(&self) -> Result<(), String> {
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let is_short = !self.key.is_empty() && self.key.len() <= KEY_NAME_BYTES_MAX;
        match is_short && !self.key.starts_with('.') && self.key.bytes().all(is_name) {
            true => Ok(()),
            false => Err(format!(
                "key names a key, in 1 to {KEY_NAME_BYTES_MAX} characters of a-z, A-Z, 0-9, -, _ and ."
            )),
        }
    }
}
