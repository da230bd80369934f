//! A wrapping key on a PKCS#11 token: an AES-256 key that was created there, cannot be extracted,
//! and encrypts with `CKM_AES_GCM`.
//!
//! A wrapped key is a 12-byte nonce, ciphertext, and a 16-byte tag. The nonce is drawn here; a
//! token that insists on its own nonce overwrites it in the parameters, from where it is read back.
//!
//! * The module is initialized once in a process and never finalized.
//! * A session that died is opened again, once in a call.
//! * A PIN that the token refused is not tried again until its file has another PIN: tokens lock
//!   themselves after a few wrong ones, and attaching a volume is retried forever.
//! * Tokens report a wrong tag differently (SoftHSM: a general error). An operation that fails
//!   twice, the second time in a new session, counts as a wrong tag; the caller then uses the
//!   verifier to find out whether the token failed.
//!
//! A call into a module has no timeout: it blocks its thread for as long as the token takes.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cryptoki::context::{CInitializeArgs, CInitializeFlags, Pkcs11};
use cryptoki::error::{Error, RvError};
use cryptoki::mechanism::Mechanism;
use cryptoki::mechanism::aead::GcmParams;
use cryptoki::object::{Attribute, AttributeType, KeyType, ObjectClass, ObjectHandle};
use cryptoki::session::{Session, UserType};
use cryptoki::slot::Slot;
use cryptoki::types::AuthPin;
use parking_lot::Mutex;
use world::World;
use zeroize::Zeroizing;

use super::config::Pkcs11Entry;
use super::private::{self, PrivateFileError};
use super::remote::{Opened, RemoteCipher};

const NONCE_BYTES: usize = 12;
const TAG_BITS: u64 = 128;
const KEY_BYTES: u64 = 32;

/// Why a token's key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Pkcs11Error {
    /// The library cannot be loaded.
    #[error("cannot load the PKCS#11 module {module}; install the token's software, or correct \
             `module`", module = module.display())]
    Module {
        /// Path of the library.
        module: PathBuf,
        /// The error of the library or the loader.
        source: Error,
    },
    /// No token has this label.
    #[error(
        "there is no token with the label {token:?}; plug it in, or correct `token` (found: {found:?})"
    )]
    NoToken {
        /// The label.
        token: String,
        /// The labels of all tokens.
        found: Vec<String>,
    },
    /// More than one token has this label.
    #[error("{count} tokens have the label {token:?}; change the label of all but one")]
    SeveralTokens {
        /// The label.
        token: String,
        /// Number of tokens with the label.
        count: usize,
    },
    /// The PIN's file cannot be read.
    #[error(transparent)]
    File(#[from] PrivateFileError),
    /// The token refuses the PIN.
    #[error("the token {token:?} refuses the PIN in {path}; it will not be tried again until the \
             file has another PIN, so that the token does not lock itself", path = path.display())]
    WrongPin {
        /// The token's label.
        token: String,
        /// Path of the file with the PIN.
        path: PathBuf,
    },
    /// The token has locked itself.
    #[error("the token {token:?} has locked its user PIN; set a new one as its security officer")]
    PinLocked {
        /// The token's label.
        token: String,
    },
    /// The token has no such key.
    #[error(
        "the token {token:?} has no AES key with the label {key:?}; create it, or correct `key`"
    )]
    NoKey {
        /// The token's label.
        token: String,
        /// The key's label.
        key: String,
    },
    /// More than one key on the token has the label.
    #[error(
        "the token {token:?} has {count} AES keys with the label {key:?}; give them different \
         labels, so that it is clear which one wraps"
    )]
    SeveralKeys {
        /// The token's label.
        token: String,
        /// The key's label.
        key: String,
        /// Number of keys with the label.
        count: usize,
    },
    /// The token already has such a key.
    #[error(
        "the token {token:?} already has a key with the label {key:?}; use it, or give another \
             label"
    )]
    KeyExists {
        /// The token's label.
        token: String,
        /// The key's label.
        key: String,
    },
    /// The key is not protected by the token.
    #[error("the key {key:?} on the token {token:?} cannot be used: {why}; create another")]
    Unfit {
        /// The token's label.
        token: String,
        /// The key's label.
        key: String,
        /// Why it cannot be used.
        why: &'static str,
    },
    /// The token failed.
    #[error("the token {token:?} failed to {what}; is it still plugged in?")]
    Failed {
        /// The token's label.
        token: String,
        /// The request, as a verb phrase.
        what: &'static str,
        /// The token's error.
        source: Error,
    },
}

/// The loaded modules, by path.
#[derive(Default)]
pub(super) struct Modules(Mutex<HashMap<PathBuf, Arc<Module>>>);

struct Module {
    context: Pkcs11,
    /// PINs that tokens have refused, by the labels of the tokens.
    refused: Mutex<HashMap<String, Zeroizing<String>>>,
}

