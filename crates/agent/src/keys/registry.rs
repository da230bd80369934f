//! [`WrappingKeys`]: the wrapping keys that are open on this host.

use std::collections::HashMap;
use std::error::Error;
use std::sync::Arc;

use base::{KeyId, Lineage};
use catalog::WrappedKey;
use parking_lot::RwLock;
use volume::seal::{DataKey, KeyError, UnwrapKeys, Unwrapped, WrappingKey};
use world::World;

use super::age::{self, AgeError};
use super::config::KeyEntry;
use super::files::{self, FileKeyError, PassphraseError};
use super::local::LocalKey;
use super::parameters::{KeyParameters, KeySource};
use super::pkcs11::{self, Modules, Pkcs11Error, TokenKey};
use super::provider::KeyProvider;
use super::remote::RemoteKey;
use super::transit::{Transit, TransitError};

/// The lineage for which verifiers are wrapped; no volume has it.
const VERIFIER: Lineage = Lineage::from_u128(0);

/// A lineage for which no verifier is wrapped.
const NOT_VERIFIER: Lineage = Lineage::from_u128(1);

/// A wrapping key that has opened its verifier.
pub struct VerifiedKey {
    provider: Box<dyn KeyProvider>,
    verifier: WrappedKey,
}

/// The key at a location is not the expected one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{description} is not the expected wrapping key: it does not open that key's \
         verifier; correct keys.toml, or put the right key back"
)]
pub struct WrongKey {
    /// Description of the key that was tried.
    pub description: String,
}

/// A wrapping key that this host has not opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("this host does not have the wrapping key {}; name it in keys.toml",
        id.map_or_else(|| "of that volume".to_owned(), |id| id.to_string()))]
pub struct UnknownKey {
    /// Id of the key; `None` if it is unknown.
    pub id: Option<KeyId>,
}

/// Why a wrapping key cannot be created or opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenKeyError {
    /// A key file cannot be used.
    #[error(transparent)]
    File(#[from] FileKeyError),
    /// A passphrase cannot be used.
    #[error(transparent)]
    Passphrase(#[from] PassphraseError),
    /// An age identity cannot be used.
    #[error(transparent)]
    Age(#[from] AgeError),
    /// A key on a token cannot be used.
    #[error(transparent)]
    Pkcs11(#[from] Pkcs11Error),
    /// A key of a transit service cannot be used.
    #[error(transparent)]
    Transit(#[from] TransitError),
    /// The key is unavailable.
    #[error("{description} cannot be used")]
    Unavailable {
        /// Description of the key.
        description: String,
        /// The cause.
        source: Arc<dyn Error + Send + Sync>,
    },
    /// The location holds another key.
    #[error(transparent)]
    Wrong(#[from] WrongKey),
    /// The provider ignores the lineage: it would unwrap for one volume a key that was wrapped for
    /// another.
    #[error(
        "{description} does not bind wrapped keys to a volume: it ignores associated data; \
             use an authenticated cipher (for transit, a key of type aes256-gcm96)"
    )]
    Unbound {
        /// The key.
        description: String,
    },
    /// The parameters are of another kind than the entry in `keys.toml`.
    #[error(
        "keys.toml says kind = {configured:?}, but the wrapping key was made as {made:?}; \
             correct keys.toml"
    )]
    OtherKind {
        /// What `keys.toml` says.
        configured: &'static str,
        /// What the parameters say.
        made: &'static str,
    },
    /// Keys of this kind are made elsewhere.
    #[error("Scree does not make keys of kind {kind:?}: {instead}")]
    NotMadeHere {
        /// The kind.
        kind: &'static str,
        /// What to do.
        instead: &'static str,
    },
}

impl VerifiedKey {
    /// Whether it is the key that `parameters` were made with.
    #[must_use]
    pub fn is_what_made(&self, parameters: &KeyParameters) -> bool {
        let opened = self.provider.unwrap_key(VERIFIER, &parameters.verifier);
        matches!(opened, Ok(Unwrapped::Key(_)))
    }

    /// Whether the provider still has the right key, checked with its verifier.
    fn check(&self) -> Result<(), KeyError> {
        match self.provider.unwrap_key(VERIFIER, &self.verifier) {
            Ok(Unwrapped::Key(_)) => Ok(()),
            Ok(Unwrapped::None) | Err(KeyError::Unwrap { .. }) => Err(KeyError::Unavailable {
                lineage: VERIFIER,
                source: Arc::new(WrongKey {
                    description: self.description(),
                }),
            }),
            Err(error) => Err(error),
        }
    }

    /// Checks as [`Self::check`] does, but reports errors for the lineage of the suspect data key.
    fn check_for(&self, lineage: Lineage) -> Result<(), KeyError> {
        self.check().map_err(|error| match error {
            KeyError::Unavailable { source, .. } => KeyError::Unavailable { lineage, source },
            other => other,
        })
    }

    /// Checks as [`Self::check`] does, and also that the provider binds wrapped keys to a lineage.
    fn check_fully(&self) -> Result<(), OpenKeyError> {
        let description = self.description();
        let bound = match self.provider.unwrap_key(VERIFIER, &self.verifier) {
            Ok(Unwrapped::Key(_)) => self.provider.unwrap_key(NOT_VERIFIER, &self.verifier),
            Ok(Unwrapped::None) | Err(KeyError::Unwrap { .. }) => {
                return Err(WrongKey { description }.into());
            }
            Err(error) => Err(error),
        };
        match bound {
            Err(KeyError::Unwrap { .. }) => Ok(()),
            Ok(_) => Err(OpenKeyError::Unbound { description }),
            Err(error) => Err(OpenKeyError::unavailable(description, error)),
        }
    }
}

impl OpenKeyError {
    fn unavailable(description: String, error: KeyError) -> Self {
        let source = match error {
            KeyError::Unavailable { source, .. } => source,
            other => Arc::new(other),
        };
        Self::Unavailable {
            description,
            source,
        }
    }
}

impl UnwrapKeys for VerifiedKey {
    fn unwrap_key(&self, lineage: Lineage, wrapped: &WrappedKey) -> Result<Unwrapped, KeyError> {
        let unwrapped = self.provider.unwrap_key(lineage, wrapped);
        if let Err(KeyError::Unwrap { .. }) = unwrapped {
            // Either the data key is damaged, or the provider has another key by now.
            self.check_for(lineage)?;
        }
        unwrapped
    }
}

impl KeyProvider for VerifiedKey {
    fn wrap(&self, lineage: Lineage, key: &DataKey) -> Result<WrappedKey, KeyError> {
        // No other host could unwrap what a wrong key wraps.
        self.check_for(lineage)?;
        self.provider.wrap(lineage, key)
    }

    fn wrap_none(&self, lineage: Lineage) -> Result<WrappedKey, KeyError> {
        self.check_for(lineage)?;
        self.provider.wrap_none(lineage)
    }

    fn description(&self) -> String {
        self.provider.description()
    }
}

impl std::fmt::Debug for VerifiedKey {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "VerifiedKey({})", self.description())
    }
}

