//! The folder of a daemon.
//!
//! ```text
//!   D/unit.lock       held by the daemon
//!   D/identity.toml   who it is; kept by whoever runs it
//!   D/cluster.json    what a controller said last, once there is a unit
//!   D/place           32 hex digits, and what they were drawn for: this folder, since the
//!                     machine was started. A copy of it draws others
//!   D/unit/           the folder unit
//! ```

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use api::unit::UnitCluster;
use world::{World, host};

/// A longer `cluster.json` is none, in bytes.
const CLUSTER_BYTES_MAX: u64 = 64 << 20;

/// A longer `place` is none, in bytes.
const PLACE_BYTES_MAX: u64 = 256;

/// A locked D. The lock ends with the process, however that ends.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    _lock: File,
}

/// Why D cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// Another process has it.
    #[error("{path} is in use by another unit daemon; stop that one first", path = path.display())]
    Locked {
        /// D.
        path: PathBuf,
    },
    /// It cannot be made or entered.
    #[error("cannot use {path}", path = path.display())]
    Io {
        /// Which folder or file.
        path: PathBuf,
        /// What the operating system said.
        #[source]
        source: io::Error,
    },
    /// What is in there was not written by a daemon.
    #[error("{path} cannot be read", path = path.display())]
    Bad {
        /// Which file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: serde_json::Error,
    },
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> FolderError {
    let path = path.to_owned();
    move |source| FolderError::Io { path, source }
}

impl Folder {
    /// Makes the folder at `path` if there is none, and locks it.
    pub fn lock(world: &World, path: &Path) -> Result<Self, FolderError> {
        host::make_folders(&*world.disk, path).map_err(failed(path))?;
        // Whatever this process's current folder is later.
        let path = host::resolve(path).map_err(failed(path))?;
        let lock_path = path.join("unit.lock");
        let lock = host::open_private(&lock_path).map_err(failed(&lock_path))?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { path, _lock: lock }),
            Err(TryLockError::WouldBlock) => Err(FolderError::Locked { path }),
            Err(TryLockError::Error(error)) => Err(failed(&lock_path)(error)),
        }
    }

    /// D itself, absolute.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The folder unit's.
    pub fn unit(&self) -> PathBuf {
        self.path.join("unit")
    }

    fn cluster_file(&self) -> PathBuf {
        self.path.join("cluster.json")
    }

    /// What was drawn for this folder, now if nothing was. As long as the machine
    /// runs, no other folder has it: who says it again has this folder's lock, so that
    /// whoever said it before has ended.
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

    /// `None` on a machine that does not say when it was started.
    fn drawn_for(&self) -> Result<Option<String>, FolderError> {
        let Some(boot) = host::boot_id() else {
            return Ok(None);
        };
        let number = |of: fn(&Path) -> io::Result<u64>| of(&self.path).map_err(failed(&self.path));
        let (device, inode) = (number(host::device)?, number(host::inode)?);
        Ok(Some(format!("{boot} {device:x} {inode:x}")))
    }

    /// What a controller said last, if there was one.
    pub fn kept(&self, world: &World) -> Result<Option<UnitCluster>, FolderError> {
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

    /// Keeps it for the next start.
    pub fn keep(&self, world: &World, cluster: &UnitCluster) -> Result<(), FolderError> {
        let path = self.cluster_file();
        let text = serde_json::to_vec_pretty(cluster)
            .map_err(io::Error::other)
            .map_err(failed(&path))?;
        host::write_whole(&*world.disk, &path, &text).map_err(failed(&path))
    }
}
