//! [`Folder`]: D, the data directory of an agent, which may be that of a controller as well.
//!
//! ```text
//!   D/agent.lock       held by the agent
//!   D/filter-keys/TENANT/NAME   keys of tenants, for the filters of their volumes
//!   D/keys/            keys.toml and key files, unless they are kept elsewhere
//!   D/filter-certificates/TENANT/NAME/   certificates for the TLS of those filters
//!   D/filter-sockets/TENANT/NAME   NBD servers for the filters of a tenant's volumes
//!   D/chains/vol-…/    files of the filters of a volume: journals, notes and traces
//!   D/events/vol-….jsonl   events of the filters of a volume
//!   D/units/u1 …       folder units made on the first start
//!   D/journal/vol-…    one journal for each volume that is attached
//!   D/nbd.sock         NBD
//!   D/unpinned         how often images had been unpinned when the cache last applied that
//!   D/vm/att-….sock    NBD, for one attachment to a VM
//! ```

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use base::{AttachmentId, VolumeId};
use unit_folder::FolderUnit;
use world::{OpenMode, World, host};

use crate::keys::KeyLocations;

/// The locked D. The lock ends with the process.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    _lock: File,
}

/// Why D cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// Another process has locked it.
    #[error("{path} is in use by another agent; stop that one first", path = path.display())]
    Locked {
        /// D.
        path: PathBuf,
    },
    /// It cannot be made or entered.
    #[error("cannot use the folder {path}: {source}", path = path.display())]
    Io {
        /// Which folder or file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> FolderError {
    let path = path.to_owned();
    move |source| FolderError::Io { path, source }
}

impl Folder {
    /// Makes what is missing of the folder at `path`, and locks it.
    ///
    /// # Errors
    /// [`FolderError`].
    pub fn lock(world: &World, path: &Path) -> Result<Self, FolderError> {
        host::make_folders(&*world.disk, path).map_err(failed(path))?;
        // Sockets are named by absolute paths, whatever the current folder of
        // a later client is.
        let path = host::resolve(path).map_err(failed(path))?;
        let lock_path = path.join("agent.lock");
        let lock = host::open_private(&lock_path).map_err(failed(&lock_path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(FolderError::Locked { path }),
            Err(TryLockError::Error(error)) => return Err(failed(&lock_path)(error)),
        }
        for part in ["keys", "units", "journal", "chains", "events", "vm"] {
            let part = path.join(part);
            world.disk.create_directory(&part).map_err(failed(&part))?;
        }
        // A socket in there is given to a VM's user, who has to get to it.
        let sockets = path.join("vm");
        host::allow_entry(&sockets).map_err(failed(&sockets))?;
        world.disk.sync_directory(&path).map_err(failed(&path))?;
        Ok(Self { path, _lock: lock })
    }

    /// D itself, absolute.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The key file, unless the operator keeps it elsewhere.
    #[must_use]
    pub fn key_file(&self) -> PathBuf {
        key_file(&self.path)
    }

    /// Where wrapping keys are, unless the operator says where.
    #[must_use]
    pub fn keys_file(&self) -> PathBuf {
        keys_file(&self.path)
    }

    /// Unit folder `number`, from 1.
    #[must_use]
    pub fn unit(&self, number: usize) -> PathBuf {
        self.path.join("units").join(format!("u{number}"))
    }

    /// The folder of journals.
    #[must_use]
    pub fn journals(&self) -> PathBuf {
        self.path.join("journal")
    }

    /// A volume's journal.
    #[must_use]
    pub fn journal(&self, volume: VolumeId) -> PathBuf {
        self.journals().join(volume.to_string())
    }

    /// The note of how often images had been unpinned when the cache last applied that.
    #[must_use]
    pub fn unpinned(&self) -> PathBuf {
        self.path.join("unpinned")
    }

    /// The folder of the sockets that tenants' filters may use.
    #[must_use]
    pub fn filter_sockets(&self) -> PathBuf {
        self.path.join("filter-sockets")
    }

    /// The folder of the certificates for the TLS of tenants' filters.
    #[must_use]
    pub fn filter_certificates(&self) -> PathBuf {
        self.path.join("filter-certificates")
    }

    /// The folder of the files of filters, with a folder for each volume.
    #[must_use]
    pub fn chains(&self) -> PathBuf {
        self.path.join("chains")
    }

    /// The folder of the files of a volume's filters.
    #[must_use]
    pub fn chain(&self, volume: VolumeId) -> PathBuf {
        self.chains().join(volume.to_string())
    }

    /// The folder of the keys of tenants' filters.
    #[must_use]
    pub fn filter_keys(&self) -> PathBuf {
        self.path.join("filter-keys")
    }

    /// The folder in which the operator allows programs as filters.
    #[must_use]
    pub fn filter_programs(&self) -> PathBuf {
        self.path.join("filter-programs")
    }

    /// The folder of the events of filters.
    #[must_use]
    pub fn events(&self) -> PathBuf {
        self.path.join("events")
    }

    /// Where NBD listens.
    #[must_use]
    pub fn nbd_socket(&self) -> PathBuf {
        self.path.join("nbd.sock")
    }

    /// Where NBD listens for the VM of one attachment.
    #[must_use]
    pub fn vm_socket(&self, attachment: AttachmentId) -> PathBuf {
        self.path.join("vm").join(format!("{attachment}.sock"))
    }
}

/// Where an agent looks for its wrapping keys, if its settings do not say.
#[must_use]
pub fn key_locations(folder: &Path) -> KeyLocations {
    KeyLocations {
        first: None,
        keys_file: None,
        default_keys_file: keys_file(folder),
        default_key_file: key_file(folder),
    }
}

fn keys_file(folder: &Path) -> PathBuf {
    folder.join("keys").join("keys.toml")
}

fn key_file(folder: &Path) -> PathBuf {
    folder.join("keys").join("master.key")
}

/// Looks for traces of a former agent in the folder at `path`: something that only a former agent
/// leaves, and something that it most likely left.
///
/// It reads units, which may not answer.
///
/// # Errors
/// As the operating system says.
pub fn traces(world: &World, path: &Path) -> io::Result<FormerAgent> {
    let entries = |part: &str| -> io::Result<Vec<PathBuf>> {
        let folder = path.join(part);
        match world.disk.list(&folder) {
            Ok(entries) => Ok(entries
                .into_iter()
                .map(|entry| folder.join(entry.name))
                .collect()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    };
    let (journals, units) = (entries("journal")?, entries("units")?);
    let is_unit = |unit: &&PathBuf| FolderUnit::identify(world, unit).is_ok();
    let journal = journals.into_iter().next();
    let marked = units.iter().find(is_unit).cloned();
    let certain = journal.clone().or(marked);
    let key = world.disk.open(&key_file(path), OpenMode::Read);
    if key.is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
        let likely = certain.clone();
        return Ok(FormerAgent { certain, likely });
    }
    // A first start makes the key after the database is durable. So either the operator has put
    // the key here, and nothing else; or the database is lost, and even a bare folder may be the
    // mount point of a unit.
    let likely = journal.or_else(|| units.into_iter().next());
    Ok(FormerAgent { certain, likely })
}

/// The traces of a former agent in a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FormerAgent {
    /// What only a former agent leaves.
    pub certain: Option<PathBuf>,
    /// What a former agent most likely left.
    pub likely: Option<PathBuf>,
}
