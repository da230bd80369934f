//! The data directory of a daemon.
//!
//! ```text
//!   <data directory>/
//!     unit.lock       locked by the daemon
//!     identity.toml   its certificate and key, written by the operator's command
//!     cluster.json    the last configuration from a controller, once there is a unit
//!     place           32 random hex digits, and what they were drawn for: this directory,
//!                     since the machine was booted. A copy of the directory draws others
//!     unit/           the folder unit
//! ```

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use api::unit::UnitCluster;
use world::{World, host};

/// Maximum length of `cluster.json`, in bytes.
const CLUSTER_BYTES_MAX: u64 = 64 << 20;

/// Maximum length of `place`, in bytes.
const PLACE_BYTES_MAX: u64 = 256;

/// A locked data directory. The lock ends with the process, even if that is killed.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    _lock: File,
}

/// Why the data directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// Another process has locked it.
    #[error("{path} is in use by another unit daemon; stop that one first", path = path.display())]
    Locked {
        /// The data directory.
        path: PathBuf,
    },
    /// It cannot be created or opened.
    #[error("cannot use {path}", path = path.display())]
    Io {
        /// The folder or file.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// A file in it cannot be parsed.
    #[error("cannot parse {path}", path = path.display())]
    Bad {
        /// The file.
        path: PathBuf,
        /// The error of the parser.
        #[source]
        source: serde_json::Error,
    },
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> FolderError {
    let path = path.to_owned();
    move |source| FolderError::Io { path, source }
}

impl Folder {
    /// Creates the data directory at `path` if there is none, and locks it.
    pub fn lock(world: &World, path: &Path) -> Result<Self, FolderError> {
        host::make_folders(&*world.disk, path).map_err(failed(path))?;
        // Absolute, so that it does not depend on the current directory.
        let path = host::resolve(path).map_err(failed(path))?;
        let lock_path = path.join("unit.lock");
        let lock = host::open_private(&lock_path).map_err(failed(&lock_path))?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { path, _lock: lock }),
            Err(TryLockError::WouldBlock) => Err(FolderError::Locked { path }),
            Err(TryLockError::Error(error)) => Err(failed(&lock_path)(error)),
        }
    }

    /// The data directory, absolute.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The folder of the unit.
    pub fn unit(&self) -> PathBuf {
        self.path.join("unit")
    }

    fn cluster_file(&self) -> PathBuf {
        self.path.join("cluster.json")
    }

    /// The random mark of this directory, drawn now if there is none. While the machine runs, no
    /// other directory has it. A daemon that reports it holds this directory's lock, so any
    /// other daemon that reported it has ended.
    pub fn mark(&self, world: &World) -> Result<String, FolderError> {
        let path = self.path.join("place");
        let drawn_for = self.drawn_for()?;
        match host::read_small(&*world.disk, &path, PLACE_BYTES_MAX) {
            Ok(place) => {
                let place = String::from_utf8_lossy(&place);
                if let Some((mark, of)) = place.split_once(' ')
                    && drawn_for.as_deref() == Some(of)
                {
                    return Ok(mark.to_owned());
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(&path)(error)),
        }
        let mark = format!("{:032x}", world.random.u128());
        let place = format!("{mark} {}", drawn_for.as_deref().unwrap_or_default());
        host::write_whole(&*world.disk, &path, place.as_bytes()).map_err(failed(&path))?;
        Ok(mark)
    }

    /// `None` on a machine without a boot id.
    fn drawn_for(&self) -> Result<Option<String>, FolderError> {
        let Some(boot) = host::boot_id() else {
            return Ok(None);
        };
        let number = |of: fn(&Path) -> io::Result<u64>| of(&self.path).map_err(failed(&self.path));
        let (device, inode) = (number(host::device)?, number(host::inode)?);
        Ok(Some(format!("{boot} {device:x} {inode:x}")))
    }

    /// The last configuration from a controller, if there was one.
    pub fn load_config(&self, world: &World) -> Result<Option<UnitCluster>, FolderError> {
        let path = self.cluster_file();
        match host::read_small(&*world.disk, &path, CLUSTER_BYTES_MAX) {
            Ok(text) => match serde_json::from_slice(&text) {
                Ok(cluster) => Ok(Some(cluster)),
                Err(source) => Err(FolderError::Bad { path, source }),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed(&path)(error)),
        }
    }

    /// Stores the configuration for the next start.
    pub fn store_config(&self, world: &World, cluster: &UnitCluster) -> Result<(), FolderError> {
        let path = self.cluster_file();
        let text = serde_json::to_vec_pretty(cluster)
            .map_err(io::Error::other)
            .map_err(failed(&path))?;
        host::write_whole(&*world.disk, &path, &text).map_err(failed(&path))
    }
}
