//! [`Folder`]: the data directory of an agent, which may also be that of a controller.
//!
//! ```text
//!  <data>/agent.lock                        held by the agent
//!  <data>/chains/vol-…/                     journals, notes and traces of a volume's filters
//!  <data>/events/vol-….jsonl                events of the filters of a volume
//!  <data>/filter-certificates/TENANT/NAME/  TLS certificates for the filters of TENANT's volumes
//!  <data>/filter-keys/TENANT/NAME           keys for these filters
//!  <data>/filter-sockets/TENANT/NAME        NBD servers for these filters
//!  <data>/journal/vol-…                     the journal of an attached volume
//!  <data>/keys/                             keys.toml and key files, unless configured elsewhere
//!  <data>/nbd.sock                          NBD server
//!  <data>/units/u1 …                        folder units created on the first start
//!  <data>/unpinned                          count of unpinned images that the cache last applied
//!  <data>/vm/att-….sock                     NBD server for one attachment to a VM
//! ```

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use base::{AttachmentId, VolumeId};
use unit_folder::FolderUnit;
use world::{OpenMode, World, host};

use crate::keys::KeyLocations;

/// The locked data directory. The lock ends with the process.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    _lock: File,
}

/// Why the data directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// Another process has locked the data directory.
    #[error("{path} is in use by another agent; stop that one first", path = path.display())]
    Locked {
        /// The data directory.
        path: PathBuf,
    },
    /// A folder or file cannot be created or opened.
    #[error("cannot use {path}: {source}", path = path.display())]
    Io {
        /// Path of the folder or file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> FolderError {
    let path = path.to_owned();
    move |source| FolderError::Io { path, source }
}

impl Folder {
    /// Creates the folder at `path` and its parts where they are missing, and locks it.
    ///
    /// # Errors
    /// [`FolderError`].
    pub fn lock(world: &World, path: &Path) -> Result<Self, FolderError> {
        host::make_folders(&*world.disk, path).map_err(failed(path))?;
        // Sockets are named by absolute paths, so that clients may have another working directory.
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
        // Sockets in this folder belong to the users of VMs, who must be able to enter it.
        let sockets = path.join("vm");
        host::allow_entry(&sockets).map_err(failed(&sockets))?;
        world.disk.sync_directory(&path).map_err(failed(&path))?;
        Ok(Self { path, _lock: lock })
    }

    /// Absolute path of the data directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Path of the key file, unless the operator configured another.
    #[must_use]
    pub fn key_file(&self) -> PathBuf {
        key_file(&self.path)
    }

    /// Path of `keys.toml`, unless the operator configured another.
    #[must_use]
    pub fn keys_file(&self) -> PathBuf {
        keys_file(&self.path)
    }

    /// Path of unit folder `number`, counted from 1.
    #[must_use]
    pub fn unit(&self, number: usize) -> PathBuf {
        self.path.join("units").join(format!("u{number}"))
    }

    /// The folder of journals.
    #[must_use]
    pub fn journals(&self) -> PathBuf {
        self.path.join("journal")
    }

    /// Path of the journal of a volume.
    #[must_use]
    pub fn journal(&self, volume: VolumeId) -> PathBuf {
        self.journals().join(volume.to_string())
    }

    /// File with the count of unpinned images that the cache last applied.
    #[must_use]
    pub fn unpinned(&self) -> PathBuf {
        self.path.join("unpinned")
    }

    /// The folder of the sockets that filters of tenants may use.
    #[must_use]
    pub fn filter_sockets(&self) -> PathBuf {
        self.path.join("filter-sockets")
    }

    /// The folder of the TLS certificates for the filters of tenants.
    #[must_use]
    pub fn filter_certificates(&self) -> PathBuf {
        self.path.join("filter-certificates")
    }

    /// The folder of the files of filters; each volume has a folder in it.
    #[must_use]
    pub fn chains(&self) -> PathBuf {
        self.path.join("chains")
    }

    /// The folder of the files of one volume's filters.
    #[must_use]
    pub fn chain(&self, volume: VolumeId) -> PathBuf {
        self.chains().join(volume.to_string())
    }

    /// The folder of the keys of tenants' filters.
    #[must_use]
    pub fn filter_keys(&self) -> PathBuf {
        self.path.join("filter-keys")
    }

    /// The folder of the programs that the operator allows as external filters.
    #[must_use]
    pub fn filter_programs(&self) -> PathBuf {
        self.path.join("filter-programs")
    }

    /// The folder of the events of filters.
    #[must_use]
    pub fn events(&self) -> PathBuf {
        self.path.join("events")
    }

    /// The socket of the NBD server.
    #[must_use]
    pub fn nbd_socket(&self) -> PathBuf {
        self.path.join("nbd.sock")
    }

    /// The socket of the NBD server for the VM of one attachment.
    #[must_use]
    pub fn vm_socket(&self, attachment: AttachmentId) -> PathBuf {
        self.path.join("vm").join(format!("{attachment}.sock"))
    }
}

/// Default locations of the wrapping keys of an agent with this data directory.
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

/// Looks for traces of an earlier agent in the folder at `path`.
///
/// It reads storage units, which may block.
///
/// # Errors
/// Any error of the operating system.
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
    // A first start creates the key after the database is durable. So either the operator has put
    // the key here, and nothing else; or the database is lost, and even an empty folder may be the
    // mount point of a unit.
    let likely = journal.or_else(|| units.into_iter().next());
    Ok(FormerAgent { certain, likely })
}

/// Traces of an earlier agent in a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FormerAgent {
    /// A file that only an earlier agent leaves.
    pub certain: Option<PathBuf>,
    /// A file that an earlier agent most likely left.
    pub likely: Option<PathBuf>,
}
