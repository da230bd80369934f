//! File descriptors: how many a unit keeps open, and what it does when there are none.
//!
//! A process has a limited number of them for sockets, journals and segments, and its units
//! share half: a segment that is written may need two. If the process runs out all the same, a
//! unit closes its cached segments and retries. Running out is no fault of the unit.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use world::{DirectoryEntry, Disk, File, OpenMode, Space, is_out_of_files};

use super::OPEN_SEGMENTS_MAX;
use super::cache::Cache;

/// Number of folder units in this process. Descriptors belong to the process, and so does
/// this count.
static UNITS: AtomicUsize = AtomicUsize::new(0);

/// Number of segments that each of `units` units may keep open in a process that may have
/// `files_max` files.
fn segments_of(files_max: Option<u64>, units: usize) -> usize {
    let Some(files_max) = files_max else {
        return OPEN_SEGMENTS_MAX;
    };
    let all = usize::try_from(files_max / 4).unwrap_or(usize::MAX);
    (all / units.max(1)).clamp(1, OPEN_SEGMENTS_MAX)
}

/// One unit's share of the process's descriptors.
pub(super) struct Share {
    files_max: Option<u64>,
    /// The number of segments that was set; 0 if none was.
    segments_set: AtomicUsize,
}

impl Share {
    pub(super) fn new(files_max: Option<u64>) -> Self {
        UNITS.fetch_add(1, Ordering::Relaxed);
        Self {
            files_max,
            segments_set: AtomicUsize::new(0),
        }
    }

    /// Sets the number of segments, instead of one derived from the process's limit.
    pub(super) fn set_segments_max(&self, segments_max: usize) {
        self.segments_set
            .store(segments_max.max(1), Ordering::Relaxed);
    }

    /// Number of segments that may be kept open. It shrinks when units are added.
    pub(super) fn segments_max(&self) -> usize {
        match self.segments_set.load(Ordering::Relaxed) {
            0 => segments_of(self.files_max, UNITS.load(Ordering::Relaxed)),
            set => set,
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        UNITS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A disk that closes the segments in `cache` and retries when the process has no descriptor
/// left.
pub(super) struct ThriftyDisk {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) cache: Arc<Cache>,
}

impl ThriftyDisk {
    fn with_a_descriptor<T>(&self, act: impl Fn() -> io::Result<T>) -> io::Result<T> {
        match act() {
            Err(error) if is_out_of_files(&error) => {
                self.cache.clear();
                act()
            }
            other => other,
        }
    }
}

impl Disk for ThriftyDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        self.with_a_descriptor(|| self.disk.open(path, mode))
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<DirectoryEntry>> {
        self.with_a_descriptor(|| self.disk.list(folder))
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
        self.with_a_descriptor(|| self.disk.sync_directory(folder))
    }

    fn within(&self, folder: &Path) -> Arc<dyn Disk> {
        Arc::new(Self {
            disk: self.disk.within(folder),
            cache: Arc::clone(&self.cache),
        })
    }

    fn open_files_max(&self) -> Option<u64> {
        self.disk.open_files_max()
    }

    fn space(&self, folder: &Path) -> io::Result<Space> {
        self.disk.space(folder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_units_together_keep_at_most_half_of_the_descriptors() {
        for files_max in [64, 1024, 4096, 20_000, 1 << 20] {
            for units in [1, 2, 8, 16] {
                let segments = segments_of(Some(files_max), units);
                assert!(segments * units * 2 <= files_max as usize / 2 || segments == 1);
                assert!((1..=OPEN_SEGMENTS_MAX).contains(&segments));
            }
        }
        assert_eq!(segments_of(Some(1024), 8), 32);
        assert_eq!(segments_of(Some(1 << 20), 8), OPEN_SEGMENTS_MAX);
        assert_eq!(segments_of(None, 8), OPEN_SEGMENTS_MAX);
    }
}
