//! [`SubfolderDisk`]: a folder of a disk as a disk of its own.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::disk::within_folder;
use crate::{DirectoryEntry, Disk, File, OpenMode, Space};

/// The files below a folder of `disk`. It follows no link that `disk` does not follow.
pub(crate) struct SubfolderDisk {
    disk: Arc<dyn Disk>,
    folder: PathBuf,
}

impl SubfolderDisk {
    pub(crate) fn new(disk: Arc<dyn Disk>, folder: &Path) -> Self {
        let folder = folder.to_owned();
        Self { disk, folder }
    }

    fn path(&self, path: &Path) -> io::Result<PathBuf> {
        match within_folder(path)? {
            here if here == Path::new(".") => Ok(self.folder.clone()),
            below => Ok(self.folder.join(below)),
        }
    }
}

impl Disk for SubfolderDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        self.disk.open(&self.path(path)?, mode)
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<DirectoryEntry>> {
        self.disk.list(&self.path(folder)?)
    }

    fn create_directory(&self, folder: &Path) -> io::Result<()> {
        self.disk.create_directory(&self.path(folder)?)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.disk.rename(&self.path(from)?, &self.path(to)?)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.disk.remove(&self.path(path)?)
    }

    fn sync_directory(&self, folder: &Path) -> io::Result<()> {
        self.disk.sync_directory(&self.path(folder)?)
    }

    fn within(&self, folder: &Path) -> Arc<dyn Disk> {
        Arc::new(Self::new(Arc::clone(&self.disk), &self.folder.join(folder)))
    }

    fn open_files_max(&self) -> Option<u64> {
        self.disk.open_files_max()
    }

    fn space(&self, folder: &Path) -> io::Result<Space> {
        self.disk.space(&self.path(folder)?)
    }
}
