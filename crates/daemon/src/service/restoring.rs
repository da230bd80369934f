//! Bringing back what hosts have freed, while no daemon runs.

use std::path::Path;

use base::with_causes;
use unit::folder::{Keeping, Restorable, Restored};
use unit::{FolderUnit, UnitError};
use world::World;

use super::folder::{Folder, FolderError};

/// Why nothing, or not everything, was brought back.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// D cannot be used; a daemon that runs is one reason.
    #[error(transparent)]
    Folder(#[from] FolderError),
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
    meant: &Restorable,
    dry_run: bool,
) -> Result<Restored, RestoreError> {
    // Before anything is made where no daemon ever was.
    let marker = FolderUnit::identify(world, &folder.join("unit"))?;
    let folder = Folder::lock(world, folder)?;
    let unit = FolderUnit::open(world, &folder.unit(), marker.cluster, marker.unit);
    // What is put aside meanwhile is kept as well.
    let unit = unit.keeping(Keeping::default());
    Ok(unit.restore(meant, dry_run)?)
}
