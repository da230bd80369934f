//! [`HostKeys`]: the wrapping keys of this host: those that the controllers list, at the locations
//! in `keys.toml` or on the command line.
//!
//! ```text
//!   state at the controllers      named on this host     this host
//!   active                        yes                    opens it; the newest one wraps new keys
//!   retiring                      yes                    opens it, until it wraps nothing
//!   retired                       yes or no              closes it
//!   any                           no                     cannot unwrap its keys; another host can
//! ```
//!
//! When a key that could not be opened is needed, the file is read again and opening is retried:
//! naming a key needs no restart. All methods may block and belong on a blocking thread, except
//! `list`, `listed`, `until_listed`, `changed` and `problems`.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use api::host::{FIRST_KEY, KeyState, ListedKey};
use base::{KeyId, Lineage, with_causes};
use catalog::LineageKey;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use volume::seal::{DataKey, KeyError, Keyring, UnwrapKeys as _, Unwrapped};
use world::{OpenMode, World};

use super::{
    FileKeyError, KeyEntry, KeyParameters, KeysFile, KeysFileError, OpenKeyError, VerifiedKey,
    WrappingKeys, WrongKey, pkcs11::Pkcs11Error,
};

/// The locations of this host's wrapping keys.
#[derive(Debug, Clone)]
pub struct KeyLocations {
    /// Location of `main` from the command line; takes precedence.
    pub first: Option<KeyEntry>,
    /// Path of `keys.toml` from the command line; the file must exist.
    pub keys_file: Option<PathBuf>,
    /// Default path of `keys.toml`, which may be missing.
    pub default_keys_file: PathBuf,
    /// Path of the key file of `main`, if no other location is given.
    pub default_key_file: PathBuf,
}

/// Why this host cannot use a wrapping key.
#[derive(Debug, thiserror::Error)]
pub enum HostKeyError {
    /// `keys.toml` cannot be used.
    #[error(transparent)]
    File(#[from] KeysFileError),
    /// This host has no location of the key.
    #[error(
        "this host does not have the wrapping key {name:?} ({id}); {}name it in {path} \
         (docs/reference/key-providers.md)",
        copy_of(key_file.as_deref()),
        path = path.display()
    )]
    Missing {
        /// Name of the key.
        name: String,
        /// Id of the key.
        id: KeyId,
        /// The file to name it in.
        path: PathBuf,
        /// The default path of its key file, if it has one.
        key_file: Option<PathBuf>,
    },
    /// A key that should be created has no location.
    #[error(
        "{path} has no location for the wrapping key {name:?}; add [keys.{name}] there (see \
         docs/reference/key-providers.md), and retry",
        path = path.display()
    )]
    Unnamed {
        /// Name of the key.
        name: String,
        /// The file to name it in.
        path: PathBuf,
    },
    /// The controllers have not listed the key.
    #[error("the controllers do not list the wrapping key {id}; the request will be retried")]
    Unlisted {
        /// Id of the key.
        id: KeyId,
    },
    /// The parameters cannot be parsed.
    #[error(
        "the parameters of the wrapping key {name:?} cannot be parsed: the database is damaged, \
         or a newer Scree wrote them"
    )]
    Parameters {
        /// Name of the key.
        name: String,
        /// The parse error.
        source: serde_json::Error,
    },
    /// The location holds another key.
    #[error(
        "{description} is not the {what} with which the wrapping key {name:?} was created; it \
         cannot unwrap the data keys of that key"
    )]
    Wrong {
        /// Description of the key that was found.
        description: String,
        /// The kind of the key.
        what: &'static str,
        /// Name of the key.
        name: String,
    },
    /// The key was created as another kind.
    #[error("the wrapping key {name:?} was created from {made_with}; {option}")]
    OtherKind {
        /// Name of the key.
        name: String,
        /// What it was created from.
        made_with: String,
        /// How to give its location.
        option: String,
    },
    /// The key cannot be opened.
    #[error("the wrapping key {name:?} cannot be used")]
    Unusable {
        /// Name of the key.
        name: String,
        /// Why.
        source: Box<OpenKeyError>,
    },
    /// A new key exists already, under another name.
    #[error(
        "{name:?} is the same key as the wrapping key {other:?}, so it would add no protection; \
         name another key"
    )]
    Same {
        /// The requested name.
        name: String,
        /// The existing name.
        other: String,
    },
    /// This host has no key that may wrap new data keys.
    #[error(
        "this host has none of the wrapping keys that may wrap a new volume's key ({names}); {}name \
         one of them in {path}",
        copy_of(key_file.as_deref()),
        path = path.display()
    )]
    NoneActive {
        /// Names of the active keys.
        names: String,
        /// The file to name it in.
        path: PathBuf,
        /// The default path of the first key's file, if that key is among them.
        key_file: Option<PathBuf>,
    },
}

