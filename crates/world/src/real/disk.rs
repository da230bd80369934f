//! [`RealDisk`]: files of this machine, through the page cache.

use std::ffi::CString;
use std::fs;
use std::io::{self, Seek as _, SeekFrom};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{DirBuilderExt, FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::{Advice, FallocateFlags, OFlags};
use rustix::io::{Errno, ReadWriteFlags};

use super::folder::RealFolder;
use super::limits;
use crate::{DirectoryEntry, Disk, File, OpenMode, Space, is_out_of_files};

/// The file systems of this machine.
#[derive(Debug, Clone, Copy)]
pub struct RealDisk;

#[derive(Debug)]
pub(super) struct RealFile {
    file: fs::File,
    direct: Mutex<Direct>,
}

/// A second descriptor of a file, which bypasses the page cache.
#[derive(Debug)]
enum Direct {
    /// The descriptor is not needed now.
    Closed,
    Open(Arc<fs::File>),
    /// The file system cannot bypass the page cache.
    Impossible,
}

impl RealFile {
    pub(super) fn new(file: fs::File) -> Self {
        Self {
            file,
            direct: Mutex::new(Direct::Closed),
        }
    }

    /// The descriptor that bypasses the page cache, if it can be opened now.
    fn direct(&self) -> Option<Arc<fs::File>> {
        let mut direct = self.direct.lock();
        if matches!(*direct, Direct::Closed) {
            let again = format!("/proc/self/fd/{}", self.file.as_raw_fd());
            let flags = OFlags::DIRECT.bits().cast_signed();
            let opened = fs::OpenOptions::new()
                .write(true)
                .custom_flags(flags)
                .open(again);
            *direct = match opened {
                Ok(file) => Direct::Open(Arc::new(file)),
                // This says nothing about the file system, so the next call tries again.
                Err(error) if is_out_of_files(&error) => Direct::Closed,
                Err(_) => Direct::Impossible,
            };
        }
        match &*direct {
            Direct::Open(file) => Some(Arc::clone(file)),
            Direct::Closed | Direct::Impossible => None,
        }
    }
}

/// The alignment of memory and file for writes that bypass the page cache, in bytes. Every device
/// and file system accepts it.
const DIRECT_ALIGNMENT: usize = 4096;
/// The least length of a write that bypasses the page cache, in bytes. A shorter one is not worth
/// a round trip to the device.
const DIRECT_BYTES_MIN: usize = 64 << 10;

fn can_be_direct(from: &[u8], offset: u64) -> bool {
    from.len() >= DIRECT_BYTES_MIN
        && from.len().is_multiple_of(DIRECT_ALIGNMENT)
        && from.as_ptr().addr().is_multiple_of(DIRECT_ALIGNMENT)
        && offset.is_multiple_of(DIRECT_ALIGNMENT as u64)
}

fn is_block_device(found: io::Result<fs::Metadata>) -> bool {
    found.is_ok_and(|found| found.file_type().is_block_device())
}

impl Disk for RealDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let mut options = fs::OpenOptions::new();
        // Opening a pipe in place of a file must not wait.
        let mut flags = OFlags::NONBLOCK;
        options.read(true);
        match mode {
            OpenMode::Read => {}
            OpenMode::Write => {
                options.write(true);
                // A device that is mounted or opened exclusively by another process is refused.
                if is_block_device(fs::metadata(path)) {
                    flags |= OFlags::EXCL;
                }
            }
            OpenMode::CreateNew => {
                options.write(true).create_new(true).mode(0o600);
            }
        }
        options.custom_flags(flags.bits().cast_signed());
        Ok(Arc::new(RealFile::new(options.open(path)?)))
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<DirectoryEntry>> {
        let mut entries = Vec::new();
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            if let Ok(name) = entry.file_name().into_string() {
                entries.push(DirectoryEntry {
                    name,
                    is_directory: entry.file_type()?.is_dir(),
                });
            }
        }
        entries.sort();
        Ok(entries)
    }

    fn create_directory(&self, folder: &Path) -> io::Result<()> {
        match fs::DirBuilder::new().mode(0o700).create(folder) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && folder.is_dir() => Ok(()),
            other => other,
        }
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn sync_directory(&self, folder: &Path) -> io::Result<()> {
        fs::OpenOptions::new().read(true).open(folder)?.sync_all()
    }

    fn within(&self, folder: &Path) -> Arc<dyn Disk> {
        Arc::new(RealFolder::new(folder))
    }

    fn open_files_max(&self) -> Option<u64> {
        limits::open_files_max()
    }

    fn space(&self, folder: &Path) -> io::Result<Space> {
        use std::os::unix::ffi::OsStrExt;
        let path = CString::new(folder.as_os_str().as_bytes())?;
        let stat = rustix::fs::statvfs(path.as_c_str())?;
        Ok(Space {
            total_bytes: stat.f_blocks.saturating_mul(stat.f_frsize),
            free_bytes: stat.f_bavail.saturating_mul(stat.f_frsize),
        })
    }
}

impl File for RealFile {
    fn is_device(&self) -> bool {
        is_block_device(self.file.metadata())
    }

    fn is_regular(&self) -> bool {
        self.file.metadata().is_ok_and(|found| found.is_file())
    }

