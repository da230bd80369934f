//! The wrapping keys that this host has: those that the controllers list,
//! found where `keys.toml` or the command line says.
//!
//! ```text
//!   listed by the controllers     named on this host     so
//!   active                        yes                    opened; the newest one wraps new keys
//!   retiring                      yes                    opened, until it wraps nothing
//!   retired                       whatever               closed
//!   any                           no                     what it wraps waits for another host
//! ```
//!
//! A key that could not be opened is tried again when something needs it, with
//! the file read anew: to name a key needs no restart.
//!
//! All of it may wait and belongs on a blocking thread, but `list`,
//! `listed`, `until` and `problems`.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use api::host::{FIRST_KEY, KeyState, WrappingKey as Listed};
use base::{KeyId, Lineage, with_causes};
use catalog::LineageKey;
use tokio::sync::watch;
use volume::seal::{DataKey, KeyError, Keyring, UnwrapKeys as _, Unwrapped};
use world::{OpenMode, World};

use crate::agent::lock;
use crate::keys::{
    FileKeyError, KeyEntry, KeyParameters, KeysFile, KeysFileError, OpenKeyError, WrappingKey,
    WrappingKeys, WrongKey, pkcs11::Pkcs11Error,
};

/// Where this host's wrapping keys are.
#[derive(Debug, Clone)]
pub struct KeyPlaces {
    /// Where `main` is, if the command line says so: before all else.
    pub first: Option<KeyEntry>,
    /// `keys.toml`, if the command line says where: it has to be there.
    pub keys_file: Option<PathBuf>,
    /// `keys.toml` otherwise, which need not be there.
    pub default_keys_file: PathBuf,
    /// The key file of `main`, if nothing says where that key is.
    pub default_key_file: PathBuf,
}

/// Why this host has not the wrapping key that it needs.
#[derive(Debug, thiserror::Error)]
pub enum HostKeyError {
    /// `keys.toml` cannot be used.
    #[error(transparent)]
    File(#[from] KeysFileError),
    /// Nothing on this host says where it is.
    #[error(
        "this host has not the wrapping key {name:?} ({id}); name it in {path}, as docs/keys.md \
         says",
        path = path.display()
    )]
    Lacks {
        /// Its name.
        name: String,
        /// Its id.
        id: KeyId,
        /// Where to name it.
        path: PathBuf,
    },
    /// A key that is to be founded is not named.
    #[error(
        "{path} does not say where the wrapping key {name:?} is; add [keys.{name}] there, as \
         docs/keys.md says, and ask again",
        path = path.display()
    )]
    Unnamed {
        /// Its name.
        name: String,
        /// Where to name it.
        path: PathBuf,
    },
    /// The controllers have not listed it.
    #[error("the controllers do not list the wrapping key {id}; it is asked for again")]
    Unlisted {
        /// Its id.
        id: KeyId,
    },
    /// What the controllers keep of it makes no sense.
    #[error(
        "the parameters of the wrapping key {name:?} make no sense: the database is damaged, or \
         they are of a newer Scree"
    )]
    Parameters {
        /// Its name.
        name: String,
        /// Where and why.
        source: serde_json::Error,
    },
    /// It is another key.
    #[error(
        "{description} is not the {what} that the wrapping key {name:?} was made with; what that \
         wraps cannot be opened with it"
    )]
    Wrong {
        /// What was tried.
        description: String,
        /// What kind of thing it is.
        what: &'static str,
        /// The key's name.
        name: String,
    },
    /// It was made as another kind of key.
    #[error("the wrapping key {name:?} was made with {made_with}; {option}")]
    OtherKind {
        /// Its name.
        name: String,
        /// What it was made with.
        made_with: String,
        /// How to say where that is.
        option: String,
    },
    /// It cannot be had.
    #[error("the wrapping key {name:?} cannot be used")]
    Unusable {
        /// Its name.
        name: String,
        /// Why.
        source: Box<OpenKeyError>,
    },
    /// A key that is to be founded is there already, under another name.
    #[error(
        "{name:?} is the same key as the wrapping key {other:?}; to wrap with it would protect \
         nothing anew: name another one"
    )]
    Same {
        /// The name it should have.
        name: String,
        /// The name it has.
        other: String,
    },
    /// No key may wrap what is new.
    #[error(
        "this host has no wrapping key that may wrap a new volume's key; the active ones are: \
         {names}; name one of them in {path}",
        path = path.display()
    )]
    NoneActive {
        /// Those that may.
        names: String,
        /// Where to name it.
        path: PathBuf,
    },
}

