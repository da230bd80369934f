//! Folders on any mounted file system: `file:///path`, or a plain absolute path.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use api::host::Refusal;
use base::{ClusterId, UnitId, url};
use unit::{Unit, UnitError};
use unit_folder::FolderUnit;
use world::host;

use super::{Backend, invalid};
use crate::context::HostContext;

/// A folder.
pub(in crate::units) struct Folder(pub PathBuf);

/// Parses the URL or path of a folder.
pub(super) fn parse(text: &str) -> Result<Box<dyn Backend>, Refusal> {
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
    fn unit(&self, context: &HostContext, unit: UnitId) -> FolderUnit {
        let owner = &context.owner;
        FolderUnit::open(&context.world, &self.0, context.cluster, unit)
            .with_owner(owner.owner.clone(), owner.takes_over)
    }
}

impl Backend for Folder {
    fn url(&self) -> String {
        url::url_of(&self.0)
    }

    /// The absolute path of a folder that exists, without links: so a mistyped or unmounted path is
    /// not taken for a new unit.
    fn resolved(self: Box<Self>) -> Result<Box<dyn Backend>, Refusal> {
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

    /// The other path was resolved when it was added; to resolve it again could hang.
    fn overlaps(&self, url: &str) -> bool {
        let nests = |other: PathBuf| self.0.starts_with(&other) || other.starts_with(&self.0);
        url.starts_with("file:") && path_of(url).is_ok_and(nests)
    }

    fn identify(&self, context: &HostContext) -> Option<(ClusterId, UnitId)> {
        let marker = FolderUnit::identify(&context.world, &self.0).ok()?;
        Some((marker.cluster, marker.unit))
    }

    fn open(&self, context: &HostContext, unit: UnitId) -> Arc<dyn Unit> {
        Arc::new(self.unit(context, unit))
    }

    fn make(&self, context: &HostContext, unit: UnitId) -> Result<Arc<dyn Unit>, UnitError> {
        Ok(Arc::new(self.unit(context, unit).created()?))
    }

    fn folder(&self) -> Option<&Path> {
        Some(&self.0)
    }
}
