//! Key material that a catalog stores: bytes that are opaque to it.

use serde::{Deserialize, Serialize};
use world::Random;

use crate::wire;

/// Random bytes from which the key of one lease is derived, with a lineage's data key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseSalt(#[serde(with = "wire::bytes")] pub [u8; 16]);

impl LeaseSalt {
    /// A new random salt.
    #[must_use]
    pub fn generate(random: &dyn Random) -> Self {
        let mut bytes = [0; 16];
        random.fill(&mut bytes);
        Self(bytes)
    }
}

/// A data key sealed under a wrapping key, or that key's statement that there is none.
/// It may be stored anywhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrappedKey(#[serde(with = "wire::bytes")] pub Vec<u8>);
