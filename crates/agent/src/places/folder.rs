//! Folders on any mounted file system: `file:///path`, or a plain absolute path.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use api::host::Refusal;
use base::{ClusterId, UnitId, url};
use unit::{Unit, UnitError};
use unit_folder::FolderUnit;
use world::host;

use super::{Host, Place, invalid};

/// A folder.
pub(crate) struct Folder(pub PathBuf);

/// Reads where a folder is.
pub(super) fn read(text: &str) -> Result<Box<dyn Place>, Refusal> {
    Ok(Box::new(Folder(path_of(text)?)))
}

fn path_of(text: &str) -> Result<PathBuf, Refusal> {
    let path = match text.strip_prefix("file://") {
        Some(path) => url::decode(path).ok_or_else(|| {
            invalid(format!(
                "{text:?} is not a URL: a % is not followed by two hex digits"
            ))
        })?,
        None => PathBuf::from(text),
    };
    if !path.is_absolute() {
        return Err(invalid(format!(
            "{text:?} is not an absolute path; write file:///path/to/folder"
        )));
    }
    // Two spellings of one folder should not look like two units.
    Ok(path.components().collect())
}

impl Folder {
    fn unit(&self, host: &Host<'_>, unit: UnitId) -> FolderUnit {
        let claim = host.claim;
        FolderUnit::open(host.world, &self.0, host.cluster, unit)
            .with_owner(claim.owner.clone(), claim.takes_over)
    }
}

impl Place for Folder {
    fn url(&self) -> String {
        url::url_of(&self.0)
    }

    /// The path of a folder that exists, absolute and without links: so a mistyped
    /// or unmounted path is not taken for a new unit.
    fn resolved(self: Box<Self>) -> Result<Box<dyn Place>, Refusal> {
        let shown = self.0.display();
        let folder = host::resolve(&self.0).map_err(|error| {
            invalid(format!(
                "{shown}: {error}; make the folder, or mount it, first"
            ))
        })?;
        if !host::is_folder(&folder) {
            return Err(invalid(format!("{} is not a folder", folder.display())));
        }
        Ok(Box::new(Self(folder)))
    }

    /// The other one's path was without links when it was added; to ask again could
    /// take for ever.
    fn is_near(&self, url: &str) -> bool {
        let nests = |other: PathBuf| self.0.starts_with(&other) || other.starts_with(&self.0);
        url.starts_with("file:") && path_of(url).is_ok_and(nests)
    }

    fn identify(&self, host: &Host<'_>) -> Option<(ClusterId, UnitId)> {
        let marker = FolderUnit::identify(host.world, &self.0).ok()?;
        Some((marker.cluster, marker.unit))
    }

    fn open(&self, host: &Host<'_>, unit: UnitId) -> Arc<dyn Unit> {
        Arc::new(self.unit(host, unit))
    }

    fn make(&self, host: &Host<'_>, unit: UnitId) -> Result<Arc<dyn Unit>, UnitError> {
        Ok(Arc::new(self.unit(host, unit).made()?))
    }

    fn folder(&self) -> Option<&Path> {
        Some(&self.0)
    }
}
