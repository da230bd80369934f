//! [`CacheOpener`]: opens a cache's file with its content, or creates it. A file with any other
//! content is not overwritten.

use std::io;
use std::path::Path;
use std::sync::Arc;

use world::{Disk, File, OpenMode};

use super::head::{DIRECTORY_AT, Head, SLOT_BYTES};
use super::{CacheConfig, CacheError};

/// Bytes of a device cleared at once.
const CLEAR_STEP_BYTES: usize = 256 * SLOT_BYTES;

/// Bytes of a device checked for other content: file systems may begin after 64 KiB.
const CHECKED_BYTES: u64 = 1 << 20;

/// The opener of a cache's file.
pub struct CacheOpener<'a> {
    pub disk: &'a dyn Disk,
    pub config: &'a CacheConfig,
}

impl CacheOpener<'_> {
    fn path(&self) -> String {
        self.config.path.display().to_string()
    }

    pub fn failed(&self, what: &'static str) -> impl FnOnce(io::Error) -> CacheError + use<> {
        let path = self.path();
        move |error| CacheError::File { path, what, error }
    }

    fn head(&self, bytes: u64) -> Result<Head, CacheError> {
        Head::of_size(self.config.cluster, bytes)
            .filter(|_| bytes >= CacheConfig::BYTES_MIN)
            .ok_or(CacheError::TooSmall)
    }

    /// Opens or creates the file. Returns its head, and whether it is new.
    pub fn open(&self) -> Result<(Arc<dyn File>, Head, bool), CacheError> {
        let (path, bytes) = (&self.config.path, self.config.bytes);
        let file = match self.disk.open(path, OpenMode::Write) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let bytes = bytes.ok_or_else(|| CacheError::NoSize(self.path()))?;
                return self.make(self.head(bytes)?);
            }
            file => self.locked(file.map_err(self.failed("read"))?)?,
        };
        if !file.is_regular() && !file.is_device() {
            return Err(CacheError::NotACache(self.path()));
        }
        let length = file.length().map_err(self.failed("read"))?;
        let bytes = match bytes {
            Some(bytes) => bytes,
            None if file.is_device() => length,
            None => return Err(CacheError::NoSize(self.path())),
        };
        let head = self.head(bytes)?;
        let mut pages = vec![0; DIRECTORY_AT.min(length) as usize];
        file.read_at(&mut pages, 0).map_err(self.failed("read"))?;
        if Head::decode(&pages) == Some(head) && length >= head.file_bytes() {
            return Ok((file, head, false));
        }
        let is_free = Head::is_of_cache(&pages) || {
            // Of a device, the start is checked; of a file, all of it.
            let used = match file.is_device() {
                true => head.slot_at(0).max(CHECKED_BYTES).min(length),
                false => length,
            };
            is_zero(&*file, used).map_err(self.failed("read"))?
        };
        if !is_free {
            return Err(CacheError::NotACache(self.path()));
        }
        if !file.is_device() {
            // The same file is kept, with its owner and mode.
            file.set_length(0).map_err(self.failed("made"))?;
            return self.fill(file, head);
        }
        if length < head.file_bytes() {
            let (path, bytes) = (self.path(), length);
            return Err(CacheError::ShortDevice { path, bytes });
        }
        clear(&*file, &head).map_err(self.failed("made"))?;
        Ok((file, head, true))
    }

    /// Locks the file: two processes would overwrite each other's blocks.
    fn locked(&self, file: Arc<dyn File>) -> Result<Arc<dyn File>, CacheError> {
        match file.try_lock().map_err(self.failed("locked"))? {
            true => Ok(file),
            false => Err(CacheError::InUse(self.path())),
        }
    }

    fn make(&self, head: Head) -> Result<(Arc<dyn File>, Head, bool), CacheError> {
        let path = &self.config.path;
        let file = self.disk.open(path, OpenMode::CreateNew);
        let file = self.locked(file.map_err(self.failed("made"))?)?;
        let filled = self.fill(file, head);
        if filled.is_err() {
            // Give back the space of a full disk.
            let _ = self.disk.remove(path);
        }
        filled
    }

    /// Makes a cache of an empty file.
    fn fill(
        &self,
        file: Arc<dyn File>,
        head: Head,
    ) -> Result<(Arc<dyn File>, Head, bool), CacheError> {
        let filled = self
            .reserve(&*file, head.file_bytes())
            .and_then(|()| begin(&*file, &head));
        if let Err(error) = filled {
            // Leave it as it was found.
            let _ = file.set_length(0);
            return Err(self.failed("made")(error));
        }
        Ok((file, head, true))
    }

    /// Reserves space; where that is not supported, checks that there is enough.
    fn reserve(&self, file: &dyn File, bytes: u64) -> io::Result<()> {
        file.allocate(bytes)?;
        let has_room = file.allocated()? >= bytes || {
            let folder = self
                .config
                .path
                .parent()
                .filter(|path| *path != Path::new(""));
            let space = self.disk.space(folder.unwrap_or(Path::new(".")))?;
            space.free_bytes >= bytes
        };
        match has_room {
            true => Ok(()),
            false => Err(io::ErrorKind::StorageFull.into()),
        }
    }
}

/// Whether the first `length` bytes are zero.
fn is_zero(file: &dyn File, length: u64) -> io::Result<bool> {
    let mut bytes = vec![0; CLEAR_STEP_BYTES];
    for at in (0..length).step_by(CLEAR_STEP_BYTES) {
        let bytes = &mut bytes[..(length - at).min(CLEAR_STEP_BYTES as u64) as usize];
        file.read_at(bytes, at)?;
        if bytes.iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Makes an empty cache of a device; the head is written last.
fn clear(file: &dyn File, head: &Head) -> io::Result<()> {
    let zeroes = vec![0; CLEAR_STEP_BYTES];
    let (mut at, end) = (0, head.slot_at(0));
    while at < end {
        let count = (end - at).min(CLEAR_STEP_BYTES as u64);
        file.write_at(&zeroes[..count as usize], at)?;
        at += count;
    }
    begin(file, head)
}

/// Writes the head, which marks the file as a cache.
fn begin(file: &dyn File, head: &Head) -> io::Result<()> {
    file.write_at(&head.encode(), 0)?;
    file.sync_data()
}