impl HostKeyError {
    /// Whether it may pass by itself: the key is with somebody else.
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

/// See the module's head.
pub(crate) struct HostKeys {
    world: World,
    places: KeyPlaces,
    open: WrappingKeys,
    listed: watch::Sender<Vec<Listed>>,
    /// Why keys that are named here are not open.
    problems: Mutex<Vec<String>>,
}

impl HostKeys {
    pub fn new(world: &World, places: KeyPlaces) -> Self {
        Self {
            world: world.clone(),
            places,
            open: WrappingKeys::new(world.clone()),
            listed: watch::Sender::default(),
            problems: Mutex::default(),
        }
    }

    /// Keeps what the controllers list; `false` if that is no news.
    pub fn list(&self, listed: Vec<Listed>) -> bool {
        self.listed.send_if_modified(|known| {
            let is_news = *known != listed;
            *known = listed;
            is_news
        })
    }

    pub fn listed(&self) -> Vec<Listed> {
        self.listed.borrow().clone()
    }

    /// Waits until what is listed is as it should be.
    pub async fn until(&self, is_so: impl FnMut(&Vec<Listed>) -> bool) {
        // That nobody lists any more, while this is here, cannot be.
        let _ = self.listed.subscribe().wait_for(is_so).await;
    }

    /// What is wrong with keys that are named here, one sentence each.
    pub fn problems(&self) -> Vec<String> {
        lock(&self.problems).clone()
    }

    /// Opens what is listed and named here, as the host starts.
    ///
    /// # Errors
    /// If none of them opens, and that will not pass by itself.
    pub fn start(&self) -> Result<(), HostKeyError> {
        let mut failures = self.follow();
        let is_any = self
            .listed()
            .iter()
            .any(|key| self.open.get(key.id).is_some());
        let may_pass = failures.iter().any(HostKeyError::may_pass);
        match failures.drain(..).next() {
            Some(failure) if !is_any && !may_pass => Err(failure),
            // Nothing is named here of what is listed.
            None if !is_any => self.newest().map(|_| ()),
            _ => Ok(()),
        }
    }

    /// Opens what is listed and named here, and closes what is neither listed
    /// nor of use any more. Returns what does not open.
    pub fn follow(&self) -> Vec<HostKeyError> {
        let listed = self.listed();
        let is_of_use = |id| {
            let mut listed = listed.iter();
            listed.any(|key| key.id == id && key.state != KeyState::Retired)
        };
        for id in self.open.ids() {
            if !is_of_use(id) {
                self.open.close(id);
            }
        }
        let mut failures = Vec::new();
        for key in listed.iter().filter(|key| is_of_use(key.id)) {
            match self.at_hand(key.id) {
                Ok(_) | Err(HostKeyError::Lacks { .. }) => {}
                Err(failure) => failures.push(failure),
            }
        }
        let problems: Vec<String> = failures
            .iter()
            .map(|failure| with_causes(failure))
            .collect();
        let mut noted = lock(&self.problems);
        for problem in problems.iter().filter(|problem| !noted.contains(problem)) {
            tracing::warn!(problem, "a wrapping key is not open");
        }
        *noted = problems;
        failures
    }

