//! Key files and passphrases.
//!
//! A key file on one host only, used by the tenant's agent alone, is an *agent key*: the same
//! format, created in the same way.

use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};

use argon2::{Algorithm, Argon2, Params, Version};
use volume::seal::WrappingKey;
use world::{OpenMode, Random, World, host};
use zeroize::Zeroizing;

use super::parameters::KeySource;
use super::private::{self, PrivateFileError};

/// Argon2id with 64 MiB and three passes: the second choice of RFC 9106, for machines with other
/// tasks.
const MEMORY_KIB: u32 = 64 << 10;
const PASSES: u32 = 3;
const LANES: u32 = 4;

/// Limits for parameters from the database, which is not trusted: larger ones would stall the host.
/// Scree never stores larger ones.
const MEMORY_KIB_MAX: u32 = 1 << 20;
const PASSES_MAX: u32 = 64;

/// Why a key file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FileKeyError {
    /// The file cannot be read.
    #[error(transparent)]
    File(#[from] PrivateFileError),
    /// The file could not be created.
    #[error("cannot create the key file {path}", path = path.display())]
    Make {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The file exists: replacing it would lose the keys that it wrapped.
    #[error("a key file exists at {path}; use it, or give another path", path = path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// The file is not a key file.
    #[error("{path} is not a key file: it should hold 64 hex digits", path = path.display())]
    NotAKey {
        /// The file.
        path: PathBuf,
    },
}

/// Why a passphrase cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PassphraseError {
    /// The file of the passphrase cannot be read.
    #[error(transparent)]
    File(#[from] PrivateFileError),
    /// The stored parameters of the key are invalid, or larger than Scree ever stores.
    #[error(
        "the wrapping key's stored parameters are damaged: no key can be derived from a passphrase with them"
    )]
    Parameters,
}

/// Creates a key file that only its owner can read, completely or not at all.
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
pub(super) fn read_key_file(world: &World, path: &Path) -> Result<WrappingKey, FileKeyError> {
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
    Ok(WrappingKey::from_bytes(&bytes))
}

/// Creates the parameters for a new passphrase.
pub(super) fn new_passphrase_source(random: &dyn Random) -> KeySource {
    let mut salt = [0; 16];
    random.fill(&mut salt);
    KeySource::Passphrase {
        salt,
        memory_kib: MEMORY_KIB,
        passes: PASSES,
        lanes: LANES,
    }
}

/// Derives a key from the passphrase in a file, with the parameters in `source`.
pub(super) fn derive(
    world: &World,
    path: &Path,
    source: &KeySource,
) -> Result<WrappingKey, PassphraseError> {
    let passphrase = private::read_line(world, path, "passphrase")?;
    derive_from(passphrase.as_bytes(), source)
}

/// Derives a key from `passphrase`, with the parameters in `source`.
pub(super) fn derive_from(
    passphrase: &[u8],
    source: &KeySource,
) -> Result<WrappingKey, PassphraseError> {
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
    Ok(WrappingKey::from_bytes(&bytes))
}
