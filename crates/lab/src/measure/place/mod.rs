//! Where encryption could run: each place is opened with it and without.
//!
//! | place | plain | encrypted | whose CPU time |
//! |---|---|---|---|
//! | `guest-block` | ext4 on a device | ext4 on dm-crypt on it | all of the machine's |
//! | `guest-stackable` | a folder | gocryptfs, by FUSE, above it | this process, gocryptfs |
//! | `filter` | a volume, not sealed | the same behind an `encrypt` filter | the agent's |
//! | `agent` | a volume, not sealed | a sealed one | the agent's |
//!
//! What is opened is closed when it is dropped, as well as can be: what is still in use then goes
//! when that ends. Names that all of a machine shares have this process's number, so two of it
//! do not meet.

mod block;
mod folder;
mod programs;
mod stackable;
mod volumes;

pub(crate) use folder::FolderOpened;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::measure::{Cipher, MeasureError, Meter, Stop, Surface};

/// A place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PlaceKind {
    /// In the guest's kernel, below its file systems: dm-crypt. The paper's block CFS.
    GuestBlock,
    /// In the guest, above its file systems: gocryptfs. The paper's stackable CFS.
    GuestStackable,
    /// In a filter between the machine and its volume.
    Filter,
    /// In the agent, as what lies on units is sealed.
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

    /// Its CPU time is that of the machine that uses the disk, and not of its host.
    #[must_use]
    pub const fn is_in_guest(self) -> bool {
        matches!(self, Self::GuestBlock | Self::GuestStackable)
    }

    /// What it can encrypt with; the first one if nothing is said.
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
    /// A folder that is made for what they keep; it is removed in the end.
    pub folder: PathBuf,
    /// A block device whose content is lost, of `guest-block`.
    pub device: Option<PathBuf>,
    /// This program.
    pub scree: PathBuf,
    /// No work needs more, in bytes: how large volumes are.
    pub bytes_max: u64,
    /// May have it end while a place is made ready.
    pub stop: Stop,
}

/// A place that work is done in.
pub trait Opened {
    /// Where to do it.
    fn surface(&self) -> &Surface;

    /// Whose CPU time counts.
    fn meter(&self) -> Meter;

    /// The folders whose files memory may have, of all layers.
    fn folders(&self) -> Vec<&Path> {
        match self.surface() {
            Surface::Folder(folder) => vec![folder],
            Surface::Export { .. } => Vec::new(),
        }
    }

    /// A folder of plain files of this machine, where the surface has none: what memory does for
    /// whoever uses the disk is found by that.
    fn plain_folder(&self) -> Option<&Path> {
        None
    }

    /// Waits until nothing that was asked for is still to be done.
    ///
    /// # Errors
    /// If that fails.
    fn settle(&mut self) -> Result<(), MeasureError>;

    /// Closes it.
    ///
    /// # Errors
    /// If something of it stays.
    fn close(self: Box<Self>) -> Result<(), MeasureError>;
}

/// A place of this machine.
pub trait Place {
    /// Opens it, with a cipher or without encryption. One is open at a time.
    ///
    /// # Errors
    /// If it cannot be had here.
    fn open(&mut self, cipher: Option<Cipher>) -> Result<Box<dyn Opened>, MeasureError>;
}

/// Makes a place ready.
///
/// # Errors
/// If this machine lacks what it needs, with what that is.
pub fn place(kind: PlaceKind, settings: &Settings) -> Result<Box<dyn Place>, MeasureError> {
    Ok(match kind {
        PlaceKind::GuestBlock => Box::new(block::BlockPlace::new(settings)?),
        PlaceKind::GuestStackable => Box::new(stackable::StackablePlace::new(settings)?),
        PlaceKind::Filter | PlaceKind::Agent => {
            Box::new(volumes::VolumePlace::new(kind, settings)?)
        }
    })
}
