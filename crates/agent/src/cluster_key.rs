//! The key that wraps all others: from a key file, or from a passphrase.
//!
//! Neither is ever stored by Scree next to what it protects: the database has
//! only a *verifier*, a random key wrapped with it, so that a wrong file or
//! passphrase is told apart from a damaged volume.

use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};

use api::host::{KeySource, WrappingKey};
use argon2::{Algorithm, Argon2, Params, Version};
use base::Lineage;
use volume::seal::{DataKey, KeyEncryptionKey};
use world::host::{self, parent_of};
use world::{OpenMode, World};
use zeroize::Zeroizing;

/// Argon2id with 64 MiB and three passes: RFC 9106's second choice, for
/// machines that have other things to do.
const MEMORY_KIB: u32 = 64 << 10;
const PASSES: u32 = 3;
const LANES: u32 = 4;
const SALT_BYTES: usize = 16;

/// Longer files are no key files, and no passphrases.
const FILE_BYTES_MAX: u64 = 4096;

/// The verifier is wrapped for a lineage that no volume has.
const VERIFIER: Lineage = Lineage::from_random(0);

/// Where the operator keeps the key.
#[derive(Debug, Clone)]
pub enum KeyInput {
    /// In this file, which is made on the first start.
    File(PathBuf),
    /// In a passphrase.
    Passphrase(Passphrase),
}

/// A passphrase; wiped from memory when dropped, never printed.
#[derive(Clone)]
pub struct Passphrase(Zeroizing<String>);

impl Passphrase {
    /// This passphrase.
    #[must_use]
    pub fn new(text: String) -> Self {
        Self(Zeroizing::new(text))
    }

    /// The first line of a file that only its owner can read.
    ///
    /// # Errors
    /// [`KeyInputError`].
    pub fn read(world: &World, path: &Path) -> Result<Self, KeyInputError> {
        let text = read_private(world, path)?;
        let line = text.lines().next().unwrap_or_default();
        if line.is_empty() {
            return Err(KeyInputError::EmptyPassphrase);
        }
        Ok(Self::new(line.to_owned()))
    }
}

impl std::fmt::Debug for Passphrase {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Passphrase(..)")
    }
}

/// Why there is no key to work with.
#[derive(Debug, thiserror::Error)]
pub enum KeyInputError {
    /// The file cannot be read.
    #[error("cannot read {path}: {source}; restore it from your backup of it: without it the \
             volumes cannot be read", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// The file could not be made.
    #[error("cannot make the key file {path}: {source}", path = path.display())]
    Make {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// Others than its owner can read the file.
    #[error("{path} can be read by others (mode {mode:03o}); run `chmod 600 {path}`, and consider \
             its content known", path = path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// The file is no key file.
    #[error("{path} is not a key file: it should hold 64 hex digits", path = path.display())]
    NotAKey {
        /// The file.
        path: PathBuf,
    },
    /// The passphrase file begins with an empty line.
    #[error("the passphrase is empty")]
    EmptyPassphrase,
    /// The key does not open the verifier.
    #[error(
        "this is not the {what} that this folder was made with; its volumes cannot be opened \
             with it"
    )]
    Wrong {
        /// "key file" or "passphrase".
        what: &'static str,
    },
    /// The folder was made with the other kind of key.
    #[error("this folder was made with a {made_with}; start it with {option}")]
    OtherKind {
        /// What it was made with.
        made_with: &'static str,
        /// Which option says so.
        option: &'static str,
    },
    /// The parameters in the database are none that Argon2 takes.
    #[error("the database is damaged: its key derivation parameters make no sense")]
    Parameters,
}

/// The key for a new cluster: its source, and the verifier to store.
///
/// # Errors
/// [`KeyInputError`].
pub fn found(
    world: &World,
    input: &KeyInput,
) -> Result<(KeyEncryptionKey, WrappingKey), KeyInputError> {
    let (key, source) = match input {
        KeyInput::File(path) => {
            let opened = world.disk.open(path, OpenMode::Read);
            if opened.is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
                make_key_file(world, path).map_err(|source| KeyInputError::Make {
                    path: path.clone(),
                    source,
                })?;
            }
            (read_key_file(world, path)?, KeySource::File)
        }
        KeyInput::Passphrase(passphrase) => {
            let mut salt = vec![0; SALT_BYTES];
            world.random.fill(&mut salt);
            let source = KeySource::Passphrase {
                salt,
                memory_kib: MEMORY_KIB,
                passes: PASSES,
                lanes: LANES,
            };
            (derive(passphrase, &source)?, source)
        }
    };
    let verifier = key.wrap(VERIFIER, &DataKey::generate(&*world.random), &*world.random);
    Ok((key, WrappingKey { source, verifier }))
}

