//! Places where encryption could run; each is opened with and without it.
//!
//! | place | plain | encrypted | whose CPU time |
//! |---|---|---|---|
//! | `guest-block` | ext4 on a device | ext4 on dm-crypt on it | all of the machine's |
//! | `guest-stackable` | a folder | gocryptfs, by FUSE, above it | this process, gocryptfs |
//! | `filter` | an unencrypted volume | the same behind an `encrypt` filter | the agent's |
//! | `agent` | an unencrypted volume | an encrypted one | the agent's |
//!
//! An opened place is closed on drop as far as possible: what is still in use goes when its user
//! ends. Names that are global on a machine contain this process's id, so that two processes do not
//! conflict.

mod block;
mod folder;
mod programs;
mod stackable;
mod volumes;

pub(crate) use folder::FolderOpened;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::measure::{Cipher, MeasureError, Meter, Stop, Surface};

/// The kind of a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PlaceKind {
    /// In the guest's kernel, below its file systems: dm-crypt. The paper's block CFS.
    GuestBlock,
    /// In the guest, above its file systems: gocryptfs. The paper's stackable CFS.
    GuestStackable,
    /// In a filter between the machine and its volume.
    Filter,
    /// In the agent, which seals blocks on units.
    Agent,
}

impl PlaceKind {
    /// All of them.
    pub const ALL: [Self; 4] = [
        Self::GuestBlock,
        Self::GuestStackable,
        Self::Filter,
        Self::Agent,
    ];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::GuestBlock => "guest-block",
            Self::GuestStackable => "guest-stackable",
            Self::Filter => "filter",
            Self::Agent => "agent",
        }
    }

    /// Whether its CPU time is that of the machine that uses the disk, not of its host.
    #[must_use]
    pub const fn is_in_guest(self) -> bool {
        matches!(self, Self::GuestBlock | Self::GuestStackable)
    }

    /// The supported ciphers; the first one is the default.
    #[must_use]
    pub const fn ciphers(self) -> &'static [Cipher] {
        match self {
            Self::GuestBlock => &[
                Cipher::Aes256Xts,
                Cipher::Aes128Xts,
                Cipher::Aes256Cbc,
                Cipher::Aes128Cbc,
            ],
            Self::GuestStackable => &[Cipher::Aes256Gcm, Cipher::ChaCha20Poly1305],
            Self::Filter => &[Cipher::Aes256Xts],
            Self::Agent => &[Cipher::Aes256Gcm],
        }
    }
}

impl std::fmt::Display for PlaceKind {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(self.name())
    }
}

/// What places need.
#[derive(Debug, Clone)]
pub struct Settings {
    /// A folder for temporary files, which is removed at the end.
    pub folder: PathBuf,
    /// A block device for `guest-block`; its content is lost.
    pub device: Option<PathBuf>,
    /// Path of the program `scree`.
    pub scree: PathBuf,
    /// The largest data of a work, in bytes: the size of volumes.
    pub bytes_max: u64,
    /// Stops the preparation of a place.
    pub stop: Stop,
}

/// An open place.
pub trait Opened {
    /// Where work is done.
    fn surface(&self) -> &Surface;

    /// The meter of the CPU time that counts.
    fn meter(&self) -> Meter;

    /// The folders, of all layers, whose files may be in memory.
    fn folders(&self) -> Vec<&Path> {
        match self.surface() {
            Surface::Folder(folder) => vec![folder],
            Surface::Export { .. } => Vec::new(),
        }
    }

    /// A folder of unencrypted files, if the surface has none: it shows the effect of memory on the
    /// user of the disk.
    fn plain_folder(&self) -> Option<&Path> {
        None
    }

    /// Waits until all background work is done.
    ///
    /// # Errors
    /// If that fails.
    fn settle(&mut self) -> Result<(), MeasureError>;

    /// Closes the place.
    ///
    /// # Errors
    /// If something remains.
    fn close(self: Box<Self>) -> Result<(), MeasureError>;
}

/// A place on this machine.
pub trait Place {
    /// Opens the place, with a cipher or without encryption. It can be open only once.
    ///
    /// # Errors
    /// If this machine does not support it.
    fn open(&mut self, cipher: Option<Cipher>) -> Result<Box<dyn Opened>, MeasureError>;
}

/// Prepares a place.
///
/// # Errors
/// If this machine is missing something that it needs; the error names it.
pub fn place(kind: PlaceKind, settings: &Settings) -> Result<Box<dyn Place>, MeasureError> {
    Ok(match kind {
        PlaceKind::GuestBlock => Box::new(block::BlockPlace::new(settings)?),
        PlaceKind::GuestStackable => Box::new(stackable::StackablePlace::new(settings)?),
        PlaceKind::Filter | PlaceKind::Agent => {
            Box::new(volumes::VolumePlace::new(kind, settings)?)
        }
    })
}
