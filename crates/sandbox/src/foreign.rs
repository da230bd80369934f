//! Programs that are not Scree's: any that is an NBD server, and an NBD client of what lies
//! below it. The host's operator says which there are, in a folder of files:
//!
//! ```toml
//! # D/filter-programs/readahead.toml
//! command = ["nbdkit", "-f", "-U", "{socket}", "--filter=readahead", "nbd", "socket={below}", "export=disk"]
//! export = "disk"
//! ```

use std::path::Path;

use serde::Deserialize;
use world::{Disk, host};

/// A longer file is none, in bytes.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// What a command says for the socket that the program makes, and for the one that it asks by.
const SOCKET: &str = "{socket}";
const BELOW: &str = "{below}";

/// Why there is no such program.
#[derive(Debug, thiserror::Error)]
pub enum ForeignError {
    /// There is no file of its name.
    #[error("there is no program {0} here; the host's operator says which there are")]
    None(String),
    /// It cannot be read.
    #[error("the host's description of the program {name:?} cannot be read")]
    File {
        /// Which.
        name: String,
        /// Why.
        source: std::io::Error,
    },
    /// It makes no sense.
    #[error("the host's description of the program {name:?} makes no sense: {reason}")]
    Form {
        /// Which.
        name: String,
        /// What is wrong.
        reason: String,
    },
}

/// A program.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Foreign {
    command: Vec<String>,
    /// What it calls the disk that it serves.
    #[serde(default)]
    pub export: String,
}

impl Foreign {
    /// Reads the file of `name` in a folder.
    ///
    /// # Errors
    /// [`ForeignError`].
    pub fn read(disk: &dyn Disk, folder: &Path, name: &str) -> Result<Self, ForeignError> {
        let path = folder.join(format!("{name}.toml"));
        let bytes = match host::read_small(disk, &path, FILE_BYTES_MAX) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(ForeignError::None(name.to_owned()));
            }
            Err(source) => {
                let name = name.to_owned();
                return Err(ForeignError::File { name, source });
            }
        };
        let wrong = |reason: String| ForeignError::Form {
            name: name.to_owned(),
            reason,
        };
        let text = str::from_utf8(&bytes).map_err(|error| wrong(error.to_string()))?;
        let read: Self = toml::from_str(text).map_err(|error| wrong(error.to_string()))?;
        let says = |what| read.command.iter().any(|word| word.contains(what));
        if !says(SOCKET) || !says(BELOW) {
            return Err(wrong(format!(
                "its command has to say {SOCKET} and {BELOW}, where it makes its socket and where \
                 it asks"
            )));
        }
        Ok(read)
    }

    /// The command, with the sockets' places.
    #[must_use]
    pub fn command(&self, socket: &Path, below: &Path) -> Vec<String> {
        let (socket, below) = (socket.display().to_string(), below.display().to_string());
        let filled = |word: &String| word.replace(SOCKET, &socket).replace(BELOW, &below);
        self.command.iter().map(filled).collect()
    }
}
