//! A disk that calls an observer before steps of a unit.

use std::io;
use std::path::Path;
use std::sync::{Arc, OnceLock, Weak};

use world::{DirectoryEntry, Disk, File, OpenMode, Space, World};

use crate::FolderUnit;

/// What a unit is about to do.
pub(super) enum Seen<'a> {
    Open(&'a Path, OpenMode),
    SyncFolder(&'a Path),
}

type Observer = dyn Fn(&FolderUnit, Seen<'_>) + Send + Sync;

pub(super) struct Watched {
    disk: Arc<dyn Disk>,
    unit: Arc<OnceLock<Weak<FolderUnit>>>,
    observer: Arc<Observer>,
}

impl Watched {
    /// The disk of `world`, which calls `observer` before steps of the unit that is watched.
    pub(super) fn new(
        world: &World,
        observer: impl Fn(&FolderUnit, Seen<'_>) + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            disk: Arc::clone(&world.disk),
            unit: Arc::default(),
            observer: Arc::new(observer),
        })
    }

    pub(super) fn watch(&self, unit: &Arc<FolderUnit>) {
        self.unit.set(Arc::downgrade(unit)).expect("once");
    }

    fn observe(&self, seen: Seen<'_>) {
        if let Some(unit) = self.unit.get().and_then(Weak::upgrade) {
            (self.observer)(&unit, seen);
        }
    }
}

impl Disk for Watched {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        self.observe(Seen::Open(path, mode));
        self.disk.open(path, mode)
    }
    fn list(&self, folder: &Path) -> io::Result<Vec<DirectoryEntry>> {
        self.disk.list(folder)
    }
    fn create_directory(&self, folder: &Path) -> io::Result<()> {
        self.disk.create_directory(folder)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.disk.rename(from, to)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.disk.remove(path)
    }
    fn sync_directory(&self, folder: &Path) -> io::Result<()> {
        self.observe(Seen::SyncFolder(folder));
        self.disk.sync_directory(folder)
    }
    fn within(&self, folder: &Path) -> Arc<dyn Disk> {
        Arc::new(Self {
            disk: self.disk.within(folder),
            unit: Arc::clone(&self.unit),
            observer: Arc::clone(&self.observer),
        })
    }
    fn space(&self, folder: &Path) -> io::Result<Space> {
        self.disk.space(folder)
    }
}
