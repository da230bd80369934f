//! [`ExternalFilter`]: a program that is not part of Scree and works as a filter. It is an NBD
//! server for the chain, and an NBD client of the disk below. The host's operator describes each
//! program in a file:
//!
//! ```toml
//! # <data>/filter-programs/readahead.toml
//! command = ["nbdkit", "-f", "-U", "{socket}", "--filter=readahead",
//!            "nbd", "socket={below}", "export=disk"]
//! export = "disk"
//! ```

use std::path::Path;

use serde::Deserialize;
use world::{Disk, host};

/// The maximal length of a description, in bytes.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// The placeholder in a command for the path of the socket that the program creates.
const SOCKET: &str = "{socket}";
/// The placeholder in a command for the path of the socket of the disk below.
const BELOW: &str = "{below}";

/// Why an external program cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ExternalFilterError {
    /// There is no description with this name.
    #[error(
        "this host has no program {0} for filters; its operator describes it in \
         filter-programs/{0}.toml of the agent's data directory, or in programs/{0}.toml of \
         --filter-dir"
    )]
    Missing(String),
    /// The description cannot be read.
    #[error("cannot read {name}.toml, this host's description of the program {name:?}")]
    File {
        /// The program's name.
        name: String,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// The description is invalid.
    #[error("{name}.toml, this host's description of the program {name:?}, is invalid: {reason}")]
    Invalid {
        /// The program's name.
        name: String,
        /// What is wrong.
        reason: String,
    },
}

/// The description of an external program.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExternalFilter {
    command: Vec<String>,
    /// The name of the export that the program serves.
    #[serde(default)]
    pub export: String,
}

impl ExternalFilter {
    /// Reads the description of the program `name` in a folder.
    ///
    /// # Errors
    /// [`ExternalFilterError`].
    pub fn read(disk: &dyn Disk, folder: &Path, name: &str) -> Result<Self, ExternalFilterError> {
        let path = folder.join(format!("{name}.toml"));
        let bytes = match host::read_small(disk, &path, FILE_BYTES_MAX) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(ExternalFilterError::Missing(name.to_owned()));
            }
            Err(source) => {
                let name = name.to_owned();
                return Err(ExternalFilterError::File { name, source });
            }
        };
        let wrong = |reason: String| ExternalFilterError::Invalid {
            name: name.to_owned(),
            reason,
        };
        let text = str::from_utf8(&bytes).map_err(|error| wrong(error.to_string()))?;
        let read: Self = toml::from_str(text).map_err(|error| wrong(error.to_string()))?;
        let contains = |what| read.command.iter().any(|word| word.contains(what));
        if !contains(SOCKET) || !contains(BELOW) {
            return Err(wrong(format!(
                "command has to contain {SOCKET}, the socket that the program creates, and \
                 {BELOW}, the socket of the disk below"
            )));
        }
        Ok(read)
    }

    /// The command and its arguments, with the paths of the sockets.
    #[must_use]
    pub fn command(&self, socket: &Path, below: &Path) -> Vec<String> {
        let (socket, below) = (socket.display().to_string(), below.display().to_string());
        let filled = |word: &String| word.replace(SOCKET, &socket).replace(BELOW, &below);
        self.command.iter().map(filled).collect()
    }
}
