//! Bringing back what hosts have freed, while no daemon runs.

use std::io;
use std::path::{Path, PathBuf};

use base::with_causes;
use unit::UnitError;
use unit_folder::FolderUnit;
use unit_folder::{UndeletePolicy, RestoreFilter, RestoreReport};
use world::{World, host};

use super::folder::{Folder, FolderError};

/// Why nothing, or not everything, was brought back.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// D cannot be used; a daemon that runs is one reason.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The daemon could not read what this would write.
    #[error(
        "{folder} is user {owner}'s: run this as that user, or the daemon cannot use what it \
         makes there", folder = folder.display()
    )]
    OtherUser {
        /// The unit's folder.
        folder: PathBuf,
        /// Whose it is.
        owner: u32,
    },
    /// The unit cannot.
    #[error("{}", with_causes(source))]
    Unit {
        /// What is wrong with it.
        source: UnitError,
    },
}

impl From<UnitError> for RestoreError {
    fn from(source: UnitError) -> Self {
        Self::Unit { source }
    }
}

/// Brings back what is meant of what was freed from the unit in the daemon's folder
/// `folder`, as far as it is still there; with `dry_run`, only says what that would
/// be.
///
/// # Errors
/// [`RestoreError`]; said once more, the same does what is left.
pub fn restore(
    world: &World,
    folder: &Path,
    meant: &RestoreFilter,
    dry_run: bool,
) -> Result<RestoreReport, RestoreError> {
    // Before anything is made where no daemon ever was.
    let marker = FolderUnit::identify(world, &folder.join("unit"))?;
    check_user(&folder.join("unit"))?;
    let folder = Folder::lock(world, folder)?;
    let unit = FolderUnit::open(world, &folder.unit(), marker.cluster, marker.unit);
    // What is put aside meanwhile is kept as well.
    let unit = unit.with_undelete(UndeletePolicy::default());
    Ok(unit.restore(meant, dry_run)?)
}

/// Root may write anywhere, and what it makes is its own.
fn check_user(folder: &Path) -> Result<(), RestoreError> {
    let failed = |source: io::Error| FolderError::Io {
        path: folder.to_owned(),
        source,
    };
    let owner = host::user(folder).map_err(failed)?;
    if host::this_user() == 0 && owner != 0 {
        return Err(RestoreError::OtherUser {
            folder: folder.to_owned(),
            owner,
        });
    }
    Ok(())
}
