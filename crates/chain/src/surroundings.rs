//! [`Surroundings`]: what boxes need of where they run.

use std::sync::Arc;

use world::{Clock, Pool, Random};
use zeroize::Zeroizing;

/// There is none of this name, or it cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyMissing {
    /// None of this name.
    #[error("there is no key {0} here")]
    None(String),
    /// There is, and it is of no use.
    #[error("the key {name} cannot be used: {reason}")]
    Unusable {
        /// Its name.
        name: String,
        /// Why.
        reason: String,
    },
}

/// Where keys lie that policies name.
pub trait KeySource: Send + Sync {
    /// The passphrase of this name. It may wait: it is asked in a [`Pool`].
    ///
    /// # Errors
    /// [`KeyMissing`].
    fn passphrase(&self, name: &str) -> Result<Zeroizing<Vec<u8>>, KeyMissing>;
}

/// Who runs boxes gives them this. Cheap to clone.
#[derive(Clone)]
pub struct Surroundings {
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// For what takes long.
    pub pool: Arc<dyn Pool>,
    /// For keys.
    pub random: Arc<dyn Random>,
    /// Where keys lie.
    pub keys: Arc<dyn KeySource>,
}

/// There are none.
pub struct NoKeys;

impl KeySource for NoKeys {
    fn passphrase(&self, name: &str) -> Result<Zeroizing<Vec<u8>>, KeyMissing> {
        Err(KeyMissing::None(name.to_owned()))
    }
}
