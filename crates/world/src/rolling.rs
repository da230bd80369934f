//! [`RollingFile`]: a log that is kept in files of bounded number and length.
//!
//! ```text
//!  append ─▶ NAME ── full ─▶ NAME.1 ─▶ NAME.2 ─▶ … ─▶ removed
//! ```
//!
//! Invariant: a piece lies in one file as a whole. An append that failed is overwritten by the
//! next one.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use crate::{Disk, File, OpenMode};

/// A log that is kept in files of bounded number and length.
pub struct RollingFile {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    /// The open file and its length, in bytes.
    file: Option<(Arc<dyn File>, u64)>,
    file_bytes_max: u64,
    old_files: u32,
    /// Whether the first append starts a new file.
    starts_new_file: bool,
}

impl RollingFile {
    /// A log that continues the file at `path`. The first append creates the file if it is
    /// missing. A file has at most `file_bytes_max` bytes, unless one piece is longer. In
    /// addition `old_files` older files are kept.
    #[must_use]
    pub const fn new(
        disk: Arc<dyn Disk>,
        path: PathBuf,
        file_bytes_max: u64,
        old_files: u32,
    ) -> Self {
        Self {
            disk,
            path,
            file: None,
            file_bytes_max,
            old_files,
            starts_new_file: false,
        }
    }

    /// The same log, which starts a new file with the first append.
    #[must_use]
    pub const fn in_new_file(mut self) -> Self {
        self.starts_new_file = true;
        self
    }

    /// Appends `piece`.
    ///
    /// # Errors
    /// The operating system's. The append may be tried again.
    pub fn append(&mut self, piece: &[u8]) -> io::Result<()> {
        let (file, length) = match self.file.take() {
            Some(open) => open,
            None => self.open()?,
        };
        if length > 0 && length + piece.len() as u64 > self.file_bytes_max {
            drop(file);
            self.turn_over()?;
            return self.append(piece);
        }
        file.write_at(piece, length)?;
        self.file = Some((file, length + piece.len() as u64));
        Ok(())
    }

    fn open(&mut self) -> io::Result<(Arc<dyn File>, u64)> {
        if std::mem::take(&mut self.starts_new_file) {
            self.turn_over()?;
        }
        let file = match self.disk.open(&self.path, OpenMode::Write) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.disk.open(&self.path, OpenMode::CreateNew)?
            }
            opened => opened?,
        };
        let length = file.length()?;
        Ok((file, length))
    }

    fn old(&self, number: u32) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(format!(".{number}"));
        name.into()
    }

    /// Makes the current file the first of the old files, and removes the last of those.
    fn turn_over(&self) -> io::Result<()> {
        let skip_missing = |done: io::Result<()>| match done {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            done => done,
        };
        skip_missing(self.disk.remove(&self.old(self.old_files)))?;
        for number in (1..self.old_files).rev() {
            skip_missing(self.disk.rename(&self.old(number), &self.old(number + 1)))?;
        }
        skip_missing(self.disk.rename(&self.path, &self.old(1)))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::simulated::Simulation;

    fn first_byte(disk: &Arc<dyn Disk>, path: &str) -> Option<u8> {
        let mut first = [0];
        let file = disk.open(Path::new(path), OpenMode::Read).ok()?;
        file.read_at(&mut first, 0).expect("read");
        Some(first[0])
    }

    #[test]
    fn a_full_file_becomes_an_old_one_and_the_oldest_is_removed() {
        let disk = Simulation::new(1).world().disk;
        let mut file = RollingFile::new(Arc::clone(&disk), "/a".into(), 10, 3);
        file.append(&[9; 4]).expect("written");
        for number in 0..6 {
            file.append(&[number; 8]).expect("written");
        }
        let there = ["/a", "/a.1", "/a.2", "/a.3", "/a.4"].map(|path| first_byte(&disk, path));
        assert_eq!(there, [Some(5), Some(4), Some(3), Some(2), None]);
        // A new log continues the file, or starts a new one.
        let mut file = RollingFile::new(Arc::clone(&disk), "/a".into(), 10, 3);
        file.append(&[7; 2]).expect("written");
        assert_eq!(first_byte(&disk, "/a"), Some(5));
        let mut file = RollingFile::new(Arc::clone(&disk), "/a".into(), 10, 3).in_new_file();
        file.append(&[8]).expect("written");
        assert_eq!(first_byte(&disk, "/a"), Some(8));
        assert_eq!(first_byte(&disk, "/a.1"), Some(5));
    }
}
