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
use unit::FolderUnit;
use world::{OpenMode, World};

use world::host;

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
    /// It was served before, and its database is gone.
    #[error(
        "{path} has no database, but {trace}: it was served before, and a new database could read \
         none of it; put scree.db back from a backup, or give another folder for a new start",
        path = path.display(),
        trace = trace.display()
    )]
    DatabaseLost {
        /// D.
        path: PathBuf,
        /// What only a database that was in use leaves.
        trace: PathBuf,
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
        let folder = Self { path, _lock: lock };
        folder.sync(world)?;
        Ok(folder)
    }

    /// Makes the names in D durable.
    ///
    /// # Errors
    /// [`FolderError::Io`].
    pub fn sync(&self, world: &World) -> Result<(), FolderError> {
        let failed = |source| FolderError::Io {
            path: self.path.clone(),
            source,
        };
        world.disk.sync_directory(&self.path).map_err(failed)
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

    /// Refuses a D whose database is not there, or empty, though it once was.
    /// Looks at nothing in the database, and changes nothing.
    ///
    /// # Errors
    /// [`FolderError::DatabaseLost`].
    pub fn check_database(&self, world: &World) -> Result<(), FolderError> {
        let path = self.database();
        let length = match world.disk.open(&path, OpenMode::Read) {
            Ok(file) => file.length(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
            Err(error) => Err(error),
        };
        if length.map_err(|source| FolderError::Io { path, source })? > 0 {
            return Ok(());
        }
        let key = world.disk.open(&self.key_file(), OpenMode::Read);
        if key.is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            return self.check_new(world);
        }
        // A first start makes the key when the database is durably there. So
        // the operator has put it here, and nothing else, or the database is
        // lost, and even a bare folder may be where a unit is not mounted.
        self.check_unused(world, |_| true)
    }

    /// Refuses a D that holds what a database that was in use has left, and
    /// whose database knows of nothing.
    ///
    /// # Errors
    /// [`FolderError::DatabaseLost`].
    pub fn check_new(&self, world: &World) -> Result<(), FolderError> {
        self.check_unused(world, |path| FolderUnit::identify(world, path).is_ok())
    }

    /// Refuses a D with journals, or units, or what `is_unit` takes for one.
    fn check_unused(
        &self,
        world: &World,
        is_unit: impl Fn(&Path) -> bool,
    ) -> Result<(), FolderError> {
        let entries = |part: &str| {
            let path = self.path.join(part);
            let list = world.disk.list(&path);
            let list = list.map_err(|source| FolderError::Io {
                path: path.clone(),
                source,
            })?;
            Ok(list.into_iter().map(move |entry| path.join(entry.name)))
        };
        let trace = match entries("journal")?.next() {
            Some(journal) => Some(journal),
            None => entries("units")?.find(|path| is_unit(path)),
        };
        trace.map_or(Ok(()), |trace| Err(self.lost(trace)))
    }

    fn lost(&self, trace: PathBuf) -> FolderError {
        FolderError::DatabaseLost {
            path: self.path.clone(),
            trace,
        }
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
