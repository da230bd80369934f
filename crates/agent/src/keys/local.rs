//! Wrapping keys that the agent has in its memory: from a key file, a
//! passphrase or an age identity. They wrap as docs/internals/formats.md draws it.

use std::sync::Arc;

use base::Lineage;
use catalog::WrappedKey;
use volume::seal::{DataKey, KeyEncryptionKey, KeyError, UnwrapKeys, Unwrapped};
use world::Random;

use super::KeyProvider;

/// A key in memory, and where it came from.
pub(super) struct LocalKey {
    pub(super) key: KeyEncryptionKey,
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
