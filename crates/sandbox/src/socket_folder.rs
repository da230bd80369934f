//! [`SocketFolder`]: the folder in which an external program creates its socket.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// The folder of all sockets of external programs. As root it is not in the agent's data
/// directory, which the users of filters cannot enter.
#[must_use]
pub fn sockets_folder(data_directory: &Path) -> PathBuf {
    match rustix::process::geteuid().is_root() {
        true => PathBuf::from("/run/scree-filters"),
        false => data_directory.join("filter-run"),
    }
}

/// A folder that only one process can enter. Dropping it removes the folder.
pub(crate) struct SocketFolder(PathBuf);

impl SocketFolder {
    /// Creates a folder for `user` below `parent`. Others can enter `parent` and not list it.
    pub fn make(parent: &Path, user: Option<u32>) -> io::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let own = parent.join(format!("{}-{number}", std::process::id()));
        make(parent, 0o711, true)?;
        allow_entry(parent)?;
        // An earlier process with the same number may have left its folder.
        remove(&own);
        make(&own, 0o700, false)?;
        let made = Self(own);
        if let Some(user) = user {
            chown(&made.0, Some(user), Some(user))?;
        }
        Ok(made)
    }

    /// The path of the folder.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for SocketFolder {
    fn drop(&mut self) {
        remove(&self.0);
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "sockets of external programs are never simulated"
)]
fn make(folder: &Path, mode: u32, parents: bool) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.mode(mode).recursive(parents).create(folder)
}

/// Lets the users of filters enter a folder, whatever the umask is.
#[expect(
    clippy::disallowed_methods,
    reason = "sockets of external programs are never simulated"
)]
fn allow_entry(folder: &Path) -> io::Result<()> {
    fs::set_permissions(folder, Permissions::from_mode(0o711))
}

#[expect(
    clippy::disallowed_methods,
    reason = "sockets of external programs are never simulated"
)]
fn remove(folder: &Path) {
    if let Err(error) = fs::remove_dir_all(folder)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(%error, folder = %folder.display(), "agent cannot remove folder of sockets");
    }
}
