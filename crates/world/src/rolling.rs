//! [`RollingFile`]: what grows for ever, in files of a bounded number and length.
//!
//! ```text
//!  append ─▶ NAME ── full ─▶ NAME.1 ─▶ NAME.2 ─▶ … ─▶ gone
//! ```
//!
//! Invariant: what was appended in one go lies in one file, whole, or not at all as far as
//! what is appended next is concerned.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use crate::{Disk, File, OpenMode};

/// See the module's head.
pub struct RollingFile {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    file: Option<(Arc<dyn File>, u64)>,
    file_bytes_max: u64,
    old_files: u32,
    /// What is there is another one's.
    begins_anew: bool,
}

impl RollingFile {
    /// Goes on with the file at `path`, or makes it with what is appended first. It is as
    /// long as `file_bytes_max` at most, unless one piece is longer; so many older ones are
    /// kept besides.
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
            begins_anew: false,
        }
    }

    /// With a file of its own, whatever is there.
    #[must_use]
    pub const fn anew(mut self) -> Self {
        self.begins_anew = true;
        self
    }

    /// Appends `piece`.
    ///
    /// # Errors
    /// As the operating system says; then it may be tried again.
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
        if std::mem::take(&mut self.begins_anew) {
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

    /// The file is the first of the old ones, and the last of them is gone.
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
    fn files_turn_over_and_the_last_of_them_goes() {
        let disk = Simulation::new(1).world().disk;
        let mut file = RollingFile::new(Arc::clone(&disk), "/a".into(), 10, 3);
        file.append(&[9; 4]).expect("written");
        for number in 0..6 {
            file.append(&[number; 8]).expect("written");
        }
        let there = ["/a", "/a.1", "/a.2", "/a.3", "/a.4"].map(|path| first_byte(&disk, path));
        assert_eq!(there, [Some(5), Some(4), Some(3), Some(2), None]);
        // It goes on where it was, or with a file of its own.
        let mut file = RollingFile::new(Arc::clone(&disk), "/a".into(), 10, 3);
        file.append(&[7; 2]).expect("written");
        assert_eq!(first_byte(&disk, "/a"), Some(5));
        let mut file = RollingFile::new(Arc::clone(&disk), "/a".into(), 10, 3).anew();
        file.append(&[8]).expect("written");
        assert_eq!(first_byte(&disk, "/a"), Some(8));
        assert_eq!(first_byte(&disk, "/a.1"), Some(5));
    }
}
