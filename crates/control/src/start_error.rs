//! Why a controller does not start, with what an operator can do about it.

use std::io;
use std::path::PathBuf;

use crate::authority::AuthorityFileError;
use crate::database::DatabaseError;
use crate::folder::FolderError;

/// Why a controller does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The data directory cannot be used.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The database cannot be used.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// There is no authority to sign users and hosts.
    #[error(transparent)]
    Authority(#[from] AuthorityFileError),
    /// The data directory is a copy.
    #[error(
        "{folder} is a copy of {was}; two copies that are served destroy \
         each other's data on the units. Serve the original; or, if that is lost for good, start \
         this one once with `--restored-database`",
        folder = folder.display(),
        was = was.display()
    )]
    Copied {
        /// The data directory.
        folder: PathBuf,
        /// The location it was served from before.
        was: PathBuf,
    },
    /// The data directory is another folder than before, at the same path.
    #[error(
        "{folder} was created again since its database was last served, so it may be a copy; two \
         copies that are served destroy each other's data on the units. Serve the other one, \
         if there is one; or, if that is lost for good, start this one once with \
         `--restored-database`",
        folder = folder.display()
    )]
    Renewed {
        /// The data directory.
        folder: PathBuf,
    },
    /// The database has another location than before: it is a copy.
    #[error(
        "the database was served as {was}, and is {is} now: it is a copy (a dump that was \
         restored, or one made from a template), or its server was created again (pg_upgrade); two \
         copies that are served destroy each other's data on the units. Serve the original; or, if \
         that is gone for good, stop every controller and start this one once with \
         --restored-database"
    )]
    Moved {
        /// The location it was served from before.
        was: String,
        /// The location it is served from now.
        is: String,
    },
    /// The location of the data directory cannot be determined.
    #[error("cannot read the birth time of {folder}: {source}", folder = folder.display())]
    Place {
        /// The data directory.
        folder: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
}