    fn try_lock(&self) -> io::Result<bool> {
        match self.file.try_lock() {
            Ok(()) => Ok(true),
            Err(fs::TryLockError::WouldBlock) => Ok(false),
            Err(fs::TryLockError::Error(error)) => Err(error),
        }
    }

    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(into, offset)
    }

    fn read_now(&self, into: &mut [u8], offset: u64) -> io::Result<bool> {
        let length = into.len();
        let mut vector = [io::IoSliceMut::new(into)];
        match rustix::io::preadv2(
            self.file.as_fd(),
            &mut vector,
            offset,
            ReadWriteFlags::NOWAIT,
        ) {
            Ok(count) if count == length => Ok(true),
            // Only the front is in the page cache, or the file ends here, which the read that
            // waits reports.
            Ok(_) | Err(Errno::AGAIN | Errno::OPNOTSUPP | Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn write_at(&self, from: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(from, offset)
    }

    fn write_bulk(&self, from: &[u8], offset: u64) -> io::Result<()> {
        if can_be_direct(from, offset)
            && let Some(direct) = self.direct()
        {
            match direct.write_all_at(from, offset) {
                // Some file systems open the file and then refuse the write.
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => {}
                other => return other,
            }
        }
        self.write_at(from, offset)
    }

    fn end_bulk(&self) {
        let mut direct = self.direct.lock();
        if matches!(*direct, Direct::Open(_)) {
            *direct = Direct::Closed;
        }
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn length(&self) -> io::Result<u64> {
        if self.is_device() {
            // Nothing else uses the file's position.
            return (&self.file).seek(SeekFrom::End(0));
        }
        Ok(self.file.metadata()?.len())
    }

    fn set_length(&self, length: u64) -> io::Result<()> {
        self.file.set_len(length)
    }

    fn allocate(&self, length: u64) -> io::Result<()> {
        match rustix::fs::fallocate(self.file.as_fd(), FallocateFlags::empty(), 0, length) {
            Err(Errno::OPNOTSUPP) => self.file.set_len(length),
            Err(error) => Err(error.into()),
            Ok(()) => self.file.set_len(length),
        }
    }

    fn forget_cached(&self) {
        // This is advice, so a failure is ignored.
        let _ = rustix::fs::fadvise(self.file.as_fd(), 0, None, Advice::DontNeed);
    }

    fn punch(&self, offset: u64, length: u64) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match rustix::fs::fallocate(self.file.as_fd(), flags, offset, length) {
            Err(Errno::OPNOTSUPP) => overwrite_with_zeroes(&self.file, offset, length),
            Err(error) => Err(error.into()),
            Ok(()) => Ok(()),
        }
    }

    fn allocated(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.blocks() * 512)
    }
}

fn overwrite_with_zeroes(file: &fs::File, offset: u64, length: u64) -> io::Result<()> {
    const ZEROES: [u8; 4096] = [0; 4096];
    let end = (offset + length).min(file.metadata()?.len());
    let mut position = offset;
    while position < end {
        let count = (end - position).min(ZEROES.len() as u64);
        file.write_all_at(
            &ZEROES[..usize::try_from(count).unwrap_or(ZEROES.len())],
            position,
        )?;
        position += count;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_locked_file_cannot_be_locked_again_until_it_is_closed() {
        let folder = tempfile::TempDir::new().expect("a folder");
        let path = folder.path().join("file");
        let open = |mode| RealDisk.open(&path, mode).expect("opened");
        let one = open(OpenMode::CreateNew);
        let other = open(OpenMode::Write);
        assert!(one.try_lock().expect("locked"));
        assert!(!other.try_lock().expect("asked"));
        drop(one);
        assert!(other.try_lock().expect("locked"));
    }

    #[test]
    fn a_file_keeps_its_content_and_frees_punched_space() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        let file = RealDisk.open(&path, OpenMode::CreateNew).expect("new");
        file.allocate(1 << 20).expect("room");
        file.write_at(&[7; 4096], 4096).expect("written");
        file.sync_data().expect("synced");
        let mut bytes = [0; 4096];
        file.read_at(&mut bytes, 4096).expect("read");
        assert_eq!(bytes, [7; 4096]);
        let before = file.allocated().expect("stat");
        file.punch(4096, 4096).expect("punched");
        assert!(file.allocated().expect("stat") <= before);
        file.read_at(&mut bytes, 4096).expect("read");
        assert_eq!(bytes, [0; 4096]);
        let error = RealDisk
            .open(&path, OpenMode::CreateNew)
            .expect_err("it exists");
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
    }

    /// With a second descriptor for every segment, processes once ran out of descriptors.
    #[test]
    fn no_second_descriptor_is_open_after_the_end_of_bulk_writes() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        let file = RealDisk.open(&path, OpenMode::CreateNew).expect("new");
        let descriptors = || {
            let open = fs::read_dir("/proc/self/fd").expect("a list");
            let targets = open.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
            targets.filter(|target| *target == path).count()
        };
        let mut bulk = crate::PageBuffer::default();
        bulk.resize(64 << 10);
        for _ in 0..2 {
            bulk.fill(7);
            file.write_bulk(&bulk, 0).expect("written");
            file.end_bulk();
            assert_eq!(descriptors(), 1);
        }
        let mut bytes = [0; 4096];
        file.read_at(&mut bytes, 60 << 10).expect("read");
        assert_eq!(bytes, [7; 4096]);
    }

    #[test]
    fn the_limit_on_open_files_is_raised_to_its_maximum() {
        let before = RealDisk.open_files_max();
        let raised = crate::real::raise_open_files().expect("no more than may be");
        assert_eq!(RealDisk.open_files_max(), raised);
        assert!(raised >= before || raised.is_none());
    }

    #[test]
    fn reading_past_the_end_is_an_error() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        let file = RealDisk.open(&path, OpenMode::CreateNew).expect("new");
        file.set_length(10).expect("sized");
        let error = file.read_at(&mut [0; 11], 0).expect_err("short");
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
