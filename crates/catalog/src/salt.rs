//! What a catalog keeps of keys: bytes that say nothing to it.

use serde::{Deserialize, Serialize};
use world::Random;

use crate::wire;

/// Random bytes that make the key of one lease out of a lineage's data key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseSalt(#[serde(with = "wire::bytes")] pub [u8; 16]);

impl LeaseSalt {
    /// A new salt.
    #[must_use]
    pub fn generate(random: &dyn Random) -> Self {
        let mut bytes = [0; 16];
        random.fill(&mut bytes);
        Self(bytes)
    }
}

/// A data key sealed under a wrapping key, or that key's word that there is
/// none. Fit to be stored anywhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrappedKey(#[serde(with = "wire::bytes")] pub Vec<u8>);
