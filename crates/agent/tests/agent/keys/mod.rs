//! Wrapping keys of all kinds.

#![expect(
    clippy::disallowed_methods,
    reason = "these tests create files and services on a real machine"
)]

mod age;
mod config;
mod conformance;
mod local;
mod pkcs11;
mod registry;
mod stub;
mod transit;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use agent::keys::{KeyEntry, KeyParameters, KeySource, OpenKeyError, WrappingKeys};
use base::{KeyId, Lineage};
use catalog::WrappedKey;
use tempfile::TempDir;
use world::World;

/// A folder for one test, and the wrapping keys of a process.
pub struct Place {
    pub folder: TempDir,
    pub keys: WrappingKeys,
}

impl Place {
    pub fn new() -> Self {
        Self {
            folder: TempDir::new().expect("a folder"),
            keys: WrappingKeys::new(World::real(1)),
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A file that only its owner can read.
    pub fn private(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, content).expect("written");
        chmod(&path, 0o600);
        path
    }

    /// A new key file.
    pub fn key_file(&self, name: &str) -> KeyEntry {
        let path = self.path(name);
        let entry = KeyEntry::File { path };
        self.keys.create(&entry).expect("made");
        entry
    }

    /// Why no parameters can be created for `entry`, with all causes.
    pub fn refusal(&self, entry: &KeyEntry) -> String {
        let refused = self
            .keys
            .new_parameters(entry)
            .expect_err("it should be refused");
        text(&refused)
    }
}

pub fn text(error: &OpenKeyError) -> String {
    base::with_causes(error)
}

pub fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("chmod");
}

/// The salt of the fixtures of derived keys.
pub const SALT: [u8; 16] = [
    0xa0, 0xa1, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7, 0xa8, 0xa9, 0xaa, 0xab, 0xac, 0xad, 0xae, 0xaf,
];

/// Checks that the key at `entry` opens its verifier and a data key of 32 ones, which it wrapped
/// for lineage 9.
pub fn opens_the_fixture(
    place: &Place,
    entry: &KeyEntry,
    source: KeySource,
    verifier: [u8; 60],
    wrapped: [u8; 60],
) {
    let verifier = WrappedKey(verifier.to_vec());
    let parameters = KeyParameters { source, verifier };
    let key = place.keys.open(KeyId::from_u128(3), entry, &parameters);
    let wrapped = WrappedKey(wrapped.to_vec());
    let data_key = conformance::opened(&*key.expect("open"), Lineage::from_u128(9), &wrapped);
    assert_eq!(data_key, Some([1; 32]));
}
