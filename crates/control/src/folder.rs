//! D, the folder of one `scree up`.
//!
//! ```text
//!   D/scree.db         the database
//!   D/lock             held by the process that serves D
//!   D/keys/            the key file, unless it is kept elsewhere
//!   D/units/u1 …       folder units made on the first start
//!   D/journal/vol-…    one journal for each volume that was ever attached
//!   D/api.sock         the HTTP API
//!   D/nbd.sock         NBD
//! ```

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use base::VolumeId;
use world::World;

use crate::host;

/// A locked D. The lock ends with the process, however that ends.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    _lock: File,
}

/// Why D cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// Another process serves it.
    #[error("{path} is served by another `scree up`; stop that one first", path = path.display())]
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

impl Folder {
    /// Makes what is missing of the folder at `path`, and locks it.
    ///
    /// # Errors
    /// [`FolderError`].
    pub fn lock(world: &World, path: &Path) -> Result<Self, FolderError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| FolderError::Io { path, source }
        };
        make_private(world, path).map_err(failed(path))?;
        // Sockets and units are named by absolute paths, whatever the current
        // folder of a later client is.
        let path = host::resolve(path).map_err(failed(path))?;
        let lock_path = path.join("lock");
        let lock = host::open_private(&lock_path).map_err(failed(&lock_path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(FolderError::Locked { path }),
            Err(TryLockError::Error(error)) => return Err(failed(&lock_path)(error)),
        }
        for part in ["keys", "units", "journal"] {
            let part = path.join(part);
            world.disk.create_directory(&part).map_err(failed(&part))?;
        }
        world.disk.sync_directory(&path).map_err(failed(&path))?;
        Ok(Self { path, _lock: lock })
    }

    /// D itself, absolute.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The database.
    #[must_use]
    pub fn database(&self) -> PathBuf {
        self.path.join("scree.db")
    }

    /// The key file, unless the operator keeps it elsewhere.
    #[must_use]
    pub fn key_file(&self) -> PathBuf {
        self.path.join("keys").join("master.key")
    }

    /// Unit folder `number`, from 1.
    #[must_use]
    pub fn unit(&self, number: usize) -> PathBuf {
        self.path.join("units").join(format!("u{number}"))
    }

    /// A volume's journal.
    #[must_use]
    pub fn journal(&self, volume: VolumeId) -> PathBuf {
        self.path.join("journal").join(volume.to_string())
    }

    /// Where the API listens.
    #[must_use]
    pub fn api_socket(&self) -> PathBuf {
        api_socket(&self.path)
    }

    /// Where NBD listens.
    #[must_use]
    pub fn nbd_socket(&self) -> PathBuf {
        self.path.join("nbd.sock")
    }
}

/// Where the `scree up` that serves `folder` listens for the API.
#[must_use]
pub fn api_socket(folder: &Path) -> PathBuf {
    folder.join("api.sock")
}

/// The folder that `path` lies in.
pub(crate) fn parent_of(path: &Path) -> &Path {
    match path.parent() {
        // A name alone lies in the current folder.
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => Path::new("/"),
    }
}

/// Makes a folder and its missing parents, durably.
fn make_private(world: &World, path: &Path) -> io::Result<()> {
    if host::is_folder(path) {
        return Ok(());
    }
    let parent = parent_of(path);
    make_private(world, parent)?;
    world.disk.create_directory(path)?;
    world.disk.sync_directory(parent)
}
