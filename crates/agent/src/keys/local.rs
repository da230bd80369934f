//! Wrapping keys in the agent's memory: from a key file, a passphrase or an age identity.
//! docs/internals/formats.md draws what they wrap.

use std::sync::Arc;

use base::Lineage;
use catalog::WrappedKey;
use volume::seal::{DataKey, KeyError, UnwrapKeys, Unwrapped, WrappingKey};
use world::Random;

use super::KeyProvider;

/// A key in memory, and a description of its source.
pub(super) struct LocalKey {
    pub(super) key: WrappingKey,
    pub(super) random: Arc<dyn Random>,
    pub(super) description: String,
}

impl UnwrapKeys for LocalKey {
    fn unwrap_key(&self, lineage: Lineage, wrapped: &WrappedKey) -> Result<Unwrapped, KeyError> {
        self.key.unwrap_key(lineage, wrapped)
    }
}

impl KeyProvider for LocalKey {
    fn wrap(&self, lineage: Lineage, key: &DataKey) -> Result<WrappedKey, KeyError> {
        Ok(self.key.wrap(lineage, key, &*self.random))
    }

    fn wrap_none(&self, lineage: Lineage) -> Result<WrappedKey, KeyError> {
        Ok(self.key.wrap_none(lineage, &*self.random))
    }

    fn description(&self) -> String {
        self.description.clone()
    }
}