impl Modules {
    fn load(&self, path: &Path) -> Result<Arc<Module>, Pkcs11Error> {
        let mut modules = self.0.lock();
        if let Some(module) = modules.get(path) {
            return Ok(Arc::clone(module));
        }
        let failed = |source| Pkcs11Error::Module {
            module: path.to_owned(),
            source,
        };
        let context = Pkcs11::new(path).map_err(failed)?;
        match context.initialize(CInitializeArgs::new(CInitializeFlags::OS_LOCKING_OK)) {
            Ok(()) | Err(Error::Pkcs11(RvError::CryptokiAlreadyInitialized, _)) => {}
            Err(source) => return Err(failed(source)),
        }
        let module = Arc::new(Module {
            context,
            refused: Mutex::default(),
        });
        modules.insert(path.to_owned(), Arc::clone(&module));
        Ok(module)
    }
}

/// A key on a token.
pub(super) struct TokenKey {
    world: World,
    module: Arc<Module>,
    entry: Pkcs11Entry,
    /// The session in use, and the key's handle in it.
    session: Mutex<Option<(Session, ObjectHandle)>>,
}

/// Creates the key that `entry` names.
pub(super) fn create(
    world: &World,
    modules: &Modules,
    entry: &Pkcs11Entry,
) -> Result<(), Pkcs11Error> {
    let token = TokenKey::new(world, modules, entry)?;
    let session = token.log_in(true)?;
    if !token.find(&session)?.is_empty() {
        return Err(Pkcs11Error::KeyExists {
            token: entry.token.clone(),
            key: entry.key.clone(),
        });
    }
    let template = [
        Attribute::Class(ObjectClass::SECRET_KEY),
        Attribute::KeyType(KeyType::AES),
        Attribute::ValueLen(KEY_BYTES.into()),
        Attribute::Label(entry.key.clone().into_bytes()),
        Attribute::Token(true),
        Attribute::Private(true),
        Attribute::Sensitive(true),
        Attribute::Extractable(false),
        Attribute::Encrypt(true),
        Attribute::Decrypt(true),
        Attribute::Wrap(false),
        Attribute::Unwrap(false),
        Attribute::Derive(false),
    ];
    session
        .generate_key(&Mechanism::AesKeyGen, &template)
        .map_err(|source| token.failed("create a key", source))?;
    Ok(())
}

impl TokenKey {
    /// The key that `entry` names; it is looked for when it is first used.
    pub(super) fn new(
        world: &World,
        modules: &Modules,
        entry: &Pkcs11Entry,
    ) -> Result<Self, Pkcs11Error> {
        Ok(Self {
            world: world.clone(),
            module: modules.load(&entry.module)?,
            entry: entry.clone(),
            session: Mutex::default(),
        })
    }

    fn failed(&self, what: &'static str, source: Error) -> Pkcs11Error {
        Pkcs11Error::Failed {
            token: self.entry.token.clone(),
            what,
            source,
        }
    }

    fn slot(&self) -> Result<Slot, Pkcs11Error> {
        let token = || self.entry.token.clone();
        let context = &self.module.context;
        let slots = context
            .get_slots_with_token()
            .map_err(|source| self.failed("list the slots", source))?;
        // A slot without a token has no label to compare; the label of a new token is empty.
        let labeled: Vec<_> = slots
            .into_iter()
            .filter_map(|slot| Some((slot, context.get_token_info(slot).ok()?)))
            .collect();
        let mut ours = labeled
            .iter()
            .filter(|(_, info)| info.label().trim_end() == self.entry.token);
        let Some((slot, info)) = ours.next() else {
            let found = labeled.iter();
            return Err(Pkcs11Error::NoToken {
                token: token(),
                found: found
                    .filter(|(_, info)| info.token_initialized())
                    .map(|(_, info)| info.label().trim_end().to_owned())
                    .collect(),
            });
        };
        let others = ours.count();
        if others > 0 {
            return Err(Pkcs11Error::SeveralTokens {
                token: token(),
                count: others + 1,
            });
        }
        if info.user_pin_locked() {
            return Err(Pkcs11Error::PinLocked { token: token() });
        }
        Ok(*slot)
    }

    fn log_in(&self, writes: bool) -> Result<Session, Pkcs11Error> {
        let token = || self.entry.token.clone();
        let wrong_pin = || Pkcs11Error::WrongPin {
            token: token(),
            path: self.entry.pin_path.clone(),
        };
        let pin = private::read_line(&self.world, &self.entry.pin_path, "PIN")?;
        let slot = self.slot()?;
        // Held until the token has answered, so that no two calls try the same PIN.
        let mut refused = self.module.refused.lock();
        if refused.get(&self.entry.token) == Some(&pin) {
            return Err(wrong_pin());
        }
        let session = if writes {
            self.module.context.open_rw_session(slot)
        } else {
            self.module.context.open_ro_session(slot)
        };
        let session = session.map_err(|source| self.failed("open a session", source))?;
        let pin_for_token = AuthPin::from(pin.as_str());
        match session.login(UserType::User, Some(&pin_for_token)) {
            // Another user of the token in this process has logged in.
            Ok(()) | Err(Error::Pkcs11(RvError::UserAlreadyLoggedIn, _)) => {}
            Err(Error::Pkcs11(
                RvError::PinIncorrect | RvError::PinInvalid | RvError::PinLenRange,
                _,
            )) => {
                refused.insert(token(), pin);
                return Err(wrong_pin());
            }
            Err(Error::Pkcs11(RvError::PinLocked, _)) => {
                return Err(Pkcs11Error::PinLocked { token: token() });
            }
            Err(source) => return Err(self.failed("log in", source)),
        }
        refused.remove(&self.entry.token);
        Ok(session)
    }