/// The key of a cluster that exists, checked against its verifier.
///
/// # Errors
/// [`KeyInputError`].
pub fn open(
    world: &World,
    input: &KeyInput,
    known: &WrappingKey,
) -> Result<KeyEncryptionKey, KeyInputError> {
    let WrappingKey { source, verifier } = known;
    let (key, what) = match (input, source) {
        (KeyInput::File(path), KeySource::File) => (read_key_file(world, path)?, "key file"),
        (KeyInput::Passphrase(passphrase), KeySource::Passphrase { .. }) => {
            (derive(passphrase, source)?, "passphrase")
        }
        (_, KeySource::File) => {
            return Err(KeyInputError::OtherKind {
                made_with: "key file",
                option: "--key-file PATH, or nothing for the one in its keys folder",
            });
        }
        (_, KeySource::Passphrase { .. }) => {
            return Err(KeyInputError::OtherKind {
                made_with: "passphrase",
                option: "--passphrase-file PATH, or SCREE_PASSPHRASE in the environment",
            });
        }
    };
    key.unwrap(VERIFIER, verifier)
        .map_err(|_| KeyInputError::Wrong { what })?;
    Ok(key)
}

fn derive(passphrase: &Passphrase, source: &KeySource) -> Result<KeyEncryptionKey, KeyInputError> {
    let KeySource::Passphrase {
        salt,
        memory_kib,
        passes,
        lanes,
    } = source
    else {
        return Err(KeyInputError::Parameters);
    };
    let params = Params::new(*memory_kib, *passes, *lanes, Some(32))
        .map_err(|_| KeyInputError::Parameters)?;
    let mut bytes = Zeroizing::new([0; 32]);
    Argon2::new(Algorithm::Argon2id, Version::V0x13, params)
        .hash_password_into(passphrase.0.as_bytes(), salt, &mut *bytes)
        .map_err(|_| KeyInputError::Parameters)?;
    Ok(KeyEncryptionKey::from_bytes(&bytes))
}

fn make_key_file(world: &World, path: &Path) -> io::Result<()> {
    let mut bytes = Zeroizing::new([0_u8; 32]);
    world.random.fill(&mut *bytes);
    let mut text = Zeroizing::new(String::with_capacity(65));
    for byte in *bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text.push('\n');
    // Written aside first: a key file is whole or absent.
    let aside = path.with_extension("new");
    match world.disk.remove(&aside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let file = world.disk.open(&aside, OpenMode::CreateNew)?;
    file.write_at(text.as_bytes(), 0)?;
    file.sync_data()?;
    world.disk.rename(&aside, path)?;
    world.disk.sync_directory(parent_of(path))
}

fn read_key_file(world: &World, path: &Path) -> Result<KeyEncryptionKey, KeyInputError> {
    let text = read_private(world, path)?;
    let not_a_key = || KeyInputError::NotAKey {
        path: path.to_owned(),
    };
    let digits = text.trim_end().as_bytes();
    if digits.len() != 64 {
        return Err(not_a_key());
    }
    let mut bytes = Zeroizing::new([0_u8; 32]);
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let digit = |digit: u8| (digit as char).to_digit(16).ok_or_else(not_a_key);
        *byte = (digit(pair[0])? * 16 + digit(pair[1])?) as u8;
    }
    Ok(KeyEncryptionKey::from_bytes(&bytes))
}

/// The content of a small text file, if only its owner can read it.
fn read_private(world: &World, path: &Path) -> Result<Zeroizing<String>, KeyInputError> {
    let unreadable = |source| KeyInputError::Read {
        path: path.to_owned(),
        source,
    };
    let mode = host::mode(path).map_err(unreadable)?;
    if mode & 0o077 != 0 {
        return Err(KeyInputError::Open {
            path: path.to_owned(),
            mode,
        });
    }
    let read = || {
        let file = world.disk.open(path, OpenMode::Read)?;
        let length = file.length()?;
        if length > FILE_BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it is too long"));
        }
        let mut bytes = Zeroizing::new(vec![0; length as usize]);
        file.read_at(&mut bytes, 0)?;
        match std::str::from_utf8(&bytes) {
            Ok(text) => Ok(Zeroizing::new(text.to_owned())),
            Err(_) => Err(io::Error::new(io::ErrorKind::InvalidData, "it is not text")),
        }
    };
    read().map_err(unreadable)
}
