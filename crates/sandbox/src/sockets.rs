//! [`SocketFolder`]: where a program that is not Scree's makes its socket.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// Where all sockets of programs are: users of filters have to get there, which they do not
/// below a folder of the agent's own.
#[must_use]
pub fn sockets_folder(agents: &Path) -> PathBuf {
    match rustix::process::geteuid().is_root() {
        true => PathBuf::from("/run/scree-filters"),
        false => agents.join("filter-run"),
    }
}

/// A folder of one process, which nobody else looks into; it goes with this.
pub(crate) struct SocketFolder(PathBuf);

impl SocketFolder {
    /// Makes one below `parent`, which others may pass through and not read.
    pub fn make(parent: &Path, user: Option<u32>) -> io::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let own = parent.join(format!("{}-{number}", std::process::id()));
        make(parent, 0o711, true)?;
        let_through(parent)?;
        // What a process of the same number has left.
        remove(&own);
        make(&own, 0o700, false)?;
        let made = Self(own);
        if let Some(user) = user {
            chown(&made.0, Some(user), Some(user))?;
        }
        Ok(made)
    }

    /// Where it is.
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
    reason = "sockets of processes are none of a simulator's"
)]
fn make(folder: &Path, mode: u32, parents: bool) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.mode(mode).recursive(parents).create(folder)
}

/// Whatever the umask says, users of filters pass through it.
#[expect(
    clippy::disallowed_methods,
    reason = "sockets of processes are none of a simulator's"
)]
fn let_through(folder: &Path) -> io::Result<()> {
    fs::set_permissions(folder, Permissions::from_mode(0o711))
}

#[expect(
    clippy::disallowed_methods,
    reason = "sockets of processes are none of a simulator's"
)]
fn remove(folder: &Path) {
    if let Err(error) = fs::remove_dir_all(folder)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(%error, folder = %folder.display(), "a folder of sockets is left");
    }
}
