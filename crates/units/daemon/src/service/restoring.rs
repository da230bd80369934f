//! Restoring what hosts have freed, while no daemon runs.

use std::io;
use std::path::{Path, PathBuf};

use base::with_causes;
use unit::UnitError;
use unit_folder::FolderUnit;
use unit_folder::{RestoreFilter, RestoreReport, UndeletePolicy};
use world::{World, host};

use super::folder::{Folder, FolderError};

/// Why nothing, or not everything, was restored.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The data directory cannot be used, for instance because a daemon runs.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The daemon's user could not read the files that this process would write.
    #[error(
        "{folder} belongs to user {owner}: run this as that user, or the daemon cannot read the \
         restored files", folder = folder.display()
    )]
    OtherUser {
        /// The unit's folder.
        folder: PathBuf,
        /// The user id of its owner.
        owner: u32,
    },
    /// The unit cannot be used.
    #[error("{}", with_causes(source))]
    Unit {
        /// The error of the unit.
        source: UnitError,
    },
}

impl From<UnitError> for RestoreError {
    fn from(source: UnitError) -> Self {
        Self::Unit { source }
    }
}

/// Restores what `filter` selects of what was freed on the unit in the data directory `folder`,
/// as far as it is still stored; with `dry_run`, only reports what would be restored.
///
/// # Errors
/// [`RestoreError`]; a repeated call does what is left.
pub fn restore(
    world: &World,
    folder: &Path,
    filter: &RestoreFilter,
    dry_run: bool,
) -> Result<RestoreReport, RestoreError> {
    // Before anything is created in a folder that no daemon has used.
    let marker = FolderUnit::identify(world, &folder.join("unit"))?;
    check_user(&folder.join("unit"))?;
    let folder = Folder::lock(world, folder)?;
    let unit = FolderUnit::open(world, &folder.unit(), marker.cluster, marker.unit);
    // Segments that are replaced by the restore are stored too.
    let unit = unit.with_undelete(UndeletePolicy::default());
    Ok(unit.restore(filter, dry_run)?)
}

/// Refuses to run as root on another user's unit: the files would belong to root.
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
