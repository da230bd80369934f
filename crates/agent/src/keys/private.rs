//! Small files that only their owner may read: keys, passphrases, tokens.

use std::io;
use std::path::{Path, PathBuf};

use world::{World, host};
use zeroize::Zeroizing;

/// The largest file, in bytes.
const FILE_BYTES_MAX: u64 = 4096;

/// Why a private file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PrivateFileError {
    /// The file cannot be read.
    #[error("cannot read {path}; if it is a key, copy it from a host that has it, or restore it \
             from a backup", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// Users other than the owner can read the file.
    #[error("{path} can be read by others (mode {mode:03o}); run `chmod 600 {path}`, and treat \
             its content as compromised", path = path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The mode of the file.
        mode: u32,
    },
    /// The file is not text.
    #[error("{path} is not text; is it the right file?", path = path.display())]
    NotText {
        /// The file.
        path: PathBuf,
    },
    /// The first line of the file is empty or missing.
    #[error("the first line of {path} is empty; it should hold the {what}", path = path.display())]
    Empty {
        /// The file.
        path: PathBuf,
        /// What the line should hold.
        what: &'static str,
    },
}

/// Reads a small file that only its owner can read.
pub(super) fn read(world: &World, path: &Path) -> Result<Zeroizing<Vec<u8>>, PrivateFileError> {
    let failed = |source| PrivateFileError::Read {
        path: path.to_owned(),
        source,
    };
    if let Some(mode) = host::mode_for_others(path).map_err(failed)? {
        let path = path.to_owned();
        return Err(PrivateFileError::Open { path, mode });
    }
    host::read_small(&*world.disk, path, FILE_BYTES_MAX).map_err(failed)
}

/// Reads a small text file that only its owner can read.
pub(super) fn read_text(world: &World, path: &Path) -> Result<Zeroizing<String>, PrivateFileError> {
    let content = read(world, path)?;
    match std::str::from_utf8(&content) {
        Ok(text) => Ok(Zeroizing::new(text.to_owned())),
        Err(_) => Err(PrivateFileError::NotText {
            path: path.to_owned(),
        }),
    }
}

/// Reads the first line of such a file, which must not be empty; `what` describes it in errors.
pub(crate) fn read_line(
    world: &World,
    path: &Path,
    what: &'static str,
) -> Result<Zeroizing<String>, PrivateFileError> {
    let text = read_text(world, path)?;
    let line = text.lines().next().unwrap_or_default();
    if line.is_empty() {
        return Err(PrivateFileError::Empty {
            path: path.to_owned(),
            what,
        });
    }
    Ok(Zeroizing::new(line.to_owned()))
}