/// The remedy for a key of another host that is in a file.
fn copy_of(key_file: Option<&Path>) -> String {
    key_file.map_or_else(String::new, |path| {
        format!(
            "copy keys/master.key of a host that has it to {} and restart the agent, or ",
            path.display()
        )
    })
}

impl HostKeyError {
    /// Whether the failure may be temporary, because the key is in another service.
    fn may_pass(&self) -> bool {
        let Self::Unusable { source, .. } = self else {
            return false;
        };
        matches!(
            **source,
            OpenKeyError::Unavailable { .. } | OpenKeyError::Pkcs11(_) | OpenKeyError::Transit(_)
        )
    }
}

const fn what(entry: &KeyEntry) -> &'static str {
    match entry {
        KeyEntry::File { .. } => "key file",
        KeyEntry::Passphrase { .. } | KeyEntry::Given(_) => "passphrase",
        KeyEntry::Age { .. } => "age identity",
        KeyEntry::Pkcs11(_) => "token's key",
        KeyEntry::Transit(_) => "transit key",
    }
}

/// A `kind`, in words.
fn made_with(kind: &str) -> String {
    match kind {
        "file" => "a key file".to_owned(),
        "passphrase" => "a passphrase".to_owned(),
        "age" => "an age identity".to_owned(),
        other => format!("a key of kind {other:?}"),
    }
}

/// The wrapping keys of this host.
pub(crate) struct HostKeys {
    world: World,
    locations: KeyLocations,
    open: WrappingKeys,
    listed: watch::Sender<Vec<ListedKey>>,
    /// Why keys that are named here are not open.
    problems: Mutex<Vec<String>>,
    /// Notified when a new list has been applied.
    changed: Notify,
}

impl HostKeys {
    pub fn new(world: &World, locations: KeyLocations) -> Self {
        Self {
            world: world.clone(),
            locations,
            open: WrappingKeys::new(world.clone()),
            listed: watch::Sender::default(),
            problems: Mutex::default(),
            changed: Notify::new(),
        }
    }

    /// Stores the list of the controllers; returns `false` if it has not changed.
    pub fn list(&self, listed: Vec<ListedKey>) -> bool {
        self.listed.send_if_modified(|known| {
            let is_news = *known != listed;
            *known = listed;
            is_news
        })
    }

    pub fn listed(&self) -> Vec<ListedKey> {
        self.listed.borrow().clone()
    }

    /// Waits until the list satisfies `condition`.
    pub async fn until_listed(&self, condition: impl FnMut(&Vec<ListedKey>) -> bool) {
        // `self` owns the sender: it is not dropped meanwhile.
        let _ = self.listed.subscribe().wait_for(condition).await;
    }

    /// Ends when [`HostKeys::follow_and_notify`] has applied a new list.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Applies a new list as [`HostKeys::follow`] does, and notifies [`HostKeys::changed`].
    pub fn follow_and_notify(&self) {
        self.follow();
        self.changed.notify_one();
    }

    /// Why keys that are named here are not open, one sentence each.
    pub fn problems(&self) -> Vec<String> {
        self.problems.lock().clone()
    }

    /// Opens the listed keys that are named here, at the start of the host.
    ///
    /// # Errors
    /// If none of them can be opened, and the failure is not temporary.
    pub fn start(&self) -> Result<(), HostKeyError> {
        let mut failures = self.follow();
        let is_any = self
            .listed()
            .iter()
            .any(|key| self.open.get(key.id).is_some());
        let may_pass = failures.iter().any(HostKeyError::may_pass);
        match failures.drain(..).next() {
            Some(failure) if !is_any && !may_pass => Err(failure),
            // No listed key is named here.
            None if !is_any => self.newest().map(|_| ()),
            _ => Ok(()),
        }
    }

