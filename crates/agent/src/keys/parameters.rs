//! [`KeyParameters`]: the public parameters of a wrapping key, the same on all hosts.

use catalog::{WrappedKey, wire};
use serde::{Deserialize, Serialize};

/// The parameters of a wrapping key that the controller stores. They hold no secret, and are not
/// trusted: altered parameters produce another key, which does not open the verifier; and only a
/// holder of the key can create a verifier that it opens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyParameters {
    /// The source of the key.
    pub source: KeySource,
    /// A random key, wrapped for a lineage that no volume has.
    pub verifier: WrappedKey,
}

/// The source of a wrapping key, and how the key is derived from it. The `keys.toml` of each host
/// has the location.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum KeySource {
    /// The content of a key file.
    File,
    /// Argon2id over a passphrase.
    Passphrase {
        /// Random.
        #[serde(with = "wire::bytes")]
        salt: [u8; 16],
        /// Memory, in KiB.
        memory_kib: u32,
        /// Number of passes.
        passes: u32,
        /// Number of lanes.
        lanes: u32,
    },
    /// HKDF-SHA-256 over the secret of an age identity.
    Age {
        /// Random.
        #[serde(with = "wire::bytes")]
        salt: [u8; 16],
    },
    /// A key that never leaves its token.
    Pkcs11,
    /// A key of a transit service.
    Transit,
}

impl KeySource {
    /// The `kind`, as spelled in `keys.toml`.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Passphrase { .. } => "passphrase",
            Self::Age { .. } => "age",
            Self::Pkcs11 => "pkcs11",
            Self::Transit => "transit",
        }
    }
}