    fn find(&self, session: &Session) -> Result<Vec<ObjectHandle>, Pkcs11Error> {
        let template = [
            Attribute::Class(ObjectClass::SECRET_KEY),
            Attribute::KeyType(KeyType::AES),
            Attribute::Label(self.entry.key.clone().into_bytes()),
        ];
        session
            .find_objects(&template)
            .map_err(|source| self.failed("look for the key", source))
    }

    /// Opens a session, finds the key, and checks its attributes.
    fn start(&self) -> Result<(Session, ObjectHandle), Pkcs11Error> {
        let session = self.log_in(false)?;
        let (token, key) = (self.entry.token.clone(), self.entry.key.clone());
        let handle = match self.find(&session)?.as_slice() {
            [] => return Err(Pkcs11Error::NoKey { token, key }),
            [handle] => *handle,
            several => {
                let count = several.len();
                return Err(Pkcs11Error::SeveralKeys { token, key, count });
            }
        };
        let asked = [
            AttributeType::Sensitive,
            AttributeType::Extractable,
            AttributeType::ValueLen,
        ];
        let attributes = session
            .get_attributes(handle, &asked)
            .map_err(|source| self.failed("describe the key", source))?;
        // A token that does not report these attributes does not guarantee that the key stays
        // there.
        let says = |attribute| attributes.contains(&attribute);
        let has_other_length = attributes.iter().any(|attribute| {
            matches!(attribute, Attribute::ValueLen(bytes) if u64::from(*bytes) != KEY_BYTES)
        });
        let why = if !says(Attribute::Sensitive(true)) || !says(Attribute::Extractable(false)) {
            Some("it can be extracted from its token")
        } else if has_other_length {
            Some("it is not 256 bits long")
        } else {
            None
        };
        if let Some(why) = why {
            return Err(Pkcs11Error::Unfit { token, key, why });
        }
        Ok((session, handle))
    }

    /// Runs `action` in a session, and once more in a new one if it fails.
    fn with_session<T>(
        &self,
        what: &'static str,
        mut action: impl FnMut(&Session, ObjectHandle) -> Result<T, Error>,
    ) -> Result<T, Pkcs11Error> {
        let mut place = self.session.lock();
        if let Some((session, key)) = &*place {
            if let Ok(done) = action(session, *key) {
                return Ok(done);
            }
            // Close the session before another is opened: the last session ends the login, so that
            // a changed PIN is noticed.
            *place = None;
        }
        let (session, key) = place.insert(self.start()?);
        action(session, *key).map_err(|source| self.failed(what, source))
    }
}

fn gcm<'a>(nonce: &'a mut [u8], associated: &'a [u8]) -> Result<GcmParams<'a>, Error> {
    GcmParams::new(nonce, associated, TAG_BITS.into())
}

impl RemoteCipher for TokenKey {
    type Error = Pkcs11Error;

    fn seal(&self, associated: &[u8], plain: &[u8]) -> Result<Vec<u8>, Pkcs11Error> {
        let world = &self.world;
        self.with_session("encrypt", |session, key| {
            let mut nonce = [0; NONCE_BYTES];
            world.random.fill(&mut nonce);
            let mechanism = Mechanism::AesGcm(gcm(&mut nonce, associated)?);
            let sealed = session.encrypt(&mechanism, key, plain)?;
            Ok([nonce.as_slice(), &sealed].concat())
        })
    }

    fn open(&self, associated: &[u8], sealed: &[u8]) -> Result<Opened, Pkcs11Error> {
        let Some((nonce, sealed)) = sealed.split_at_checked(NONCE_BYTES) else {
            return Ok(Opened::Refused);
        };
        let opened = self.with_session("decrypt", |session, key| {
            let mut nonce = nonce.to_vec();
            let mechanism = Mechanism::AesGcm(gcm(&mut nonce, associated)?);
            match session.decrypt(&mechanism, key, sealed) {
                Ok(plain) => Ok(Opened::Plain(Zeroizing::new(plain))),
                Err(Error::Pkcs11(
                    RvError::EncryptedDataInvalid | RvError::EncryptedDataLenRange,
                    _,
                )) => Ok(Opened::Refused),
                Err(error) => Err(error),
            }
        });
        match opened {
            Err(Pkcs11Error::Failed {
                source: Error::Pkcs11(RvError::GeneralError | RvError::FunctionFailed, _),
                what: "decrypt",
                ..
            }) => Ok(Opened::Refused),
            opened => opened,
        }
    }

    fn description(&self) -> String {
        let Pkcs11Entry { token, key, .. } = &self.entry;
        format!("the key {key:?} on the token {token:?}")
    }
}
