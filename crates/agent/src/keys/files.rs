//! Key files and passphrases.
//!
//! A key file on one host only, used by the tenant's agent alone, is an *agent
//! key*: the same file, made in the same way.

use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};

use argon2::{Algorithm, Argon2, Params, Version};
use volume::seal::KeyEncryptionKey;
use world::{OpenMode, Random, World, host};
use zeroize::Zeroizing;

use super::parameters::KeySource;
use super::private::{self, PrivateFileError};

/// Argon2id with 64 MiB and three passes: RFC 9106's second choice, for
/// machines that have other things to do.
const MEMORY_KIB: u32 = 64 << 10;
const PASSES: u32 = 3;
const LANES: u32 = 4;

/// Parameters come from a database that is not trusted. No Scree makes any that
/// cost more than this, which would stop the host.
const MEMORY_KIB_MAX: u32 = 1 << 20;
const PASSES_MAX: u32 = 64;

/// Why a key file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FileKeyError {
    /// It cannot be read.
    #[error(transparent)]
    File(#[from] PrivateFileError),
    /// It could not be made.
    #[error("cannot make the key file {path}", path = path.display())]
    Make {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// It exists: to replace it would lose what it wrapped.
    #[error("there is a key file at {path} already; use it, or give another path", path = path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// The file is no key file.
    #[error("{path} is not a key file: it should hold 64 hex digits", path = path.display())]
    NotAKey {
        /// The file.
        path: PathBuf,
    },
}

/// Why a passphrase cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PassphraseError {
    /// Its file cannot be read.
    #[error(transparent)]
    File(#[from] PrivateFileError),
    /// Argon2 does not accept the parameters, or Scree never makes such ones.
    #[error(
        "the wrapping key's stored parameters are damaged: no passphrase can be tried with them"
    )]
    Parameters,
}

/// Makes a key file, readable by its owner only, whole or not at all.
pub(super) fn create_key_file(world: &World, path: &Path) -> Result<(), FileKeyError> {
    let make = || {
        match world.disk.open(path, OpenMode::Read) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
            Ok(_) => return Err(io::ErrorKind::AlreadyExists.into()),
        }
        let mut bytes = Zeroizing::new([0_u8; 32]);
        world.random.fill(&mut *bytes);
        let mut text = Zeroizing::new(String::with_capacity(65));
        for byte in *bytes {
            let _ = write!(text, "{byte:02x}");
        }
        text.push('\n');
        host::write_whole(&*world.disk, path, text.as_bytes())
    };
    let path = path.to_owned();
    match make() {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            Err(FileKeyError::Exists { path })
        }
        Err(source) => Err(FileKeyError::Make { path, source }),
    }
}

/// The key in a key file.
pub(super) fn read_key_file(world: &World, path: &Path) -> Result<KeyEncryptionKey, FileKeyError> {
    let text = private::read_text(world, path)?;
    let not_a_key = || FileKeyError::NotAKey {
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

/// How a new passphrase becomes a key.
pub(super) fn found_passphrase(random: &dyn Random) -> KeySource {
    let mut salt = [0; 16];
    random.fill(&mut salt);
    KeySource::Passphrase {
        salt,
        memory_kib: MEMORY_KIB,
        passes: PASSES,
        lanes: LANES,
    }
}

/// The key made of the passphrase in a file, as `source` says.
pub(super) fn derive(
    world: &World,
    path: &Path,
    source: &KeySource,
) -> Result<KeyEncryptionKey, PassphraseError> {
    let passphrase = private::read_line(world, path, "passphrase")?;
    derive_from(passphrase.as_bytes(), source)
}

/// The key made of `passphrase`, as `source` says.
pub(super) fn derive_from(
    passphrase: &[u8],
    source: &KeySource,
) -> Result<KeyEncryptionKey, PassphraseError> {
    let KeySource::Passphrase {
        salt,
        memory_kib,
        passes,
        lanes,
    } = source
    else {
        return Err(PassphraseError::Parameters);
    };
    if *memory_kib > MEMORY_KIB_MAX || *passes > PASSES_MAX {
        return Err(PassphraseError::Parameters);
    }
    let params = Params::new(*memory_kib, *passes, *lanes, Some(32))
        .map_err(|_| PassphraseError::Parameters)?;
    let mut bytes = Zeroizing::new([0; 32]);
    Argon2::new(Algorithm::Argon2id, Version::V0x13, params)
        .hash_password_into(passphrase, salt, &mut *bytes)
        .map_err(|_| PassphraseError::Parameters)?;
    Ok(KeyEncryptionKey::from_bytes(&bytes))
}
