//! What this process may use of its machine.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Lets this process have as many files open as the system allows it: the
/// usual limit of 1024 is there for programs that still use `select`. Returns
/// how many that are; `None` if nothing bounds it.
///
/// # Errors
/// As the operating system says; the limit is then as it was.
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

/// How many files this process may have open; `None` if nothing bounds it.
pub(super) fn open_files_max() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}
