//! [`KeyParameters`]: what is the same wherever a wrapping key is used, and is not secret.

use catalog::{WrappedKey, wire};
use serde::{Deserialize, Serialize};

/// What the controller stores about a wrapping key. It holds no secret, and is
/// not trusted: altered parameters make another key, with which the verifier
/// does not open, and without the key no verifier can be made that does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyParameters {
    /// What the key is made of.
    pub source: KeySource,
    /// A random key, wrapped for a lineage that no volume has.
    pub verifier: WrappedKey,
}

/// What a wrapping key is made of, and how. Where it is on a host, that host's
/// `keys.toml` says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum KeySource {
    /// The content of a key file.
    File,
    /// Argon2id of a passphrase.
    Passphrase {
        /// Random.
        #[serde(with = "wire::bytes")]
        salt: [u8; 16],
        /// Memory, in KiB.
        memory_kib: u32,
        /// Passes over it.
        passes: u32,
        /// Lanes in it.
        lanes: u32,
    },
    /// HKDF-SHA-256 of the secret in an age identity.
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
    /// The `kind`, as `keys.toml` spells it.
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
