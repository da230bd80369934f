//! The limit on open files of this process.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit on open files of this process as far as the system allows. The usual limit of
/// 1024 exists for programs that use `select`. Returns the new limit; `None` if there is none.
///
/// # Errors
/// The operating system's; the limit is unchanged then.
pub fn raise_open_files() -> io::Result<Option<u64>> {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: maximum,
            maximum,
        },
    )?;
    Ok(maximum)
}

/// The limit on open files of this process; `None` if there is none.
pub(super) fn open_files_max() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}