    /// The wrapping key with this id, opened if it is not open yet.
    pub fn at_hand(&self, id: KeyId) -> Result<Arc<WrappingKey>, HostKeyError> {
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
            return Err(HostKeyError::Lacks { name, id, path });
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
                    ("file", FIRST_KEY) => "start it with --key-file PATH, or with nothing for \
                                            the one in its keys folder"
                        .to_owned(),
                    ("passphrase", FIRST_KEY) => "start it with --passphrase-file PATH, or \
                                                  SCREE_PASSPHRASE in the environment"
                        .to_owned(),
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

    /// The newest key that may wrap what is new, of those that this host has.
    /// One that is named here but cannot be asked is not passed over: another
    /// may be worth less.
    pub fn newest(&self) -> Result<(KeyId, Arc<WrappingKey>), HostKeyError> {
        let listed = self.listed();
        let active = || listed.iter().filter(|key| key.state == KeyState::Active);
        for key in active().rev() {
            match self.at_hand(key.id) {
                Err(HostKeyError::Lacks { .. }) => {}
                found => return Ok((key.id, found?)),
            }
        }
        let names: Vec<&str> = active().map(|key| key.name.as_str()).collect();
        let (names, path) = (names.join(", "), self.keys_file());
        Err(HostKeyError::NoneActive { names, path })
    }

    /// Whether all that wrapped the data keys of one volume is here.
    pub fn check(&self, keys: &[LineageKey]) -> Result<(), KeyError> {
        for key in keys {
            let Some(id) = key.wrapped_by else { continue };
            self.at_hand(id).map_err(|error| KeyError::Unavailable {
                lineage: key.lineage,
                source: Arc::new(error),
            })?;
        }
        Ok(())
    }

    /// Opens the data keys of one volume, which several keys may have wrapped.
    pub fn keyring(&self, keys: &[LineageKey]) -> Result<Keyring, KeyError> {
        self.check(keys)?;
        let wrapped_by = |lineage| {
            let key = keys.iter().find(|key| key.lineage == lineage);
            key.and_then(|key| key.wrapped_by)
        };
        Keyring::unwrap(keys, &self.open.unwrapping(wrapped_by))
    }

    /// The first data key of one volume that seals, and whose it is; none, if nothing of it is
    /// sealed.
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

    /// Founds the key that this host calls `name`. The key itself is made, if
    /// it is not there and Scree can.
    pub fn found(&self, name: &str) -> Result<KeyParameters, HostKeyError> {
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
        let parameters = self.open.found(&entry).map_err(failure)?;
        for other in self.listed() {
            let key = self.open.get(other.id);
            if key.is_some_and(|key| key.is_what_made(&parameters)) {
                let (name, other) = (name.to_owned(), other.name);
                return Err(HostKeyError::Same { name, other });
            }
        }
        Ok(parameters)
    }

    /// Where this host has the key with this name or id.
    fn entry(&self, id: Option<KeyId>, name: &str) -> Result<Option<KeyEntry>, HostKeyError> {
        let places = &self.places;
        let is_first = name == FIRST_KEY;
        if let Some(entry) = places.first.as_ref().filter(|_| is_first) {
            return Ok(Some(entry.clone()));
        }
        let keys_file = match &places.keys_file {
            Some(path) => Some(KeysFile::read(&self.world, path)?),
            None if self.is_there(&places.default_keys_file) => {
                Some(KeysFile::read(&self.world, &places.default_keys_file)?)
            }
            None => None,
        };
        if let Some(entry) = keys_file.as_ref().and_then(|file| file.entry(id, name)) {
            return Ok(Some(entry.clone()));
        }
        let path = &places.default_key_file;
        let is_default = is_first && (keys_file.is_none() || self.is_there(path));
        Ok(is_default.then(|| KeyEntry::File { path: path.clone() }))
    }

    fn is_there(&self, path: &std::path::Path) -> bool {
        let opened = self.world.disk.open(path, OpenMode::Read);
        !opened.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    }

    fn keys_file(&self) -> PathBuf {
        let given = self.places.keys_file.as_ref();
        given.unwrap_or(&self.places.default_keys_file).clone()
    }
}