/// The wrapping keys of this host, by id. All calls except [`Self::get`], [`Self::ids`] and
/// [`Self::close`] may block.
pub struct WrappingKeys {
    world: World,
    modules: Modules,
    open: RwLock<HashMap<KeyId, Arc<VerifiedKey>>>,
}

impl WrappingKeys {
    /// An empty set of keys.
    #[must_use]
    pub fn new(world: World) -> Self {
        Self {
            world,
            modules: Modules::default(),
            open: RwLock::default(),
        }
    }

    /// Creates the key that `entry` names, if Scree creates keys of its kind: a key file, or a key
    /// on a token. Never replaces a key.
    ///
    /// # Errors
    /// [`OpenKeyError`].
    pub fn create(&self, entry: &KeyEntry) -> Result<(), OpenKeyError> {
        let instead = match entry {
            KeyEntry::File { path } => return Ok(files::create_key_file(&self.world, path)?),
            KeyEntry::Pkcs11(entry) => {
                return Ok(pkcs11::create(&self.world, &self.modules, entry)?);
            }
            KeyEntry::Passphrase { .. } | KeyEntry::Given(_) => {
                "choose a passphrase and write it to its file"
            }
            KeyEntry::Age { .. } => "run `age-keygen -o FILE`",
            KeyEntry::Transit(_) => "run `vault write -f transit/keys/NAME type=aes256-gcm96`",
        };
        let kind = entry.kind();
        Err(OpenKeyError::NotMadeHere { kind, instead })
    }

    /// Creates the parameters of a new wrapping key from the existing key that `entry` names. The
    /// wrapping key is not opened: its parameters must be stored first.
    ///
    /// # Errors
    /// [`OpenKeyError`].
    pub fn new_parameters(&self, entry: &KeyEntry) -> Result<KeyParameters, OpenKeyError> {
        let random = &*self.world.random;
        let source = match entry {
            KeyEntry::File { .. } => KeySource::File,
            KeyEntry::Passphrase { .. } | KeyEntry::Given(_) => {
                files::new_passphrase_source(random)
            }
            KeyEntry::Age { .. } => {
                let mut salt = [0; 16];
                random.fill(&mut salt);
                KeySource::Age { salt }
            }
            KeyEntry::Pkcs11(_) => KeySource::Pkcs11,
            KeyEntry::Transit(_) => KeySource::Transit,
        };
        let provider = self.reach(entry, &source)?;
        let verifier = provider
            .wrap(VERIFIER, &DataKey::generate(random))
            .map_err(|error| OpenKeyError::unavailable(provider.description(), error))?;
        let key = VerifiedKey { provider, verifier };
        key.check_fully()?;
        let verifier = key.verifier;
        Ok(KeyParameters { source, verifier })
    }

