//! [`FolderOpened`]: a folder without encryption.

use std::path::{Path, PathBuf};

use super::Opened;
use crate::measure::error::PathContext as _;
use crate::measure::{Account, MeasureError, Meter, Surface};

/// A folder of unencrypted files.
pub struct FolderOpened {
    surface: Surface,
    folder: PathBuf,
}

impl FolderOpened {
    /// Creates the folder if it is missing.
    ///
    /// # Errors
    /// Any error of the operating system.
    pub fn new(folder: PathBuf) -> Result<Self, MeasureError> {
        std::fs::create_dir_all(&folder).at(&folder)?;
        Ok(Self {
            surface: Surface::Folder(folder.clone()),
            folder,
        })
    }
}

/// Waits until all writes to the file system of the folder are durable.
pub fn sync(folder: &Path) -> Result<(), MeasureError> {
    let file = std::fs::File::open(folder).at(folder)?;
    rustix::fs::syncfs(&file).map_err(Into::into).at(folder)
}

impl Opened for FolderOpened {
    fn surface(&self) -> &Surface {
        &self.surface
    }

    fn meter(&self) -> Meter {
        Meter::new(vec![Account::Own])
    }

    fn settle(&mut self) -> Result<(), MeasureError> {
        sync(&self.folder)
    }

    fn close(self: Box<Self>) -> Result<(), MeasureError> {
        Ok(())
    }
}