    /// Opens the listed keys that are named here, and closes retired and unlisted ones. Returns why
    /// keys could not be opened.
    pub fn follow(&self) -> Vec<HostKeyError> {
        let listed = self.listed();
        let is_used = |id| {
            let mut listed = listed.iter();
            listed.any(|key| key.id == id && key.state != KeyState::Retired)
        };
        for id in self.open.ids() {
            if !is_used(id) {
                self.open.close(id);
            }
        }
        let mut failures = Vec::new();
        for key in listed.iter().filter(|key| is_used(key.id)) {
            match self.opened(key.id) {
                Ok(_) | Err(HostKeyError::Missing { .. }) => {}
                Err(failure) => failures.push(failure),
            }
        }
        let problems: Vec<String> = failures
            .iter()
            .map(|failure| with_causes(failure))
            .collect();
        let mut noted = self.problems.lock();
        for problem in problems.iter().filter(|problem| !noted.contains(problem)) {
            tracing::warn!(error = problem, "agent could not open wrapping key");
        }
        *noted = problems;
        failures
    }

    /// The wrapping key with this id; opens it if necessary.
    pub fn opened(&self, id: KeyId) -> Result<Arc<VerifiedKey>, HostKeyError> {
        if let Some(key) = self.open.get(id) {
            return Ok(key);
        }
        let listed = self.listed().into_iter().find(|key| key.id == id);
        let Some(listed) = listed else {
            return Err(HostKeyError::Unlisted { id });
        };
        let name = listed.name;
        let Some(entry) = self.entry(Some(id), &name)? else {
            let path = self.keys_file();
            let key_file = self.default_file(&name);
            return Err(HostKeyError::Missing {
                name,
                id,
                path,
                key_file,
            });
        };
        let parameters: KeyParameters = match serde_json::from_value(listed.parameters) {
            Ok(parameters) => parameters,
            Err(source) => return Err(HostKeyError::Parameters { name, source }),
        };
        self.open
            .open(id, &entry, &parameters)
            .map_err(|error| self.failure(name, &entry, error))
    }

    fn failure(&self, name: String, entry: &KeyEntry, error: OpenKeyError) -> HostKeyError {
        match error {
            OpenKeyError::Wrong(WrongKey { description }) => HostKeyError::Wrong {
                description,
                what: what(entry),
                name,
            },
            OpenKeyError::OtherKind { made, .. } => HostKeyError::OtherKind {
                made_with: made_with(made),
                option: match (made, name.as_str()) {
                    ("file", FIRST_KEY) => {
                        "start the host with --key-file PATH, or without it to use the \
                                    key file in its keys folder"
                            .to_owned()
                    }
                    ("passphrase", FIRST_KEY) => {
                        "start the host with --passphrase-file PATH, or with \
                                                  SCREE_PASSPHRASE in the environment"
                            .to_owned()
                    }
                    _ => format!("correct its kind in {}", self.keys_file().display()),
                },
                name,
            },
            other => HostKeyError::Unusable {
                name,
                source: Box::new(other),
            },
        }
    }

    /// The newest active key that is named here: it wraps new data keys. If it is unavailable, that
    /// is an error: another key may protect less.
    pub fn newest(&self) -> Result<(KeyId, Arc<VerifiedKey>), HostKeyError> {
        let listed = self.listed();
        let active = || listed.iter().filter(|key| key.state == KeyState::Active);
        for key in active().rev() {
            match self.opened(key.id) {
                Err(HostKeyError::Missing { .. }) => {}
                found => return Ok((key.id, found?)),
            }
        }
        let names: Vec<&str> = active().map(|key| key.name.as_str()).collect();
        Err(HostKeyError::NoneActive {
            key_file: names.iter().find_map(|name| self.default_file(name)),
            names: names.join(", "),
            path: self.keys_file(),
        })
    }

    /// The default path of the key file of the key `name`, if no other location is given.
    fn default_file(&self, name: &str) -> Option<PathBuf> {
        let is_default = name == FIRST_KEY && self.locations.first.is_none();
        is_default.then(|| self.locations.default_key_file.clone())
    }