    /// Opens a wrapping key that was created here or on another host, and checks that it is the
    /// right one. Replaces a key that was open under this id.
    ///
    /// # Errors
    /// [`OpenKeyError`].
    pub fn open(
        &self,
        id: KeyId,
        entry: &KeyEntry,
        parameters: &KeyParameters,
    ) -> Result<Arc<VerifiedKey>, OpenKeyError> {
        let key = Arc::new(VerifiedKey {
            provider: self.reach(entry, &parameters.source)?,
            verifier: parameters.verifier.clone(),
        });
        key.check_fully()?;
        let mut open = self.open.write();
        open.insert(id, Arc::clone(&key));
        Ok(key)
    }

    /// The wrapping key with this id, if it is open.
    #[must_use]
    pub fn get(&self, id: KeyId) -> Option<Arc<VerifiedKey>> {
        let open = self.open.read();
        open.get(&id).cloned()
    }

    /// The ids of the open keys.
    #[must_use]
    pub fn ids(&self) -> Vec<KeyId> {
        let open = self.open.read();
        open.keys().copied().collect()
    }

    /// Closes a wrapping key. Open volumes stay open.
    pub fn close(&self, id: KeyId) {
        let mut open = self.open.write();
        open.remove(&id);
    }

    /// Unwraps data keys with different wrapping keys: those of one volume may differ. `wrapped_by`
    /// returns the wrapping key of a lineage, from the rows of the volume.
    pub fn unwrapping<F>(&self, wrapped_by: F) -> Unwrapping<'_, F>
    where
        F: Fn(Lineage) -> Option<KeyId> + Send + Sync,
    {
        Unwrapping {
            keys: self,
            wrapped_by,
        }
    }

    fn reach(
        &self,
        entry: &KeyEntry,
        source: &KeySource,
    ) -> Result<Box<dyn KeyProvider>, OpenKeyError> {
        let world = &self.world;
        let local = |key: WrappingKey, description| {
            Box::new(LocalKey {
                key,
                random: Arc::clone(&world.random),
                description,
            })
        };
        Ok(match (entry, source) {
            (KeyEntry::File { path }, KeySource::File) => {
                let key = files::read_key_file(world, path)?;
                local(key, format!("the key file {}", path.display()))
            }
            (KeyEntry::Passphrase { path }, KeySource::Passphrase { .. }) => {
                let key = files::derive(world, path, source)?;
                local(key, format!("the passphrase in {}", path.display()))
            }
            (KeyEntry::Given(passphrase), KeySource::Passphrase { .. }) => {
                let key = files::derive_from(passphrase.bytes(), source)?;
                local(key, "the given passphrase".to_owned())
            }
            (
                KeyEntry::Age {
                    path,
                    passphrase_path,
                },
                KeySource::Age { salt },
            ) => {
                let key = age::derive(world, path, passphrase_path.as_deref(), salt)?;
                local(key, format!("the age identity {}", path.display()))
            }
            (KeyEntry::Pkcs11(entry), KeySource::Pkcs11) => {
                Box::new(RemoteKey(TokenKey::new(world, &self.modules, entry)?))
            }
            (KeyEntry::Transit(entry), KeySource::Transit) => {
                Box::new(RemoteKey(Transit::new(world, entry)?))
            }
            (entry, source) => {
                return Err(OpenKeyError::OtherKind {
                    configured: entry.kind(),
                    made: source.kind(),
                });
            }
        })
    }
}

impl std::fmt::Debug for WrappingKeys {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let open = self.open.read();
        formatter.debug_map().entries(open.iter()).finish()
    }
}

/// Unwraps data keys with the wrapping keys of their rows ([`WrappingKeys::unwrapping`]).
pub struct Unwrapping<'a, F> {
    keys: &'a WrappingKeys,
    wrapped_by: F,
}

impl<F: Fn(Lineage) -> Option<KeyId> + Send + Sync> UnwrapKeys for Unwrapping<'_, F> {
    fn unwrap_key(&self, lineage: Lineage, wrapped: &WrappedKey) -> Result<Unwrapped, KeyError> {
        let id = (self.wrapped_by)(lineage);
        match id.and_then(|id| self.keys.get(id)) {
            Some(key) => key.unwrap_key(lineage, wrapped),
            None => Err(KeyError::Unavailable {
                lineage,
                source: Arc::new(UnknownKey { id }),
            }),
        }
    }
}
