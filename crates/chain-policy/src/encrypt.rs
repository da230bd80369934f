//! `encrypt`: the key, and what the filter does to a disk without a LUKS2 header.

use serde::{Deserialize, Serialize};

use crate::kind::FilterConfig;
use crate::out_of_process::Placement;

/// The maximal length of a key's name, in bytes.
const KEY_NAME_BYTES_MAX: usize = 64;

/// Whether a disk without a LUKS2 header gets one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// A disk without a header is refused.
    #[default]
    Never,
    /// A header is written if the disk reads as zeroes at its place.
    IfEmpty,
}

/// The parameters of an `encrypt` filter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EncryptConfig {
    /// The name of the passphrase. The passphrase itself is where the filter runs, and never in
    /// a policy.
    pub key: String,
    /// What is done to a disk that has no header.
    #[serde(default)]
    pub format: Format,
    /// Whether a trim of the guest is passed to the disk below. It then shows which blocks are in
    /// use.
    #[serde(default)]
    pub allow_discard: bool,
    /// How often the data is to be re-encrypted in all: the data gets a new key if it was
    /// re-encrypted fewer times than this.
    #[serde(default)]
    pub reencrypt: u64,
}

impl EncryptConfig {
    /// The parameters with this key and defaults for the rest.
    #[must_use]
    pub fn new(key: impl Into<String>) -> Self {
        Self {
            key: key.into(),
            format: Format::default(),
            allow_discard: false,
            reencrypt: 0,
        }
    }
}

impl FilterConfig for EncryptConfig {
    const NAME: &'static str = "encrypt";
    const PLACEMENT: Placement = Placement::InlineOrProcessRequired;
    const KEEPS_FILES: bool = false;
    const TRANSFORMS: bool = true;

    /// Checks that the key's name can be the name of a file.
    fn check(&self) -> Result<(), String> {
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let is_short = !self.key.is_empty() && self.key.len() <= KEY_NAME_BYTES_MAX;
        match is_short && !self.key.starts_with('.') && self.key.bytes().all(is_name) {
            true => Ok(()),
            false => Err(format!(
                "key must be a name of 1 to {KEY_NAME_BYTES_MAX} characters of a-z, A-Z, 0-9, -, _ \
                 and ., and must not begin with ."
            )),
        }
    }
}
