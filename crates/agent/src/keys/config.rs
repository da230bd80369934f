//! [`KeysFile`]: `keys.toml`, which locates this host's wrapping keys.
//!
//! ```toml
//! [keys.main]                     # the wrapping key's name at the controller, or its id
//! kind = "file"
//! path = "main.key"               # 64 hex digits, mode 0600
//!
//! [keys.office]
//! kind = "passphrase"
//! path = "office.passphrase"      # its first line; mode 0600
//!
//! [keys.alice]
//! kind = "age"
//! path = "alice.age"              # AGE-SECRET-KEY-1..., plain or encrypted with a passphrase
//! passphrase_path = "alice.passphrase"
//!
//! [keys.hsm]
//! kind = "pkcs11"
//! module = "/usr/lib/softhsm/libsofthsm2.so"
//! token = "tenant"                # labels
//! key = "scree"
//! pin_path = "hsm.pin"
//!
//! [keys.vault]
//! kind = "transit"
//! address = "https://vault.example:8200"
//! mount = "transit"               # the default
//! key = "scree"
//! token_path = "vault.token"
//! ca_path = "vault-ca.pem"        # required for https
//! namespace = "team-a"            # if the service has namespaces
//! timeout_seconds = 10            # the default; for a whole call, 1 to 120
//! ```
//!
//! Relative paths start at the folder of the file. An unknown field is an error. The file holds no
//! secrets, but it decides where keys are looked for: only its owner may have write access.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use base::KeyId;
use serde::Deserialize;
use world::{OpenMode, World, host};
use zeroize::Zeroizing;

/// The largest file, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The wrapping keys of this host.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeysFile {
    #[serde(default)]
    keys: BTreeMap<String, KeyEntry>,
}

/// The location of one wrapping key. Paths are absolute, or relative to the working directory of
/// the process.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum KeyEntry {
    /// A key file.
    File {
        /// Path of the key file.
        path: PathBuf,
    },
    /// A passphrase.
    Passphrase {
        /// Path of a file whose first line is the passphrase.
        path: PathBuf,
    },
    /// An age identity.
    Age {
        /// Path of the identity file.
        path: PathBuf,
        /// Path of a file with the passphrase of an encrypted identity file.
        passphrase_path: Option<PathBuf>,
    },
    /// A key on a PKCS#11 token.
    Pkcs11(Pkcs11Entry),
    /// A key of a transit service.
    Transit(TransitEntry),
    /// A passphrase given to the process, not in the file.
    #[serde(skip)]
    Given(Passphrase),
}

/// A passphrase. It is wiped from memory when dropped, and never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Passphrase(Zeroizing<String>);

impl Passphrase {
    /// Wraps `text` as a passphrase.
    #[must_use]
    pub fn new(text: String) -> Self {
        Self(Zeroizing::new(text))
    }

    pub(super) fn bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl std::fmt::Debug for Passphrase {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Passphrase(..)")
    }
}

/// A key on a PKCS#11 token.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pkcs11Entry {
    /// Path of the vendor's library.
    pub module: PathBuf,
    /// The token's label.
    pub token: String,
    /// The key's label.
    pub key: String,
    /// Path of a file with the user PIN.
    pub pin_path: PathBuf,
}

/// A key of a transit service.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TransitEntry {
    /// Address of the service: `https://HOST:PORT`, or `http://` for a service on this machine.
    pub address: String,
    /// Path at which the transit engine is mounted.
    #[serde(default = "mount")]
    pub mount: String,
    /// The key's name.
    pub key: String,
    /// Path of a file with the token for the service.
    pub token_path: PathBuf,
    /// Path of the certificate of the authority that signed the service's certificate.
    pub ca_path: Option<PathBuf>,
    /// Namespace of the mount.
    pub namespace: Option<String>,
    /// Timeout of one call, in seconds.
    #[serde(default = "timeout_seconds")]
    pub timeout_seconds: u32,
}

fn mount() -> String {
    "transit".to_owned()
}

const fn timeout_seconds() -> u32 {
    10
}

/// Why `keys.toml` cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeysFileError {
    /// The file cannot be read.
    #[error("cannot read {path}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// Other users can write the file, and so change where keys are looked for.
    #[error("{path} can be written by others (mode {mode:03o}); check its content and run \
             `chmod go-w {path}`", path = path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The mode of the file.
        mode: u32,
    },
    /// The file cannot be parsed.
    #[error("{path} does not follow docs/reference/key-providers.md", path = path.display())]
    Toml {
        /// The file.
        path: PathBuf,
        /// The parse error, with its position.
        source: Box<toml::de::Error>,
    },
}

impl KeysFile {
    /// Reads `keys.toml`.
    ///
    /// # Errors
    /// [`KeysFileError`].
    pub fn read(world: &World, path: &Path) -> Result<Self, KeysFileError> {
        let unreadable = |source| KeysFileError::Read {
            path: path.to_owned(),
            source,
        };
        let mode = host::mode(path).map_err(unreadable)?;
        if mode & 0o022 != 0 {
            return Err(KeysFileError::Open {
                path: path.to_owned(),
                mode,
            });
        }
        let text = || {
            let file = world.disk.open(path, OpenMode::Read)?;
            let length = file.length()?;
            if length > FILE_BYTES_MAX {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "it is too long"));
            }
            let mut bytes = vec![0; length as usize];
            file.read_at(&mut bytes, 0)?;
            String::from_utf8(bytes)
                .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not text"))
        };
        let text = text().map_err(unreadable)?;
        let mut read: Self = toml::from_str(&text).map_err(|source| KeysFileError::Toml {
            path: path.to_owned(),
            source: Box::new(source),
        })?;
        let folder = path.parent().unwrap_or(Path::new(""));
        for entry in read.keys.values_mut() {
            entry.for_each_path(|path| *path = folder.join(&*path));
        }
        Ok(read)
    }

    /// The entry named by this id, or else by this name.
    #[must_use]
    pub fn entry(&self, id: Option<KeyId>, name: &str) -> Option<&KeyEntry> {
        id.and_then(|id| self.keys.get(&id.to_string()))
            .or_else(|| self.keys.get(name))
    }

    /// All entries, by name.
    pub fn entries(&self) -> impl Iterator<Item = (&str, &KeyEntry)> {
        self.keys.iter().map(|(name, entry)| (name.as_str(), entry))
    }
}

impl KeyEntry {
    /// The `kind`, as spelled in the file.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::File { .. } => "file",
            Self::Passphrase { .. } | Self::Given(_) => "passphrase",
            Self::Age { .. } => "age",
            Self::Pkcs11(_) => "pkcs11",
            Self::Transit(_) => "transit",
        }
    }

    fn for_each_path(&mut self, mut change: impl FnMut(&mut PathBuf)) {
        match self {
            Self::File { path } | Self::Passphrase { path } => change(path),
            Self::Age {
                path,
                passphrase_path,
            } => {
                change(path);
                passphrase_path.iter_mut().for_each(change);
            }
            Self::Pkcs11(entry) => {
                change(&mut entry.module);
                change(&mut entry.pin_path);
            }
            Self::Given(_) => {}
            Self::Transit(entry) => {
                change(&mut entry.token_path);
                entry.ca_path.iter_mut().for_each(change);
            }
        }
    }
}