    /// Checks that this host has all wrapping keys of a volume's data keys.
    pub fn check(&self, keys: &[LineageKey]) -> Result<(), KeyError> {
        for key in keys {
            let Some(id) = key.wrapped_by else { continue };
            self.opened(id).map_err(|error| KeyError::Unavailable {
                lineage: key.lineage,
                source: Arc::new(error),
            })?;
        }
        Ok(())
    }

    /// Unwraps the data keys of a volume, which may have different wrapping keys.
    pub fn keyring(&self, keys: &[LineageKey]) -> Result<Keyring, KeyError> {
        self.check(keys)?;
        let wrapped_by = |lineage| {
            let key = keys.iter().find(|key| key.lineage == lineage);
            key.and_then(|key| key.wrapped_by)
        };
        Keyring::unwrap(keys, &self.open.unwrapping(wrapped_by))
    }

    /// The first encrypting data key of a volume, and its lineage; `None` if nothing in the volume
    /// is encrypted.
    pub fn sealing_key(&self, keys: &[LineageKey]) -> Result<Option<(Lineage, DataKey)>, KeyError> {
        self.check(keys)?;
        for key in keys {
            let lineage = key.lineage;
            let wrapped = key.wrapped.as_ref().ok_or(KeyError::Unwrap { lineage })?;
            let with = self.open.unwrapping(|_| key.wrapped_by);
            if let Unwrapped::Key(data_key) = with.unwrap_key(lineage, wrapped)? {
                return Ok(Some((lineage, data_key)));
            }
        }
        Ok(None)
    }

    /// Creates the wrapping key that this host calls `name`. If the key itself does not exist,
    /// creates it as well, if Scree can.
    pub fn create(&self, name: &str) -> Result<KeyParameters, HostKeyError> {
        let Some(entry) = self.entry(None, name)? else {
            let (name, path) = (name.to_owned(), self.keys_file());
            return Err(HostKeyError::Unnamed { name, path });
        };
        let failure = |error| self.failure(name.to_owned(), &entry, error);
        match self.open.create(&entry) {
            Ok(())
            | Err(
                OpenKeyError::NotMadeHere { .. }
                | OpenKeyError::File(FileKeyError::Exists { .. })
                | OpenKeyError::Pkcs11(Pkcs11Error::KeyExists { .. }),
            ) => {}
            Err(error) => return Err(failure(error)),
        }
        let parameters = self.open.new_parameters(&entry).map_err(failure)?;
        for other in self.listed() {
            let key = self.open.get(other.id);
            if key.is_some_and(|key| key.is_what_made(&parameters)) {
                let (name, other) = (name.to_owned(), other.name);
                return Err(HostKeyError::Same { name, other });
            }
        }
        Ok(parameters)
    }

    /// The entry of the key with this name or id.
    fn entry(&self, id: Option<KeyId>, name: &str) -> Result<Option<KeyEntry>, HostKeyError> {
        let locations = &self.locations;
        let is_first = name == FIRST_KEY;
        if let Some(entry) = locations.first.as_ref().filter(|_| is_first) {
            return Ok(Some(entry.clone()));
        }
        let keys_file = match &locations.keys_file {
            Some(path) => Some(KeysFile::read(&self.world, path)?),
            None if self.exists(&locations.default_keys_file) => {
                Some(KeysFile::read(&self.world, &locations.default_keys_file)?)
            }
            None => None,
        };
        if let Some(entry) = keys_file.as_ref().and_then(|file| file.entry(id, name)) {
            return Ok(Some(entry.clone()));
        }
        let path = &locations.default_key_file;
        let is_default = is_first && (keys_file.is_none() || self.exists(path));
        Ok(is_default.then(|| KeyEntry::File { path: path.clone() }))
    }

    fn exists(&self, path: &Path) -> bool {
        let opened = self.world.disk.open(path, OpenMode::Read);
        !opened.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    }

    fn keys_file(&self) -> PathBuf {
        let configured = self.locations.keys_file.as_ref();
        configured
            .unwrap_or(&self.locations.default_keys_file)
            .clone()
    }
}
