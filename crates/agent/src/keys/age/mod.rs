//! A wrapping key derived from an age identity (`AGE-SECRET-KEY-1…`).
//!
//! age encrypts to a *recipient*, which is public: anyone can create a file that the identity
//! opens, and nothing in the file authenticates its author. If data keys were encrypted to a
//! recipient, an attacker who writes the database could store a chosen data key, or the mark of an
//! unencrypted volume, and an agent would write data that the attacker can read. Encrypting one
//! wrapping key to the recipient and storing it in the parameters would not help: the attacker
//! could replace it together with the verifier.
//!
//! So nothing here is encrypted to the recipient. The wrapping key is derived from the secret in
//! the identity,
//!
//! ```text
//!   HKDF-SHA-256: salt, the parameters' 16 random bytes;
//!                 key, the identity's 32 bytes; info, "scree age wrapping key"
//! ```
//!
//! and wraps as a key file does: AES-256-GCM with the lineage as associated data. A wrapped key
//! that opens was created by a holder of the identity. Altered parameters produce another key,
//! which the verifier detects. age itself never uses an identity as a key for HKDF, so neither use
//! reveals anything about the other.
//!
//! The cost: `age -d` alone cannot unwrap a key, and the recipient alone cannot wrap one.
//!
//! An identity file may itself be encrypted with a passphrase (`age -p`); `encrypted` decrypts it.
//! The `age` crate could do that too, but brings 80 other crates (HPKE, ML-KEM, P-256,
//! translations); only one recipient type and one chunk of the format are needed here.

mod encrypted;

use std::path::{Path, PathBuf};

use aws_lc_rs::hkdf::{HKDF_SHA256, Salt};
use bech32::Bech32;
use bech32::primitives::decode::CheckedHrpstring;
use volume::seal::WrappingKey;
use world::World;
use zeroize::Zeroizing;

pub use encrypted::EncryptedFileError;

use super::private::{self, PrivateFileError};

/// Why an identity cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AgeError {
    /// The identity file or the file of its passphrase cannot be read.
    #[error(transparent)]
    File(#[from] PrivateFileError),
    /// The identity file is encrypted, but no passphrase is given.
    #[error("{path} is encrypted with a passphrase; set `passphrase_path` to a file with the \
             passphrase", path = path.display())]
    PassphraseNeeded {
        /// The identity file.
        path: PathBuf,
    },
    /// A passphrase is given for a file that is not encrypted.
    #[error("{path} is not encrypted; remove `passphrase_path`, or encrypt it with `age -p`",
            path = path.display())]
    NotEncrypted {
        /// The identity file.
        path: PathBuf,
    },
    /// The encrypted file cannot be decrypted.
    #[error("cannot decrypt {path}", path = path.display())]
    Encrypted {
        /// The identity file.
        path: PathBuf,
        /// The cause.
        source: EncryptedFileError,
    },
    /// The file does not hold exactly one identity.
    #[error("{path} holds {found} identities; it should hold one", path = path.display())]
    NotOne {
        /// The identity file.
        path: PathBuf,
        /// Number of identities in the file.
        found: usize,
    },
    /// The identity is of a kind whose secret is not in the file.
    #[error("the identity in {path} is not of the kind `AGE-SECRET-KEY-1…`; identities of plugins, \
             SSH keys and hybrid identities cannot be used: create one with `age-keygen`", path = path.display())]
    OtherKind {
        /// The identity file.
        path: PathBuf,
    },
    /// A digit is wrong or missing.
    #[error("the identity in {path} has a typing error: its checksum is wrong", path = path.display())]
    Misspelled {
        /// The identity file.
        path: PathBuf,
    },
}

/// Derives the wrapping key from the identity in a file.
pub(super) fn derive(
    world: &World,
    path: &Path,
    passphrase_path: Option<&Path>,
    salt: &[u8; 16],
) -> Result<WrappingKey, AgeError> {
    let secret = read_identity(world, path, passphrase_path)?;
    let mut bytes = Zeroizing::new([0; 32]);
    Salt::new(HKDF_SHA256, salt)
        .extract(&*secret)
        .expand(&[b"scree age wrapping key"], HKDF_SHA256)
        .and_then(|key| key.fill(&mut *bytes))
        .expect("SHA-256 yields 32 bytes");
    Ok(WrappingKey::from_bytes(&bytes))
}

fn read_identity(
    world: &World,
    path: &Path,
    passphrase_path: Option<&Path>,
) -> Result<Zeroizing<[u8; 32]>, AgeError> {
    let content = private::read(world, path)?;
    let path = path.to_owned();
    let content = match (encrypted::is_encrypted(&content), passphrase_path) {
        (false, None) => content,
        (false, Some(_)) => return Err(AgeError::NotEncrypted { path }),
        (true, None) => return Err(AgeError::PassphraseNeeded { path }),
        (true, Some(passphrase_path)) => {
            let passphrase = private::read_line(world, passphrase_path, "passphrase")?;
            match encrypted::decrypt(&content, &passphrase) {
                Ok(content) => content,
                Err(source) => return Err(AgeError::Encrypted { path, source }),
            }
        }
    };
    let Ok(text) = std::str::from_utf8(&content) else {
        return Err(PrivateFileError::NotText { path }.into());
    };
    let is_identity = |line: &&str| !line.is_empty() && !line.starts_with('#');
    let mut lines = text.lines().map(str::trim).filter(is_identity);
    let (Some(identity), None) = (lines.next(), lines.next()) else {
        let found = text.lines().map(str::trim).filter(is_identity).count();
        return Err(AgeError::NotOne { path, found });
    };
    if !identity.starts_with("AGE-SECRET-KEY-1") {
        return Err(AgeError::OtherKind { path });
    }
    let Ok(checked) = CheckedHrpstring::new::<Bech32>(identity) else {
        return Err(AgeError::Misspelled { path });
    };
    let mut secret = Zeroizing::new([0; 32]);
    let mut filled = 0;
    for byte in checked.byte_iter() {
        match secret.get_mut(filled) {
            Some(place) => *place = byte,
            None => return Err(AgeError::Misspelled { path }),
        }
        filled += 1;
    }
    if filled != secret.len() {
        return Err(AgeError::Misspelled { path });
    }
    Ok(secret)
}
