//! The data directory of a controller.
//!
//! ```text
//!   <data>/scree.db       the database, if it is SQLite
//!   <data>/database       the URL of a database elsewhere, without its password
//!   <data>/lock           held by the process that serves the directory
//!   <data>/api.sock       the HTTP API, for the user who runs the controller
//! ```

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use world::{OpenMode, World, host};

/// The largest part of the file `database` that is shown, in bytes.
const NOTE_BYTES_MAX: u64 = 4096;

/// A locked data directory. The lock ends with the process, even if that is killed.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    _lock: File,
}

/// Looks for leftover files. It is called only if there is no database, or an empty one.
pub type FindLeftovers = Arc<dyn Fn() -> io::Result<Leftovers> + Send + Sync>;

/// Files that an earlier process left beside the database.
#[derive(Debug, Clone, Default)]
pub struct Leftovers {
    /// A file that only a used database leaves.
    pub certain: Option<PathBuf>,
    /// A file that a used database most likely leaves.
    pub likely: Option<PathBuf>,
}

/// Why a data directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// Another process serves the directory.
    #[error("{path} is served by another `scree up` or controller; stop that one first", path = path.display())]
    Locked {
        /// The data directory.
        path: PathBuf,
    },
    /// The directory was served before, and its database is missing.
    #[error(
        "{path} has no database, but {trace}: it was served before, and a new database cannot read \
         its data; restore scree.db from a backup, or give a new folder to start without this data",
        path = path.display(),
        trace = trace.display()
    )]
    DatabaseLost {
        /// The data directory.
        path: PathBuf,
        /// A file that only a used database leaves.
        trace: PathBuf,
    },
    /// The directory has another database than the named one.
    #[error(
        "{path} was served with {elsewhere}; give that database again, with --database or \
         --database-file, or give a new folder to start without its data",
        path = path.display()
    )]
    Elsewhere {
        /// The data directory.
        path: PathBuf,
        /// Where its database is.
        elsewhere: String,
    },
    /// The directory has a SQLite database, and another database was named.
    #[error(
        "{path} already has a database, scree.db, which is not migrated to another one; leave out \
         --database and --database-file, or give this controller a folder of its own",
        path = path.display()
    )]
    Own {
        /// The data directory.
        path: PathBuf,
    },
    /// The directory cannot be created or opened.
    #[error("cannot use {path}: {source}", path = path.display())]
    Io {
        /// The folder or file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
}

impl Folder {
    /// Creates the folder at `path` if it does not exist, and locks it.
    ///
    /// # Errors
    /// [`FolderError`].
    pub fn lock(world: &World, path: &Path) -> Result<Self, FolderError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| FolderError::Io { path, source }
        };
        host::make_folders(&*world.disk, path).map_err(failed(path))?;
        // Clients with another working directory use the absolute paths of sockets.
        let path = host::resolve(path).map_err(failed(path))?;
        let lock_path = path.join("lock");
        let lock = host::open_private(&lock_path).map_err(failed(&lock_path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(FolderError::Locked { path }),
            Err(TryLockError::Error(error)) => return Err(failed(&lock_path)(error)),
        }
        let folder = Self { path, _lock: lock };
        folder.sync(world)?;
        Ok(folder)
    }

    /// Makes the names in the data directory durable.
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

    /// The absolute path of the data directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of the SQLite database.
    #[must_use]
    pub fn database(&self) -> PathBuf {
        self.path.join("scree.db")
    }

    /// Refuses a data directory whose database is a PostgreSQL server.
    ///
    /// # Errors
    /// [`FolderError::Elsewhere`].
    pub fn check_own(&self, world: &World) -> Result<(), FolderError> {
        let path = self.elsewhere();
        let failed = |source| FolderError::Io {
            path: path.clone(),
            source,
        };
        let file = match world.disk.open(&path, OpenMode::Read) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            opened => opened.map_err(failed)?,
        };
        let length = file.length().map_err(failed)?.min(NOTE_BYTES_MAX);
        let mut bytes = vec![0; length as usize];
        file.read_at(&mut bytes, 0).map_err(failed)?;
        Err(FolderError::Elsewhere {
            path: self.path.clone(),
            elsewhere: String::from_utf8_lossy(&bytes).trim().to_owned(),
        })
    }

    /// Refuses a data directory with a SQLite database.
    ///
    /// # Errors
    /// [`FolderError::Own`].
    pub fn check_elsewhere(&self, world: &World) -> Result<(), FolderError> {
        let path = self.database();
        match world.disk.open(&path, OpenMode::Read) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(source) => Err(FolderError::Io { path, source }),
            Ok(_) => Err(FolderError::Own {
                path: self.path.clone(),
            }),
        }
    }

    /// Records the URL of the database, so that a start without it does not create another cluster.
    ///
    /// # Errors
    /// [`FolderError::Io`].
    pub fn note_elsewhere(&self, world: &World, database: &str) -> Result<(), FolderError> {
        let path = self.elsewhere();
        let text = format!("{database}\n");
        host::write_whole(&*world.disk, &path, text.as_bytes())
            .map_err(|source| FolderError::Io { path, source })
    }

    fn elsewhere(&self) -> PathBuf {
        self.path.join("database")
    }

    /// Refuses a data directory whose database is missing or empty although it was in use. Reads
    /// nothing from the database, and changes nothing.
    ///
    /// # Errors
    /// [`FolderError::DatabaseLost`].
    pub fn check_database(
        &self,
        world: &World,
        remains: &FindLeftovers,
    ) -> Result<(), FolderError> {
        let path = self.database();
        let length = match world.disk.open(&path, OpenMode::Read) {
            Ok(file) => file.length(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
            Err(error) => Err(error),
        };
        if length.map_err(|source| FolderError::Io { path, source })? > 0 {
            return Ok(());
        }
        self.refuse_if(self.leftovers(remains)?.likely)
    }

    /// Refuses a data directory with leftover files of a used database if its database is new.
    ///
    /// # Errors
    /// [`FolderError::DatabaseLost`].
    pub fn check_new(&self, remains: &FindLeftovers) -> Result<(), FolderError> {
        self.refuse_if(self.leftovers(remains)?.certain)
    }

    fn leftovers(&self, remains: &FindLeftovers) -> Result<Leftovers, FolderError> {
        remains().map_err(|source| FolderError::Io {
            path: self.path.clone(),
            source,
        })
    }

    fn refuse_if(&self, trace: Option<PathBuf>) -> Result<(), FolderError> {
        let path = self.path.clone();
        trace.map_or(Ok(()), |trace| {
            Err(FolderError::DatabaseLost { path, trace })
        })
    }

    /// The path of the API's socket.
    #[must_use]
    pub fn api_socket(&self) -> PathBuf {
        api_socket(&self.path)
    }
}

/// The path of the API's socket in the data directory `folder`.
#[must_use]
pub fn api_socket(folder: &Path) -> PathBuf {
    folder.join("api.sock")
}
